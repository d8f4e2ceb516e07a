"""Follows the logs of other writers while they are being written."""

from __future__ import annotations

from dps_tf.store.files import FileSystem
from dps_tf.store.layout import segments
from dps_tf.store.log import Event, scan


class LogFollower:
    """Gives the events that others have added since it last looked.

    An unfinished last line is left for the next look. On file systems without append,
    where a log is a folder of segments that never change, each segment is read once.
    """

    def __init__(self, files: FileSystem, directory: str, own: str):
        """Begins behind nothing: the first look gives everything.

        Args:
            files: where the logs are.
            directory: of the logs.
            own: name of the writer whose log is read at the first look only: what it
                has written before; later it knows by itself.
        """
        self._files = files
        self._directory = directory
        self._own = f"{own}.log"
        self._is_first = True
        self._reached: dict[str, int] = {}
        self._segments: set[str] = set()

    def new_events(self) -> list[Event]:
        """Returns what was not returned yet, in the order of each log."""
        events: list[Event] = []
        for name in self._files.list_names(self._directory):
            path = f"{self._directory}/{name}"
            if name in (self._own, segments(self._own)) and not self._is_first:
                continue
            if name.endswith(".log"):
                events += self._news_at_the_end(path)
            elif name.endswith(segments(".log")):
                events += self._new_segments(path)
        self._is_first = False
        return events

    def _news_at_the_end(self, path: str) -> list[Event]:
        reached = self._reached.get(path, 0)
        if reached and not self._files.can_append:
            return []
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return []
        found = scan(data[reached:])
        self._reached[path] = reached + found.intact_end
        return found.events

    def _new_segments(self, folder: str) -> list[Event]:
        events: list[Event] = []
        for name in self._files.list_names(folder):
            path = f"{folder}/{name}"
            if name.isdecimal() and path not in self._segments:
                events += scan(self._files.read_bytes(path)).events
                self._segments.add(path)
        return events
