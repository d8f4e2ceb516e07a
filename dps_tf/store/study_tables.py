"""The tables of one study are made from its logs and the rule of the race.

Tables hold only what the rule of the race needs, so they are the same however the study
was run; executed work is in the table `work` alone. A study is closed if and only if
`closed.json` exists. That file holds the digests of the tables, is written last, and is
removed first when a study is opened again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dps_tf.core import (
    Goal,
    StudyResult,
    StudySpecification,
    TrialProvenance,
    is_further,
    reduce_study,
)
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CLOSING_TABLES, CellLayout
from dps_tf.store.parquet import empty_frame, encode_table
from dps_tf.store.records import encode_record, read_json, set_aside, sha256
from dps_tf.store.schemas import SCHEMAS
from dps_tf.store.study_history import StudyHistory, TrialHistory

EVALUATION_COST = 1 / 3
"""Cost of evaluating an example, in training steps per example: a forward pass, against
a forward pass and a backward pass, which costs twice as much."""

_QUANTITIES = ("steps", "evaluations", "floor_steps", "floor_evaluations", "seconds")

Row = dict[str, Any]


def study_result(
    specification: StudySpecification, history: StudyHistory
) -> StudyResult:
    """Returns the result of a study so far."""
    rule = specification.rule
    trajectories = history.trajectories(specification.goal, rule.schedule.interval)
    return reduce_study(trajectories, rule)


def trial_points(
    specification: StudySpecification, history: StudyHistory, count: int
) -> list[Mapping[str, float]]:
    """Returns the metaparameters of the first `count` trials.

    Points of an oracle come from the log; one that is not chosen yet is empty.
    """
    workload = specification.workload
    if workload.is_adaptive:
        return [history[i].point or {} for i in range(count)]
    return list(workload.draw(specification.cell.seed, count))


def study_tables(
    specification: StudySpecification,
    history: StudyHistory,
    training_inputs: Mapping[str, Any],
    *,
    closed: bool,
) -> tuple[Row, dict[str, pd.DataFrame]]:
    """Returns (row of `studies`, the tables `trials`, `curves` and `work`).

    The training inputs are `training_examples` and `validation_examples`.
    """
    result = study_result(specification, history)
    validation = int(training_inputs["validation_examples"])
    row = {
        **_specified(specification),
        "training_examples": int(training_inputs["training_examples"]),
        "evaluation_examples": validation,
        "closed": closed,
        "draws_exhausted": result.draws_exhausted,
    }
    rows = {
        "trials": _trial_rows(specification, history, result),
        "curves": _curve_rows(specification, history, result),
        "work": _work_rows(specification, history, result, validation),
    }
    return row, {
        name: pd.DataFrame.from_records(part) if part else empty_frame(SCHEMAS[name])
        for name, part in rows.items()
    }


def _specified(specification: StudySpecification) -> Row:
    """Returns the columns of the table `studies` that the specification decides."""
    workload, cell = specification.workload, specification.cell
    return {
        **cell.to_json(),
        "precision": specification.precision,
        **goal_columns(specification.goal),
        "step_budget": workload.step_budget,
        "points": workload.points,
        "count": workload.count,
        "finishers": specification.finishers,
        "search_mode": specification.search_mode,
        "evaluation_interval": specification.evaluations.interval,
        "space": json.dumps(workload.space.to_json()),
        "prunable": specification.pruning.prunable if cell.sparsity > 0 else "none",
        "oracle": workload.oracle,
    }


def goal_columns(goal: Goal) -> Row:
    """Returns the columns of the table `studies` that describe a goal."""
    columns = {f"goal_{name}": value for name, value in vars(goal).items()}
    return {"goal": str(goal), **columns}


def _trial_rows(
    specification: StudySpecification, history: StudyHistory, result: StudyResult
) -> list[Row]:
    identity = specification.cell.to_json()
    points = trial_points(specification, history, len(result.trials))
    rows = []
    for number, trial in enumerate(result.trials):
        provenance = history[number].provenance or TrialProvenance(0, 0)
        rows.append(
            {
                **identity,
                "trial": number,
                **vars(trial),
                "initial_seed": provenance.initial_seed,
                "order_seed": provenance.order_seed,
                "realised_sparsity": provenance.realised_sparsity,
                # Sorted as in the log, whether the layers were read from it or not.
                "layers": json.dumps(
                    [dict(layer) for layer in provenance.layers], sort_keys=True
                ),
                **points[number],
            }
        )
    return rows


def _curve_rows(
    specification: StudySpecification, history: StudyHistory, result: StudyResult
) -> list[Row]:
    """Returns the rows of the table `curves`, cut to what the rule needs."""
    identity = specification.cell.to_json()
    return [
        {
            **identity,
            "trial": number,
            "step": step,
            "is_bound": step in history[number].bounds,
            **_wanted(specification, step, history[number]),
        }
        for number, trial in enumerate(result.trials)
        for step in specification.evaluations.steps_up_to(trial.end_step)
        if step in history[number].evaluations
    ]


def _wanted(
    specification: StudySpecification, step: int, trial: TrialHistory
) -> dict[str, float]:
    """Returns the columns of an evaluation that the specification asks for."""
    metrics = trial.evaluations[step]
    if not specification.further_splits:
        return metrics
    # A further split that was evaluated only because an earlier budget ended there, or
    # an easier goal was met, is left out: the table has no trace of earlier goals.
    splits = specification.splits_at(step, metrics, step in trial.bounds)
    return {
        name: value
        for name, value in metrics.items()
        if not is_further(name) or name.partition("/")[0] in splits
    }


def _work_rows(
    specification: StudySpecification,
    history: StudyHistory,
    result: StudyResult,
    validation_examples: int,
) -> list[Row]:
    """Returns the rows of the table `work`: (trial, quantity, value).

    The floor of a trial is the steps and evaluations that its record needs. A step
    costs batch_size, an evaluation EVALUATION_COST times the validation examples.
    Trial NA stands for the study: `work_ratio` is executed / floor, `seconds` is
    the sum over all slots.
    """
    identity = specification.cell.to_json()
    ends = {number: trial.end_step for number, trial in enumerate(result.trials)}
    totals = dict.fromkeys(_QUANTITIES, 0.0)
    rows = []
    for number in sorted({*ends, *history.trials}):
        work = _work(specification, history[number], ends.get(number, 0))
        for name, value in work.items():
            totals[name] += value
            rows.append({**identity, "trial": number, "quantity": name, "value": value})
    step = specification.cell.batch_size
    evaluation = EVALUATION_COST * validation_examples
    executed = step * totals["steps"] + evaluation * totals["evaluations"]
    floor = step * totals["floor_steps"] + evaluation * totals["floor_evaluations"]
    totals["work_ratio"] = executed / floor if floor else math.nan
    for name, value in totals.items():
        rows.append({**identity, "trial": None, "quantity": name, "value": value})
    return rows


def _work(
    specification: StudySpecification, trial: TrialHistory, end_step: int
) -> dict[str, float]:
    values = (
        trial.work.steps,
        trial.work.evaluations,
        end_step,
        len(specification.evaluations.steps_up_to(end_step)),
        trial.work.seconds,
    )
    return dict(zip(_QUANTITIES, map(float, values), strict=True))


def best_first(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the trials of a study that met the goal, the best of them first."""
    reached = trials[trials["outcome"] == "complete"]
    return reached.sort_values(["steps_to_result", "trial"], kind="stable")


def close_study(
    files: FileSystem,
    directory: str,
    *,
    study: Mapping[str, Any],
    trials: pd.DataFrame,
    curves: pd.DataFrame,
    work: pd.DataFrame,
) -> None:
    """Closes a study: writes its tables, and its row of the table of studies.

    After a failure or a kill the study is closed with all its tables, or it is open
    and may be closed again from its logs. Closing again with the same content changes
    nothing.
    """
    cell = CellLayout(directory)
    frames = {"trials": trials, "curves": curves, "work": work}
    contents = {
        name: encode_table(frames[name], SCHEMAS[name]) for name in CLOSING_TABLES
    }
    record = encode_record(
        {
            "study": dict(study),
            "sha256": {name: sha256(data) for name, data in contents.items()},
        }
    )
    if _is_same(files, cell, contents, record):
        return
    reopen_study(files, directory)
    files.write_many({cell.table(name): data for name, data in contents.items()})
    files.write_atomic(cell.closed, record)


def _is_same(
    files: FileSystem, cell: CellLayout, contents: Mapping[str, bytes], record: bytes
) -> bool:
    try:
        return files.read_bytes(cell.closed) == record and all(
            files.read_bytes(cell.table(name)) == data
            for name, data in contents.items()
        )
    except FileNotFoundError:
        return False


def reopen_study(files: FileSystem, directory: str) -> list[str]:
    """Opens a closed study, to extend or to repair it.

    An open study stays as it is. Damaged files are set aside, under the names that are
    returned; intact tables stay until the study is closed again.
    """
    cell = CellLayout(directory)
    try:
        digests = read_json(files, cell.closed)["sha256"]
    except FileNotFoundError:
        return []
    except DamagedError:
        return [set_aside(files, cell.closed)]
    damaged = []
    for name, digest in digests.items():
        path = cell.table(name)
        if files.exists(path) and sha256(files.read_bytes(path)) != digest:
            damaged.append(path)
    # This comes first: a study without its tables must not look closed.
    files.remove(cell.closed)
    return [set_aside(files, path) for path in damaged]
