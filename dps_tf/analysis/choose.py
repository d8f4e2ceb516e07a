"""Chooses the next batch size of a curve: the one that tells most per second.

What is asked of a curve is, linearized, a weighted sum of log2 c1 and log2 c1/c2. Under
the normal posterior of `analysis.plan` its standard deviation shrinks by a factor that
does not depend on the K* to be measured (MacKay 1992), and the cell with the largest
logarithm of that factor per second is the next. The first is the middle one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dps_tf.analysis.law import FEW_POINTS, Observations, posteriors
from dps_tf.analysis.plan import StepsFit, expected, seconds_of_a_step, steps_posterior
from dps_tf.analysis.step_times import recorded_step_times
from dps_tf.analysis.tables import Floats
from dps_tf.core import Choice, UserError

SURE = 0.95
"""Probability with which a recommended batch size loses no more time than is said."""
CRITICAL = np.array([0.0, 1.0])
"""The weights of log2 c1 and log2 c1/c2 where c1/c2 is asked."""


def value(
    fits: Sequence[StepsFit], batch_size: Floats, asked: Floats, others: float = 0.0
) -> tuple[Floats, Floats]:
    """Returns by how many octaves each cell narrows what is asked, and its steps, [n].

    The fits are of one curve; `others` is the variance of those that it is compared to.
    """
    wanted, curve = np.tile(asked, 2), np.zeros(len(batch_size), np.int64)
    gains, steps = np.zeros(len(curve)), np.zeros(len(curve))
    for fit in fits:
        each, slope = expected(curve, batch_size, fit.mean)
        across = slope @ fit.covariance @ wanted
        own = ((slope @ fit.covariance) * slope).sum(axis=1) + fit.noise**2
        share = across**2 / own / (wanted @ fit.covariance @ wanted + others)
        gains -= fit.weight * np.log2(1 - share) / 2
        steps += fit.weight * each
    return gains, np.asarray(np.exp2(steps), np.float64)


def losses(critical: Floats, batch_size: Floats, seconds: Floats) -> Floats:
    """Returns the time of each batch size over the least, by c1/c2, [c, n]."""
    times = (critical[:, None] / batch_size + 1) * seconds
    return np.asarray(times / times.min(axis=1, keepdims=True), np.float64)


def recommended(loss: Floats, weights: Floats) -> tuple[int, float]:
    """Returns the place of the batch size with the least expected loss, and its loss.

    The second number is what it loses at most with a probability of SURE. `loss` is by
    c1/c2 and batch size, [c, n], and `weights` are those of each c1/c2, [c].
    """
    best = int(np.argmin(weights @ np.log(loss)))
    order = np.argsort(loss[:, best])
    below = np.cumsum(weights[order]) / weights.sum()
    return best, float(loss[order, best][np.searchsorted(below, SURE)])


def next_batch_size(
    choice: Choice, results: pd.DataFrame, work: pd.DataFrame
) -> tuple[int | None, str]:
    """Returns the batch size of a curve to measure next, and why, as a clause.

    It is None where the choice ends. `results` and `work` are the rows of the cells of
    the curve that were chosen before, in the tables of these names.

    Raises:
        UserError: no time of a step is known.
    """
    sizes = np.array(choice.batch_sizes, np.float64)
    if results.empty:
        middle = choice.batch_sizes[len(sizes) // 2]
        return middle, f"it is the middle one of {len(sizes)} batch sizes"
    points = Observations.from_results(results)
    known = np.isfinite(points.high)
    if not known.any():
        return None, (
            "no trial met the goal, and a choice begins with a K*; raise "
            "workload.step_budget"
        )
    training = _seconds(choice, work, sizes / choice.devices)
    if points.batch_sizes >= FEW_POINTS and (sure := _sure(choice, points, training)):
        return None, sure
    left = np.flatnonzero(~np.isin(sizes, results["batch_size"]))
    if not len(left):
        return None, "all batch sizes are measured"
    spent = work[(work["quantity"] == "seconds") & work["trial"].isna()]["value"].sum()
    if choice.budget is not None and spent >= choice.budget:
        return None, f"the budget of {choice.budget:g} seconds is spent"
    steps = np.where(points.low == 0, points.high, points.middle)[known]
    curve = np.zeros(len(steps), np.int64)
    fits = steps_posterior(curve, points.batch_size[known], steps)
    gains, expectation = value(fits, sizes[left], CRITICAL)
    seconds = expectation * _seconds(choice, work, sizes)[left]
    best = int(np.argmax(gains / seconds))
    return int(sizes[left[best]]), (
        f"of {len(left)} batch sizes it should narrow c1/c2 most per second, by "
        f"{100 - 100 * 2 ** -gains[best]:.0f} % for {seconds[best]:.2g} s a trial"
    )


def _seconds(choice: Choice, work: pd.DataFrame, batch_sizes: Floats) -> Floats:
    """Returns the seconds of a step at some batch sizes on one device, [n]."""
    times = pd.Series(choice.step_times)
    if choice.step_times is None:
        times = recorded_step_times(work).set_index("batch_size")["seconds"]
    if times.empty:
        raise UserError(
            "no time of a step is recorded, and a choice needs it: bind "
            "choose.step_times."
        )
    return np.asarray(np.median(seconds_of_a_step(times, batch_sizes), axis=0))


def _sure(choice: Choice, points: Observations, seconds: Floats) -> str:
    """Returns that a batch size is sure, as a clause; empty if none is."""
    sizes = np.array(choice.batch_sizes, np.float64)
    critical = posteriors([points])[0].critical_batch_size
    loss = losses(np.exp2(critical.middles), sizes, seconds)
    best, most = recommended(loss, critical.masses)
    if most > 1 + choice.precision:
        return ""
    return (
        f"batch size {sizes[best]:g} is sure; on {choice.devices} device(s) it takes "
        f"at most {100 * most - 100:.1f} % more time than the fastest, with a "
        f"probability of {100 * SURE:.0f} %"
    )
