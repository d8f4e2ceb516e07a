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
    """

    low: int
    high: int
    precision: float = 0.05
    budget: float | None = None
    devices: int = 1
    step_times: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        """Raises UserError for values that are not allowed."""
        for name in ("low", "high", "devices"):
            check_whole(f"choose.{name}", getattr(self, name))
        if self.high < 2**FIRST * self.low or self.low % self.devices:
            raise UserError(
                f"choose.low is {self.low}, high {self.high} and devices "
                f"{self.devices}: high has to be at least {2**FIRST} times low, as a "
                f"choice needs {FIRST + 1} batch sizes, and low a multiple of devices."
            )
        check_positive("choose.precision", self.precision)
        if self.budget is not None:
            check_positive("choose.budget", self.budget)
        times = self.step_times
        if times is None:
            return
        if not isinstance(times, Mapping) or not times or self.devices > 1:
            raise UserError(
                f"choose.step_times is {times!r} and choose.devices {self.devices}: "
                "give seconds by batch size, such as {64: 0.01, 256: 0.02}, of the "
                "devices to train with, and leave choose.devices out."
            )
        for size, seconds in times.items():
            check_whole("a batch size of choose.step_times", size)
            check_positive(f"choose.step_times[{size}]", seconds)

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes that may be chosen, ascending."""
        return [self.low << i for i in range((self.high // self.low).bit_length())]
