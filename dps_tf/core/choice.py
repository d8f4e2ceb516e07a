"""The question for which a sweep chooses its batch sizes one after another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dps_tf.core.errors import UserError, check_known, check_whole, is_whole

FIRST = 5
"""Batch sizes of a curve before a choice may end: fewer leave the ends of intervals to
the prior, as `analysis.law.FEW_POINTS` says."""
_REFUSED = ("c1", "c2", "c1/c2")
_MAY_CHANGE = ("precision", "budget")


@dataclass(frozen=True)
class Choice:
    """The batch sizes among which a sweep chooses, and when it stops.

    What is asked is the batch size to train with: the one that reaches the goal first
    on some devices. Every curve of the sweep is a choice of its own.

    Attributes:
        low: smallest batch size; the others are `low` times a power of two.
        high: largest batch size that may be chosen.
        precision: share of the least time that the recommended batch size may lose, at
            most, with a probability of 95 %.
        budget: seconds of training in the cells of a curve, summed over all slots,
            after which no further one is chosen; None for no budget.
        devices: number of devices that will share a batch; each batch size has to be a
            multiple of it.
        step_times: seconds of a step by batch size, on the devices to train with; None
            takes the times that the sweep records, shared evenly among `devices`.
        question: what is asked, `batch_size`.
    """

    low: int
    high: int
    precision: float = 0.05
    budget: float | None = None
    devices: int = 1
    step_times: Mapping[int, float] | None = None
    question: str = "batch_size"

    def __post_init__(self) -> None:
        """Raises UserError for values that are not allowed."""
        if self.question in _REFUSED:
            raise UserError(
                f"choose.question is {self.question!r}, and nothing is chosen for it: "
                "intervals of chosen batch sizes hold less often than they say (see "
                "the page 'From curves to decisions'), so list sweep.batch_sizes."
            )
        check_known("choose.question", self.question, ("batch_size",))
        for name in ("low", "high", "devices"):
            check_whole(f"choose.{name}", getattr(self, name))
        if self.high < 2**FIRST * self.low:
            raise UserError(
                f"choose.low is {self.low} and choose.high is {self.high}: a choice "
                f"needs {FIRST + 1} batch sizes or more, so high has to be at least "
                f"{2**FIRST} times low."
            )
        if self.low % self.devices:
            raise UserError(
                f"choose.low is {self.low}, and {self.devices} devices cannot share "
                "such a batch evenly: make it a multiple of choose.devices."
            )
        _check_positive("choose.precision", self.precision)
        if self.budget is not None:
            _check_positive("choose.budget", self.budget)
        if self.step_times is not None:
            self._check_times(self.step_times)

    def _check_times(self, times: object) -> None:
        if not isinstance(times, Mapping) or not times:
            raise UserError(
                f"choose.step_times is {times!r}; it must be a dictionary of seconds "
                "by batch size, such as {64: 0.01, 256: 0.02, 1024: 0.06}."
            )
        if self.devices != 1:
            raise UserError(
                "choose.step_times are those of the devices to train with, and "
                f"choose.devices is {self.devices} too: leave choose.devices out."
            )
        for size, seconds in times.items():
            check_whole("a batch size in choose.step_times", size)
            _check_positive(f"choose.step_times of batch size {size}", seconds)

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes that may be chosen, ascending."""
        return [self.low << i for i in range((self.high // self.low).bit_length())]

    def identity(self) -> dict[str, Any]:
        """Returns as JSON what the order of the chosen batch sizes depends on."""
        values = {n: v for n, v in asdict(self).items() if n not in _MAY_CHANGE}
        if self.step_times is not None:
            values["step_times"] = [list(pair) for pair in self.step_times.items()]
        return values


def _check_positive(name: str, value: object) -> None:
    is_number = isinstance(value, float) or is_whole(value, 1)
    if not is_number or not 0 < float(str(value)) < math.inf:
        raise UserError(f"{name} is {value!r}; it must be a positive number.")
