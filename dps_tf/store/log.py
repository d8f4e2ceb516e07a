"""Append-only checked logs: what was flushed is there after any kill.

Each log has one writer. A line that a kill tore is cut off when the log is opened for
writing again; damaged lines further up stay, are skipped by readers, and are reported.
"""

from __future__ import annotations

from typing import Protocol

from dps_tf.store.errors import StoreError
from dps_tf.store.events import Event, Scan, encode_event, scan
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import segments
from dps_tf.store.records import free_name


class Log(Protocol):
    """What both kinds of writers do."""

    def append(self, event: Event) -> None:
        """Adds an event to those that the next flush writes."""

    def flush(self, sync: bool = True) -> None:
        """Writes what was added; with `sync`, it is on the disk on return.

        After a StoreError nothing is lost: the events wait for the next flush.
        """


def open_log(files: FileSystem, path: str) -> Log:
    """Returns the writer that suits the file system; `path` is the same for both."""
    if files.can_append:
        return LogWriter(files, path)
    return SegmentedLogWriter(files, path)


class LogWriter:
    """Appends events to one file; the file's only writer.

    Opening cuts a torn tail, which is kept in `<name>.damaged-<n>`.

    Attributes:
        problems: sentences about what opening found damaged.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._lines: list[bytes] = []
        self._is_unsynced = False
        self._is_suspect = False
        self.problems: list[str] = []
        self._size = self._open()

    def _open(self) -> int:
        """Makes the file end with an intact line; returns its size in bytes."""
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return 0
        found = scan(data)
        kept = data[: found.intact_end] + b"\n" * found.lacks_line_end
        tail = data[found.intact_end :]
        self.problems = _problems(self._path, found)
        if tail:
            self._files.write_atomic(free_name(self._files, self._path), tail)
        if kept != data:
            self._files.write_atomic(self._path, kept)
        return len(kept)

    def append(self, event: Event) -> None:
        """Adds an event to those that the next flush writes."""
        self._lines.append(encode_event(event))

    def flush(self, sync: bool = True) -> None:
        """Writes what was added; see `Log.flush`."""
        if self._is_suspect:
            self._cut_back()
        data = b"".join(self._lines)
        if not data and not (sync and self._is_unsynced):
            return
        try:
            self._files.append(self._path, data, sync)
        except StoreError:
            self._is_suspect = True
            raise
        self._size += len(data)
        self._lines.clear()
        self._is_unsynced = not sync

    def _cut_back(self) -> None:
        """Undoes what a failed append may have left behind."""
        if self._files.exists(self._path):
            data = self._files.read_bytes(self._path)
            if len(data) != self._size:
                self._files.write_atomic(self._path, data[: self._size])
        self._is_suspect = False


class SegmentedLogWriter:
    """Writes each flush as a numbered file that never changes; needs no append.

    A restarted writer goes on behind the highest number; nothing is rewritten.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._folder = segments(path)
        self._lines: list[bytes] = []
        names = files.list_names(self._folder)
        self._next = 1 + max((_segment_number(name) for name in names), default=0)

    def append(self, event: Event) -> None:
        """Adds an event to those that the next flush writes."""
        self._lines.append(encode_event(event))

    def flush(self, sync: bool = True) -> None:
        """Writes what was added; always on the disk on return, whatever `sync`."""
        if not self._lines:
            return
        path = f"{self._folder}/{self._next:08d}"
        self._files.write_atomic(path, b"".join(self._lines))
        self._next += 1
        self._lines.clear()


def _segment_number(name: str) -> int:
    return int(name[:8]) if name[:8].isdecimal() else 0


def read_log(files: FileSystem, path: str) -> tuple[list[Event], list[str]]:
    """Returns every intact event in order, and sentences about what was skipped.

    A log that is still being written may end in an unfinished line; that is reported
    too, and means nothing while its writer lives. A missing log is an empty one.
    """
    events: list[Event] = []
    problems: list[str] = []
    parts = [path]
    folder = segments(path)
    parts += [f"{folder}/{n}" for n in files.list_names(folder) if n.isdecimal()]
    for part in parts:
        try:
            found = scan(files.read_bytes(part))
        except FileNotFoundError:
            continue
        events += found.events
        problems += _problems(part, found)
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
            events[writer], found = read_log(files, f"{directory}/{name}")
            problems += found
    return events, problems


def _problems(path: str, found: Scan) -> list[str]:
    return [
        f"{path}: {length} bytes at position {start} are damaged and were skipped; "
        "the lines around them are intact."
        for start, length in found.damaged
    ]
