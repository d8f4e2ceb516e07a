"""When each trial met a goal, as far as its record can say.

Two columns are added to `trials`: `earliest` and `latest`, the least and greatest
evaluated step at which the trial can have met the goal first. They are equal where the
record is exact, and infinity stands for 'never within the step budget'.

Invariant: a curve's bounds (is_bound) and the step at which a trial was stopped can
prove that a goal was not reached, and never that it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dps_tf.analysis.tables import (
    Codes,
    Floats,
    cell_codes,
    has_rows,
    metric_names,
    require,
    study_goal,
    trial_codes,
)
from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.goal import Goal
from dps_tf.core.study import is_further

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class _Schedule:
    """Per trial: steps between evaluations (0 if irregular) and the step budget."""

    interval: NDArray[np.int64]
    budget: NDArray[np.int64]

    def next_after(self, step: NDArray[np.int64]) -> Floats:
        """Returns the first evaluation after a step, infinity behind the budget."""
        width = np.maximum(self.interval, 1)
        following = (step // width + 1) * width
        return np.where(following <= self.budget, following, np.inf).astype(np.float64)

    def previous(self, step: Floats) -> Floats:
        """Returns the evaluation before an evaluated step, at least 0."""
        return np.maximum(step - np.maximum(self.interval, 1), 0.0)


def with_bounds(
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    curves: pd.DataFrame | None = None,
    goal: Goal | None = None,
    *,
    from_curves: bool = False,
) -> pd.DataFrame:
    """Returns `trials` with the columns `earliest` and `latest` (float64).

    With another goal than a study's own, its trials' outcome, steps_to_result and
    bracket_low are those of that goal. A trial whose record ended before it could
    answer is `censored`. A trial that had met the goal by some step, with evaluations
    before it that give only bounds, is `complete` with a bracket that covers these.

    Args:
        studies: one row per cell.
        trials: one row per trial.
        curves: one row per evaluation; needed for another goal only.
        goal: another goal than the studies' own.
        from_curves: whether the curves decide even for a study's own goal, as they
            have to where some of their evaluations are left out.

    Raises:
        UserError: another goal without curves, on a metric that they do not hold.
    """
    require(trials, ["outcome", "steps_to_result", "end_step"], "trials")
    cells = cell_codes(trials, studies)
    schedule = _Schedule(
        interval=studies["evaluation_interval"].to_numpy(np.int64)[cells],
        budget=studies["step_budget"].to_numpy(np.int64)[cells],
    )
    own = _under_own_goal(trials, schedule)
    if goal is None:
        return own
    differs = np.array(
        [from_curves or study_goal(row) != goal for _, row in studies.iterrows()], bool
    )
    if not differs.any():
        return own
    if curves is None:
        raise UserError(f"the goal {goal} is not the study's own: it needs the curves.")
    _check_metric(studies[differs], curves, goal)
    other = _under_other_goal(trials, curves, goal, schedule)
    changed = differs[cells]
    for column in other.columns:
        own[column] = other[column].where(changed, own[column])
    return own


def _under_own_goal(trials: pd.DataFrame, schedule: _Schedule) -> pd.DataFrame:
    outcome = trials["outcome"].to_numpy(object)
    reached = outcome == "complete"
    steps = trials["steps_to_result"].astype("Float64").to_numpy(np.float64, na_value=0)
    latest = np.where(reached, steps, np.inf)
    open_ended = (outcome == "censored") | (outcome == "failed")
    resumes = schedule.next_after(trials["end_step"].to_numpy(np.int64))
    earliest = np.where(open_ended, resumes, latest)
    return trials.assign(earliest=earliest, latest=latest)


def _check_metric(studies: pd.DataFrame, curves: pd.DataFrame, goal: Goal) -> None:
    names = metric_names(curves)
    if goal.metric not in names:
        raise UserError(
            f"the curves hold no metric {goal.metric!r}: "
            f"{near_matches(goal.metric, names)}."
        )
    measured = has_rows(studies, curves.loc[curves[goal.metric].notna()])
    if not measured.all():
        row = studies.iloc[int(np.argmin(measured))]
        raise UserError(
            f"{row['workload']} at batch size {row['batch_size']} never recorded "
            f"{goal.metric!r}, so it cannot answer the goal {goal}."
        )


@dataclass(frozen=True)
class _Crossings:
    """Per trial: first evaluation that reached the goal for sure, and that may have.

    infinity where there is none; `before` is the evaluation before the earlier one.
    """

    sure: Floats
    maybe: Floats
    before: Floats
    covered: NDArray[np.int64]


def _under_other_goal(
    trials: pd.DataFrame, curves: pd.DataFrame, goal: Goal, schedule: _Schedule
) -> pd.DataFrame:
    found = _crossings(trials, curves, goal)
    outcome = trials["outcome"].to_numpy(object)
    ended = outcome == "infeasible"
    end = trials["end_step"].to_numpy(np.int64)
    # Where evaluations are irregular, the last one says nothing of the end of the run.
    covered = np.where(schedule.interval > 0, np.minimum(end, found.covered), end)
    resumes = np.where(ended, np.inf, schedule.next_after(covered))
    reached = np.isfinite(found.sure)
    earliest = np.minimum(found.maybe, np.where(reached, found.sure, resumes))
    low = np.where(np.isfinite(found.before), found.before, schedule.previous(earliest))
    undecided = ~reached & np.isfinite(earliest)
    new = np.where(outcome == "complete", "incomplete", outcome.astype(str))
    new = np.where(new == "censored", "incomplete", new)
    new = np.where(undecided & (outcome != "failed"), "censored", new)
    new = np.where(reached, "complete", new)
    return pd.DataFrame(
        {
            "outcome": new.astype(object),
            "steps_to_result": _whole(found.sure, reached),
            "bracket_low": _whole(low, reached),
            "earliest": earliest,
            "latest": found.sure,
        },
        index=trials.index,
    )


def _whole(values: Floats, known: Bools) -> pd.arrays.IntegerArray:
    filled = np.where(known, values, 0).astype(np.int64)
    return pd.arrays.IntegerArray(filled, ~known)


def _crossings(trials: pd.DataFrame, curves: pd.DataFrame, goal: Goal) -> _Crossings:
    codes = trial_codes(curves, trials)
    steps = curves["step"].to_numpy(np.int64)
    order = np.lexsort((steps, codes))
    order = order[codes[order] >= 0]
    codes, steps = codes[order], steps[order]
    values = curves[goal.metric].to_numpy(np.float64)[order]
    # Only validation is stopped early; training metrics are always exact.
    bounds = curves["is_bound"].to_numpy(bool)[order]
    bounds &= goal.metric.startswith("validation/")
    if is_further(goal.metric):
        # Not looked at there: it may have met the goal.
        bounds |= np.isnan(values)
    met, may_be_met = _met(values, bounds, codes, goal)
    before = np.where(np.r_[False, codes[1:] == codes[:-1]], np.r_[0, steps[:-1]], 0)
    size = len(trials)
    covered = np.zeros(size, np.int64)
    covered[codes] = steps  # Rows are in the order of steps: the last one stays.
    sure, _ = _first(codes, steps, before, met, size)
    maybe, low = _first(codes, steps, before, may_be_met, size)
    return _Crossings(sure=sure, maybe=maybe, before=low, covered=covered)


def _first(
    codes: Codes, steps: Codes, before: Codes, chosen: Bools, size: int
) -> tuple[Floats, Floats]:
    """Returns per trial the step of the first chosen row, and the one before it."""
    first, low = np.full(size, np.inf), np.full(size, np.inf)
    at = np.flatnonzero(chosen)
    trials, position = np.unique(codes[at], return_index=True)
    first[trials] = steps[at][position]
    low[trials] = before[at][position]
    return first, low


def _met(
    values: Floats, bounds: Bools, codes: Codes, goal: Goal
) -> tuple[Bools, Bools]:
    """Returns at which evaluations the goal is met for sure, and where it may be.

    A bound that does not reach the threshold proves that its evaluation did not. A
    metric that a bound does not hold (cross-entropy is known only of whole
    evaluations) proves nothing.

    Args:
        values: of the metric, trial by trial in the order of steps.
        bounds: which of them are bounds.
        codes: of the trial of each.
        goal: what has to be met.
    """
    unknown = bounds & np.isnan(values)
    if goal.mean_of == 1:
        reached = goal.reaches(values)
        sure = _all_recent(reached & ~bounds, codes, goal.in_a_row)
        return sure, _all_recent(reached | unknown, codes, goal.in_a_row)
    total, here = np.zeros(len(values)), np.ones(len(values), bool)
    for back in range(goal.mean_of - 1, -1, -1):
        total += _earlier(values, back, np.nan)
        here &= _earlier(codes, back, -1) == codes
    reached = goal.reaches(total / goal.mean_of) & here
    exact = _all_recent(~bounds, codes, goal.mean_of)
    known = _all_recent(~unknown, codes, goal.mean_of)
    return reached & exact, (reached | ~known) & here


def _all_recent(holds: Bools, codes: Codes, number: int) -> Bools:
    """Returns where something holds at the last `number` evaluations of a trial."""
    found = holds.copy()
    for back in range(1, number):
        found &= _earlier(holds, back, False) & (_earlier(codes, back, -1) == codes)
    return found


def _earlier(values: NDArray[Any], back: int, missing: Any) -> NDArray[Any]:
    """Returns the values so many rows before; `missing` where there is no such row."""
    first = np.full(min(back, len(values)), missing, values.dtype)
    return np.concatenate([first, values[: len(values) - len(first)]])
