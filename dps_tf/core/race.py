"""The race decides how far each trial is followed, and what the result of a study is.

K_(m) is the m-th smallest (steps-to-result, trial number). A trial has to be followed
only as long as it could still meet the goal at or before the K_(m) of the evaluations
so far. Once no trial has to be followed any further, K_(1) .. K_(m) are what they would
be if every trial were followed to the end: a trial that was stopped cannot come before
them.

Order. Everything that happens to a trial is seen at an evaluation, and has the key
(evaluated step, trial number). A divergence between two evaluations has the key of the
later one. So a trial numbered after the m-th finisher is followed to the evaluation
before K_(m), one numbered before it to K_(m).

Feasible budgets: Shallue et al. 2019 draw until N trials have not diverged. The study
is the shortest prefix of draws in which, in this order, N trials have not diverged at
or before K* = K_(1) of the same prefix. So K* does not depend on m. Deviation: the
original also replaces trials that diverge after K*, which a race does not run; an
exhaustive study does as the original.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from dps_tf.core.evaluation_steps import EvaluationSchedule
from dps_tf.core.outcome import Trajectory, trial_outcome

Key = tuple[int, int]
"""(evaluated step, trial number)."""

MAX_LEAD = 0.05
"""Greatest lead of a trial where slots hold states: a fraction of the step of the trial
furthest behind."""


@dataclass(frozen=True)
class RaceRule:
    """The rule that decides a study.

    Attributes:
        points: N, number of trials (or feasible trials) of the study.
        finishers: m; K_(1) .. K_(m) are exact.
        step_budget: number of steps that a trial may run.
        schedule: when trials are evaluated.
        feasible_only: whether N counts only trials that did not diverge in time: at or
            before K_(1), or in an exhaustive study by the end of their own run.
        max_draws: largest number of points that may be drawn.
        exhaustive: whether every trial of the prefix runs to its own end.
        stop_at_goal: whether an exhaustive trial ends when it has met the goal.
    """

    points: int
    finishers: int
    step_budget: int
    schedule: EvaluationSchedule
    feasible_only: bool = False
    max_draws: int = 0
    exhaustive: bool = False
    stop_at_goal: bool = True

    @property
    def counted_finishers(self) -> int | None:
        """The k of K_(k) after which no divergence counts; None if all count."""
        return None if self.exhaustive else 1

    @property
    def last_evaluation(self) -> int:
        """The step at which a trial's budget ends."""
        return self.schedule.last_within(self.step_budget)

    @property
    def draws_limit(self) -> int:
        """The longest prefix of draws that the study may use."""
        return max(self.points, self.max_draws) if self.feasible_only else self.points


@dataclass(frozen=True)
class Plan:
    """The plan of what remains to be done.

    Attributes:
        prefix: draws that the study is known to need.
        cutoff: K_(m) as far as it is known: nothing after it matters. With fewer than m
            finishers it is the end of the budget, with a trial number after all others.
        pending: trials to follow further, the trials furthest behind first.
        speculative: draws likely to be needed next, for slots with nothing to do.
        exhausted: whether the study needs more draws than it may have.
    """

    prefix: int
    cutoff: Key
    pending: tuple[int, ...]
    speculative: tuple[int, ...]
    exhausted: bool

    @property
    def decided(self) -> bool:
        """Whether no trial has to be followed any further."""
        return not self.pending


def plan(
    trajectories: Sequence[Trajectory], rule: RaceRule, known_prefix: int = 0
) -> Plan:
    """Returns what remains to be done after the evaluations so far.

    Args:
        trajectories: trajectories of trials 0, 1, ...; missing ones have not started.
        rule: rule that decides the study.
        known_prefix: the prefix of an earlier plan; prefixes only grow.
    """
    prefix = max(rule.points, known_prefix)
    while True:
        padded = _padded(trajectories, prefix)
        wanted = _missing_draws(padded, rule)
        if wanted == 0 or prefix >= rule.draws_limit:
            break
        # The prefix grows by one draw at a time: that draw may bring K_(m) forward,
        # and then a divergence that counted for this prefix may come after the new
        # K_(m), so that fewer draws are missing.
        prefix += 1
    room = rule.draws_limit - prefix
    extra = min(room, _speculation(padded, rule))
    last = cutoff(padded, rule)
    end = _end(last, rule)
    # As a plan is made for each turn, nothing is looked at twice.
    further = _padded(trajectories, prefix + extra) if extra else ()
    return Plan(
        prefix=prefix,
        cutoff=last,
        pending=_behind(padded, end, rule),
        speculative=tuple(n for n in _behind(further, end, rule) if n >= prefix),
        exhausted=wanted > 0,
    )


def reserve(
    todo: Plan, trajectories: Sequence[Trajectory], rule: RaceRule, more: int
) -> tuple[int, ...]:
    """Returns draws that no plan needs yet, and that may go on where it costs nothing.

    They are the next `more` draws, or all that have begun where these are more; none
    without a feasible budget. Each ends where a trial of the plan would end.
    """
    first = 1 + max((todo.prefix - 1, *todo.speculative))
    last = max(len(trajectories), first + more) if rule.feasible_only else 0
    padded = _padded(trajectories, min(last, rule.draws_limit))
    found = _behind(padded, _end(todo.cutoff, rule), rule)
    return tuple(trial for trial in found if trial >= first)


def _end(last: Key, rule: RaceRule) -> Key:
    """Returns the key to which trials are followed; `last` is the key of K_(m)."""
    return (rule.last_evaluation, rule.draws_limit) if rule.exhaustive else last


def _padded(trajectories: Sequence[Trajectory], prefix: int) -> list[Trajectory]:
    padded = list(trajectories[:prefix])
    return padded + [Trajectory()] * (prefix - len(padded))


def within_lead(
    todo: Plan, trajectories: Sequence[Trajectory], rule: RaceRule
) -> tuple[int, ...]:
    """Returns the trials of a plan that may go on now, in the order of the plan.

    Where slots hold the states of their trials, each slot goes on with its own, and a
    fast one would run far ahead of the others. So no trial goes on to an evaluation
    that is further than MAX_LEAD beyond the trial furthest behind, and than the second
    evaluation after it. Until the study is decided that one is before K_(m); so none is
    run further than (1 + MAX_LEAD) K_(m), or one evaluation beyond K_(m).

    No trial waits for draws that replace others (Shallue's feasible budgets): these
    begin late, and one alone would hold up all. An exhaustive study has nothing to
    outrun.
    """
    trials = (*todo.pending, *todo.speculative)
    if rule.exhaustive or not todo.pending:
        return trials

    def step_of(trial: int) -> int:
        return trajectories[trial].last_step if trial < len(trajectories) else 0

    first_draws = [trial for trial in todo.pending if trial < rule.points]
    behind = min(map(step_of, first_draws or todo.pending))
    second = rule.schedule.next_after(rule.schedule.next_after(behind))
    ahead = max(second, behind + int(MAX_LEAD * behind))
    return tuple(t for t in trials if rule.schedule.next_after(step_of(t)) <= ahead)


def finish_keys(trajectories: Sequence[Trajectory], limit: int) -> list[Key]:
    """Returns the sorted keys (K, trial number) of the finishers up to `limit`."""
    return sorted(
        (trajectory.finish_step, number)
        for number, trajectory in enumerate(trajectories)
        if trajectory.finish_step is not None and trajectory.finish_step <= limit
    )


def cutoff(trajectories: Sequence[Trajectory], rule: RaceRule) -> Key:
    """Returns the key of K_(m), or the end of the budget after every trial."""
    return _key_of(rule.finishers, trajectories, rule)


def _key_of(
    rank: int | None, trajectories: Sequence[Trajectory], rule: RaceRule
) -> Key:
    keys = finish_keys(trajectories, rule.last_evaluation)
    if rank is not None and len(keys) >= rank:
        return keys[rank - 1]
    return rule.last_evaluation, len(trajectories)


def divergence_key(trajectory: Trajectory, number: int, rule: RaceRule) -> Key | None:
    """Returns the key at which a trial left the race by diverging, or None.

    Divergence after the goal was met, or after the budget, does not count.
    """
    step = trajectory.diverged_step
    if step is None:
        return None
    seen = rule.schedule.at_or_after(step)
    finish = trajectory.finish_step
    if (finish is not None and finish < seen) or seen > rule.last_evaluation:
        return None
    return seen, number


def follow_to(number: int, end: Key, schedule: EvaluationSchedule) -> int:
    """Returns the last evaluation of a trial whose key is at or before `end`."""
    step, trial = end
    return step if number <= trial else schedule.previous(step)


def steps_left(todo: Plan, trajectories: Sequence[Trajectory], rule: RaceRule) -> int:
    """Returns the largest number of steps that the trials of a plan need."""
    end = (rule.last_evaluation, todo.prefix) if rule.exhaustive else todo.cutoff
    padded = _padded(trajectories, todo.prefix)
    return sum(
        max(0, follow_to(trial, end, rule.schedule) - padded[trial].last_step)
        for trial in todo.pending
    )


def _behind(
    trajectories: Sequence[Trajectory], end: Key, rule: RaceRule
) -> tuple[int, ...]:
    """Returns the trials to follow further, the trials furthest behind first."""
    behind = [
        (trajectory.last_step, number)
        for number, trajectory in enumerate(trajectories)
        if not _has_ended(trajectory, rule)
        and trajectory.last_step < follow_to(number, end, rule.schedule)
    ]
    return tuple(number for _, number in sorted(behind))


def _has_ended(trajectory: Trajectory, rule: RaceRule) -> bool:
    if trajectory.failed is not None or trajectory.diverged_step is not None:
        return True
    stops = rule.stop_at_goal or not rule.exhaustive
    return trajectory.finish_step is not None and stops


def _missing_draws(trajectories: Sequence[Trajectory], rule: RaceRule) -> int:
    """Returns the least number of draws that this prefix certainly lacks."""
    if not rule.feasible_only:
        return 0
    feasible = len(trajectories) - len(_certain_divergences(trajectories, rule))
    return max(0, rule.points - feasible)


def _certain_divergences(
    trajectories: Sequence[Trajectory], rule: RaceRule
) -> list[Key]:
    """Returns the divergences that count, however the other trials go on."""
    divergences = _divergences(trajectories, rule)
    rank = rule.counted_finishers
    if rank is None:
        return divergences
    finishes = finish_keys(trajectories, rule.last_evaluation)
    running = [
        (number, trajectory.last_step)
        for number, trajectory in enumerate(trajectories)
        if trajectory.finish_step is None and not _has_ended(trajectory, rule)
    ]

    def may_be_late(key: Key) -> bool:
        could_be = sum(
            last < follow_to(number, key, rule.schedule) for number, last in running
        )
        return bisect.bisect_left(finishes, key) + could_be >= rank

    # The number that may come before grows along the order: certain ones come first.
    return divergences[: bisect.bisect_left(divergences, True, key=may_be_late)]


def _divergences(trajectories: Sequence[Trajectory], rule: RaceRule) -> list[Key]:
    keys = (
        divergence_key(state, number, rule) for number, state in enumerate(trajectories)
    )
    return sorted(key for key in keys if key is not None)


def _speculation(trajectories: Sequence[Trajectory], rule: RaceRule) -> int:
    """Returns how many further draws are needed if no further trial finishes."""
    if not rule.feasible_only:
        return 0
    end = _key_of(rule.counted_finishers, trajectories, rule)
    diverged = bisect.bisect_right(_divergences(trajectories, rule), end)
    return max(0, rule.points - (len(trajectories) - diverged))


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial under the rule of its study.

    Attributes:
        outcome: one of OUTCOMES.
        end_step: last step that the record covers; curves are cut to it.
        steps_to_result: first evaluated step that met the goal, for `complete` only.
        bracket_low: evaluation before it. A metric that only improves met the goal in
            (bracket_low, steps_to_result]; one that goes up and down may have met it
            earlier, at a step that was not evaluated.
        diverged_step: step of the divergence, for `infeasible` only.
        error: text of the error that ended the trial: of a `failed` one, or of one
            that met the goal before and was to go on.
    """

    outcome: str
    end_step: int
    steps_to_result: int | None = None
    bracket_low: int | None = None
    diverged_step: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Attributes:
        trials: one result per trial of the study's prefix of draws.
        finishers: keys (steps, trial) of K_(1) .. K_(m), as many as there are.
        draws_exhausted: whether the budget of draws ended before N feasible trials.
        decided: whether no further training can change the result.
    """

    trials: tuple[TrialResult, ...]
    finishers: tuple[Key, ...]
    draws_exhausted: bool
    decided: bool


def reduce_study(trajectories: Sequence[Trajectory], rule: RaceRule) -> StudyResult:
    """Returns the study's result, which does not depend on how it was run.

    Steps beyond the rule are cut away. A failed trial that the rule still needed stays
    `failed`, and K* is then an upper bound, unless it met the goal before.
    """
    todo = plan(trajectories, rule)
    padded = _padded(trajectories, todo.prefix)
    end = cutoff(padded, rule)
    keys = finish_keys(padded, rule.last_evaluation)
    trials = tuple(
        _trial_result(trajectory, number, end, rule)
        for number, trajectory in enumerate(padded)
    )
    return StudyResult(
        trials=trials,
        finishers=tuple(keys if rule.exhaustive else keys[: rule.finishers]),
        draws_exhausted=todo.exhausted,
        decided=todo.decided and all(t.error is None for t in trials),
    )


def _trial_result(
    trajectory: Trajectory, number: int, end: Key, rule: RaceRule
) -> TrialResult:
    within = (rule.last_evaluation, number) if rule.exhaustive else end
    finish = trajectory.finish_step
    left = divergence_key(trajectory, number, rule)
    last = follow_to(number, within, rule.schedule)
    end_step = min(last, trajectory.last_step)
    error = trajectory.failed if end_step < last else None
    outcome = trial_outcome(
        reached=finish is not None and (finish, number) <= within,
        diverged=left is not None and left <= within,
        failed=error is not None,
        is_open=end_step < rule.last_evaluation,
    )
    if outcome == "complete":
        assert finish is not None
        goes_on = rule.exhaustive and not rule.stop_at_goal
        return TrialResult(
            outcome,
            end_step=max(finish, end_step) if goes_on else finish,
            steps_to_result=finish,
            bracket_low=rule.schedule.previous(finish),
            error=error if goes_on and trajectory.diverged_step is None else None,
        )
    if outcome == "infeasible":
        step = trajectory.diverged_step
        assert step is not None
        return TrialResult(outcome, end_step=step, diverged_step=step)
    return TrialResult(outcome, end_step, error=error)
