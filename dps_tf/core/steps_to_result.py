"""Steps-to-result of a study: what the records say once the race is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dps_tf.core.race import (
    Key,
    RaceRule,
    cutoff,
    divergence_key,
    finish_keys,
    follow_to,
    plan,
)
from dps_tf.core.trial import Trajectory


@dataclass(frozen=True)
class TrialResult:
    """How one trial ended under the rule of its study.

    Attributes:
        outcome: one of OUTCOMES.
        end_step: last step that the record covers; curves are cut to it.
        steps_to_result: first evaluated step that met the goal, for `complete` only.
        bracket_low: evaluation before it. A metric that only improves met the goal in
            (bracket_low, steps_to_result]; one that goes up and down may have met it
            earlier, at a step that was not evaluated.
        diverged_step: for `infeasible` only.
        error: for `failed` only.
    """

    outcome: str
    end_step: int
    steps_to_result: int | None = None
    bracket_low: int | None = None
    diverged_step: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class StudyResult:
    """The reduction of a study.

    Attributes:
        trials: one result per trial of the study's prefix of draws.
        finishers: keys (steps, trial) of K_(1) .. K_(m), as many as there are.
        draws_exhausted: whether the budget of draws ended before N feasible trials.
        decided: whether further training could still change this.
    """

    trials: tuple[TrialResult, ...]
    finishers: tuple[Key, ...]
    draws_exhausted: bool
    decided: bool


def reduce_study(trajectories: Sequence[Trajectory], rule: RaceRule) -> StudyResult:
    """Returns the study's result, the same for every way of having run it.

    What was run beyond the rule is cut away. A failed trial that the rule still needed
    stays `failed`: while one stands, K* is an upper bound.
    """
    todo = plan(trajectories, rule)
    known = list(trajectories[: todo.prefix])
    known += [Trajectory()] * (todo.prefix - len(known))
    end = cutoff(known, rule)
    keys = finish_keys(known, rule.last_evaluation)
    trials = tuple(
        _trial_result(trajectory, number, end, rule)
        for number, trajectory in enumerate(known)
    )
    return StudyResult(
        trials=trials,
        finishers=tuple(keys if rule.exhaustive else keys[: rule.finishers]),
        draws_exhausted=todo.exhausted,
        decided=todo.decided and all(t.outcome != "failed" for t in trials),
    )


def _trial_result(
    trajectory: Trajectory, number: int, end: Key, rule: RaceRule
) -> TrialResult:
    within = (rule.last_evaluation, number) if rule.exhaustive else end
    finish = trajectory.finish_step
    if finish is not None and (finish, number) <= within:
        goes_on = rule.exhaustive and not rule.stop_at_goal
        last = max(finish, min(trajectory.last_step, rule.last_evaluation))
        return TrialResult(
            "complete",
            end_step=last if goes_on else finish,
            steps_to_result=finish,
            bracket_low=rule.schedule.previous(finish),
        )
    key = divergence_key(trajectory, number, rule)
    if key is not None and key <= within:
        step = trajectory.diverged_step
        assert step is not None
        return TrialResult("infeasible", end_step=step, diverged_step=step)
    last = follow_to(number, within, rule.schedule)
    if trajectory.failed is not None and trajectory.last_step < last:
        return TrialResult(
            "failed", end_step=trajectory.last_step, error=trajectory.failed
        )
    if within[0] >= rule.last_evaluation and within[1] >= number:
        return TrialResult("incomplete", end_step=min(last, trajectory.last_step))
    return TrialResult("censored", end_step=min(last, trajectory.last_step))
