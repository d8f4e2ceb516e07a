"""Predicts what the rest of a sweep costs.

In a race each trial runs about as long as the first finishers need. The steps of a
trial follow the law K* = c1/B + c2 in their logarithm, plus noise, curve by curve.
The curves of a sweep are alike: their log c1 and log c1/c2 scatter about common means
(a hierarchical model, by Laplace's approximation, averaged over SPREADS and NOISES).
Seconds come from measured step times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import softmax

from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.tables import Codes, Floats
from dps_tf.core import Cell
from dps_tf.store import StudyReader

LEVEL = 0.8
WORK = ("curve", "batch_size", "trials", "steps", "seconds")
"""Columns of measured cells: a `Curve`, or what else tells curves apart; steps and
seconds are totals over all trials and slots, evaluations included."""
SPREADS = (0.15, 0.3, 0.6, 1.0)
"""Octaves by which log2 c1 and log2 c1/c2 of curves of one sweep scatter."""
NOISES = (0.15, 0.3, 0.5)
"""Octaves by which the steps of a trial scatter about the law of its curve."""
_MEANS = (15.0, 7.5)
_DEVIATIONS = (6.0, 2.0)
"""Prior of the means of log2 c1 (32,768 examples, within a factor of 64) and of log2
c1/c2 (181, within a factor of four): most workloads of Shallue et al. 2019 and Lee et
al. 2021."""
_ROUNDS = 30
_LARGEST_STEP = 3.0  # Octaves, of one round of Gauss-Newton.
_DRAWS = 1_000
_KNEES = 2.0 ** np.linspace(0, 15, 121)[:, None]
_STEP_SCATTER = 0.05


def recorded_work(study: StudyReader) -> dict[str, Any] | None:
    """Returns the work of a closed cell, one row with the columns of WORK, else None.

    `trials` is the number that the study asked for. `steps` includes the trials that
    replaced diverged ones. `seconds` is NaN where no time is recorded.
    """
    tables = study.closed(("trials", "work"))
    if tables is None or not (steps := tables["trials"]["end_step"].sum()):
        return None
    cell = Cell.from_json(tables["studies"].to_dict("records")[0])
    points, work = tables["studies"]["points"].iloc[0], tables["work"]
    seconds = work[(work["quantity"] == "seconds") & work["trial"].isna()]["value"]
    return {
        "curve": cell.curve,
        "batch_size": cell.batch_size,
        "trials": len(tables["trials"]) if pd.isna(points) else int(points),
        "steps": int(steps),
        "seconds": float(seconds.sum(min_count=1)),
    }


def seconds_of_a_step(times: pd.Series, batch_sizes: ArrayLike) -> Floats:
    """Returns draws of the seconds of a step at some batch sizes, [d, n].

    A step takes A (1 + B/k) seconds, where k is log-uniform beforehand and seconds
    scatter by some 5 %; few batch sizes leave open how a step grows beyond them.
    `times` has seconds by batch size, at least one.
    """
    wanted = np.asarray(batch_sizes, np.float64)
    sizes, seconds = times.index.to_numpy(np.float64), times.to_numpy(np.float64)
    rng = np.random.default_rng(1)
    rest = np.log(seconds) - np.log1p(sizes / _KNEES)
    level = np.median(rest, axis=1, keepdims=True)
    # The scatter is integrated out; _STEP_SCATTER of it is known beforehand.
    freedom = len(np.unique(sizes))
    squares = ((rest - level) ** 2).sum(axis=1) + _STEP_SCATTER**2
    weights = softmax(-freedom / 2 * np.log(squares))
    k = rng.choice(len(weights), _DRAWS, p=weights)
    return np.asarray(np.exp(level[k] + np.log1p(wanted / _KNEES[k])), np.float64)


def forecast(done: pd.DataFrame, waiting: pd.DataFrame) -> tuple[Floats, Floats | None]:
    """Returns draws of the steps of a trial and of the seconds of cells, [d, cells].

    Seconds are totals over all slots, from the median time of a step at each batch
    size; None where no time is recorded. `done` has the columns WORK, and `waiting`
    the columns of WORK before `steps`.
    """
    steps = predicted_steps(done, waiting)
    timed = done[done["seconds"] > 0]
    if timed.empty:
        return steps, None
    step_seconds = (timed["seconds"] / timed["steps"]).groupby(timed["batch_size"])
    of_step = seconds_of_a_step(step_seconds.median(), waiting["batch_size"])
    return steps, steps * of_step * waiting["trials"].to_numpy(np.float64)


def interval_of(draws: Floats) -> tuple[float, ...]:
    """Returns (median, low, high) of the draws of a number: its 80 % interval."""
    return tuple(np.quantile(draws, [0.5, *tails(LEVEL)]).tolist())


def predicted_steps(done: pd.DataFrame, waiting: pd.DataFrame) -> Floats:
    """Returns draws of the steps of one trial in waiting cells, [d, cells].

    One draw is joint for all cells, and includes the noise. `done` has the columns of
    WORK except seconds, and at least one row; `waiting` has curve and batch_size.
    """
    index, laws = pd.factorize(pd.concat([done["curve"], waiting["curve"]]))
    known, asked = index[: len(done)], index[len(done) :]
    size, _ = pd.factorize(waiting["batch_size"])
    measured = done["steps"] / done["trials"]
    fits = steps_posterior(known, done["batch_size"], measured, len(laws))
    draws = []
    rng = np.random.default_rng(0)  # The same records give the same plan.
    chosen = rng.multinomial(_DRAWS, [fit.weight for fit in fits])
    for fit, number in zip(fits, chosen, strict=True):
        steps, derivative = expected(asked, waiting["batch_size"], fit.mean)
        root = derivative @ np.linalg.cholesky(fit.covariance)
        parameters = rng.standard_normal((number, root.shape[1])) @ root.T
        # Curves of a sweep are off the law at a batch size together as well.
        own, shared = rng.standard_normal((2, number, len(steps)))
        noise = fit.noise * (own + shared[:, size]) / 2**0.5
        draws.append(steps + parameters + noise)
    return np.asarray(np.exp2(np.concatenate(draws)), np.float64)


@dataclass(frozen=True)
class StepsFit:
    """A normal approximation of the posterior under one spread and one noise.

    `weight` is the probability of this spread and noise among all of them.
    """

    mean: Floats
    covariance: Floats
    noise: float
    log_evidence: float
    weight: float = 0.0


def steps_posterior(
    curve: Codes, batch_size: ArrayLike, steps: ArrayLike, curves: int = 1
) -> list[StepsFit]:
    """Returns the posterior of the steps of a trial: a mixture of normal ones.

    Of each measured cell it takes the index of its curve, batch size and steps, [n].
    """
    log2_steps = np.log2(np.asarray(steps, np.float64))
    start = np.r_[_MEANS, np.zeros(2 * curves)]
    cells = curve, np.asarray(batch_size, np.float64)
    start[0] = float(np.median(log2_steps + np.log2(cells[1])))
    fits: list[StepsFit] = []
    for spread, noise in product(SPREADS, NOISES):
        fits.append(_fit(cells, log2_steps, start, spread, noise))
        start = fits[-1].mean
    weights = softmax([fit.log_evidence for fit in fits])
    return [replace(fit, weight=w) for fit, w in zip(fits, weights, strict=True)]


def expected(
    curve: Codes, batch_size: ArrayLike, parameters: Floats
) -> tuple[Floats, Floats]:
    """Returns log2 steps of cells [n] by the law, and their derivative [n, p].

    Parameters: the means of log2 c1 and of log2 c1/c2, then the differences of both
    from the means, curve by curve, to which `curve` is the index.
    """
    first = 2 + 2 * curve
    log2_c1 = parameters[0] + parameters[first]
    plateau = log2_c1 - parameters[1] - parameters[first + 1]
    steps = np.logaddexp2(log2_c1 - np.log2(np.asarray(batch_size)), plateau)
    rows = np.arange(len(curve))
    derivative = np.zeros((len(rows), len(parameters)))
    derivative[:, 0] = derivative[rows, first] = 1
    derivative[:, 1] = derivative[rows, first + 1] = -np.exp2(plateau - steps)
    return steps, derivative


def _fit(
    cells: tuple[Codes, ArrayLike],
    log2_steps: Floats,
    start: Floats,
    spread: float,
    noise: float,
) -> StepsFit:
    """Returns a normal approximation at the posterior's mode, by Gauss-Newton."""
    of_curves = len(start) - len(_MEANS)
    mean = np.r_[_MEANS, np.zeros(of_curves)]
    deviation = np.r_[_DEVIATIONS, np.full(of_curves, spread)]
    precision = np.diag(deviation**-2)
    parameters = start
    for _ in range(_ROUNDS):
        steps, derivative = expected(*cells, parameters)
        curvature = precision + derivative.T @ derivative / noise**2
        slope = precision @ (mean - parameters)
        slope += derivative.T @ (log2_steps - steps) / noise**2
        change = np.linalg.solve(curvature, slope)
        change *= min(1.0, _LARGEST_STEP / max(np.abs(change).max(), 1e-9))
        parameters = parameters + change
        if np.abs(change).max() < 1e-6:
            break
    steps, derivative = expected(*cells, parameters)
    covariance = np.linalg.inv(precision + derivative.T @ derivative / noise**2)
    residual = (log2_steps - steps) / noise
    distance = (parameters - mean) / deviation
    evidence = -0.5 * (residual @ residual + distance @ distance)
    evidence -= len(steps) * np.log(noise) + np.log(deviation).sum()
    evidence += 0.5 * np.linalg.slogdet(covariance)[1]
    return StepsFit(parameters, np.asarray(covariance), noise, float(evidence))
