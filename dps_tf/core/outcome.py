"""The outcome of a trial under a goal: when it met the goal, and how it ended."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps_tf.core.goal import Goal
from dps_tf.core.nearest import Nearest, nearest_of

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Wholes = NDArray[np.int64]

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
    found = [line.strip() for line in lines[named[-1] if named else -1 :]]
    if found[0].endswith("Graph execution error:"):  # TensorFlow's cause comes last
        found = [found[0], [line for line in found if not line.startswith("[[")][-1]]
    return " ".join(found)[:300]


def trial_outcome(*, reached: bool, diverged: bool, failed: bool, is_open: bool) -> str:
    """Returns which of OUTCOMES a trial has, as far as its record goes.

    Args:
        reached: whether it surely met the goal.
        diverged: whether its loss or a metric was not finite before it met the goal.
        failed: whether it was ended by an error that is not its own.
        is_open: whether its record ends before the budget did, or has a gap, where it
            may meet the goal.

    >>> trial_outcome(reached=False, diverged=False, failed=False, is_open=True)
    'censored'
    """
    if reached:
        return "complete"
    if diverged:
        return "infeasible"
    if failed:
        return "failed"
    return "censored" if is_open else "incomplete"


class GoalWatch:
    """The evaluations of one trial, one after another, seen from a goal.

    Attributes:
        last: step of the latest evaluation, 0 before any.
        finish: step of the first evaluation at which the goal was met, or None.
        nearest: the evaluation nearest to the goal, up to `finish`, or None.

    >>> watch = GoalWatch(Goal("validation/loss", 0.1))
    >>> watch.add(10, 0.3), watch.add(20, 0.1), watch.finish
    (False, True, 20)
    """

    def __init__(self, goal: Goal, trial: int = 0):
        """Has seen no evaluation yet; `trial` is the number of the trial."""
        self.last = 0
        self.finish: int | None = None
        self.nearest: Nearest | None = None
        self._goal = goal
        self._trial = trial
        self._recent: deque[float] = deque(maxlen=goal.window)

    def add(self, step: int, value: float) -> bool:
        """Takes the next evaluation; returns whether the goal is met at it.

        `value` is the value of the goal's metric, NaN where it is only a bound.
        """
        self._goal.check_unit(value)
        self.last = step
        self._recent.append(value)
        compared = self._goal.over_window(list(self._recent))
        is_met = bool(self._goal.reaches(compared))
        if self.finish is None:
            here = Nearest(compared, step, self._trial)
            self.nearest = nearest_of(self._goal, (self.nearest, here))
            self.finish = step if is_met else None
        return is_met


@dataclass(frozen=True)
class Crossings:
    """The evaluated steps at which trials met a goal, infinity for none; [trials].

    Attributes:
        sure: the first evaluation at which the goal was met.
        maybe: the first evaluation at which bounds allow that the goal was met; at or
            before `sure`.
        before: the evaluation before `maybe`, 0 where that is the first.
        last: the last evaluation, 0 for none.
    """

    sure: Floats
    maybe: Floats
    before: Floats
    last: Wholes


def crossings(  # noqa: PLR0913 - the columns of a table of evaluations
    goal: Goal, trials: int, codes: Wholes, steps: Wholes, values: Floats, bounds: Bools
) -> Crossings:
    """Returns where trials 0, 1, ... met a goal: `GoalWatch` for many curves at once.

    A bound that does not reach the threshold proves that its evaluation did not. A NaN
    bound proves nothing: cross-entropy is computed for whole evaluations only.

    Args:
        goal: the goal of the trials.
        trials: number of trials.
        codes: trial of each evaluation; evaluations of trial -1 are ignored.
        steps: step of each evaluation, in any order, each once in a trial.
        values: value of the goal's metric at each evaluation; NaN never meets it.
        bounds: which values are only bounds, which do not count as meeting the goal.

    Raises:
        UserError: `goal.check_unit` refuses a value.
    """
    goal.check_unit(values[codes >= 0])
    order = np.lexsort((steps, codes))
    order = order[codes[order] >= 0]
    codes, steps = codes[order], steps[order]
    met, may_be_met = _met(values[order], bounds[order], codes, goal)
    earlier = np.where(np.r_[False, codes[1:] == codes[:-1]], np.r_[0, steps[:-1]], 0)
    last = np.zeros(trials, np.int64)
    last[codes] = steps  # Rows are in the order of steps: the last one stays.
    return Crossings(
        sure=_at_first(met, codes, steps, trials),
        maybe=_at_first(may_be_met, codes, steps, trials),
        before=_at_first(may_be_met, codes, earlier, trials),
        last=last,
    )


def _at_first(chosen: Bools, codes: Wholes, values: Wholes, size: int) -> Floats:
    """Returns per trial the value of the first chosen row, infinity for none."""
    first = np.full(size, np.inf)
    at = np.flatnonzero(chosen)
    trials, position = np.unique(codes[at], return_index=True)
    first[trials] = values[at][position]
    return first


def _met(
    values: Floats, bounds: Bools, codes: Wholes, goal: Goal
) -> tuple[Bools, Bools]:
    """Returns at which evaluations the goal is met for sure, and where it may be.

    Values, whether they are bounds, and codes are in the order of trials and steps.
    """
    unknown = bounds & np.isnan(values)
    if goal.mean_of == 1:
        reached = goal.reaches(values)
        sure = _all_recent(reached & ~bounds, codes, goal.in_a_row)
        return sure, _all_recent(reached | unknown, codes, goal.in_a_row)
    recent = [_earlier(values, n, np.nan) for n in range(goal.mean_of - 1, -1, -1)]
    here = _all_recent(np.ones(len(values), bool), codes, goal.mean_of)
    reached = goal.reaches(goal.mean(recent)) & here
    exact = _all_recent(~bounds, codes, goal.mean_of)
    informative = _all_recent(~unknown, codes, goal.mean_of)
    return reached & exact, (reached | ~informative) & here


def _all_recent(holds: Bools, codes: Wholes, number: int) -> Bools:
    """Returns where `holds` is true at the last `number` evaluations of a trial."""
    recent = holds.copy()
    for back in range(1, number):
        recent &= _earlier(holds, back, False) & (_earlier(codes, back, -1) == codes)
    return recent


def _earlier(values: NDArray[Any], back: int, missing: Any) -> NDArray[Any]:
    """Returns the values `back` rows before; `missing` where there is no such row."""
    first = np.full(min(back, len(values)), missing, values.dtype)
    return np.concatenate([first, values[: len(values) - len(first)]])
