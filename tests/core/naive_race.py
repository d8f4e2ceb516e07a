"""The rule of the race written down a second time, slowly, from whole trajectories.

Nothing of the package is used: every trial is known to the end of its budget, and the
shortest sufficient prefix of draws is found by trying all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WholeTrial:
    """What a trial would do if it were run to the end of its budget.

    Attributes:
        errors: at the evaluations interval, 2 interval, ...
        diverges_at: step whose loss is not finite, or None; nothing is evaluated there
            or later.
    """

    errors: tuple[float, ...]
    diverges_at: int | None = None


@dataclass(frozen=True)
class Study:
    """What is asked of the trials.

    Attributes:
        goal: an error at or below it reaches.
        interval: steps between evaluations.
        budget: steps.
        points: N.
        finishers: m.
        feasible: whether N counts trials that have not diverged in time only.
        max_draws: longest prefix, for feasible budgets.
        exhaustive: whether trials run on after K_(m); a divergence then counts up to
            the end of its trial's run, else up to K_(1).
    """

    goal: float
    interval: int
    budget: int
    points: int
    finishers: int
    feasible: bool
    max_draws: int
    exhaustive: bool = False


@dataclass(frozen=True)
class Row:
    """One trial as the tables have to show it."""

    outcome: str
    end_step: int
    steps_to_result: int | None = None
    bracket_low: int | None = None
    diverged_step: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a study has to say: its trials, its K_(1), K_(2), ... and what it cost."""

    rows: tuple[Row, ...]
    finishers: tuple[tuple[int, int], ...]
    draws_exhausted: bool


def evaluations(study: Study) -> list[int]:
    """Returns the steps at which a trial is evaluated within its budget."""
    return [s for s in range(1, study.budget + 1) if s % study.interval == 0]


def reached_at(trial: WholeTrial, study: Study) -> int | None:
    """Returns the first evaluation that meets the goal before the trial diverges."""
    for step, error in zip(evaluations(study), trial.errors, strict=True):
        if trial.diverges_at is not None and step >= trial.diverges_at:
            return None
        if error <= study.goal:
            return step
    return None


def divergence_seen_at(trial: WholeTrial, study: Study) -> int | None:
    """Returns the evaluation at which a divergence is noticed, if it counts."""
    if trial.diverges_at is None or reached_at(trial, study) is not None:
        return None
    for step in evaluations(study):
        if step >= trial.diverges_at:
            return step
    return None


def in_order_of_finish(trials: Sequence[WholeTrial], study: Study) -> list:
    """Returns (steps-to-result, trial number) of all that reach the goal."""
    found = []
    for number, trial in enumerate(trials):
        step = reached_at(trial, study)
        if step is not None:
            found.append((step, number))
    return sorted(found)


def last_that_counts(
    trials: Sequence[WholeTrial], study: Study, rank: int
) -> tuple[int, float]:
    """Returns K_(rank) of these trials, or the end of the budget."""
    order = in_order_of_finish(trials, study)
    if len(order) >= rank:
        return order[rank - 1]
    return evaluations(study)[-1], float("inf")


def is_sufficient(trials: Sequence[WholeTrial], study: Study) -> bool:
    """Returns whether a prefix holds N trials that have not diverged in time."""
    rank = len(trials) + 1 if study.exhaustive else 1
    end = last_that_counts(trials, study, rank)
    kept = 0
    for number, trial in enumerate(trials):
        seen = divergence_seen_at(trial, study)
        if seen is None or (seen, number) > end:
            kept += 1
    return kept >= study.points


def answer(trials: Sequence[WholeTrial], study: Study) -> Answer:
    """Returns the truth about a study; `trials` are all that may be drawn."""
    prefix, exhausted = study.points, False
    if study.feasible:
        limit = max(study.points, study.max_draws)
        enough = [
            length
            for length in range(study.points, limit + 1)
            if is_sufficient(trials[:length], study)
        ]
        prefix, exhausted = (enough[0], False) if enough else (limit, True)
    drawn = trials[:prefix]
    end = last_that_counts(drawn, study, study.finishers)
    if study.exhaustive:
        end = evaluations(study)[-1], float("inf")
    order = [key for key in in_order_of_finish(drawn, study) if key <= end]
    rows = tuple(_row(trial, number, end, study) for number, trial in enumerate(drawn))
    return Answer(rows, tuple(order), exhausted)


def _row(trial: WholeTrial, number: int, end: tuple, study: Study) -> Row:
    step = reached_at(trial, study)
    if step is not None and (step, number) <= end:
        return Row("complete", step, step, step - study.interval)
    seen = divergence_seen_at(trial, study)
    if seen is not None and (seen, number) <= end:
        return Row("infeasible", trial.diverges_at, diverged_step=trial.diverges_at)
    followed = [s for s in evaluations(study) if (s, number) <= end]
    last = max(followed, default=0)
    spent = last == evaluations(study)[-1]
    return Row("incomplete" if spent else "censored", last)
