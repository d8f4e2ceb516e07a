"""Reads files of other people, as input that may be hostile.

Only folders and regular files count: a pipe would hang its reader, and a link leads
elsewhere or in a circle. A file that is larger or deeper than any honest record is
refused before it is read. Every refusal is one sentence that names the file.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dps_tf.core import UserError, is_axis, on_one_line

LARGEST_JSON = 4 << 20
"""Most bytes of a JSON file; the public archive's files have a few thousand."""
LARGEST_TABLE = 1 << 30
"""Most bytes of a table."""
MOST_VALUES = 1 << 28
"""Most values of a table: the size of a compressed file says little about them."""
DEEPEST = 12
"""Most folders inside of each other, below the one that the user has named."""


@contextlib.contextmanager
def opened(path: Path, follow: bool = False) -> Iterator[BinaryIO]:
    """Opens a regular file for reading, with `follow` also through a link.

    Raises:
        UserError: the file is missing, not regular, or cannot be read.
    """
    # A pipe without a writer would block the opening itself.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    flags |= 0 if follow else os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{str(path)!r} is no regular file: give one instead.")
            yield file
    except OSError as error:
        is_refused = error.errno == errno.ELOOP and not follow
        why = "it is a link" if is_refused else error.strerror
        raise UserError(f"{str(path)!r} cannot be read: {why}.") from error


def read_bytes(path: Path, largest: int, follow: bool = False) -> bytes:
    """Returns the content of a regular file; UserError above `largest` bytes."""
    with opened(path, follow) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise UserError(
            f"{str(path)!r} has more than {largest:,} bytes, which no record of this "
            "kind has."
        )
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object that a file holds; UserError for anything else."""
    data = read_bytes(path, LARGEST_JSON)
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise UserError(f"{str(path)!r} is nested too deeply.") from error
    except ValueError as error:
        raise _unreadable(path, "JSON", error) from error
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} must hold a JSON object.")
    return value


def read_csv(
    path: str | Path,
    follow: bool = True,
    nan_is_a_value: bool = False,
    texts: Collection[str] = (),
) -> pd.DataFrame:
    """Returns a CSV file as a table; axes, `curve`, `steps_bound` stay text.

    These texts are empty where a cell has none. The index counts the rows of the file,
    empty ones among them. With `nan_is_a_value`, the text NaN stays a text, and is not
    an empty field. Columns of `texts` hold the texts of their fields, missing where
    empty. A path is never taken for an address, which pandas would fetch.

    Raises:
        UserError: the file cannot be read (see `opened`), is no CSV, has two columns of
            one name, or a row that has more or fewer fields than the header: pandas
            would shift its values to other columns.
    """
    data = read_bytes(Path(path), LARGEST_TABLE, follow)
    try:
        if b"\0" in data:
            raise ValueError("it holds a NUL byte; if it is UTF-16, save it as UTF-8")
        names, places = _checked_header(path, data.decode("utf-8-sig"))
        types = {name: str for name in names if is_axis(name) or name == "steps_bound"}
        frame: pd.DataFrame = pd.read_csv(
            io.BytesIO(data),
            dtype={**dict.fromkeys([*texts, "curve"], str), **types},
            skipinitialspace=True,
            low_memory=False,
            keep_default_na=not nan_is_a_value,
            na_values=["", "NA", "N/A", "null", "None", "<NA>"],
        )
        if places[-1] >= len(frame):  # there are empty lines
            frame = frame.set_axis(places[1:])
    except UserError:
        raise
    except (csv.Error, ValueError) as error:
        why = on_one_line(error)
        raise UserError(f"{str(path)!r} is not a CSV table: {why}.") from error
    for name in frame.columns.intersection(list(texts)):
        frame[name] = frame[name].str.strip()
    return frame.fillna(dict.fromkeys(types, ""))


def _checked_header(path: str | Path, text: str) -> tuple[list[str], list[int]]:
    """Returns the names of the columns, and the places of rows that are not empty.

    The first place is the header, and -1.

    Raises:
        UserError: a row with more or fewer fields than the header.
    """
    rows = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    names: list[str] = []
    places: list[int] = []
    for place, row in enumerate(rows, -1):
        if len(row) < 2 and not "".join(row).strip():
            continue  # pandas passes over empty lines too
        names = names or row
        if len(names) == 1 and (other := re.search("[;\t|]", names[0])):
            raise UserError(
                f"{str(path)!r} separates columns by {other[0]!r}: save it with "
                "commas, and with points in decimals."
            )
        places.append(place)
        if len(row) != len(names):
            raise UserError(
                f"{str(path)!r} has {len(row)} fields in line {rows.line_num} and "
                f"{len(names)} in its header: give every row one field per column."
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"{str(path)!r} has {names.count(twice[0])} columns {twice[0]!r}: leave "
            "one."
        )
    return names, places


def read_table(
    path: Path, nan_is_a_value: bool = False, texts: Collection[str] = ()
) -> pd.DataFrame:
    """Returns a CSV (`.csv`) or Parquet (`.parquet`) file with the types it gives.

    `texts` are columns of texts in a CSV file, which gives no types. With
    `nan_is_a_value`, NaN is a text or infinite, and no empty field.

    Raises:
        UserError: see `read_csv`; or too many values, or two columns of one name.
    """
    if path.suffix == ".csv":
        return read_csv(path, nan_is_a_value=nan_is_a_value, texts=texts)
    data = read_bytes(path, LARGEST_TABLE, follow=True)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        # But columns whose fields hold several values.
        fields = file.schema_arrow
        names = [x.name for x in fields if not pa.types.is_nested(x.type)]
        if file.metadata.num_rows * len(names) > MOST_VALUES:
            raise UserError(f"{str(path)!r} has more than {MOST_VALUES:,} values.")
        if len(set(names)) < len(names):
            raise UserError(f"{str(path)!r} has a column more than once.")
        columns = file.read(names)
        for place, column in enumerate(columns.columns):
            if pa.types.is_float16(column.type):
                # Arrow computes nothing with halves; each is the decimal it shows.
                halves = column.to_pylist()
                shown = [v if v is None else float(str(np.float16(v))) for v in halves]
                columns = columns.set_column(place, names[place], pa.array(shown))
        for place, column in enumerate(columns.columns if nan_is_a_value else ()):
            if pa.types.is_floating(column.type):
                shown = pc.if_else(pc.is_nan(column), np.inf, column)
                columns = columns.set_column(place, names[place], shown)
        table: pd.DataFrame = columns.to_pandas(ignore_metadata=True)
    except UserError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(path, "Parquet", error) from error
    return table


def kind_of(path: Path) -> str:
    """Returns "file", "folder", "other" or "" (nothing there), following links."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # a name that no file can have, too
        return ""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder"}
    return kinds.get(stat.S_IFMT(mode), "other")


def folders_with(folder: Path, name: str, depth: int = DEEPEST) -> Iterator[Path]:
    """Yields the folders at or below one that hold a file of some name, by number.

    The search goes neither below such a folder nor behind links.

    Raises:
        UserError: a link among the folders, one too deep, or one that cannot be read.
    """
    if depth < 0:
        raise UserError(
            f"{str(folder)!r} lies more than {DEEPEST} folders deep: give the folder "
            "that holds the records itself."
        )
    there = entries_of(folder)
    if any(entry.name == name for entry in there):
        yield folder
        return
    for entry in there:
        if entry.is_dir(follow_symlinks=False):
            yield from folders_with(Path(entry.path), name, depth - 1)


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder, numbers last, by size; UserError for a link."""
    try:
        with os.scandir(folder) as listed:
            there = sorted(listed, key=lambda entry: _numerically(entry.name))
    except OSError as error:
        raise UserError(f"{str(folder)!r} cannot be read: {error.strerror}.") from error
    for entry in there:
        if entry.is_symlink():
            raise UserError(
                f"{entry.path!r} is a link: replace it by what it points to."
            )
    return there


def is_number(name: str) -> bool:
    """Returns whether a name is a whole number of at most eighteen ASCII digits."""
    return name.isascii() and name.isdecimal() and len(name) <= 18


def _numerically(name: str) -> tuple[int, str]:
    return (int(name), "") if is_number(name) else (-1, name)


def _unreadable(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(f"{str(path)!r} cannot be read as {kind}: {on_one_line(error)}.")
