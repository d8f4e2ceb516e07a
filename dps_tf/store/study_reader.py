"""Reads a study that may still be running: from its logs, changing nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from dps_tf.core.study import StudySpecification
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.log import read_logs
from dps_tf.store.reading import StoredTables
from dps_tf.store.records import read_json
from dps_tf.store.schemas import SCHEMAS
from dps_tf.store.study_history import StudyHistory
from dps_tf.store.study_rows import (
    Row,
    curve_rows,
    study_result,
    study_row,
    trial_rows,
    work_rows,
)
from dps_tf.store.tables import empty_frame


def trial_points(
    specification: StudySpecification, knowledge: StudyHistory, count: int
) -> list[Mapping[str, float]]:
    """Returns the metaparameters of the first `count` trials.

    Those that an oracle chose while the study ran come from the log; where it has not
    chosen yet, the point is empty.
    """
    workload = specification.workload
    if workload.is_adaptive:
        return [knowledge[i].point or {} for i in range(count)]
    return list(workload.draw(specification.cell.seed, count))


def study_tables(
    specification: StudySpecification,
    knowledge: StudyHistory,
    facts: Mapping[str, Any],
    *,
    closed: bool,
) -> tuple[Row, dict[str, pd.DataFrame]]:
    """Returns (row of `studies`, the tables `trials`, `curves` and `work`).

    Args:
        specification: of the study.
        knowledge: what its logs say.
        facts: `training_examples` and `validation_examples`.
        closed: whether the study is decided.
    """
    result = study_result(specification, knowledge)
    points = trial_points(specification, knowledge, len(result.trials))
    validation = int(facts["validation_examples"])
    row = study_row(
        specification,
        training_examples=int(facts["training_examples"]),
        validation_examples=validation,
        closed=closed,
        draws_exhausted=result.draws_exhausted,
    )
    rows = {
        "trials": trial_rows(specification, knowledge, points, result),
        "curves": curve_rows(specification, knowledge, result),
        "work": work_rows(specification, knowledge, result, validation),
    }
    return row, {name: _frame(name, found) for name, found in rows.items()}


def _frame(name: str, rows: Sequence[Row]) -> pd.DataFrame:
    if not rows:
        return empty_frame(SCHEMAS[name])
    return pd.DataFrame.from_records(list(rows))


def open_study_reader(files: FileSystem) -> Callable[[str], StoredTables | None]:
    """Returns the hook by which `read_sweep` reads studies that are not closed."""

    def read(directory: str) -> StoredTables | None:
        layout = CellLayout(directory)
        try:
            content = read_json(files, layout.study)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            return StoredTables(problems=(str(error),))
        logs, problems = read_logs(files, layout.logs)
        knowledge = StudyHistory()
        for events in logs.values():
            knowledge.add_all(events)
        specification = StudySpecification.from_json(content["specification"])
        row, tables = study_tables(
            specification, knowledge, content["facts"], closed=False
        )
        return StoredTables(
            studies=pd.DataFrame([row]), **tables, problems=tuple(problems)
        )

    return read
