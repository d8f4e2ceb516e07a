"""Whether a rule for the learning rate would have found what the search found.

The effective learning rate is lr / (1 - momentum). The linear rule multiplies it by
B/B0 from its best value at an anchor batch size B0, the square-root rule by sqrt(B/B0).
What K* a rule would have given is read off the measured trial that is nearest to the
rule's rate; nothing is trained.

Source: Shallue et al. 2019, Figure 8 and published notebook, anchored there at the
smallest batch size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import (
    BOUNDS,
    Floats,
    cell_codes,
    curve_key,
    require,
    study_key,
)
from dps_tf.core import UserError

RULES = {"linear": 1.0, "square_root": 0.5}
"""Power of B/B0 by which a rule multiplies the rate."""
WITHIN = 0.1
"""Share of K* within which a trial counts as good as the best one."""
DISTANCE = 0.5
"""Octaves between a rule's rate and the nearest trial's, beyond which there is none."""


def effective_learning_rate(trials: pd.DataFrame) -> Floats:
    """Returns lr / (1 - momentum) of each trial; lr where it has no momentum.

    A momentum that was not tuned is not in the table, and then is a constant factor.
    """
    require(trials, ["learning_rate"], "trials")
    rate = trials["learning_rate"].to_numpy(np.float64)
    if "momentum" not in trials.columns:
        return rate
    momentum = np.nan_to_num(trials["momentum"].to_numpy(np.float64), nan=0.0)
    return np.asarray(rate / (1.0 - momentum), np.float64)


def _trials_of_cells(studies: pd.DataFrame, trials: pd.DataFrame) -> list[pd.DataFrame]:
    """Returns the trials of each cell in their order, with their effective `rate`."""
    require(trials, BOUNDS, "trials (see with_bounds)")
    codes = cell_codes(trials, studies)
    order = np.lexsort((trials["trial"].to_numpy(np.int64), codes))
    ordered = trials.assign(rate=effective_learning_rate(trials)).iloc[order]
    edges = np.searchsorted(codes[order], np.arange(1, len(studies)))
    return [ordered.iloc[rows] for rows in np.split(np.arange(len(trials)), edges)]


def _best_of(trials: pd.DataFrame) -> pd.Series | None:
    """Returns the first trial in the order (latest, trial), or None if none reached."""
    latest = trials["latest"].to_numpy(np.float64)
    if not np.isfinite(latest).any():
        return None
    return trials.iloc[int(np.argmin(latest))]


def best_rates(
    studies: pd.DataFrame, trials: pd.DataFrame, within: float = WITHIN
) -> pd.DataFrame:
    """Returns the best effective learning rate of each cell, with its spread.

    Columns: those of `study_key`, steps_to_result, effective_learning_rate (of the best
    trial), effective_low and effective_high (over the trials known to have reached the
    goal by (1 + within) K*), trials_within (their number), spread_open (whether trials
    that were stopped, or are known by bounds only, might belong to them too). NaN where
    nobody reached the goal. Trials have the bounds of `reduce.with_bounds`; `within` is
    a share of K*.
    """
    rows = []
    for mine in _trials_of_cells(studies, trials):
        best = _best_of(mine)
        if best is None:
            rows.append((np.nan, np.nan, np.nan, np.nan, 0, False))
            continue
        limit = (1 + within) * best["latest"]
        good = mine["latest"] <= limit
        rates = mine.loc[good, "rate"].to_numpy(np.float64)
        may_be = (mine["earliest"] <= limit) & ~good
        rows.append(
            (
                best["latest"],
                best["rate"],
                rates.min(),
                rates.max(),
                int(good.sum()),
                bool(may_be.any()),
            )
        )
    names = ["steps_to_result", "effective_learning_rate", "effective_low"]
    names += ["effective_high", "trials_within", "spread_open"]
    found = pd.DataFrame(rows, columns=names)
    return pd.concat(
        [studies[study_key(studies)].reset_index(drop=True), found], axis=1
    )


def rules(
    studies: pd.DataFrame, trials: pd.DataFrame, anchor: int | None = None
) -> pd.DataFrame:
    """Returns what each rule would have given, one row per cell and rule.

    Columns: those of `study_key`, rule, anchor (batch size), rule_rate, nearest_trial,
    outcome (of the nearest trial), steps_to_result (of that trial; NA if it did not
    reach the goal), steps_bound (what is known of a trial that was stopped), over_best
    (steps_to_result / K* of the cell). The columns of the trial are NA where none lies
    within DISTANCE. Curves without K* at the anchor are left out. The anchor is by
    default the smallest batch size of each curve with a K*; trials have the bounds of
    `reduce.with_bounds`.

    Raises:
        UserError: no curve has a K* at the anchor.
    """
    of_cells = _trials_of_cells(studies, trials)
    best = [_best_of(mine) for mine in of_cells]
    batch = studies["batch_size"].to_numpy(np.int64)
    keys: list[dict[Any, Any]] = studies[study_key(studies)].to_dict("records")
    rows = []
    curves = studies.reset_index(drop=True).groupby(curve_key(studies), sort=False)
    for _, curve in curves:
        cells = curve.sort_values("batch_size", kind="stable").index.tolist()
        known = [c for c in cells if best[c] is not None and anchor in (None, batch[c])]
        if not known:
            continue
        start = best[known[0]]
        assert start is not None
        for cell in cells:
            for rule, power in RULES.items():
                growth = float(batch[cell] / batch[known[0]]) ** power
                wanted = float(start["rate"]) * growth
                found = _nearest(of_cells[cell], wanted)
                rows.append(
                    {
                        **keys[cell],
                        "rule": rule,
                        "anchor": int(batch[known[0]]),
                        "rule_rate": wanted,
                        **found,
                        "over_best": _over_best(found["steps_to_result"], best[cell]),
                    }
                )
    if not rows:
        raise UserError(
            f"no curve has a steps-to-result at the anchor batch size {anchor}: choose "
            "one that has."
        )
    return pd.DataFrame(rows).astype(
        {"nearest_trial": "Int64", "steps_to_result": "Int64"}
    )


def _nearest(trials: pd.DataFrame, wanted: float) -> dict[str, object]:
    """Returns what is known of the trial of the nearest rate, if it is near enough."""
    octaves = np.abs(np.log2(trials["rate"].to_numpy(np.float64) / wanted))
    place = int(np.argmin(octaves)) if len(trials) else -1
    if place < 0 or not octaves[place] <= DISTANCE:
        missing = dict.fromkeys(("nearest_trial", "outcome", "steps_to_result"))
        return {**missing, "steps_bound": ""}
    trial = trials.iloc[place]
    low, steps = float(trial["earliest"]), float(trial["latest"])
    reached = math.isfinite(steps)
    stopped = not reached and math.isfinite(low)
    return {
        "nearest_trial": int(trial["trial"]),
        "outcome": str(trial["outcome"]),
        "steps_to_result": int(steps) if reached else None,
        "steps_bound": f">= {int(low)}" if stopped else "",
    }


def _over_best(steps: object, best: pd.Series | None) -> float:
    if best is None or not isinstance(steps, int):
        return float("nan")
    return steps / float(best["latest"]) if best["latest"] else np.nan
