"""Closing a study: three tables, then the record that makes them count.

A study is closed if and only if `closed.json` is there; it holds the digests of the
tables and is written last, and removed first when a study is opened again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CLOSING_TABLES, CellLayout
from dps_tf.store.records import encode_record, read_json, set_aside
from dps_tf.store.schemas import SCHEMAS, STUDY_DEFAULTS
from dps_tf.store.tables import decode_table, encode_table, to_frame


@dataclass(frozen=True)
class Closed:
    """A closed study: its row of the table of studies, and the tables asked for."""

    study: dict[str, Any]
    tables: dict[str, pa.Table]

    def frame(self, name: str) -> pd.DataFrame:
        """Returns one table as a DataFrame."""
        return to_frame(self.tables[name])

    def best(self) -> dict[Any, Any] | None:
        """Returns the row of the trial that met the goal first, or None if none did."""
        trials = self.frame("trials")
        reached = trials[trials["outcome"] == "complete"]
        if reached.empty:
            return None
        ordered = reached.sort_values(["steps_to_result", "trial"])
        return dict(ordered.iloc[0])


def close_study(
    files: FileSystem,
    directory: str,
    *,
    study: Mapping[str, Any],
    trials: pd.DataFrame,
    curves: pd.DataFrame,
    work: pd.DataFrame,
) -> None:
    """Writes the tables of a study, and its row of the table of studies: it is closed.

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
            "study": {
                name: value
                for name, value in study.items()
                if name not in STUDY_DEFAULTS or value != STUDY_DEFAULTS[name]
            },
            "sha256": {name: _digest(data) for name, data in contents.items()},
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


def is_closed(files: FileSystem, directory: str) -> bool:
    """Returns whether a study was closed, without verifying its tables."""
    return files.exists(CellLayout(directory).closed)


def read_closed(
    files: FileSystem, directory: str, tables: Sequence[str] = CLOSING_TABLES
) -> tuple[Closed | None, list[str]]:
    """Returns a closed study, or None, and sentences about what is damaged.

    None without a sentence: the study is open. None with sentences: it was closed but
    something is damaged; reading its logs and closing it again repairs that. Only the
    tables that are named are read and verified. Changes nothing.
    """
    cell = CellLayout(directory)
    try:
        record = read_json(files, cell.closed)
    except FileNotFoundError:
        return None, []
    except DamagedError as error:
        return None, [str(error)]
    found: dict[str, pa.Table] = {}
    problems: list[str] = []
    for name in tables:
        path = cell.table(name)
        try:
            data = files.read_bytes(path)
            if _digest(data) != record["sha256"][name]:
                raise DamagedError(path, "it is not the table that closed the study")
            found[name] = decode_table(path, data)
        except FileNotFoundError:
            problems.append(f"{path} of a closed study is missing.")
        except DamagedError as error:
            problems.append(str(error))
    return (None if problems else Closed(record["study"], found)), problems


def reopen_study(files: FileSystem, directory: str) -> list[str]:
    """Opens a closed study, to extend or to repair it; returns where damage was put.

    An open study stays as it is. Damaged files are set aside; tables that are intact
    stay until the study is closed again.
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
        if files.exists(path) and _digest(files.read_bytes(path)) != digest:
            damaged.append(path)
    # First of all: a study without its tables must not look closed.
    files.remove(cell.closed)
    return [set_aside(files, path) for path in damaged]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
