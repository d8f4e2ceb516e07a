"""The reader of a sweep directory: of its configuration, its studies, all its tables.

Reading changes nothing on disk, so it may go on while the sweep runs. A reader keeps
what it has read: make a new one to see what has been written since.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.core import CELL_KEY, Cell, UserError, cell_key, check_known, is_axis
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CLOSING_TABLES, CellLayout, SweepLayout, is_name
from dps_tf.store.parquet import empty_frame, to_arrow, to_frame
from dps_tf.store.records import read_json
from dps_tf.store.schemas import CURVES, MEASUREMENTS, SCHEMAS, STUDIES, TRIALS, WORK
from dps_tf.store.study_reader import StudyReader


@dataclass(frozen=True)
class StoredTables:
    """The tables of several studies (`schemas`), and sentences about damaged files."""

    studies: pd.DataFrame = field(default_factory=lambda: empty_frame(STUDIES))
    trials: pd.DataFrame = field(default_factory=lambda: empty_frame(TRIALS))
    curves: pd.DataFrame = field(default_factory=lambda: empty_frame(CURVES))
    measurements: pd.DataFrame = field(
        default_factory=lambda: empty_frame(MEASUREMENTS)
    )
    work: pd.DataFrame = field(default_factory=lambda: empty_frame(WORK))
    problems: tuple[str, ...] = ()


_FRAMES = tuple(item.name for item in fields(StoredTables) if item.name != "problems")


class SweepReader:
    """Reads the files of one sweep directory.

    Example: `SweepReader(LocalFiles(), "sweeps/mnist").tables().trials`

    Attributes:
        layout: paths of the sweep.
        studies: readers of the cells that have a folder, by sorted names of the cells.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        """Lists the cells.

        Raises:
            UserError: the directory holds no sweep.
            OtherFormatError: the directory holds a sweep of another format.
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
        """Adds the study in a folder of cells/, or a problem that says why not."""
        why = "it holds no study"
        # A folder that does not have the name of its cell may be a copy.
        study = StudyReader(self._files, CellLayout(f"{self.layout.cells}/{name}"))
        if study.is_there():
            own = study.cell_name()
            if is_name(name) and own in (None, name):
                self.studies[name] = study
                return
            if own is not None:
                why = f"it is a copy of {own}"
        self._problems.append(f"{self.layout.cells}/{name} is skipped: {why}.")

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about the damaged files among all that were read so far."""
        of_studies = [text for s in self.studies.values() for text in s.problems]
        return (*self._problems, *of_studies)

    def study(self, cell: str) -> StudyReader:
        """Returns the reader of a cell; UserError for one that is not there."""
        check_known("cell", cell, self.studies)
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

    @property
    def intra_op_threads(self) -> int | None:
        """Threads per operation of the studies, which share it; None without studies.

        Imported runs were trained elsewhere, and have 1.
        """
        begun = (study.specification for study in self.studies.values())
        return next((study.intra_op_threads for study in begun if study), None)

    @functools.cached_property
    def identities(self) -> dict[str, Cell]:
        """The planned cells by name; empty for imported runs."""
        try:
            stored = read_json(self._files, self.layout.sweep).get("identities", [])
        except (FileNotFoundError, DamagedError):
            return {}
        cells = map(Cell.from_json, stored)
        return {cell.name: cell for cell in cells}

    def configuration(self) -> str:
        """Returns the resolved gin configuration; '' where there is none."""
        try:
            return self._files.read_bytes(self.layout.config).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def environments(self) -> tuple[dict[str, Any], ...]:
        """Returns the distinct builds and instruction sets of its studies."""
        environments: list[dict[str, Any]] = []
        for study in self.studies.values():
            environments += [
                dict(e) for e in study.environments if dict(e) not in environments
            ]
        return tuple(environments)

    def written(self) -> tuple[float, float] | None:
        """Returns when the oldest and the newest file of the studies was written.

        The two are seconds of the epoch by the clock of the file system, over the
        studies' study.json and closed.json; None before any study.
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

        Tables of CLOSING_TABLES that are not in `wanted` stay empty. The curves have a
        column for the metric of each goal, before any evaluation too.
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
            curves, metrics = (
                frames["curves"],
                frames["studies"]["goal_metric"].unique(),
            )
            wider = curves.assign(**{n: math.nan for n in metrics if n not in curves})
            ordered = [name for name, _ in CURVES.all_columns(wider.columns)]
            frames["curves"] = wider[ordered]
        return StoredTables(**frames, problems=self.problems)


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
    """Returns the cell of a table of one cell, as the key that orders tables."""
    if table.num_rows == 0:
        return ()
    return tuple(table[name][0].as_py() for name in key)
