"""The evaluations nearest to a goal that no trial reached, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from dps_tf.core.goal import Goal
from dps_tf.core.space import Space

_MANY_DIVERGED = 0.5
"""Fraction of diverged trials above which the space reaches too far up."""


@dataclass(frozen=True)
class Nearest:
    """The evaluation that came nearest to a goal, the first one of several.

    Attributes:
        value: value of the goal's metric; over several evaluations, see
            `Goal.over_window`.
        step: step of the evaluation.
        trial: number of the trial.
    """

    value: float
    step: int
    trial: int

    def in_words(self, goal: Goal) -> str:
        """Returns the evaluation in words.

        >>> goal = Goal("validation/classification_error", 0.1)
        >>> Nearest(0.25, 40, 3).in_words(goal)
        'best validation/classification_error 0.25, at step 40 of trial 3'
        """
        where = f"at step {self.step} of trial {self.trial}"
        return f"best {goal.metric} {self.value:.4g}, {where}"


def nearest_of(goal: Goal, evaluations: Iterable[Nearest | None]) -> Nearest | None:
    """Returns the evaluation that came nearest; of equal ones the least (step, trial).

    Values that are not finite, and None, do not count; None if no evaluation counts.
    """
    sign = 1 if goal.direction == "minimize" else -1
    return min(
        (near for near in evaluations if near and math.isfinite(near.value)),
        key=lambda near: (sign * near.value, near.step, near.trial),
        default=None,
    )


def advice(
    goal: Goal,
    near: Nearest,
    last_evaluation: int,
    outcomes: Sequence[str],
    space: Space,
    point: Mapping[str, float],
) -> str:
    """Returns what to change so that the goal may be reached, as one sentence.

    The advice names the budget if the nearest trial was best at its last evaluation. It
    names the space if that trial lies at an end of the space or most trials diverged,
    and always the goal.

    Args:
        goal: the goal that no trial reached.
        near: the evaluation that came nearest.
        last_evaluation: step of the last evaluation that the budget allows.
        outcomes: one of OUTCOMES per trial.
        space: space from which the points were drawn.
        point: metaparameters of the trial that came nearest.
    """
    ways = []
    if near.step >= last_evaluation:
        ways.append(
            "raise workload.step_budget (the last evaluation had the best value)"
        )
    ends = space.at_boundary(point)
    if ends:
        values = " and ".join(f"{name} = {point[name]:.4g}" for name in ends)
        ways.append(f"widen workload.space ({values} lies at an end of it)")
    diverged = sum(outcome == "infeasible" for outcome in outcomes)
    if diverged > _MANY_DIVERGED * len(outcomes):
        ways.append(
            f"move workload.space to smaller learning rates ({diverged} of "
            f"{len(outcomes)} trials diverged)"
        )
    ways.append(f"set goal.threshold to {reachable(goal, near.value)}, which it met")
    return f"To reach a goal: {'; or '.join(ways)}."


def reachable(goal: Goal, value: float) -> str:
    """Returns the nearest threshold of three digits that a value meets.

    >>> reachable(Goal("validation/classification_error", 0.1), 0.26936)
    '0.270'
    >>> reachable(Goal("validation/accuracy", 0.9, "maximize", inclusive=False), 0.5)
    '0.499'
    """
    # Below a trillionth, digits come from rounding.
    exact = Decimal(value)
    unit = Decimal((0, (1,), max(exact.adjusted() - 2, -12) if exact else -3))
    rounding = ROUND_CEILING if goal.direction == "minimize" else ROUND_FLOOR
    threshold = exact.quantize(unit, rounding=rounding)
    if not goal.inclusive and float(threshold) == value:
        threshold += unit if goal.direction == "minimize" else -unit
    return f"{threshold:f}" if -6 < exact.adjusted() < 9 else f"{threshold:e}"
