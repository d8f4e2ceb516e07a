"""A file system in memory that can do as little as an object store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dps_tf.core import UserError
from dps_tf.store import MARKER


class MemoryFiles:
    """Implements `FileSystem`: puts are atomic; no folders, append or atomic rename.

    Args:
        between: called between the copy and the deletion of a renaming.
    """

    can_append = False
    is_local = False

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self._between = between

    def read_bytes(self, path: str) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][0]

    def write_atomic(self, path: str, data: bytes) -> None:
        self.objects[path] = (data, time.time())

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        for path, data in contents.items():
            self.write_atomic(path, data)

    def append(self, path: str, data: bytes) -> None:
        raise NotImplementedError("objects cannot grow")

    def exists(self, path: str) -> bool:
        return path in self.objects or bool(self.list_names(path))

    def list_names(self, directory: str) -> list[str]:
        start = f"{directory.rstrip('/')}/"
        inside = [p[len(start) :] for p in self.objects if p.startswith(start)]
        return sorted({name.split("/")[0] for name in inside})

    def remove(self, path: str) -> None:
        self.objects.pop(path, None)

    def remove_tree(self, directory: str) -> None:
        parts = directory.split("/")
        above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        if not any(f"{folder}/{MARKER}" in self.objects for folder in above):
            raise UserError(f"{directory} is not deleted: no {MARKER}.")
        for path in list(self.objects):
            if path.startswith(f"{directory}/"):
                del self.objects[path]

    def create_exclusive(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self.write_atomic(path, data)
        return self.read_bytes(path) == data

    def move(self, source: str, target: str) -> None:
        self.write_atomic(target, self.read_bytes(source))
        self._between()
        self.remove(source)

    def modified_time(self, path: str) -> float:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][1]

    def remove_stale(self, directory: str) -> list[str]:
        return []
