"""Evaluations of a trial, its outcomes, and the summary of it that a race reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dps_tf.core.errors import UserError, is_whole


@dataclass(frozen=True)
class EvaluationSchedule:
    """Evaluations at the multiples of an interval, the quantum of K*; never at step 0.

    A budget that is no multiple of the interval ends with the last multiple below, so
    that a larger budget only adds evaluations.
    """

    interval: int

    def __post_init__(self) -> None:
        if not is_whole(self.interval, 1):
            raise UserError(
                f"evaluation interval {self.interval!r} is not a whole number of "
                "steps of at least 1."
            )

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


_ERROR = re.compile(r"[A-Za-z_][\w.]*(: |$)")

OUTCOMES = ("complete", "incomplete", "infeasible", "censored", "failed")
"""complete: met the goal. incomplete: spent its step budget. infeasible: diverged.

censored: stopped because enough other trials had met the goal before it could. failed:
ended by an error that is not the trial's own (its text is kept).
"""


@dataclass(frozen=True)
class Trajectory:
    """The evaluations of one trial so far.

    Attributes:
        last_step: last step at which it was evaluated; 0 before the first evaluation.
        finish_step: first evaluated step at which it met the goal.
        diverged_step: step whose mini-batch loss, or evaluated metric, was first not
            finite. A trial may finish and diverge later.
        failed: text of the error that ended the trial, None unless one did.
    """

    last_step: int = 0
    finish_step: int | None = None
    diverged_step: int | None = None
    failed: str | None = None


def error_cause(text: str) -> str:
    """Returns the error at the end of a traceback, in at most 300 characters."""
    lines = [line for line in text.splitlines() if line.strip()] or ["unknown"]
    # The last line that names an error; its message may go on over further lines.
    named = [n for n, line in enumerate(lines) if _ERROR.match(line)]
    message = " ".join(line.strip() for line in lines[named[-1] if named else -1 :])
    return message[:300]
