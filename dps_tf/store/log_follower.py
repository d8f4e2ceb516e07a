"""Follows the logs of other writers while they are being written."""

from __future__ import annotations

from dps_tf.store.events import Event, scan
from dps_tf.store.files import FileSystem
from dps_tf.store.log import read_log


class LogFollower:
    """Gives the events that others have added since it last looked.

    An unfinished last line is left for the next look. On file systems without append,
    where a log is a folder of segments, whole logs are read again.
    """

    def __init__(self, files: FileSystem, directory: str, own: str):
        """Begins behind nothing: the first look gives everything.

        Args:
            files: where the logs are.
            directory: of the logs.
            own: name of the writer whose log is not followed.
        """
        self._files = files
        self._directory = directory
        self._own = f"{own}.log"
        self._reached: dict[str, int] = {}

    def new_events(self) -> list[Event]:
        """Returns events of other writers, each once, in the order of each log."""
        names = {
            name.removesuffix(".segments")
            for name in self._files.list_names(self._directory)
        }
        events: list[Event] = []
        for name in sorted(names):
            if name.endswith(".log") and name != self._own:
                events += self._new_events_of(name)
        return events

    def _new_events_of(self, name: str) -> list[Event]:
        path = f"{self._directory}/{name}"
        reached = self._reached.get(name, 0)
        if not self._files.can_append:
            events, _ = read_log(self._files, path)
            self._reached[name] = len(events)
            return events[reached:]
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return []
        if len(data) <= reached:
            return []
        found = scan(data[reached:])
        self._reached[name] = reached + found.intact_end
        return found.events
