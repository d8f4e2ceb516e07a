"""Recommends a batch size from a curve of K* and its step times.

Time to the goal on N devices is K*(B) t(B/N), with K* of `analysis.predict` and t of
`analysis.step_times`. Candidates are N times a power of two, up to a factor of four
beyond the measured batch sizes. Each choice comes with its range over the posterior,
and no choice is given where the data do not support it.

The CONVENTIONS of the field, which do not depend on the hardware, are listed too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dps_tf.analysis.law import LEVEL, Draws, LawFit, Observations, fit_law
from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.predict import REACH, obstacles
from dps_tf.analysis.step_times import DRAWS, StepTimes, step_time_model
from dps_tf.analysis.wording import interval, number, steps

LOSS = 1.1
"""Largest factor in time that the choice of the exponent may cost a recommendation."""
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


@dataclass(frozen=True)
class Recommendation:
    """The batch size to train with on some devices, or why none is recommended.

    Attributes:
        candidates: one row per batch size and number of devices: batch_size, devices,
            steps, seconds (of a step), time_seconds with time_low and time_high, and
            cost with cost_low and cost_high: money where the step times have a price,
            else seconds times devices.
        choices: one row per choice: choice, batch_size, devices, low and high (the
            range of the batch size over the posterior), time_seconds, cost.
        abstains: why no batch size is recommended; empty if one is.
        assumption: what is assumed about the devices, a sentence.
    """

    candidates: pd.DataFrame
    choices: pd.DataFrame
    abstains: str
    assumption: str

    def __str__(self) -> str:
        """Returns the recommendation as a sentence."""
        if self.abstains:
            return f"No batch size is recommended: {self.abstains}."
        (best,) = self.choices.query("choice == 'fastest'").to_dict("records")
        span = interval(best["low"], best["high"])
        return (
            f"Train with batch size {steps(best['batch_size'])} on "
            f"{int(best['devices'])} device(s): the goal is reached in "
            f"{number(best['time_seconds'])} seconds, and over the posterior the "
            f"fastest batch size is {span}. {self.assumption}"
        )


def recommend(
    points: Observations,
    step_times: pd.DataFrame,
    devices: int,
    *,
    deadline: float | None = None,
    communication: float | None = None,
) -> Recommendation:
    """Returns the batch sizes that reach the goal first and cheapest on N devices.

    Ranges are 95 % intervals.

    Args:
        points: K* of one curve.
        step_times: a table of step times; see `analysis.step_times`.
        devices: N; the cheapest choice may use fewer.
        deadline: seconds within which the cheapest choice has to reach the goal, in
            the median; None for no deadline.
        communication: seconds a step for exchanging gradients; see `step_time_model`.

    Raises:
        UserError: `step_time_model` refuses the step times.
    """
    fewer = [2**i for i in range(64) if 2**i < devices]
    models = [
        step_time_model(step_times, number, communication if number > 1 else None)
        for number in [*fewer, devices]
    ]
    candidates, choices = pd.DataFrame(), pd.DataFrame(columns=_CHOICE)
    why = obstacles(points)
    if not why:
        fit = fit_law(points)
        law = fit.free.draws(DRAWS)
        tables = [_candidates(points, law, model) for model in models]
        candidates = pd.concat(tables, ignore_index=True)
        why = _obstacle(fit, models[-1], tables[-1])
    if not why:
        choices = _choices(law, models[-1], candidates, deadline)
    return Recommendation(candidates, choices, why, models[-1].assumption)


_CHOICE = "choice batch_size devices low high time_seconds cost".split()
_TAILS = tails(LEVEL)


def _candidates(points: Observations, law: Draws, model: StepTimes) -> pd.DataFrame:
    """Returns the candidates on the devices of a model, one row per batch size."""
    measured = points.located().batch_size
    sizes = model.devices * 2.0 ** np.arange(64)
    sizes = sizes[(measured.min() / REACH <= sizes) & (sizes <= measured.max() * REACH)]
    steps, seconds = law.steps(sizes), model.seconds(sizes)
    times = np.quantile(steps * seconds, [0.5, *_TAILS], axis=0).T
    rate = model.price / 3600 or model.devices  # A price is of an hour.
    table = pd.DataFrame({"batch_size": sizes, "devices": model.devices})
    table["steps"] = np.median(steps, axis=0)
    table["seconds"] = np.median(seconds, axis=0)
    table[["time_seconds", "time_low", "time_high"]] = times
    table[["cost", "cost_low", "cost_high"]] = times * rate
    return table


def _obstacle(fit: LawFit, model: StepTimes, candidates: pd.DataFrame) -> str:
    """Returns why none of the candidates is recommended; empty if one is."""
    measured = fit.observations.located().batch_size
    if candidates.empty:
        return (
            f"{model.devices} devices cannot share a batch of at most "
            f"{REACH * measured.max():g} examples, {REACH:g} times the largest measured"
        )
    sizes = candidates["batch_size"].to_numpy(np.float64)
    median = candidates["time_seconds"].to_numpy(np.float64)
    at = int(np.argmin(median))
    # The time still falls at an end, and nothing says how far it will.
    is_most = at == len(sizes) - 1 and sizes[at] > measured.max()
    if is_most or (at == 0 and sizes[at] < measured.min()):
        return (
            f"the time to the goal still falls at batch size {sizes[at]:g}, the last "
            f"candidate: measure {'larger' if is_most else 'smaller'} ones"
        )
    plain = fit.posterior.draws(DRAWS).steps(sizes) * model.seconds(sizes)
    with_one = int(np.argmin(np.median(plain, axis=0)))
    if median[with_one] <= LOSS * median[at]:
        return ""
    return (
        f"the exponent decides: the fastest batch size is {sizes[with_one]:g} under "
        f"c1/B + c2 and {sizes[at]:g} under c1/B^a + c2"
    )


def _choices(
    law: Draws, model: StepTimes, candidates: pd.DataFrame, deadline: float | None
) -> pd.DataFrame:
    """Returns the table of choices, from candidates on all numbers of devices."""
    own = candidates[candidates["devices"] == model.devices]
    sizes = own["batch_size"].to_numpy(np.float64)
    fastest = sizes[np.argmin(law.steps(sizes) * model.seconds(sizes), axis=1)]
    low, high = np.quantile(fastest, _TAILS, method="nearest")
    best = own.iloc[int(own["time_seconds"].argmin())]
    rows = [{**best, "choice": "fastest", "low": low, "high": high}]
    if deadline is not None:
        candidates = candidates[candidates["time_seconds"] <= deadline]
    if not candidates.empty:
        best = candidates.iloc[int(candidates["cost"].argmin())]
        rows.append({**best, "choice": "cheapest"})
    for name, ratio in CONVENTIONS.items():
        sizes = (ratio * law.c1 / law.c2) ** (1 / law.exponent)
        low, high = np.quantile(sizes, _TAILS)
        of_name = {"choice": name, "low": low, "high": high}
        rows.append({**of_name, "batch_size": np.median(sizes)})
    return pd.DataFrame(rows, columns=_CHOICE)
