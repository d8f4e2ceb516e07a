"""The steps at which a trial is evaluated."""

from __future__ import annotations

from dataclasses import dataclass

from dps_tf.core.errors import check_whole


@dataclass(frozen=True)
class EvaluationSchedule:
    """Evaluations at the multiples of an interval, the quantum of K*; never at step 0.

    A budget that is no multiple of the interval ends with the last multiple below, so
    that a larger budget only adds evaluations.
    """

    interval: int

    def __post_init__(self) -> None:
        check_whole("evaluation interval", self.interval)

    def next_after(self, step: int) -> int:
        """Returns the first evaluation after a step."""
        return (step // self.interval + 1) * self.interval

    def at_or_after(self, step: int) -> int:
        """Returns the first evaluation at or after a step."""
        return -(-step // self.interval) * self.interval

    def previous(self, step: int) -> int:
        """Returns the last evaluation before a step, or 0 where there is none."""
        return max(0, (step - 1) // self.interval * self.interval)

    def last_within(self, budget: int) -> int:
        """Returns the last evaluation that a budget of steps allows, or 0."""
        return budget // self.interval * self.interval

    def steps_up_to(self, limit: int) -> range:
        """Returns every evaluation at or before a step."""
        return range(self.interval, limit + 1, self.interval)
