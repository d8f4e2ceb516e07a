"""What trials of elsewhere count as, given a goal: a checked study as tables.

A status means something else than an outcome here: COMPLETE is 'ran to the end',
whatever it reached; INCOMPLETE 'cut off for some reason'; INFEASIBLE 'diverged at any
time'. Given a goal they become

    COMPLETE    complete if it met the goal, else incomplete; censored where a study
                had a time budget and others ran longer
    INFEASIBLE  infeasible, even if it had met the goal before: it is never a best trial
                there, and its curve is left out, so that this holds for any goal
    INCOMPLETE  left out, as in the publication; with `keep_incomplete`, complete if it
                met the goal, else censored at its last step

`infeasible_may_reach` takes this package's own rule instead: divergence after meeting
the goal does not count. Source of the words: study.json of Shallue et al. 2019.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.foreign_study import (
    COMPLETE,
    INCOMPLETE,
    INFEASIBLE,
    ForeignStudy,
)
from dps_tf.core.errors import UserError
from dps_tf.core.goal import Goal
from dps_tf.core.workload import QUASI_RANDOM
from dps_tf.store.study_tables import goal_columns


@dataclass(frozen=True)
class ArchiveRules:
    """Which trials of a study count.

    Attributes:
        trials: COMPLETE trials per study, in the order of their numbers (100 and 50 in
            the publication's figures); None takes all.
        keep_incomplete: whether trials that were cut off count up to there.
        infeasible_may_reach: whether a trial that diverged after it had met the goal
            has met it.
    """

    trials: int | None = None
    keep_incomplete: bool = False
    infeasible_may_reach: bool = False


@dataclass(frozen=True)
class StudyTables:
    """The tables of one or several studies."""

    studies: pd.DataFrame
    trials: pd.DataFrame
    curves: pd.DataFrame


def counted(trials: pd.DataFrame, rules: ArchiveRules) -> pd.DataFrame:
    """Returns the trials that count, in their order.

    Args:
        trials: with the column `status`, in the order of their numbers.
        rules: which count.
    """
    status = trials["status"]
    kept = trials[(status != INCOMPLETE) | rules.keep_incomplete]
    if rules.trials is None:
        return kept
    is_complete = (kept["status"] == COMPLETE).to_numpy(np.int64)
    before: np.ndarray = np.cumsum(is_complete) - is_complete
    return kept.iloc[np.flatnonzero(before < rules.trials)]


def study_tables(
    study: ForeignStudy, goal: Goal, rules: ArchiveRules | None = None
) -> StudyTables:
    """Returns the tables of one study, reduced for a goal.

    What a record of elsewhere does not say is -1 (seeds) or 0 (training_examples,
    evaluation_examples, and evaluation_interval where evaluations are not evenly
    spaced).

    Args:
        study: what was recorded.
        goal: strict in the publication of Shallue et al.
        rules: which trials count; by default all but INCOMPLETE ones.

    Raises:
        UserError: no trial counts.
    """
    rules = rules or ArchiveRules()
    trials = counted(study.trials, rules)
    if trials.empty:
        raise UserError(f"{study.origin!r} holds no trial that counts.")
    rows = list(_rows(study, trials, goal, rules))
    has_curve = (
        trials if rules.infeasible_may_reach else trials[trials["status"] != INFEASIBLE]
    )
    evaluations = study.evaluations
    evaluations = evaluations[evaluations["trial"].isin(has_curve["trial"])]
    if goal.metric not in evaluations.columns:
        evaluations = evaluations.assign(**{goal.metric: np.nan})
    evaluations.insert(2, "is_bound", False)
    metaparameters = [name for name in study.space if name not in trials.columns]
    frame = _typed(pd.DataFrame(rows), study.cell.sparsity).assign(
        **dict.fromkeys(metaparameters, np.nan)
    )
    row = _study_row(study, goal, rules, frame, evaluations)
    stopped = (frame["outcome"] == "incomplete") & (
        frame["end_step"] < row["step_budget"]
    )
    frame["outcome"] = frame["outcome"].mask(stopped, "censored")
    return StudyTables(
        pd.DataFrame([row]),
        _with_identity(study, frame),
        _with_identity(study, evaluations),
    )


def _rows(
    study: ForeignStudy, trials: pd.DataFrame, goal: Goal, rules: ArchiveRules
) -> Iterator[dict[str, Any]]:
    """Yields the row of each trial."""
    evaluations = study.evaluations
    steps = evaluations["step"].to_numpy(np.int64)
    values = np.full(len(evaluations), np.nan)
    if goal.metric in evaluations.columns:
        values = evaluations[goal.metric].to_numpy(np.float64)
    numbers = evaluations["trial"].to_numpy(np.int64)
    starts = np.searchsorted(numbers, trials["trial"].to_numpy(np.int64), "left")
    ends = np.searchsorted(numbers, trials["trial"].to_numpy(np.int64), "right")
    known = ("trial", "status", "steps")
    for trial, start, end in zip(
        trials.to_dict("records"), starts.tolist(), ends.tolist(), strict=True
    ):
        points = {str(n): value for n, value in trial.items() if n not in known}
        found = _outcome(trial, steps[start:end], values[start:end], goal, rules)
        yield {"trial": trial["trial"], **found, **points}


def _outcome(
    trial: dict[Any, Any],
    steps: np.ndarray,
    values: np.ndarray,
    goal: Goal,
    rules: ArchiveRules,
) -> dict[str, Any]:
    """Returns what became of one trial, from its evaluations."""
    last = max(int(trial["steps"]), int(steps[-1]) if len(steps) else 0)
    diverged = trial["status"] == INFEASIBLE
    place = goal.first_met(values.tolist())
    if diverged and not rules.infeasible_may_reach:
        place = None
    outcome = "infeasible" if diverged else "incomplete"
    if trial["status"] == INCOMPLETE:
        outcome = "censored"
    if place is not None:
        outcome = "complete"
    before = None if place is None else int(steps[place - 1]) if place else 0
    return {
        "outcome": outcome,
        "steps_to_result": None if place is None else int(steps[place]),
        "bracket_low": before,
        "end_step": last,
        "diverged_step": last if diverged and place is None else None,
    }


def _with_identity(study: ForeignStudy, frame: pd.DataFrame) -> pd.DataFrame:
    identity = pd.DataFrame(
        {name: [value] * len(frame) for name, value in study.identity.items()}
    )
    return pd.concat([identity, frame.reset_index(drop=True)], axis=1)


def _typed(trials: pd.DataFrame, sparsity: float) -> pd.DataFrame:
    trials["error"] = pd.Series([None] * len(trials), dtype=object)
    trials["initial_seed"] = -1
    trials["order_seed"] = -1
    trials["realised_sparsity"] = sparsity
    trials["layers"] = "[]"
    for column in ("steps_to_result", "bracket_low", "diverged_step"):
        trials[column] = trials[column].astype("Int64")
    return trials


def _study_row(
    study: ForeignStudy,
    goal: Goal,
    rules: ArchiveRules,
    trials: pd.DataFrame,
    curves: pd.DataFrame,
) -> dict[str, Any]:
    feasible = int((trials["outcome"] != "infeasible").sum())
    wanted = rules.trials
    return {
        **study.identity,
        **goal_columns(goal),
        "step_budget": study.step_budget or int(trials["end_step"].max()),
        "points": wanted or len(trials),
        "count": "all" if wanted is None else "feasible",
        "finishers": len(trials),
        "schedule": "exhaustive",
        "training_examples": study.training_examples,
        "evaluation_interval": _interval(curves),
        "evaluation_examples": 0,
        "space": json.dumps(dict(study.space)),
        "closed": True,
        "prunable": study.prunable,
        "draws_exhausted": wanted is not None and feasible < wanted,
        "oracle": QUASI_RANDOM,
    }


def _interval(curves: pd.DataFrame) -> int:
    """Returns the even spacing of all evaluations, or 0 where there is none."""
    steps = curves["step"].to_numpy(np.int64)
    trial = curves["trial"].to_numpy(np.int64)
    gaps = np.diff(steps)[trial[1:] == trial[:-1]]
    if len(gaps) == 0 or gaps.min() != gaps.max() or (steps % gaps[0] != 0).any():
        return 0
    return int(gaps[0])
