"""Measures the noise of K* from best points that were trained again under new seeds.

Two noises add up in K*. Repeats show the noise of training: the same metaparameters,
other initial weights and other orders of examples. Whole studies under other seeds show
the noise of searching (`noise_of_search`), which draw other points as well and take the
least. As K* is a minimum over trials, the best point looks better than it is: the
optimism of the minimum is the median of the repeats over K*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from dps_tf.analysis.tables import cell_codes, cell_name, curve_key, study_key
from dps_tf.core import repeated_seed

RESULT = ["outcome", "steps_to_result", "bracket_low", "earliest", "latest"]
LEAST_REPEATS = 3
"""Fewest repeats of a point that give a standard deviation."""
STATED_NOISE = (0.11, 0.4)
"""Range of the noise of K* in studies of this package, in octaves: from seeds (0.16,
0.11 to 0.26), from spacings (0.26 to 0.34), with four tuned metaparameters (0.4)."""

Point = dict[str, float]


@dataclass(frozen=True)
class StudyNoise:
    """The standard deviation of log2 K* from search to search, in octaves.

    Attributes:
        value: NaN where only a range is stated.
        low: lower end of its 95 % interval.
        high: upper end.
        source: what it was estimated from.
    """

    value: float
    low: float
    high: float
    source: str


def repeats_of(
    bounded: pd.DataFrame, points: Mapping[str, list[Point]], trials: pd.DataFrame
) -> pd.DataFrame:
    """Returns one row per repeat, under the cell and trial whose point was repeated.

    Repeats of points that are not, or no longer, trials of the sweep are left out.

    Columns: `study_key` of the trials, which may have a label, and what
    `tables.entries("repeats")` describes.

    Args:
        bounded: trials of the repeats' own studies, with `earliest` and `latest`.
        points: the point that each trial of these studies repeats, by name of the cell.
        trials: trials of the sweep itself.
    """
    records = []
    names = study_key(trials)
    for _, group in bounded.groupby(study_key(bounded), sort=False):
        rows: list[dict[Any, Any]] = group.to_dict("records")
        repeated = points[cell_name(rows[0])]
        original = _original(rows[0], repeated, trials)
        if original is None:
            continue
        for row in rows:
            number = int(row["trial"])
            trial = _trial(original, repeated[number])
            if trial is not None:
                identity = {name: original[name].iloc[0] for name in names}
                result = {name: row[name] for name in RESULT}
                before = repeated[:number].count(repeated[number])
                records.append({**identity, "trial": trial, "repeat": before, **result})
    frame = pd.DataFrame(records, columns=[*names, "trial", "repeat", *RESULT])
    whole = ["steps_to_result", "bracket_low"]
    return frame.astype({name: "Int64" for name in whole})


def _original(
    cell: Mapping[Any, Any], points: list[Point], trials: pd.DataFrame
) -> pd.DataFrame | None:
    """Returns the trials of the cell whose points were repeated under other seeds."""
    alike = np.ones(len(trials), bool)
    # Labels and the axes of other sweeps stand in the trials only: within one sweep no
    # two cells differ in these alone.
    for name in study_key(trials):
        if name != "seed" and name in cell:
            alike &= (trials[name] == cell[name]).to_numpy(bool)
    for _, cell_trials in trials[alike].groupby("seed", sort=False):
        if repeated_seed(int(cell_trials["seed"].iloc[0]), points) == int(cell["seed"]):
            return cell_trials
    return None


def _trial(trials: pd.DataFrame, point: Point) -> int | None:
    same = np.ones(len(trials), bool)
    for name, value in point.items():
        same &= (trials[name] == value).to_numpy(bool)
    return int(trials["trial"].to_numpy()[same][0]) if same.any() else None


def summary(repeats: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per repeated point, the best of each cell first.

    Columns: `study_key`, trial, is_best, recorded (K* for the best point, NaN for
    others), repeats, reached, median, least, greatest, optimism (median / K* of the
    best point), and noise (standard deviation of log2 steps in octaves). Steps are
    infinite where a repeat is not known to have reached the goal. Noise is NaN unless
    there are LEAST_REPEATS repeats or more, which all reached the goal.
    """
    rows = []
    names = study_key(results)
    cells: list[dict[Any, Any]] = results.to_dict("records")
    placed = repeats.assign(cell=cell_codes(repeats, results))
    for _, group in placed.groupby(["cell", "trial"], sort=False):
        cell = cells[int(group["cell"].iloc[0])]
        trial = int(group["trial"].iloc[0])
        steps = group["latest"].to_numpy(np.float64)
        has_noise = np.isfinite(steps).all() and len(steps) >= LEAST_REPEATS
        is_best = bool(pd.notna(cell["best_trial"]) and cell["best_trial"] == trial)
        k_star = float(cell["steps_to_result"]) if is_best else np.nan
        rows.append(
            {
                **{name: cell[name] for name in names},
                "trial": trial,
                "is_best": is_best,
                "recorded": k_star,
                "repeats": len(steps),
                "reached": int(np.isfinite(steps).sum()),
                "median": float(np.median(steps)),
                "least": float(steps.min()),
                "greatest": float(steps.max()),
                "optimism": float(np.median(steps)) / k_star,
                "noise": float(np.std(np.log2(steps), ddof=1)) if has_noise else np.nan,
            }
        )
    columns = [*names, "trial", "is_best", "recorded", "repeats", "reached"]
    columns += ["median", "least", "greatest", "optimism", "noise"]
    frame = pd.DataFrame(rows, columns=columns)
    order = [*names, "is_best", "trial"]
    ascending = [name != "is_best" for name in order]
    return frame.sort_values(order, ascending=ascending, ignore_index=True)


def pooled_noise(summarized: pd.DataFrame) -> float:
    """Returns the standard deviation of log2 steps within points, in octaves.

    Pooled over all points with a `noise`, weighted by their degrees of freedom; NaN
    without one.
    """
    measured = summarized[summarized["noise"].notna()]
    if measured.empty:
        return float("nan")
    freedom = measured["repeats"].to_numpy(np.float64) - 1
    variance = measured["noise"].to_numpy(np.float64) ** 2
    return float(np.sqrt(np.average(variance, weights=freedom)))


def noise_of_search(results: pd.DataFrame) -> tuple[float, float]:
    """Returns the scatter of K* over study seeds, and the share common to batch sizes.

    The first value is the standard deviation of log2 K* in octaves, pooled over cells.
    The second is its intraclass correlation between the batch sizes of a curve: trials
    of one number have the same points and seeds at each of them, so that this share of
    the noise moves c1 and c2 together. Both are NaN where no cell was studied under two
    seeds, the second also for single batch sizes. Bounds are left out, and with them
    the seeds or batch sizes that lack a K*.
    """
    exact = results[(results["steps_bound"] == "") & (results["steps_to_result"] > 0)]
    keys = [name for name in [*curve_key(results), "goal"] if name != "seed"]
    own = shared = np.zeros(2)
    for _, curve in exact.groupby(keys):
        steps = curve.pivot(
            index="seed", columns="batch_size", values="steps_to_result"
        )
        logs = np.log2(steps.dropna(axis=1).to_numpy(np.float64))
        seeds, sizes = logs.shape
        off = logs - logs.mean(axis=0) if sizes else logs
        square, together = (off**2).sum(), (off.sum(axis=1) ** 2).sum()
        freedom = (seeds - 1) * sizes
        own = own + (square, freedom)
        shared = shared + (together - square, freedom * (sizes - 1))
    if not own[1]:
        return float("nan"), float("nan")
    variance = own[0] / own[1]
    is_estimable = shared[1] > 0 and variance > 0
    share = shared[0] / shared[1] / variance if is_estimable else float("nan")
    return float(np.sqrt(variance)), float(share)


def noise_of_study(results: pd.DataFrame, bounded: pd.DataFrame) -> StudyNoise:
    """Returns the noise of one K* of a study, from its own seeds or finishers.

    With several seeds, the noise is the standard deviation of log2 K* within cells.
    With one, it is estimated from the spacings of the first three finishers. If the
    lower tail of log K is exponential, so are i (x_(i+1) - x_(i)) of the ordered
    logarithms, all with one mean. The standard deviation of the least logarithm is
    pi / sqrt(6) times that mean (Gumbel; Weissman 1978). Rounding to evaluations
    shrinks spacings. Without finishers, the range STATED_NOISE of other studies is
    returned.

    Args:
        results: one row per cell, as of `reduce.results`.
        bounded: the trials, with `latest`.
    """
    exact = results[(results["steps_bound"] == "") & (results["steps_to_result"] > 0)]
    keys = [name for name in [*study_key(results), "goal"] if name != "seed"]
    steps = exact["steps_to_result"].astype("Float64").to_numpy(np.float64)
    logs = pd.Series(np.log2(steps), exact.index)
    cells = logs.groupby([exact[name] for name in keys])
    freedom = len(exact) - cells.ngroups
    if freedom:
        square = float(((logs - cells.transform("mean")) ** 2).sum())
        low, high = np.sqrt(square / stats.chi2.ppf([0.975, 0.025], freedom))
        source = f"studies under several seeds, {freedom} degrees of freedom"
        return StudyNoise(np.sqrt(square / freedom), low, high, source)
    reached = bounded[np.isfinite(bounded["latest"]) & (bounded["latest"] > 0)]
    spacings: list[float] = []
    for _, cell_trials in reached.groupby(study_key(bounded), dropna=False):
        first = np.sort(np.log2(cell_trials["latest"].to_numpy(np.float64)))[:3]
        spacings += list(np.diff(first) * np.arange(1, len(first)))
    total, number = sum(spacings), len(spacings)
    if number and total > 0:
        gumbel = np.pi / np.sqrt(6)
        low, high = gumbel * 2 * total / stats.chi2.ppf([0.975, 0.025], 2 * number)
        source = f"{number} spacings of first finishers, under a Gumbel tail"
        return StudyNoise(gumbel * total / number, low, high, source)
    return StudyNoise(float("nan"), *STATED_NOISE, "no seeds and no finishers: stated")
