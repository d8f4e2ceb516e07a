"""The rule by which a sweep chooses its batch sizes one after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dps_tf.core.errors import UserError, check_positive, check_whole

FIRST = 5
"""Batch sizes of a curve before a choice may end: fewer leave the ends of intervals to
the prior, as `analysis.law.FEW_POINTS` says."""


@dataclass(frozen=True)
class Choice:
    """The batch sizes among which a sweep chooses, and when it stops.

    What is asked is the batch size to train with: the one that reaches the goal first.
    Every curve of the sweep is a choice of its own.

    Attributes:
        low: smallest batch size; the others are `low` times a power of two.
        high: largest batch size that may be chosen.
        precision: share of the least time that the recommended batch size may lose, at
            most, with a probability of 95 %.
        budget: seconds of training in the cells of a curve, summed over all slots,
            after which no further one is chosen; None for no budget.
        step_times: seconds of a step by batch size, on the devices to train with; None
            takes the times that the sweep records.
    """

    low: int
    high: int
    precision: float = 0.05
    budget: float | None = None
    step_times: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        """Raises UserError for values that are not allowed."""
        check_whole("choose.low", self.low)
        check_whole("choose.high", self.high)
        if self.high < 2**FIRST * self.low:
            raise UserError(
                f"choose.low is {self.low} and choose.high {self.high}: high has to be "
                f"at least {2**FIRST} times low, as a choice needs {FIRST + 1} sizes."
            )
        check_positive("choose.precision", self.precision)
        if self.budget is not None:
            check_positive("choose.budget", self.budget)
        times = self.step_times
        if times is None:
            return
        if not isinstance(times, Mapping) or not times:
            raise UserError(
                f"choose.step_times is {times!r}: give seconds by batch size, such as "
                "{64: 0.01, 256: 0.02}, of the devices to train with."
            )
        for size, seconds in times.items():
            check_whole("a batch size of choose.step_times", size)
            check_positive(f"choose.step_times[{size}]", seconds)

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes that may be chosen, ascending."""
        return [self.low << i for i in range((self.high // self.low).bit_length())]
