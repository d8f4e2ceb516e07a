"""The reader of a study: of its record, its logs, its tables, its trials.

Every command that reads a study uses this reader. It changes nothing on disk, so it may
read while the study runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.core import StudyResult, StudySpecification, UserError, Workload
from dps_tf.store.errors import DamagedError, OtherFormatError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CLOSING_TABLES, CellLayout
from dps_tf.store.log import read_logs
from dps_tf.store.parquet import (
    decode_table,
    empty_frame,
    read_table,
    to_arrow,
    to_frame,
)
from dps_tf.store.records import check_format, read_json, sha256
from dps_tf.store.schemas import (
    CURVES,
    MEASUREMENTS,
    SCHEMAS,
    STUDIES,
    TRIALS,
    TableSchema,
)
from dps_tf.store.states import StateStore
from dps_tf.store.study_history import StudyHistory
from dps_tf.store.study_tables import best_first, study_result, study_tables


@dataclass(frozen=True)
class RecordedTrial:
    """One trial of a closed study, with all that training it again needs."""

    number: int  # number of the trial in the study
    initial_seed: int  # seed of its initial point
    order_seed: int  # seed of its order of examples
    point: Mapping[str, float]  # its metaparameters
    # (metric columns, whether they are bounds) by evaluated step.
    curve: Mapping[int, tuple[Mapping[str, float], bool]]
    steps_to_result: int | None = None  # first evaluated step at which it met the goal

    @property
    def end(self) -> int:
        """The step to which it is trained again: K of a trial that met the goal."""
        return self.steps_to_result or max(self.curve)


class StudyReader:
    """Reads the files of one study, each of them when it is first needed.

    Attributes:
        layout: paths of the cell.
        problems: sentences about the damaged files among all that were read so far.
    """

    def __init__(self, files: FileSystem, layout: CellLayout) -> None:
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
            self._add_problems(str(error))
            return None

    @property
    def name(self) -> str:
        """The name of the cell's folder."""
        return self.layout.root.rpartition("/")[2]

    def is_there(self) -> bool:
        """Returns whether the folder holds a study, begun or about to begin."""
        at = self.layout
        parts = (at.study, at.closed, at.logs, at.claims, at.lock, at.measurements)
        return any(map(self._files.exists, parts))

    def cell_name(self) -> str | None:
        """Returns the name of the cell in study.json; None if there is none.

        The folder has the same name, unless a user has copied or renamed it.
        """
        return None if self.specification is None else self.specification.cell.name

    @property
    def is_archived(self) -> bool:
        """Whether the study holds imported runs, which cannot be trained again."""
        return self.record is not None and "origin" in self.record

    @functools.cached_property
    def specification(self) -> StudySpecification | None:
        """The specification of the study; None without an intact study.json.

        Raises:
            OtherFormatError: another version of the package wrote the intact
                study.json, with other fields.
        """
        if self.record is None or self.is_archived:
            return None
        stored = self.record.get("specification", {})
        try:
            specification = StudySpecification.from_json(stored)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._other_version(stored) from error
        # A missing field would silently get today's default.
        if specification.to_json() != stored:
            raise self._other_version(stored)
        return specification

    def continued_by(self, specification: StudySpecification) -> StudySpecification:
        """Returns a specification, what it leaves open as this study has settled it.

        A study that has not begun leaves open what the specification does.
        """
        stored = self.specification
        return specification.settled_by(
            self.history.settled if stored is None else stored.settled
        )

    def _other_version(self, stored: Mapping[str, Any]) -> OtherFormatError:
        """Returns the error about a specification that another version has written."""
        own = {item.name for item in (*fields(StudySpecification), *fields(Workload))}
        unlike = sorted(own ^ {*stored, *stored.get("workload", {})})
        where = f" in {', '.join(unlike)}" if unlike else ""
        version = self.history.version
        return OtherFormatError(
            f"{self.layout.study} was written by another version of dps_tf"
            f"{f' ({version})' if version else ''}, whose specification differs from "
            f"this version's{where}: use that version, or choose another directory."
        )

    @property
    def training_inputs(self) -> Mapping[str, Any]:
        """Sizes and content of the study's data; empty without an intact study.json."""
        return {} if self.record is None else self.record.get("training_inputs", {})

    @property
    def environments(self) -> Sequence[Mapping[str, Any]]:
        """Builds and instruction sets that have trained the study, the latest last."""
        return [] if self.record is None else self.record["environments"]

    @functools.cached_property
    def history(self) -> StudyHistory:
        """The curves and ends of the trials, from the logs."""
        logs, problems = read_logs(self._files, self.layout.logs)
        self._add_problems(*problems)
        history = StudyHistory()
        for writer, events in logs.items():
            for event in events:
                if event.get("kind") == "session":
                    check_format(self.layout.log(writer), event.get("format"))
                history.add(event)
        return history

    @property
    def is_closed(self) -> bool:
        """Whether the study was closed; its tables are not verified."""
        return self._files.exists(self.layout.closed)

    def closed(
        self, wanted: Sequence[str] = CLOSING_TABLES
    ) -> dict[str, pd.DataFrame] | None:
        """Returns tables of a closed study by name: the wanted ones, and `studies`.

        None without a problem: the study is open. None with problems: the study was
        closed but a file is damaged, and running the sweep again repairs it. Only the
        tables in `wanted` are read and verified. Nothing is changed.
        """
        tables = self._closed_tables(wanted)
        if tables is None:
            return None
        return {name: to_frame(table) for name, table in tables.items()}

    def _closed_tables(self, wanted: Sequence[str]) -> dict[str, pa.Table] | None:
        try:
            record = read_json(self._files, self.layout.closed)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self._add_problems(str(error))
            return None
        try:
            tables = {"studies": to_arrow(pd.DataFrame([record["study"]]), STUDIES)}
        except ValueError as error:
            raise OtherFormatError(
                f"{self.layout.closed} was written by another version of dps_tf, whose "
                "table of studies has other columns: use that version, or choose "
                "another directory."
            ) from error
        damaged = []
        for name in wanted:
            path = self.layout.table(name)
            try:
                data = self._files.read_bytes(path)
                if sha256(data) != record["sha256"][name]:
                    raise DamagedError(
                        path, "it is not the table that closed the study"
                    )
                tables[name] = decode_table(path, data)
            except FileNotFoundError:
                damaged.append(f"{path} of a closed study is missing.")
            except DamagedError as error:
                damaged.append(str(error))
        self._add_problems(*damaged)
        return None if damaged else tables

    def trial(self, number: int) -> RecordedTrial:
        """Returns a trial of a closed study, with all that training it again needs.

        Raises:
            UserError: the study is not closed, has no trial of that number, or the
                trial was never evaluated.
        """
        closed = self.closed(("trials", "curves"))
        if closed is None:
            raise UserError(f"{self.name} is not finished: run its sweep to the end.")
        rows = closed["trials"].to_dict("records")
        row = next((row for row in rows if row["trial"] == number), None)
        if row is None:
            raise UserError(
                f"{self.name} has no trial {number}: it has {len(rows)}, from 0."
            )
        curves = closed["curves"]
        curve = {
            int(at["step"]): (_numbers(at, CURVES), bool(at["is_bound"]))
            for at in curves[curves["trial"] == number].to_dict("records")
        }
        if not curve:
            raise UserError(
                f"trial {number} of {self.name} is {row['outcome']} and was never "
                "evaluated, so there is no curve to repeat: choose another trial."
            )
        reached = row["outcome"] == "complete"
        point = _numbers(row, TRIALS).items()
        return RecordedTrial(
            number=number,
            initial_seed=int(row["initial_seed"]),
            order_seed=int(row["order_seed"]),
            point={name: value for name, value in point if not math.isnan(value)},
            curve=curve,
            steps_to_result=int(row["steps_to_result"]) if reached else None,
        )

    @property
    def states(self) -> StateStore:
        """The states of the trials."""
        return StateStore(self._files, self.layout.states)

    def trained(self) -> StudySpecification:
        """Returns the specification of a study; UserError if none can be trained."""
        self.check_trained()
        if self.specification is None:
            raise UserError(
                f"{self.layout.study} is missing or damaged: run the sweep again, "
                "which restores it."
            )
        return self.specification

    def check_trained(self) -> None:
        """Raises UserError for a study of imported runs."""
        if self.is_archived:
            raise UserError(
                f"{self.layout.root} holds imported runs, so that there is nothing to "
                "train again: choose another --sweep_dir."
            )

    def measurements(self) -> pd.DataFrame:
        """Returns the measurements, no rows without a file; or raises DamagedError."""
        try:
            return read_table(self._files, self.layout.measurements)
        except FileNotFoundError:
            return empty_frame(MEASUREMENTS)

    def tables(self, wanted: Sequence[str] = CLOSING_TABLES) -> dict[str, pa.Table]:
        """Returns tables by name: the wanted ones, `studies` and `measurements`.

        Tables of a closed study are read. For an open study, or one with damaged
        tables, they are made from its logs. Missing or damaged files are left out.
        """
        closed = self._closed_tables(wanted)
        tables = self._tables_from_logs(wanted) if closed is None else closed
        try:
            rows = self.measurements()
        except DamagedError as error:
            self._add_problems(str(error))
        else:
            if len(rows):
                tables["measurements"] = to_arrow(rows, MEASUREMENTS)
        return tables

    def _tables_from_logs(self, wanted: Sequence[str]) -> dict[str, pa.Table]:
        if self.specification is None:
            return {}
        row, tables = study_tables(
            self.specification, self.history, self.training_inputs, closed=False
        )
        frames = {"studies": pd.DataFrame([row]), **{n: tables[n] for n in wanted}}
        return {name: to_arrow(frame, SCHEMAS[name]) for name, frame in frames.items()}

    def result(self) -> StudyResult:
        """Returns the result of the study so far, from its logs."""
        return study_result(self.trained(), self.history)

    def best_trial(self) -> int | None:
        """Returns the trial that met the goal first so far, or None if none did."""
        closed = self.closed(("trials",))
        if closed is None:
            finishers = self.result().finishers
            return finishers[0][1] if finishers else None
        best = best_first(closed["trials"])
        return None if best.empty else int(best["trial"].iloc[0])

    def _add_problems(self, *problems: str) -> None:
        self.problems[:] = dict.fromkeys([*self.problems, *problems])


def _numbers(row: Mapping[Any, Any], schema: TableSchema) -> dict[str, float]:
    """Returns the metaparameters, or the metrics, of a row."""
    columns = dict(schema.columns)
    return {str(n): float(v) for n, v in row.items() if n not in columns}
