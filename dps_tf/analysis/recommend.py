"""Which batch size to train with: the answer that a curve and its step times give.

Time to the goal on N devices is K*(B) t(B/N), with K* of `analysis.predict` and t of
`analysis.step_times`. Candidates are powers of two, multiples of the devices, up to a
factor of four beyond the measured batch sizes. Each choice comes with the range that it
has over the posterior, and none is given where the data cannot carry it.

Further answers that do not depend on the hardware stand beside, by name: the point of
equal marginal gain and the conventions of the field (CONVENTIONS).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dps_tf.analysis.law import LEVEL, Draws, Observations, fit_law
from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.predict import REACH, obstacles
from dps_tf.analysis.step_times import (
    DRAWS,
    SECONDS_PER_HOUR,
    StepTimes,
    step_time_model,
)
from dps_tf.analysis.tables import Floats
from dps_tf.analysis.wording import interval, number, steps

EFFICIENCY = 0.8
"""Share of perfect scaling down to which `efficient` goes."""
LOSS = 1.1
"""Factor in time that a recommendation may lose by the choice of the exponent."""
CONVENTIONS = {
    "equal_marginal_gain": (
        1.0,
        "c1/c2: twice the steps of the plateau and twice the examples of perfect "
        "scaling; the critical batch size of McCandlish et al. 2018, section 2.3, and "
        "of c1/B + c2 in Lee et al. 2021",
    ),
    "zhang2024": (
        0.2,
        "20 % more examples than perfect scaling; the critical batch size of Zhang et "
        "al. 2024, section 2",
    ),
    "efficient": (
        1 / EFFICIENCY - 1,
        f"{EFFICIENCY:.0%} of perfect scaling: the largest batch size whose examples "
        "work for at least that share",
    ),
    "shallue2019": (
        5.0,
        "20 % more steps than the plateau; a number for the maximum useful batch size "
        "of Shallue et al. 2019, section 4.1, who give none",
    ),
}
"""Of the batch size, by name: its ratio to (c1/c2)^(1/a), and what it means."""


@dataclass(frozen=True)
class Recommendation:
    """What to train with, on some devices.

    Attributes:
        candidates: one row per batch size and number of devices: batch_size, devices,
            steps, seconds (of a step), time_seconds with time_low and time_high, and
            cost with cost_low and cost_high: money where the step times have a price,
            else seconds times devices.
        choices: one row per choice: choice, batch_size, devices, low and high (the
            range of the batch size over the posterior), time_seconds, cost, meaning.
        abstains: why no batch size is recommended; empty if one is.
        assumption: what is assumed of the devices.
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
    level: float = LEVEL,
) -> Recommendation:
    """Returns which batch size reaches the goal first on N devices, and cheapest.

    Args:
        points: K* of one curve.
        step_times: a table of step times; see `analysis.step_times`.
        devices: N; for the cheapest choice fewer are looked at too.
        deadline: seconds within which the cheapest choice has to reach the goal, in
            the median; None for no deadline.
        communication: seconds a step for exchanging gradients; see `step_time_model`.
        level: nominal coverage of ranges.

    Raises:
        UserError: the step times cannot be used.
    """
    models = [
        step_time_model(step_times, number, communication if number > 1 else None)
        for number in _numbers_of_devices(devices)
    ]
    assumption = models[-1].assumption
    if why := obstacles(points):
        return Recommendation(_NO_CANDIDATE, _NO_CHOICE, why, assumption)
    fit = fit_law(points, level)
    free = fit.free.draws(DRAWS)
    times = [_Times.of(points, free, model) for model in models]
    candidates = pd.concat([each.table(level) for each in times], ignore_index=True)
    if why := times[-1].obstacle(fit.posterior.draws(DRAWS)):
        return Recommendation(candidates, _NO_CHOICE, why, assumption)
    choices = [times[-1].fastest(level), *_cheapest(candidates, deadline)]
    choices += _conventions(free, level)
    table = pd.DataFrame(choices, columns=_NO_CHOICE.columns)
    return Recommendation(candidates, table, "", assumption)


_NO_CANDIDATE = pd.DataFrame(
    columns="batch_size devices steps seconds time_seconds time_low time_high cost "
    "cost_low cost_high".split()
)
_NO_CHOICE = pd.DataFrame(
    columns="choice batch_size devices low high time_seconds cost meaning".split()
)


def _numbers_of_devices(devices: int) -> list[int]:
    """Returns powers of two below N, and N."""
    powers = [2**i for i in range(64) if 2**i < devices]
    return [*powers, devices]


@dataclass(frozen=True)
class _Times:
    """Draws of the time to the goal at candidate batch sizes on some devices."""

    model: StepTimes
    sizes: Floats
    steps: Floats
    seconds: Floats
    measured: tuple[float, float]

    @classmethod
    def of(cls, points: Observations, law: Draws, model: StepTimes) -> _Times:
        located = points.located().batch_size
        measured = float(located.min()), float(located.max())
        sizes = _candidates(measured, model.devices)
        return cls(model, sizes, _steps(law, sizes), model.seconds(sizes), measured)

    @property
    def total(self) -> Floats:
        """Seconds to the goal, [d, n]."""
        return self.steps * self.seconds

    @property
    def best(self) -> int:
        """The position of the batch size with the least median time."""
        return int(np.argmin(np.median(self.total, axis=0)))

    def table(self, level: float) -> pd.DataFrame:
        """Returns the candidates, one row per batch size."""
        low, high = np.quantile(self.total, tails(level), axis=0)
        median = np.median(self.total, axis=0)
        rate = self.model.price / SECONDS_PER_HOUR or self.model.devices
        return pd.DataFrame(
            {
                "batch_size": self.sizes,
                "devices": self.model.devices,
                "steps": np.median(self.steps, axis=0),
                "seconds": np.median(self.seconds, axis=0),
                "time_seconds": median,
                "time_low": low,
                "time_high": high,
                "cost": median * rate,
                "cost_low": low * rate,
                "cost_high": high * rate,
            }
        )

    def fastest(self, level: float) -> dict[str, object]:
        """Returns the row of the fastest batch size."""
        chosen = self.sizes[np.argmin(self.total, axis=1)]
        low, high = np.quantile(chosen, tails(level), method="nearest")
        about = {"choice": "fastest", "meaning": "the least median time to the goal"}
        return {**self.table(level).iloc[self.best], "low": low, "high": high, **about}

    def obstacle(self, plain: Draws) -> str:
        """Returns why no batch size is recommended; empty if one is."""
        if not len(self.sizes):
            return (
                f"{self.model.devices} devices cannot share a batch of at most "
                f"{REACH * self.measured[1]:g} examples, {REACH:g} times the largest "
                "measured"
            )
        best = self.sizes[self.best]
        # The time still falls there, and nothing says how far it will.
        if best > self.measured[1] and self.best == len(self.sizes) - 1:
            return (
                f"the time to the goal still falls at batch size {best:g}, {REACH:g} "
                f"times the largest measured: measure larger ones"
            )
        if best < self.measured[0] and self.best == 0 and len(self.sizes) > 1:
            return (
                f"the time to the goal still falls towards batch size {best:g}, the "
                f"smallest looked at: measure smaller ones"
            )
        median = np.median(self.total, axis=0)
        other = _steps(plain, self.sizes) * self.seconds
        with_one = int(np.argmin(np.median(other, axis=0)))
        if median[with_one] <= LOSS * median[self.best]:
            return ""
        return (
            f"the exponent decides: the fastest batch size is "
            f"{self.sizes[with_one]:g} under c1/B + c2 and {best:g} under c1/B^a + c2"
        )


def _candidates(measured: tuple[float, float], devices: int) -> Floats:
    """Returns powers of two within reach of which each device gets a whole number."""
    least, most = measured[0] / REACH, measured[1] * REACH
    first = int(np.ceil(np.log2(max(least, 1))))
    last = int(np.floor(np.log2(most)))
    sizes = [2**i for i in range(first, last + 1)]
    return np.array([size for size in sizes if size % devices == 0], np.float64)


def _cheapest(
    candidates: pd.DataFrame, deadline: float | None
) -> list[dict[str, object]]:
    """Returns the row of the cheapest candidate within the deadline, if any has one."""
    limit = np.inf if deadline is None else deadline
    used = candidates[candidates["time_seconds"] <= limit]
    if used.empty:
        return []
    within = "" if deadline is None else f" within {deadline:g} seconds"
    meaning = f"the least median cost of reaching the goal{within}"
    row = used.iloc[int(used["cost"].argmin())]
    return [{**row, "choice": "cheapest", "meaning": meaning}]


def _steps(law: Draws, sizes: Floats) -> Floats:
    """Returns the curve of each draw at batch sizes, [d, n]."""
    steps = law.c1[:, None] / sizes ** law.exponent[:, None] + law.c2[:, None]
    return np.asarray(steps, np.float64)


def _conventions(law: Draws, level: float) -> list[dict[str, object]]:
    """Returns the rows of the choices that no hardware moves."""
    found: list[dict[str, object]] = []
    for name, (ratio, meaning) in CONVENTIONS.items():
        sizes = (ratio * law.c1 / law.c2) ** (1 / law.exponent)
        low, size, high = np.quantile(sizes, [tails(level)[0], 0.5, tails(level)[1]])
        row = {"choice": name, "batch_size": size, "low": low, "high": high}
        found.append({**row, "meaning": meaning})
    return found
