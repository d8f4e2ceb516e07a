"""All tables of a sweep: from Parquet where studies are closed, else from a hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.core.cell import CELL_KEY
from dps_tf.core.errors import UserError
from dps_tf.core.study import FLOAT32
from dps_tf.store.closing import read_closed
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CLOSING_TABLES, CellLayout, SweepLayout
from dps_tf.store.records import read_json
from dps_tf.store.schemas import MEASUREMENTS, SCHEMAS, STUDIES
from dps_tf.store.tables import decode_table, empty_frame, to_arrow, to_frame


@dataclass(frozen=True)
class StoredTables:
    """The tables of one or several studies; see `schemas` for their columns.

    Attributes:
        studies: one row per cell.
        trials: one row per trial.
        curves: one row per evaluation.
        measurements: one row per measurement.
        work: what was really executed; never a result.
        problems: sentences about damaged files that were skipped.
    """

    studies: pd.DataFrame = field(default_factory=lambda: _empty("studies"))
    trials: pd.DataFrame = field(default_factory=lambda: _empty("trials"))
    curves: pd.DataFrame = field(default_factory=lambda: _empty("curves"))
    measurements: pd.DataFrame = field(default_factory=lambda: _empty("measurements"))
    work: pd.DataFrame = field(default_factory=lambda: _empty("work"))
    problems: tuple[str, ...] = ()


ReadOpen = Callable[[str], StoredTables | None]
"""Gives the tables of an open study from the folder of its cell; None if it has none.

Also asked for closed studies whose tables are damaged. The hook's `measurements` are
not used: they are read from the cell's own file in either case.
"""

_FRAMES = tuple(item.name for item in fields(StoredTables) if item.name != "problems")


def read_sweep(
    files: FileSystem,
    directory: str,
    read_open: ReadOpen | None = None,
    tables: Sequence[str] = CLOSING_TABLES,
) -> StoredTables:
    """Returns the tables of all cells of a sweep, rows in the order of their identity.

    Changes nothing, so it may run while the sweep does.

    Args:
        files: where from.
        directory: of the sweep.
        read_open: how open studies are read; they are left out without it.
        tables: which of the large tables are wanted; the others stay empty.

    Raises:
        UserError: the directory holds no sweep.
    """
    sweep = SweepLayout(directory)
    names = files.list_names(sweep.cells)
    if not names and not files.exists(sweep.marker):
        raise UserError(
            f"{directory} holds no sweep: name the directory that was given to train "
            "as --sweep_dir."
        )
    parts = _Parts(files, tables, read_open)
    for name in names:
        parts.add(sweep.cell(name))
    return parts.joined()


class _Parts:
    """Collects the tables of cell after cell and joins them once."""

    def __init__(
        self, files: FileSystem, tables: Sequence[str], read_open: ReadOpen | None
    ) -> None:
        self._files = files
        self._wanted = tables
        self._read_open = read_open
        self._studies: list[dict[str, Any]] = []
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in _FRAMES}
        self._problems: list[str] = []

    def add(self, cell: CellLayout) -> None:
        closed, problems = read_closed(self._files, cell.root, self._wanted)
        self._problems += problems
        if closed is not None:
            row = {**closed.study, "closed": True}
            if "precision" not in row:
                row["precision"] = self._precision(cell)
            self._studies.append(row)
            for name, table in closed.tables.items():
                self._tables[name].append(table)
        elif self._read_open is not None:
            self._add_open(self._read_open(cell.root))
        self._add_measurements(cell.measurements)

    def _precision(self, cell: CellLayout) -> str:
        """Returns the precision of a study that was closed before its row told it."""
        try:
            content = read_json(self._files, cell.study)
        except FileNotFoundError:
            content = {}
        except DamagedError as error:
            self._problems.append(str(error))
            content = {}
        return str(content.get("specification", {}).get("precision", FLOAT32))

    def _add_open(self, read: StoredTables | None) -> None:
        if read is None:
            return
        self._problems += read.problems
        for name in ("studies", *self._wanted):
            self._tables[name].append(to_arrow(getattr(read, name), SCHEMAS[name]))

    def _add_measurements(self, path: str) -> None:
        try:
            table = decode_table(path, self._files.read_bytes(path))
            self._tables["measurements"].append(table)
        except FileNotFoundError:
            return
        except DamagedError as error:
            self._problems.append(str(error))

    def joined(self) -> StoredTables:
        if self._studies:
            rows = pd.DataFrame(self._studies)
            self._tables["studies"].append(to_arrow(rows, STUDIES))
        frames = {
            name: to_frame(_concatenated(name, parts))
            for name, parts in self._tables.items()
            if parts
        }
        if "studies" in frames:
            frames["studies"] = to_frame(to_arrow(frames["studies"], STUDIES))
        return StoredTables(**frames, problems=tuple(self._problems))


def _concatenated(name: str, parts: list[pa.Table]) -> pa.Table:
    """Joins tables whose further columns may differ; gaps become missing numbers."""
    ordered = sorted(parts, key=_identity)
    joined = pa.concat_tables(ordered, promote_options="default")
    order = [column for column, _ in SCHEMAS[name].all_columns(joined.column_names)]
    return joined.select(order)


def _identity(table: pa.Table) -> tuple[Any, ...]:
    """Returns the cell of a table of one cell, by which tables are put in order."""
    if table.num_rows == 0:
        return ()
    return tuple(table[name][0].as_py() for name in CELL_KEY)


def _empty(name: str) -> pd.DataFrame:
    return empty_frame(SCHEMAS[name])


def read_measurements(files: FileSystem, directory: str) -> pd.DataFrame:
    """Returns the measurements of one cell; none if there is no file."""
    path = CellLayout(directory).measurements
    try:
        return to_frame(decode_table(path, files.read_bytes(path)))
    except FileNotFoundError:
        return empty_frame(MEASUREMENTS)
