"""Predicts K* where it was not measured, and recommends a batch size from it.

Predictions come from the joint posterior of the law K* = c1/B^a + c2 with a free
exponent a, so that an interval covers that a may not be 1. Time to the goal on N
devices is K*(B) t(B/N), with t of `analysis.step_times`. Candidates are N times a power
of two, up to a factor of REACH beyond the measured batch sizes. What the data do not
support is neither predicted nor recommended, and the reason is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from dps_tf.analysis.fit_table import curves_of_table
from dps_tf.analysis.law import (
    LEVEL,
    Draws,
    Estimate,
    LawFit,
    Observations,
    fit_law,
)
from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.step_times import (
    DRAWS,
    StepTimes,
    checked_step_times,
    measured_devices,
    step_time_model,
)
from dps_tf.analysis.tables import (
    Floats,
    curve_key,
    numbers,
    refuse_first,
    require,
    unit_of,
    with_index,
)
from dps_tf.analysis.wording import interval, number, steps, with_interval
from dps_tf.core import UserError, check_positive, whole

COLUMNS = "batch_size steps steps_low steps_high study_low study_high abstains".split()
_CHOICE = "choice batch_size devices low high time_seconds cost".split()
_TAILS = tails(LEVEL)
MINIMUM_SIZES = 4
"""Batch sizes with a located K* below which nothing is predicted: fewer leave no degree
of freedom beside the exponent."""
REACH = 4.0
"""Factor beyond the measured batch sizes up to which a law may be followed."""
SAME = 1.25
"""Factor within which two predictions give the same answer."""
RISE = 1.5
"""Factor by which a K* must exceed one at a smaller batch size to count as a rise: two
standard deviations of the difference of two searches of 0.2 octaves each."""
LOSS = 1.1
"""Largest factor in time that the choice of the exponent may cost a recommendation."""
DEVICE_SECONDS = "seconds times devices"
MONEY = "the money of the column price"
CONVENTIONS = {
    "equal_marginal_gain": 1.0,
    "zhang2024": 0.2,
    "efficient": 1 / 0.8 - 1,
    "shallue2019": 5.0,
}
"""By name of the convention: r of its batch size (r c1/c2)^(1/a).

In this order: twice the steps of the plateau and twice the examples of perfect scaling
(McCandlish et al. 2018, section 2.3; Lee et al. 2021); 20 % more examples than perfect
scaling (Zhang et al. 2024, section 2); 80 % of perfect scaling; 20 % more steps than
the plateau (Shallue et al. 2019, section 4.1, who give no number)."""


def obstacles(points: Observations) -> str:
    """Returns why no K* of a curve can be predicted, as a clause; empty if it can."""
    known = points.batch_sizes
    if known < MINIMUM_SIZES:
        return f"K* is known at {known} batch sizes, and {MINIMUM_SIZES} are needed"
    located = points.located()
    b, seed, steps = located.batch_size, located.seed, located.high[:, None]
    rises = (b > b[:, None]) & (seed == seed[:, None]) & (located.middle > RISE * steps)
    if not rises.any():
        return ""
    end = int(rises.any(axis=0).argmax())
    start = int(np.where(rises[:, end], located.high, np.inf).argmin())
    ends = f"{b[start]:.12g} to {b[end]:.12g}"
    return f"K* rises from batch size {ends}, which the law cannot"


def predict_curve(points: Observations, batch_sizes: Floats) -> pd.DataFrame:
    """Returns predictions of one curve, one row per batch size; see `predict`."""
    table = pd.DataFrame({"batch_size": batch_sizes}).reindex(columns=COLUMNS)
    if why := obstacles(points):
        return table.assign(abstains=why)
    fit = fit_law(points)
    draws = fit.free.draws(DRAWS)
    table["abstains"] = [_refusal(fit, size) for size in batch_sizes]
    for row, size in enumerate(batch_sizes):
        if not table["abstains"][row]:
            law, study = draws.steps(size), draws.further(size, points.rms_noise)
            ends = [*np.quantile(law, _TAILS), *np.quantile(study, _TAILS)]
            table.loc[row, COLUMNS[1:-1]] = [np.median(law), *ends]
    return table


def _refusal(fit: LawFit, batch_size: float) -> str:
    """Returns why K* at a batch size is not predicted; empty if it is."""
    sizes = fit.observations.located().batch_size
    if not sizes.min() / REACH <= batch_size <= sizes.max() * REACH:
        return (
            f"{batch_size:.12g} is more than {REACH:g} times beyond the measured batch "
            f"sizes {sizes.min():.12g} to {sizes.max():.12g}"
        )
    with_free = float(fit.free.steps(batch_size).quantiles([0.5])[0])
    with_one = float(fit.posterior.steps(batch_size).quantiles([0.5])[0])
    if max(with_free / with_one, with_one / with_free) <= SAME:
        return ""
    return (
        f"the exponent decides: c1/B + c2 says {with_one:.3g} steps, and c1/B^a + c2 "
        f"says {with_free:.3g}"
    )


def predict(
    tables: Any, batch_sizes: Sequence[float], sparsities: Sequence[float] | None = None
) -> pd.DataFrame:
    """Returns K* at batch sizes that were not measured, or why it is not predicted.

    Columns are curve and batch_size; steps, steps_low and steps_high of the law, with
    its median as steps. A further study's K* lies between study_low and study_high.
    Intervals are of 95 %. `abstains` is a reason, beside which numbers are NaN.

    Args:
        tables: what `dps_tf.load` returns, or a table that `dps_tf.fit` reads.
        batch_sizes: positive numbers at which K* is predicted.
        sparsities: measured sparsities of the curves to predict; by default all.

    Raises:
        UserError: a batch size that is not positive, a sparsity that was not measured,
            or tables that lack a column.

    Examples:
        >>> sizes = np.array([8, 16, 32, 64, 128, 256])
        >>> table = pd.DataFrame({"batch_size": sizes})
        >>> table["steps_to_result"] = 24_000 / sizes + 260
        >>> predict(table, [48])["steps"].round(-1).tolist()
        [760.0]
    """
    given = pd.Series(np.ravel(batch_sizes), name="batch_size")
    sizes = numbers(given)
    allowed = (sizes > 0) & (sizes < np.inf)
    refuse_first(~allowed, given, "of sizes to predict", "a positive number")
    results = getattr(tables, "results", tables)
    if sparsities is not None:
        require(results, ["sparsity"], "results")
        measured = sorted(set(results["sparsity"]))
        # A measured value in single precision is that value, as in a sweep.
        shares = numbers(pd.Series(measured, dtype=object)).astype(np.float32)
        single = dict(zip(shares.tolist(), measured, strict=True))
        asked_for = np.ravel(sparsities).tolist()
        sparsities = [s if s in measured else single.get(s, s) for s in asked_for]
        for sparsity in set(sparsities).difference(measured):
            raise UserError(
                f"sparsity {sparsity!r} was not measured, and K* is not predicted "
                f"between sparsities: choose among {', '.join(map(str, measured))}."
            )
    asked = sizes.to_numpy()
    predictions = [
        predict_curve(Observations.from_results(rows), asked).assign(curve=name)
        for name, rows in curves_of_table(results).items()
        if sparsities is None or rows["sparsity"].iloc[0] in sparsities
    ]
    if not (len(asked) and predictions):
        raise UserError(
            "nothing to predict: give a batch size, a table with a K*, and of its "
            "sparsities some or None."
        )
    return pd.concat(predictions, ignore_index=True)[["curve", *COLUMNS]]


@dataclass(frozen=True)
class Recommendation:
    """The batch size to train with on some devices, or why none is recommended.

    Attributes:
        candidates: one row per batch size and number of devices: batch_size, devices,
            steps, seconds (of a step), time_seconds with time_low and time_high, and
            cost with cost_low and cost_high, in `unit`.
        choices: one row per choice: choice, batch_size, devices, low and high (the
            range of the batch size over the posterior; 0 or infinity for an open end,
            beside which a convention has no batch_size), time_seconds, cost.
        abstains: why no batch size is recommended; empty if one is.
        assumption: what is assumed about the devices, a sentence.
        unit: of costs: DEVICE_SECONDS, or MONEY where the step times have a price.
        unmet: that no choice meets the deadline, a sentence; empty if one does.
        speed_up: the time of the fastest batch size on one device over the time of the
            fastest on all; None on one device, or where none is a candidate on one.
    """

    candidates: pd.DataFrame
    choices: pd.DataFrame
    abstains: str
    assumption: str
    unit: str
    unmet: str = ""
    speed_up: Estimate | None = None

    def __repr__(self) -> str:
        """Returns the recommendation as a sentence."""
        if self.abstains:
            return f"No batch size is recommended: {self.abstains}."
        (best,) = self.choices.query("choice == 'fastest'").to_dict("records")
        span = f"{steps(best['low'])} to {steps(best['high'])}"
        devices, found = int(best["devices"]), self.speed_up
        share = f", {steps(best['batch_size'] / devices)} per device" * (devices > 1)
        faster = ""
        if found:
            factor = with_interval(found.value, found.low, found.high, digits=3)
            faster = f"This is {factor} times as fast as the fastest on one device. "
        return (
            f"Train with batch size {steps(best['batch_size'])} on {devices} "
            f"device(s){share}: the goal is reached in "
            f"{number(best['time_seconds'])} seconds, and over the posterior the "
            f"fastest batch size is {span}. {faster}{self.assumption} Costs are in "
            f"{self.unit}. {self.unmet}"
        ).rstrip()


def recommend(
    points: Observations,
    step_times: pd.DataFrame,
    devices: int,
    deadline: float | None = None,
) -> Recommendation:
    """Returns the batch sizes that reach the goal first and cheapest on N devices.

    Ranges are 95 % intervals.

    Args:
        points: K* of one curve.
        step_times: a table of step times; see `analysis.step_times`.
        devices: N; the cheapest choice may use fewer.
        deadline: seconds within which the cheapest choice has to reach the goal, in
            the median; None for no deadline.

    Raises:
        UserError: `step_time_model` refuses the step times; a deadline below 0.
    """
    if deadline is not None:
        check_positive("deadline", deadline)
    devices = whole("devices", devices)
    own = step_time_model(step_times, devices)
    known = measured_devices(step_times)
    counts = {*known, *(2**i for i in range(64))}
    fewer = sorted(n for n in counts if known[0] <= n < devices)
    models = [step_time_model(step_times, n) for n in fewer]
    models = [*(model for model in models if not model.misfit), own]
    candidates, choices, unmet = pd.DataFrame(), pd.DataFrame(columns=_CHOICE), ""
    speed_up = None
    why = obstacles(points) or own.misfit
    if not why:
        fit = fit_law(points)
        law = fit.free.draws(DRAWS)
        tables = [_candidates(points, law, model) for model in models]
        candidates = pd.concat(tables, ignore_index=True)
        why = _obstacle(fit, own, tables[-1])
    if not why:
        choices = _choices(fit, own, candidates, deadline)
        if models[0].devices == 1 < devices and not tables[0].empty:
            one, every = (
                law.steps(size) * model.seconds(size)
                for model, table in ((models[0], tables[0]), (own, tables[-1]))
                for size in [table.nsmallest(1, "time_seconds")["batch_size"].array]
            )
            low, value, high = np.quantile(one / every, [_TAILS[0], 0.5, _TAILS[1]])
            speed_up = Estimate(value, low, high)
        if deadline and (least_time := candidates["time_seconds"].min()) > deadline:
            unmet = (
                f"No batch size reaches the goal within {number(deadline)} seconds: "
                f"the least time is {number(least_time)}."
            )
    unit = DEVICE_SECONDS if own.price is None else MONEY
    return Recommendation(
        candidates, choices, why, own.assumption, unit, unmet, speed_up
    )


def recommend_curves(
    results: pd.DataFrame,
    step_times: pd.DataFrame | None,
    recorded: pd.DataFrame | None,
    devices: int,
    deadline: float | None = None,
) -> dict[str, Recommendation]:
    """Returns the recommendation of each curve of a table; see `recommend`.

    `recorded` are step times of the sweep, used where none are given. A given table
    of one workload serves every curve; of several, `times_of` finds the times.
    """
    if step_times is not None:
        step_times = with_index(checked_step_times(step_times))
    times = recorded if step_times is None else step_times
    serves_all = step_times is not None and len(curves_of_table(step_times)) == 1
    recommendations = {}
    for name, rows in curves_of_table(results).items():
        own = times if serves_all or times is None else times_of(times, rows)
        if own is None or own.empty:
            raise UserError(
                f"step_times is missing: no time of a step is recorded of {name!r}."
            )
        unit, of_times = unit_of(rows), unit_of(own)
        if unit != of_times:
            raise UserError(
                f"batch sizes of {name!r} count {unit}, and of its step times "
                f"{of_times}: give both in one unit, in a column unit where it is not "
                "examples."
            )
        points = Observations.from_results(rows)
        recommendations[name] = recommend(points, own, devices, deadline)
    return recommendations


def times_of(times: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the step times of the curve of some rows of results, if they are known.

    Both tables are equal in all columns that name curves and that both have.
    """
    both = times.columns.intersection(rows.columns)
    names = [name for name in ("curve", *curve_key(times)) if name in both]
    shares = [name for name in names if is_numeric_dtype(rows[name])]
    times = times.assign(**{name: numbers(times[name]) for name in shares})
    own = times.merge(rows[names].drop_duplicates(), on=names) if names else times
    # Rows of several curves do not say which of these times are meant.
    return own if len(curves_of_table(own)) == 1 else own.iloc[:0]


def _candidates(points: Observations, law: Draws, model: StepTimes) -> pd.DataFrame:
    """Returns the candidates on the devices of a model, one row per batch size."""
    measured = points.located().batch_size
    sizes = model.devices * 2.0 ** np.arange(64)
    sizes = sizes[(measured.min() / REACH <= sizes) & (sizes <= measured.max() * REACH)]
    steps, seconds = law.steps(sizes), model.seconds(sizes)
    times = np.quantile(steps * seconds, [0.5, *_TAILS], axis=0).T
    # A price is of an hour.
    rate = model.devices if model.price is None else model.price / 3600
    table = pd.DataFrame({"batch_size": sizes, "devices": model.devices})
    table["steps"] = np.median(steps, axis=0)
    table["seconds"] = np.median(seconds, axis=0)
    table[["time_seconds", "time_low", "time_high"]] = times
    table[["cost", "cost_low", "cost_high"]] = times * rate
    return table


def _obstacle(fit: LawFit, model: StepTimes, candidates: pd.DataFrame) -> str:
    """Returns why none of the candidates is recommended; empty if one is."""
    measured = fit.observations.located().batch_size
    if not fit.slope_resolved:
        ends = interval(fit.critical_batch_size.low, fit.critical_batch_size.high)
        return f"no slope is resolved, c1/c2 is {ends}: measure smaller batch sizes"
    if candidates.empty:
        return (
            f"{model.devices} devices cannot share a batch of at most "
            f"{REACH * measured.max():.12g}, {REACH:g} times the largest measured"
        )
    sizes = candidates["batch_size"].to_numpy(np.float64)
    median = candidates["time_seconds"].to_numpy(np.float64)
    at = int(np.argmin(median))
    # The time still falls at an end, and nothing says how far it will.
    is_most = at == len(sizes) - 1 and sizes[at] > measured.max()
    if is_most or (at == 0 and sizes[at] < measured.min()):
        return (
            f"the time to the goal still falls at batch size {sizes[at]:.12g}, the "
            f"last candidate: measure {'larger' if is_most else 'smaller'} ones"
        )
    plain = fit.posterior.draws(DRAWS).steps(sizes) * model.seconds(sizes)
    with_one = int(np.argmin(np.median(plain, axis=0)))
    if median[with_one] <= LOSS * median[at]:
        return ""
    return (
        f"the exponent decides: the fastest batch size is {sizes[with_one]:.12g} under "
        f"c1/B + c2 and {sizes[at]:.12g} under c1/B^a + c2"
    )


def _choices(
    fit: LawFit, model: StepTimes, candidates: pd.DataFrame, deadline: float | None
) -> pd.DataFrame:
    """Returns the table of choices, from candidates on all numbers of devices."""
    law = fit.free.draws(DRAWS)
    own = candidates[candidates["devices"] == model.devices]
    sizes = own["batch_size"].to_numpy(np.float64)
    fastest = sizes[np.argmin(law.steps(sizes) * model.seconds(sizes), axis=1)]
    low, high = np.quantile(fastest, _TAILS, method="nearest")
    best = own.iloc[int(own["time_seconds"].argmin())]
    rows = [{**best, "choice": "fastest", "low": low, "high": high}]
    if deadline is not None:
        candidates = candidates[candidates["time_seconds"] <= deadline]
    if not candidates.empty:
        # Free devices cost the same.
        best = candidates.sort_values(["cost", "time_seconds"], kind="stable").iloc[0]
        rows.append({**best, "choice": "cheapest"})
    for name, ratio in CONVENTIONS.items():
        sizes = (ratio * law.c1 / law.c2) ** (1 / law.exponent)
        low, high = np.quantile(sizes, _TAILS)
        # Data that do not refuse c1 = 0, or c2 = 0, bound these sizes on one side.
        low = 0.0 if "c1" in fit.unresolved else low
        high = np.inf if "c2" in fit.unresolved else high
        middle = np.nan if fit.unresolved else np.median(sizes)
        rows.append({"choice": name, "batch_size": middle, "low": low, "high": high})
    return pd.DataFrame(rows, columns=_CHOICE)
