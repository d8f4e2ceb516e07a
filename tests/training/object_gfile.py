"""A stand-in for tf.io.gfile on `gs://`: whole puts, prefixes, no atomic renaming."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote, unquote

import tensorflow as tf


class ObjectGfile:
    """Objects in memory under `gs://bucket/`; other buckets do not exist.

    Args:
        at_point: called before and after each change, and between the copy and the
            deletion of a renaming, with what is done and to which object. May raise.
        objects: where they are kept: in memory, or for several processes on a disk.
    """

    def __init__(
        self,
        at_point: Callable[[str, str], object] = lambda doing, path: None,
        objects: MutableMapping[str, tuple[bytes, int]] | None = None,
    ) -> None:
        self.objects = {} if objects is None else objects
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

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As the store's own client does it, around gfile."""
        self._check_bucket(path)
        self.at_point("put", path)
        with self._lock:
            made = self.objects.setdefault(path, (data, time.time_ns()))[0] == data
        self.at_point("after put", path)
        return made

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


class DiskObjects(MutableMapping[str, tuple[bytes, int]]):
    """Objects as files of one folder, whole or not there at all.

    Args:
        folder: holds nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def _file(self, path: str) -> Path:
        return self._folder / quote(path, safe="")

    def __setitem__(self, path: str, item: tuple[bytes, int]) -> None:
        waiting = self._folder / f"put {uuid.uuid4()}"
        waiting.write_bytes(item[0])
        waiting.replace(self._file(path))

    def __getitem__(self, path: str) -> tuple[bytes, int]:
        try:
            file = self._file(path)
            return file.read_bytes(), file.stat().st_mtime_ns
        except FileNotFoundError:
            raise KeyError(path) from None

    def setdefault(self, path: str, item: tuple[bytes, int]) -> tuple[bytes, int]:
        """Puts an object if there is none; one of several processes succeeds."""
        waiting = self._folder / f"put {uuid.uuid4()}"
        waiting.write_bytes(item[0])
        try:
            self._file(path).hardlink_to(waiting)
        except FileExistsError:
            return self[path]
        finally:
            waiting.unlink()
        return item

    def __delitem__(self, path: str) -> None:
        self._file(path).unlink()

    def __iter__(self) -> Iterator[str]:
        names = (file.name for file in self._folder.iterdir())
        return iter([unquote(name) for name in names if " " not in name])

    def __len__(self) -> int:
        return len(list(iter(self)))


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
