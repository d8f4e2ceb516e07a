"""Predicts what the rest of a sweep will cost, from the cells that were measured.

In a race each trial runs about as long as the first finishers need, so the logarithm of
the steps of a trial is modelled by the law K* = c1/B + c2 plus noise, curve by curve.
The curves of a sweep are alike: their log c1 and log c1/c2 scatter about common means
(a hierarchical model, by Laplace's approximation, averaged over SPREADS and NOISES).
Seconds come from measured step times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.step_times import MINIMUM_SIZES, step_time_model
from dps_tf.analysis.tables import Codes, Floats
from dps_tf.store import StudyReader

LEVEL = 0.8
WORK = ("curve", "batch_size", "trials", "steps", "seconds")
"""Columns of measured cells: steps and seconds are totals over all trials and slots,
evaluations included."""
SPREADS = (0.15, 0.3, 0.6, 1.0)
"""Octaves by which log2 c1 and log2 c1/c2 of curves of one sweep scatter."""
NOISES = (0.1, 0.2, 0.35)
"""Octaves by which the steps of a trial scatter about the law of its curve."""
_MEANS = (15.0, 7.5)
_DEVIATIONS = (6.0, 2.0)
"""Prior of the means of log2 c1 (32,768 examples, within a factor of 64) and of log2
c1/c2 (181, within a factor of four): most workloads of Shallue et al. 2019 and Lee et
al. 2021."""
_ROUNDS = 30
_LARGEST_STEP = 3.0  # Octaves, of one round of Gauss-Newton.
_DRAWS = 1_000
_NAME = re.compile(r"(.+-seed\d+)-b(\d+)(-s.+)")
"""Form of the name of a cell; see `Cell.name`."""


def curve_and_size(cell: str) -> tuple[str, int]:
    """Returns the curve and the batch size of a cell, from its name.

    >>> curve_and_size("mlp-sgd-none-seed0-b64-s0.0")
    ('mlp-sgd-none-seed0-s0.0', 64)
    """
    parts = _NAME.fullmatch(cell)
    return (f"{parts[1]}{parts[3]}", int(parts[2])) if parts else (cell, 1)


def recorded_work(study: StudyReader, cell: str) -> dict[str, Any] | None:
    """Returns the work of a closed cell, one row with the columns of WORK, else None.

    `trials` is the number that the study asked for, and `steps` includes those of the
    trials that replaced diverged ones. `seconds` is NaN where none are recorded.
    """
    tables = study.closed(("trials", "work"))
    if tables is None or not (steps := tables["trials"]["end_step"].sum()):
        return None
    curve, batch_size = curve_and_size(cell)
    points, work = tables["studies"]["points"].iloc[0], tables["work"]
    seconds = work[(work["quantity"] == "seconds") & work["trial"].isna()]["value"]
    return {
        "curve": curve,
        "batch_size": batch_size,
        "trials": len(tables["trials"]) if pd.isna(points) else int(points),
        "steps": int(steps),
        "seconds": float(seconds.sum(min_count=1)),
    }


def seconds_of_a_step(times: pd.DataFrame, batch_sizes: Floats) -> Floats:
    """Returns draws of the seconds of a step at some batch sizes, [d, n].

    They follow `step_time_model` where it has enough batch sizes. With fewer, the part
    of a step that grows with the batch is uniform between none and all of the step at
    the nearest measured size. `times` has the columns batch_size and seconds, and at
    least one row.
    """
    sizes = times["batch_size"].to_numpy(np.float64)
    if len(np.unique(sizes)) >= MINIMUM_SIZES:
        model = step_time_model(times.assign(devices=1), 1)
        return model.seconds(batch_sizes)[:_DRAWS]
    nearest = np.abs(np.log(batch_sizes)[:, None] - np.log(sizes)).argmin(axis=1)
    growing = np.random.default_rng(1).random((_DRAWS, 1))
    seconds = times["seconds"].to_numpy(np.float64)[nearest]
    ratio = batch_sizes / sizes[nearest]
    return np.asarray(seconds * (1 - growing + growing * ratio), np.float64)


def forecast(done: pd.DataFrame, waiting: pd.DataFrame) -> tuple[Floats, Floats | None]:
    """Returns draws of the steps of a trial and of the seconds of cells, [d, cells].

    Seconds are totals over all slots, from the median time of a step at each batch
    size; None where no time is recorded. `done` has the columns of WORK, `waiting`
    those that come before `steps`.
    """
    steps = predicted_steps(done, waiting)
    timed = done[done["seconds"] > 0]
    if timed.empty:
        return steps, None
    step_seconds = (timed["seconds"] / timed["steps"]).groupby(timed["batch_size"])
    times = step_seconds.median().rename("seconds").reset_index()
    of_step = seconds_of_a_step(times, waiting["batch_size"].to_numpy(np.float64))
    return steps, steps * of_step * waiting["trials"].to_numpy(np.float64)


def interval_of(draws: Floats) -> tuple[float, float, float]:
    """Returns (median, low, high) of the draws of a number: its 80 % interval."""
    middle, low, high = np.quantile(draws, [0.5, *tails(LEVEL)])
    return float(middle), float(low), float(high)


def predicted_steps(done: pd.DataFrame, waiting: pd.DataFrame) -> Floats:
    """Returns draws of the steps of one trial in waiting cells, [d, cells].

    One draw is joint for all cells. `done` has the columns of WORK except seconds, and
    at least one row; `waiting` has the columns curve and batch_size.
    """
    return StepsModel.of(done, waiting["curve"]).draws(waiting)


@dataclass(frozen=True)
class StepsModel:
    """The posterior of the steps of a trial: a weighted mixture of normal ones."""

    curves: Sequence[str]
    fits: Sequence[_Fit]
    weights: Floats

    @classmethod
    def of(cls, done: pd.DataFrame, further: Iterable[str]) -> StepsModel:
        """Returns the posterior of the curves of measured cells and of `further`."""
        curves = list(dict.fromkeys([*done["curve"], *further]))
        cells = _places(done, curves)
        log2_steps = np.log2((done["steps"] / done["trials"]).to_numpy(np.float64))
        start = np.r_[_MEANS, np.zeros(2 * len(curves))]
        start[0] = float(np.median(log2_steps + cells[1]))
        fits: list[_Fit] = []
        for spread, noise in product(SPREADS, NOISES):
            fits.append(_fit(cells, log2_steps, start, spread, noise))
            start = fits[-1].mean
        evidence = np.array([fit.log_evidence for fit in fits])
        weights = np.exp(evidence - evidence.max())
        return cls(curves, fits, weights / weights.sum())

    def draws(self, waiting: pd.DataFrame) -> Floats:
        """Returns draws of the steps of a trial, noise included, [d, cells]."""
        rng = np.random.default_rng(0)  # The same records give the same plan.
        cells, draws = _places(waiting, self.curves), []
        chosen = rng.multinomial(_DRAWS, self.weights)
        for fit, number in zip(self.fits, chosen, strict=True):
            steps, derivative = expected(cells, fit.mean)
            root = derivative @ np.linalg.cholesky(fit.covariance)
            parameters = rng.standard_normal((number, root.shape[1])) @ root.T
            noise = fit.noise * rng.standard_normal((number, len(steps)))
            draws.append(steps + parameters + noise)
        return np.asarray(np.exp2(np.concatenate(draws)), np.float64)


@dataclass(frozen=True)
class _Fit:
    """A normal approximation of the posterior under one spread and one noise."""

    mean: Floats
    covariance: Floats
    noise: float
    log_evidence: float


def _places(cells: pd.DataFrame, curves: Sequence[str]) -> tuple[Codes, Floats]:
    """Returns the index of the curve and log2 batch size of each cell, both [n]."""
    curve = pd.Index(curves).get_indexer(pd.Index(cells["curve"]))
    return curve, np.log2(cells["batch_size"].to_numpy(np.float64))


def expected(cells: tuple[Codes, Floats], parameters: Floats) -> tuple[Floats, Floats]:
    """Returns log2 steps [n] by the law, and their derivative [n, p].

    Parameters: the means of log2 c1 and of log2 c1/c2, then the differences of both
    from the means, curve by curve.
    """
    curve, log2_batch = cells
    first = 2 + 2 * curve
    log2_c1 = parameters[0] + parameters[first]
    plateau = log2_c1 - parameters[1] - parameters[first + 1]
    steps = np.logaddexp2(log2_c1 - log2_batch, plateau)
    rows = np.arange(len(curve))
    derivative = np.zeros((len(rows), len(parameters)))
    derivative[:, 0] = derivative[rows, first] = 1
    derivative[:, 1] = derivative[rows, first + 1] = -np.exp2(plateau - steps)
    return steps, derivative


def _fit(
    cells: tuple[Codes, Floats],
    log2_steps: Floats,
    start: Floats,
    spread: float,
    noise: float,
) -> _Fit:
    """Returns a normal approximation at the posterior's mode, by Gauss-Newton."""
    of_curves = len(start) - len(_MEANS)
    mean = np.r_[_MEANS, np.zeros(of_curves)]
    deviation = np.r_[_DEVIATIONS, np.full(of_curves, spread)]
    precision = np.diag(deviation**-2)
    parameters = start
    for _ in range(_ROUNDS):
        steps, derivative = expected(cells, parameters)
        curvature = precision + derivative.T @ derivative / noise**2
        slope = precision @ (mean - parameters)
        slope += derivative.T @ (log2_steps - steps) / noise**2
        change = np.linalg.solve(curvature, slope)
        change *= min(1.0, _LARGEST_STEP / max(np.abs(change).max(), 1e-9))
        parameters = parameters + change
        if np.abs(change).max() < 1e-6:
            break
    steps, derivative = expected(cells, parameters)
    covariance = np.linalg.inv(precision + derivative.T @ derivative / noise**2)
    residual = (log2_steps - steps) / noise
    distance = (parameters - mean) / deviation
    evidence = -0.5 * (residual @ residual + distance @ distance)
    evidence -= len(steps) * np.log(noise) + np.log(deviation).sum()
    evidence += 0.5 * np.linalg.slogdet(covariance)[1]
    return _Fit(parameters, np.asarray(covariance, np.float64), noise, float(evidence))
