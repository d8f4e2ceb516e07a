"""One study of the public archive of Shallue et al. 2019, as tables.

Its statuses mean something else than outcomes here: COMPLETE is 'ran to the end',
whatever it reached; INCOMPLETE 'cut off for some reason'; INFEASIBLE 'diverged at any
time'. Given a goal they become

    COMPLETE    complete if it met the goal, else incomplete; censored where a study
                had a time budget and others ran longer
    INFEASIBLE  infeasible, even if it had met the goal before: it is never a best trial
                there, and its curve is left out, so that this holds for any goal
    INCOMPLETE  left out, as in the publication; with `keep_incomplete`, complete if it
                met the goal, else censored at its last step

`infeasible_may_reach` takes this package's own rule instead: divergence after meeting
the goal does not count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from dps_tf.analysis.interchange.layout import (
    StudyFolder,
    numerically,
    read_json,
    space_of,
    training_examples,
)
from dps_tf.analysis.interchange.shallue2019_names import METRICS, SPLITS, to_metric
from dps_tf.core.errors import UserError
from dps_tf.core.goal import Goal
from dps_tf.core.workload import QUASI_RANDOM
from dps_tf.store.study_rows import goal_columns

METRIC_COLUMNS = [f"{split}/{metric}" for split in SPLITS for metric in METRICS]


@dataclass(frozen=True)
class ArchiveRules:
    """Which trials of a study count.

    Attributes:
        trials: COMPLETE trials per study, in the order of their ids (100 and 50 in the
            publication's figures); None takes all.
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


def read_study(
    folder: StudyFolder, goal: Goal, rules: ArchiveRules | None = None
) -> StudyTables:
    """Returns the tables of one study, reduced for a goal.

    `trials.trial` is the archive's id. What the layout does not say is -1 (seeds) or 0
    (training_examples where unpublished, evaluation_examples, and
    evaluation_interval where evaluations are not evenly spaced).

    Args:
        folder: of `study_folders`.
        goal: strict in the publication.
        rules: which trials count; by default all but INCOMPLETE ones.
    """
    rules = rules or ArchiveRules()
    rows, curves = [], []
    complete = 0
    for path in sorted(
        (p for p in folder.path.iterdir() if p.name.isdecimal()), key=numerically
    ):
        metadata = read_json(path / "metadata.json")
        status = str(metadata.get("status", ""))
        if status == "INCOMPLETE" and not rules.keep_incomplete:
            continue
        curve = _read_measurements(path / "measurements.csv")
        rows.append(_trial(metadata, curve, goal, rules))
        if rules.infeasible_may_reach or status != "INFEASIBLE":
            curves.append(curve.assign(trial=rows[-1]["trial"]))
        complete += status == "COMPLETE"
        if rules.trials is not None and complete == rules.trials:
            break
    if not rows:
        raise UserError(f"{str(folder.path)!r} holds no trial that counts.")
    names = list(space_of(folder.configuration))
    trials = _with_identity(folder, pd.DataFrame(rows))
    curve_table = _curve_table(folder, curves)
    study = _study(folder, goal, rules, trials, curve_table)
    budget = int(study["step_budget"].iloc[0])
    stopped = (trials["outcome"] == "incomplete") & (trials["end_step"] < budget)
    trials["outcome"] = trials["outcome"].mask(stopped, "censored")
    for name in names:
        if name not in trials.columns:
            trials[name] = np.nan
    return StudyTables(study, _typed(trials), curve_table)


def _read_measurements(path: Path) -> pd.DataFrame:
    """Returns step, is_bound and the known metrics, in the order of steps.

    Of several rows for a step, as a restarted trial may leave them, the last counts.
    """
    options = csv.ReadOptions(use_threads=False)
    try:
        table = csv.read_csv(path, read_options=options)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{str(path)!r} cannot be read as CSV: {error}.") from error
    if "step" not in table.column_names:
        raise UserError(f"{str(path)!r} has no column 'step'.")
    columns: dict[str, Any] = {
        "step": table["step"].cast(pa.int64()).to_numpy(),
        "is_bound": np.zeros(table.num_rows, bool),
    }
    for name in table.column_names:
        metric = to_metric(name)
        if metric is not None:
            # A column without any value is read as a column of nulls.
            values = table[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
            columns[metric] = values
    order = np.argsort(columns["step"], kind="stable")
    frame = pd.DataFrame({name: values[order] for name, values in columns.items()})
    return frame.drop_duplicates("step", keep="last", ignore_index=True)


def _trial(
    metadata: dict[str, Any], curve: pd.DataFrame, goal: Goal, rules: ArchiveRules
) -> dict[str, Any]:
    status = metadata.get("status")
    steps = curve["step"].to_numpy(np.int64)
    last = max(int(metadata.get("steps", 0)), int(steps[-1]) if len(steps) else 0)
    if goal.metric in curve.columns:
        place = goal.first_met(curve[goal.metric].to_list())
    else:
        place = None
    diverged = status == "INFEASIBLE"
    if diverged and not rules.infeasible_may_reach:
        place = None
    outcome = "infeasible" if diverged else "incomplete"
    if status == "INCOMPLETE":
        outcome = "censored"
    if place is not None:
        outcome = "complete"
    return {
        "trial": int(metadata["trial_id"]),
        "outcome": outcome,
        "steps_to_result": None if place is None else int(steps[place]),
        "bracket_low": None
        if place is None
        else (int(steps[place - 1]) if place else 0),
        "end_step": last,
        "diverged_step": last if diverged and place is None else None,
        **{name: _number(x) for name, x in metadata.get("parameters", {}).items()},
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _with_identity(folder: StudyFolder, frame: pd.DataFrame) -> pd.DataFrame:
    identity = pd.DataFrame(
        {name: [value] * len(frame) for name, value in folder.identity.items()}
    )
    return pd.concat([identity, frame.reset_index(drop=True)], axis=1)


def _curve_table(folder: StudyFolder, curves: list[pd.DataFrame]) -> pd.DataFrame:
    columns = ["trial", "step", "is_bound"]
    empty = pd.DataFrame({"trial": [], "step": [], "is_bound": []})
    frame = pd.concat(curves, ignore_index=True) if curves else empty
    frame = frame.reindex(columns=[*columns, *_metrics()])
    frame = frame.astype({"trial": "int64", "step": "int64", "is_bound": bool})
    frame[_metrics()] = frame[_metrics()].astype(np.float64)
    return _with_identity(folder, frame)


def _metrics() -> list[str]:
    names = (to_metric(column) for column in METRIC_COLUMNS)
    return [name for name in names if name is not None]


def _typed(trials: pd.DataFrame) -> pd.DataFrame:
    trials["error"] = pd.Series([None] * len(trials), dtype=object)
    trials["initial_seed"] = -1
    trials["order_seed"] = -1
    trials["realised_sparsity"] = trials["sparsity"]
    trials["layers"] = "[]"
    for column in ("steps_to_result", "bracket_low", "diverged_step"):
        trials[column] = trials[column].astype("Int64")
    return trials


def _study(
    folder: StudyFolder,
    goal: Goal,
    rules: ArchiveRules,
    trials: pd.DataFrame,
    curves: pd.DataFrame,
) -> pd.DataFrame:
    budget = int(folder.configuration.get("train_steps", 0))
    feasible = int((trials["outcome"] != "infeasible").sum())
    wanted = rules.trials
    row = {
        **folder.identity,
        **goal_columns(goal),
        "step_budget": budget or int(trials["end_step"].max()),
        "points": wanted or len(trials),
        "count": "all" if wanted is None else "feasible",
        "finishers": len(trials),
        "schedule": "exhaustive",
        "training_examples": training_examples(folder.dataset),
        "evaluation_interval": _interval(curves),
        "evaluation_examples": 0,
        "space": json.dumps(space_of(folder.configuration)),
        "closed": True,
        "prunable": str(folder.configuration.get("prunable", "none")),
        "draws_exhausted": wanted is not None and feasible < wanted,
        "oracle": QUASI_RANDOM,
    }
    return pd.DataFrame([row])


def _interval(curves: pd.DataFrame) -> int:
    """Returns the even spacing of all evaluations, or 0 where there is none."""
    steps = curves["step"].to_numpy(np.int64)
    trial = curves["trial"].to_numpy(np.int64)
    gaps = np.diff(steps)[trial[1:] == trial[:-1]]
    if len(gaps) == 0 or gaps.min() != gaps.max() or (steps % gaps[0] != 0).any():
        return 0
    return int(gaps[0])
