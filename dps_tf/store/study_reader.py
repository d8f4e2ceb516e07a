"""Reads what the folder of a cell holds; every command that reads a study uses this.

Reading changes nothing on disk, so it may go on while the study runs. What was read is
kept: make a new reader to see what has been written since.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.core.errors import UserError
from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import FLOAT32, StudySpecification
from dps_tf.core.workload import QUASI_RANDOM
from dps_tf.store.closing import Closed, is_closed, read_closed
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CLOSING_TABLES, CellLayout
from dps_tf.store.log import read_logs
from dps_tf.store.records import read_json
from dps_tf.store.schemas import MEASUREMENTS, SCHEMAS, STUDIES, STUDY_DEFAULTS
from dps_tf.store.states import StateStore
from dps_tf.store.study_history import StudyHistory
from dps_tf.store.study_rows import (
    Row,
    curve_rows,
    study_result,
    study_row,
    trial_rows,
    work_rows,
)
from dps_tf.store.tables import decode_table, empty_frame, to_arrow, to_frame


class StudyReader:
    """One study as its files tell it, each read when it is first asked for.

    Attributes:
        layout: paths of the cell.
        problems: sentences on what was found damaged by what was read so far.
    """

    def __init__(self, files: FileSystem, layout: CellLayout) -> None:
        """Reads nothing yet."""
        self._files = files
        self.layout = layout
        self.problems: list[str] = []

    @functools.cached_property
    def record(self) -> Mapping[str, Any] | None:
        """The content of study.json; None where it is missing or damaged."""
        try:
            return dict(read_json(self._files, self.layout.study))
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self._tell(str(error))
            return None

    def is_there(self) -> bool:
        """Returns whether the folder holds a study, or one that is about to begin."""
        layout = self.layout
        parts = (layout.study, layout.closed, layout.logs, layout.claims, layout.lock)
        return any(map(self._files.exists, (*parts, layout.measurements)))

    def cell_name(self) -> str | None:
        """Returns the name of the cell that study.json tells; None where it does not.

        It is that of the folder, unless somebody has copied or renamed that.
        """
        return None if self.specification is None else self.specification.cell.name

    @property
    def is_archived(self) -> bool:
        """Whether the study was read from an archive, so that nothing can train it."""
        return self.record is not None and "specification" not in self.record

    @functools.cached_property
    def specification(self) -> StudySpecification | None:
        """What was asked of the study; None where study.json does not tell it."""
        if self.record is None or self.is_archived:
            return None
        try:
            return StudySpecification.from_json(self.record["specification"])
        except (KeyError, TypeError, ValueError) as error:
            self._tell(
                f"{self.layout.study} holds a specification that this version of the "
                f"package does not know ({error})."
            )
            return None

    @property
    def training_inputs(self) -> Mapping[str, Any]:
        """What the study is trained on: sizes and content of its data, if known."""
        return {} if self.record is None else self.record.get("facts", {})

    @property
    def environments(self) -> Sequence[Mapping[str, Any]]:
        """Builds and instruction sets that have trained it, the latest last."""
        return [] if self.record is None else self.record.get("environments", [])

    @functools.cached_property
    def history(self) -> StudyHistory:
        """What the logs say."""
        logs, problems = read_logs(self._files, self.layout.logs)
        for problem in problems:
            self._tell(problem)
        history = StudyHistory()
        for events in logs.values():
            history.add_all(events)
        return history

    @property
    def is_closed(self) -> bool:
        """Whether the study was closed; its tables are not verified."""
        return is_closed(self._files, self.layout.root)

    def closed(self, tables: Sequence[str] = CLOSING_TABLES) -> Closed | None:
        """Returns the tables of a closed study; None if it is open or they are damaged.

        Args:
            tables: names of those that are wanted; only these are read and verified.
        """
        closed, problems = read_closed(self._files, self.layout.root, tables)
        for problem in problems:
            self._tell(problem)
        return closed

    @property
    def states(self) -> StateStore:
        """The states of its trials."""
        return StateStore(self._files, self.layout.states)

    def trained(self) -> StudySpecification:
        """Returns the specification of a study that can be trained.

        Raises:
            UserError: it was read from an archive, or study.json is missing or damaged.
        """
        self.check_trained()
        if self.specification is None:
            raise UserError(
                f"{self.layout.study} is missing or damaged: run the sweep again, "
                "which restores it."
            )
        return self.specification

    def check_trained(self) -> None:
        """Raises UserError for a study that was read from an archive."""
        if self.is_archived:
            raise UserError(
                f"{self.layout.root} was read from an archive, and there is nothing to "
                "train again: choose another --sweep_dir."
            )

    def measurements(self) -> pd.DataFrame:
        """Returns the measurements; none if there is no file.

        Raises:
            DamagedError: the file is damaged.
        """
        path = self.layout.measurements
        try:
            return to_frame(decode_table(path, self._files.read_bytes(path)))
        except FileNotFoundError:
            return empty_frame(MEASUREMENTS)

    def tables(self, wanted: Sequence[str] = CLOSING_TABLES) -> dict[str, pa.Table]:
        """Returns the tables by name, `studies` and `measurements` included.

        Those of a closed study are read; those of an open one, or of one whose tables
        are damaged, are made from its logs. What is missing or damaged is left out.

        Args:
            wanted: which of the large tables to return.
        """
        closed = self.closed(wanted)
        if closed is not None:
            row = {**STUDY_DEFAULTS, **self._asked(), **closed.study, "closed": True}
            found = {"studies": to_arrow(pd.DataFrame([row]), STUDIES), **closed.tables}
        else:
            found = self._tables_from_logs(wanted)
        try:
            rows = self.measurements()
        except DamagedError as error:
            self._tell(str(error))
        else:
            if len(rows):
                found["measurements"] = to_arrow(rows, MEASUREMENTS)
        return found

    def _asked(self) -> dict[str, str]:
        """Returns what the rows of studies that older code closed do not tell."""
        specification = (self.record or {}).get("specification", {})
        oracle = specification.get("workload", {}).get("oracle", QUASI_RANDOM)
        precision = specification.get("precision", FLOAT32)
        return {"precision": str(precision), "oracle": str(oracle)}

    def _tables_from_logs(self, wanted: Sequence[str]) -> dict[str, pa.Table]:
        if self.specification is None:
            return {}
        row, tables = study_tables(
            self.specification, self.history, self.training_inputs, closed=False
        )
        frames = {"studies": pd.DataFrame([row]), **{n: tables[n] for n in wanted}}
        return {name: to_arrow(frame, SCHEMAS[name]) for name, frame in frames.items()}

    def result(self) -> StudyResult:
        """Returns the reduction of the study as far as its logs tell it."""
        return study_result(self.trained(), self.history)

    def best_trial(self) -> int | None:
        """Returns the trial that met the goal first so far, or None if none did."""
        closed = self.closed(("trials",))
        if closed is not None:
            best = closed.best()
            return None if best is None else int(best["trial"])
        finishers = self.result().finishers
        return finishers[0][1] if finishers else None

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def environment_differences(
    known: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]
) -> list[str]:
    """Returns how an environment differs from the latest known one; [] if it is known.

    Args:
        known: builds and instruction sets that a record tells of, the latest last.
        environment: that of this process.
    """
    if dict(environment) in [dict(entry) for entry in known]:
        return []
    last = known[-1]
    return [
        f"{name}: recorded {last.get(name)!r}, here {environment.get(name)!r}"
        for name in sorted({*last, *environment})
        if last.get(name) != environment.get(name)
    ]


def trial_points(
    specification: StudySpecification, history: StudyHistory, count: int
) -> list[Mapping[str, float]]:
    """Returns the metaparameters of the first `count` trials.

    Those that an oracle chose while the study ran come from the log; where it has not
    chosen yet, the point is empty.
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

    Args:
        specification: of the study.
        history: what its logs say.
        training_inputs: `training_examples` and `validation_examples`.
        closed: whether the study is decided.
    """
    result = study_result(specification, history)
    points = trial_points(specification, history, len(result.trials))
    validation = int(training_inputs["validation_examples"])
    row = study_row(
        specification,
        training_examples=int(training_inputs["training_examples"]),
        validation_examples=validation,
        closed=closed,
        draws_exhausted=result.draws_exhausted,
    )
    rows = {
        "trials": trial_rows(specification, history, points, result),
        "curves": curve_rows(specification, history, result),
        "work": work_rows(specification, history, result, validation),
    }
    return row, {name: _frame(name, found) for name, found in rows.items()}


def _frame(name: str, rows: Sequence[Row]) -> pd.DataFrame:
    if not rows:
        return empty_frame(SCHEMAS[name])
    return pd.DataFrame.from_records(list(rows))
