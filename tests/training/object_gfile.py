"""A stand-in for tf.io.gfile on `gs://`: whole puts, prefixes, no atomic renaming."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import tensorflow as tf


class ObjectGfile:
    """Objects in memory under `gs://bucket/`; other buckets do not exist.

    Args:
        at_point: called before and after each change, and between the copy and the
            deletion of a renaming, with what is done and to which object. May raise.
    """

    def __init__(
        self, at_point: Callable[[str, str], object] = lambda doing, path: None
    ) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.at_point = at_point
        self._lock = threading.Lock()

    def GFile(self, path: str, mode: str) -> _Reading | _Writing:  # noqa: N802
        return _Reading(self, path) if mode == "rb" else _Writing(self, path)

    def put(self, path: str, data: bytes) -> None:
        self._check_bucket(path)
        self.at_point("put", path)
        with self._lock:
            self.objects[path] = (data, time.time_ns())
        self.at_point("after put", path)

    def get(self, path: str) -> bytes:
        with self._lock:
            if path not in self.objects:
                raise tf.errors.NotFoundError(None, None, f"{path} not found")
            return self.objects[path][0]

    def exists(self, path: str) -> bool:
        return path in self.objects or bool(self._below(path))

    def listdir(self, path: str) -> list[str]:
        below = self._below(path)
        if not below:
            raise tf.errors.NotFoundError(None, None, f"Could not find {path}")
        names = (name.partition("/") for name in below)
        return list({name + slash for name, slash, _ in names})

    def makedirs(self, path: str) -> None:
        self._check_bucket(path)

    def remove(self, path: str) -> None:
        self.get(path)
        self.at_point("remove", path)
        with self._lock:
            del self.objects[path]
        self.at_point("after remove", path)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        assert overwrite
        self.put(target, self.get(source))
        self.at_point("between", source)
        self.remove(source)

    def rmtree(self, path: str) -> None:
        below = self._below(path)
        if not below:
            raise tf.errors.NotFoundError(None, None, f"Could not find {path}")
        for name in below:
            self.remove(f"{path}/{name}")

    def stat(self, path: str) -> SimpleNamespace:
        self.get(path)
        return SimpleNamespace(mtime_nsec=self.objects[path][1])

    def _below(self, path: str) -> list[str]:
        start = f"{path.rstrip('/')}/"
        with self._lock:
            return [p[len(start) :] for p in self.objects if p.startswith(start)]

    def _check_bucket(self, path: str) -> None:
        if not path.startswith("gs://bucket/"):
            raise tf.errors.NotFoundError(None, None, f"bucket of {path} not found")


class _Reading:
    """Each read is a request of its own and meets the object of that moment."""

    def __init__(self, store: ObjectGfile, path: str) -> None:
        self._store, self._path, self._position = store, path, 0

    def read(self, size: int) -> bytes:
        self._store.at_point("read", self._path)
        data = self._store.get(self._path)[self._position : self._position + size]
        self._position += len(data)
        return data

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        return


class _Writing:
    """Collects, and puts on closing."""

    def __init__(self, store: ObjectGfile, path: str) -> None:
        self._store, self._path, self._data = store, path, b""

    def write(self, data: bytes) -> None:
        self._data += data

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.put(self._path, self._data)
