r"""Append-only logs with checksums: flushed events survive any kill.

Each log has one writer. A line that a kill tore is cut off when the log is opened for
writing again; damaged lines before it stay, are skipped by readers, and are reported.

An event is one line, `crc32 length json\n`: eight hexadecimal digits over the JSON, its
length in bytes, the JSON itself. The length finds the end where a line's own end is
damaged; the checksum finds any changed byte.

Floats come back bit for bit (JSON holds their shortest exact form). Floats that JSON
does not have are the strings "nan", "inf", "-inf". A text that is one of these, after
any number of '~', is written with one more '~', so that texts and floats differ.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.store.errors import StoreError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import segments
from dps_tf.store.records import canonical, free_name

Event = dict[str, Any]

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_LIKE_NON_FINITE = re.compile(r"~*(nan|inf|-inf)")
_HEADER = re.compile(rb"([0-9a-f]{8}) (\d{1,12}) (?={)")


def encode_event(event: Event) -> bytes:
    """Returns the line of an event: an object of JSON values, floats of any kind.

    NumPy scalars are written as the numbers they are, tuples as lists.
    """
    payload = canonical(_plain(event)).encode("ascii")
    return b"%b %d %b\n" % (_checksum(payload), len(payload), payload)


def _plain(value: Any) -> Any:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value  # as most are, quickly
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str) and _LIKE_NON_FINITE.fullmatch(value):
        return f"~{value}"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _original(value: Any) -> Any:
    if isinstance(value, str):
        if value in _NON_FINITE:
            return _NON_FINITE[value]
        return value[1:] if _LIKE_NON_FINITE.fullmatch(value) else value
    if isinstance(value, dict):
        return {key: _original(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_original(item) for item in value]
    return value


@dataclass(frozen=True)
class Scan:
    """The content of a log's bytes.

    Attributes:
        events: every intact event, in order.
        damaged: (position, length) in bytes of each stretch that is no intact line.
        intact_end: where the last intact line ends, with its line end if it has one.
        lacks_line_end: whether the last intact line lacks its line end.
    """

    events: list[Event]
    damaged: list[tuple[int, int]]
    intact_end: int
    lacks_line_end: bool


def scan(data: bytes) -> Scan:
    """Returns every intact line, also between, after and inside damaged ones."""
    events: list[Event] = []
    damaged: list[tuple[int, int]] = []
    reached = intact_end = 0
    lacks_line_end = False
    for start, end, payload in _intact_lines(data):
        if start > reached:
            damaged.append((reached, start - reached))
        events.append(_original(json.loads(payload)))
        lacks_line_end = data[end : end + 1] != b"\n"
        reached = intact_end = end if lacks_line_end else end + 1
    if reached < len(data):
        damaged.append((reached, len(data) - reached))
    return Scan(events, damaged, intact_end, lacks_line_end)


def _intact_lines(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields start, end (line end not counted) and payload of each intact line."""
    position = 0
    while header := _HEADER.search(data, position):
        end = header.end() + int(header[2])
        payload = data[header.end() : end]
        if len(payload) == int(header[2]) and _checksum(payload) == header[1]:
            yield header.start(), end, payload
            position = end
        else:
            # A line may begin anywhere after the start of a torn one.
            position = header.start() + 1


def _checksum(payload: bytes) -> bytes:
    return b"%08x" % zlib.crc32(payload)


class Log(ABC):
    """Collects events and writes them; the only writer of its files."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._lines: list[bytes] = []

    def append(self, event: Event) -> None:
        """Adds an event to what the next flush writes."""
        self._lines.append(encode_event(event))

    def flush(self) -> None:
        """Writes the added events; they are on the disk on return.

        After a StoreError nothing is lost: the events wait for the next flush.
        """
        if self._lines:
            self._write(b"".join(self._lines))
            self._lines.clear()

    @abstractmethod
    def _write(self, data: bytes) -> None: ...


def open_log(files: FileSystem, path: str) -> Log:
    """Returns the writer that suits the file system; `path` is the same for both."""
    if files.can_append:
        return LogWriter(files, path)
    return SegmentedLogWriter(files, path)


class LogWriter(Log):
    """Appends events to one file.

    Opening cuts a torn tail, which is kept in `<name>.damaged-<n>`.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        super().__init__(files)
        self._path = path
        self._is_suspect = False
        self._size = self._open()

    def _open(self) -> int:
        """Makes the file end with an intact line; returns its size in bytes."""
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return 0
        scanned = scan(data)
        kept = data[: scanned.intact_end] + b"\n" * scanned.lacks_line_end
        tail = data[scanned.intact_end :]
        if tail:
            self._files.write_atomic(free_name(self._files, self._path), tail)
        if kept != data:
            self._files.write_atomic(self._path, kept)
        return len(kept)

    def _write(self, data: bytes) -> None:
        if self._is_suspect:
            self._cut_back()
        try:
            self._files.append(self._path, data)
        except StoreError:
            self._is_suspect = True
            raise
        self._size += len(data)

    def _cut_back(self) -> None:
        """Removes what a failed append may have left at the end of the file."""
        if self._files.exists(self._path):
            data = self._files.read_bytes(self._path)
            if len(data) != self._size:
                self._files.write_atomic(self._path, data[: self._size])
        self._is_suspect = False


class SegmentedLogWriter(Log):
    """Writes each flush as a numbered file that never changes; needs no append.

    A restarted writer continues after the highest number; nothing is rewritten.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        super().__init__(files)
        self._folder = segments(path)
        starts = [name[:8] for name in files.list_names(self._folder)]
        self._next = 1 + max((int(s) for s in starts if s.isdecimal()), default=0)

    def _write(self, data: bytes) -> None:
        self._files.write_atomic(f"{self._folder}/{self._next:08d}", data)
        self._next += 1


def read_log(files: FileSystem, path: str) -> tuple[list[Event], list[str]]:
    """Returns every intact event in order, and sentences about skipped bytes.

    An unfinished line at the end is reported too, though it is no damage while the
    writer of the log lives. A missing log has no events.
    """
    events: list[Event] = []
    problems: list[str] = []
    parts = [path]
    folder = segments(path)
    parts += [f"{folder}/{n}" for n in files.list_names(folder) if n.isdecimal()]
    for part in parts:
        try:
            scanned = scan(files.read_bytes(part))
        except FileNotFoundError:
            continue
        events += scanned.events
        problems += _problems(part, scanned)
    return events, problems


def read_logs(
    files: FileSystem, directory: str
) -> tuple[dict[str, list[Event]], list[str]]:
    """Returns the intact events of every log in a folder by writer, and problems."""
    events: dict[str, list[Event]] = {}
    problems: list[str] = []
    names = {name.removesuffix(".segments") for name in files.list_names(directory)}
    for name in sorted(names):
        if name.endswith(".log"):
            writer = name.removesuffix(".log")
            events[writer], skipped = read_log(files, f"{directory}/{name}")
            problems += skipped
    return events, problems


def _problems(path: str, scanned: Scan) -> list[str]:
    """Returns a sentence about each damaged stretch of a log."""
    sentences = []
    for start, length in scanned.damaged:
        if start == scanned.intact_end:
            sentences.append(
                f"{path}: the last {length} bytes are no whole line and were skipped: "
                "a write was cut short, or is under way."
            )
        else:
            sentences.append(
                f"{path}: {length} bytes at position {start} are damaged and were "
                "skipped; the lines around them are intact."
            )
    return sentences
