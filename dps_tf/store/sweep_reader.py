"""Reads a sweep directory: its configuration, its studies, all its tables.

Every command that reads a study uses this. Reading changes nothing on disk, so it may
go on while the sweep runs. What was read is kept: make a new reader to see what has
been written since.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.core import (
    CELL_KEY,
    StudyResult,
    StudySpecification,
    UserError,
    cell_key,
    is_axis,
    near_matches,
)
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CLOSING_TABLES, CellLayout, SweepLayout, is_name
from dps_tf.store.log import read_logs
from dps_tf.store.records import check_format, read_json
from dps_tf.store.schemas import CURVES, MEASUREMENTS, SCHEMAS, STUDIES
from dps_tf.store.states import StateStore
from dps_tf.store.study_history import StudyHistory
from dps_tf.store.study_tables import (
    Closed,
    is_closed,
    read_closed,
    study_result,
    study_tables,
)
from dps_tf.store.tables import empty_frame, read_table, to_arrow, to_frame


class StudyReader:
    """One study as its files tell it, each read when it is first asked for.

    Attributes:
        layout: paths of the cell.
        problems: sentences on what was found damaged by what was read so far.
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
            self._tell(str(error))
            return None

    def is_there(self) -> bool:
        """Returns whether the folder holds a study, or one that is about to begin."""
        at = self.layout
        parts = (at.study, at.closed, at.logs, at.claims, at.lock, at.measurements)
        return any(map(self._files.exists, parts))

    def cell_name(self) -> str | None:
        """Returns the name of the cell that study.json tells; None where it does not.

        It is that of the folder, unless somebody has copied or renamed that.
        """
        return None if self.specification is None else self.specification.cell.name

    @property
    def is_archived(self) -> bool:
        """Whether the study was read from an archive, so that nothing can train it."""
        return self.record is not None and "origin" in self.record

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
        return {} if self.record is None else self.record.get("training_inputs", {})

    @property
    def environments(self) -> Sequence[Mapping[str, Any]]:
        """Builds and instruction sets that have trained it, the latest last."""
        return [] if self.record is None else self.record["environments"]

    @functools.cached_property
    def history(self) -> StudyHistory:
        """What the logs say."""
        logs, problems = read_logs(self._files, self.layout.logs)
        self._tell(*problems)
        history = StudyHistory()
        for writer, events in logs.items():
            for event in events:
                if event.get("kind") == "session":
                    check_format(self.layout.log(writer), event.get("format"))
            history.add_all(events)
        return history

    @property
    def is_closed(self) -> bool:
        """Whether the study was closed; its tables are not verified."""
        return is_closed(self._files, self.layout.root)

    def closed(self, tables: Sequence[str] = CLOSING_TABLES) -> Closed | None:
        """Returns the tables of a closed study; None if it is open or they are damaged.

        Only those that are named are read and verified.
        """
        closed, problems = read_closed(self._files, self.layout.root, tables)
        self._tell(*problems)
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
        """Returns the measurements, none if there is no file; else DamagedError."""
        try:
            return read_table(self._files, self.layout.measurements)
        except FileNotFoundError:
            return empty_frame(MEASUREMENTS)

    def tables(self, wanted: Sequence[str] = CLOSING_TABLES) -> dict[str, pa.Table]:
        """Returns the tables by name: those wanted, `studies` and `measurements`.

        Those of a closed study are read; those of an open one, or of one whose tables
        are damaged, are made from its logs. What is missing or damaged is left out.
        """
        closed = self.closed(wanted)
        if closed is not None:
            studies = to_arrow(pd.DataFrame([closed.study]), STUDIES)
            found = {"studies": studies, **closed.tables}
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

    def _tell(self, *problems: str) -> None:
        self.problems[:] = dict.fromkeys([*self.problems, *problems])


@dataclass(frozen=True)
class StoredTables:
    """The tables of several studies, see `schemas`; `problems` are about damage."""

    studies: pd.DataFrame = field(default_factory=lambda: _empty("studies"))
    trials: pd.DataFrame = field(default_factory=lambda: _empty("trials"))
    curves: pd.DataFrame = field(default_factory=lambda: _empty("curves"))
    measurements: pd.DataFrame = field(default_factory=lambda: _empty("measurements"))
    work: pd.DataFrame = field(default_factory=lambda: _empty("work"))
    problems: tuple[str, ...] = ()


_FRAMES = tuple(item.name for item in fields(StoredTables) if item.name != "problems")


class SweepReader:
    """A sweep as its files tell it.

    Attributes:
        layout: paths of the sweep.
        studies: the reader of each cell that has a folder, by name, sorted.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        """Lists the cells.

        Raises:
            UserError: the directory holds no sweep.
            OtherFormatError: it holds one of another format.
        """
        self._files = files
        self.layout = SweepLayout(directory)
        self._problems: list[str] = []
        with contextlib.suppress(FileNotFoundError, DamagedError):
            read_json(files, self.layout.marker)
        self.studies: dict[str, StudyReader] = {}
        for name in files.list_names(self.layout.cells):
            self._add(name)
        has_marker = files.exists(self.layout.marker)
        if not has_marker and not self.studies and not self.planned:
            raise UserError(
                f"{directory} holds no sweep: name the directory that was given to "
                "train as --sweep_dir."
            )
        if not has_marker:
            self._problems.append(_missing(self.layout.marker))
        if self.studies and not files.exists(self.layout.sweep):
            self._problems.append(_missing(self.layout.sweep))

    def _add(self, name: str) -> None:
        """Adds the study of a name in cells/, or says why it is passed over."""
        why = "it holds no study"
        # What has no name of a cell may be a copy of one.
        study = StudyReader(self._files, CellLayout(f"{self.layout.cells}/{name}"))
        if study.is_there():
            own = study.cell_name()
            if is_name(name) and own in (None, name):
                self.studies[name] = study
                return
            if own is not None:
                why = f"it is a copy of {own}"
        self._problems.append(f"{self.layout.cells}/{name} is passed over: {why}.")

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on what was found damaged by what was read so far."""
        told = [text for study in self.studies.values() for text in study.problems]
        return (*self._problems, *told)

    def study(self, cell: str) -> StudyReader:
        """Returns the reader of a cell; UserError for one that is not there."""
        if cell not in self.studies:
            raise UserError(
                f"cell {cell!r} is unknown: {near_matches(cell, self.studies)}."
            )
        return self.studies[cell]

    @functools.cached_property
    def planned(self) -> tuple[str, ...]:
        """The cells that the latest command on the sweep asked for, in its order."""
        try:
            return tuple(map(str, read_json(self._files, self.layout.sweep)["cells"]))
        except FileNotFoundError:
            return ()
        except DamagedError as error:
            self._problems.append(str(error))
            return ()

    def configuration(self) -> str:
        """Returns the resolved gin configuration; '' where there is none."""
        try:
            return self._files.read_bytes(self.layout.config).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def environments(self) -> tuple[dict[str, Any], ...]:
        """Returns the builds and instruction sets that its studies have seen, once."""
        found: list[dict[str, Any]] = []
        for study in self.studies.values():
            found += [dict(e) for e in study.environments if dict(e) not in found]
        return tuple(found)

    def written(self) -> tuple[float, float] | None:
        """Returns when the oldest and the newest file of its studies was written.

        Seconds of the epoch by the clock of the file system: of the file that a study
        begins with, and of the mark that closes it. None before any study.
        """
        times = [
            self._files.modified_time(path)
            for study in self.studies.values()
            for path in (study.layout.study, study.layout.closed)
            if self._files.exists(path)
        ]
        return (min(times), max(times)) if times else None

    def tables(self, wanted: Sequence[str] = CLOSING_TABLES) -> StoredTables:
        """Returns the tables of all cells, rows in the order of their identity.

        Large tables that are not wanted stay empty. The curves have a column for the
        metric of each goal, before any evaluation too.
        """
        parts: dict[str, list[pa.Table]] = {name: [] for name in _FRAMES}
        for study in self.studies.values():
            for name, table in study.tables(wanted).items():
                parts[name].append(table)
        columns = {
            c for tables in parts.values() for t in tables for c in t.schema.names
        }
        axes = [name for name in cell_key(columns) if is_axis(name)]
        frames = {
            name: to_frame(_concatenated(name, tables, axes))
            for name, tables in parts.items()
            if tables
        }
        if "studies" in frames:
            frames["studies"] = to_frame(to_arrow(frames["studies"], STUDIES))
        if "studies" in frames and "curves" in frames:
            metrics = frames["studies"]["goal_metric"]
            frames["curves"] = _with_metrics(frames["curves"], metrics.unique())
        return StoredTables(**frames, problems=self.problems)


def _with_metrics(curves: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    """Returns curves with a column of missing numbers for each metric they lack."""
    wider = curves.assign(**{n: math.nan for n in metrics if n not in curves})
    return wider[[name for name, _ in CURVES.all_columns(wider.columns)]]


def _missing(path: str) -> str:
    return f"{path} is missing: running the sweep again restores it."


def _concatenated(name: str, parts: list[pa.Table], axes: Sequence[str]) -> pa.Table:
    """Joins tables whose further columns may differ; gaps become missing numbers."""
    # A cell that does not have one of the axes of the others has an empty text there.
    for axis in axes:
        parts = [
            part
            if axis in part.schema.names
            else part.append_column(axis, pa.array([""] * len(part), pa.string()))
            for part in parts
        ]
    ordered = sorted(parts, key=functools.partial(_identity, [*CELL_KEY, *axes]))
    joined = pa.concat_tables(ordered, promote_options="default")
    order = [column for column, _ in SCHEMAS[name].all_columns(joined.column_names)]
    return joined.select(order)


def _identity(key: Sequence[str], table: pa.Table) -> tuple[Any, ...]:
    """Returns the cell of a table of one cell, by which tables are put in order."""
    if table.num_rows == 0:
        return ()
    return tuple(table[name][0].as_py() for name in key)


def _empty(name: str) -> pd.DataFrame:
    return empty_frame(SCHEMAS[name])
