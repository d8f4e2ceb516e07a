"""File systems that fail where a test wants them to."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dps_tf.store import LocalFiles, StoreError
from dps_tf.store.local_files import temporary_path


class Killed(BaseException):
    """The process is dead: nothing catches this, nothing is written after it."""


class FaultyFiles:
    """Wraps local files and fails at the n-th write point.

    Write points lie before, inside and after each operation that changes anything.

    Args:
        inner: the files that do the work.
        fail_at: number of the write point, from 1; None never fails.
        mode: `kill`: the process dies there, temporary files stay half-written;
            `full`: the disk is full from there on until `is_full` is unset, and a
            failed append leaves half of its bytes (no disk need do better);
            `torn`: half of the data lies under the final name and the process dies, as
            on a file system without atomic rename.
    """

    can_append = True
    is_local = True

    def __init__(
        self, inner: LocalFiles, fail_at: int | None = None, mode: str = "kill"
    ) -> None:
        assert mode in ("kill", "full", "torn")
        self.inner = inner
        self.mode = mode
        self.fail_at = fail_at
        self.points = 0
        self.is_dead = False
        self.is_full = False

    def _point(
        self,
        path: str,
        left_by_kill: Callable[[], object] = lambda: None,
        torn: Callable[[], object] | None = None,
    ) -> None:
        if self.is_dead:
            raise Killed
        self.points += 1
        if self.is_full:
            raise StoreError(f"Cannot write {path}: full.", path, errno.ENOSPC)
        if self.points != self.fail_at:
            return
        if self.mode == "full":
            self.is_full = True
            self._point(path)
        self.is_dead = True
        if self.mode == "torn" and torn is not None:
            torn()
        else:
            left_by_kill()
        raise Killed

    def _litter(self, path: str, data: bytes) -> None:
        # As a former life of this process would have named it.
        name = temporary_path(path).name.split("-")
        name[-2] = "00000000"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        (Path(path).parent / "-".join(name)).write_bytes(data)

    def _half(self, path: str, data: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data[: len(data) // 2])

    def write_atomic(self, path: str, data: bytes) -> None:
        self.write_many({path: data})

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        for path, data in contents.items():
            self._point(path)
            self._point(path, lambda p=path, d=data: self._litter(p, d[: len(d) // 2]))
            self._point(path, lambda p=path, d=data: self._litter(p, d))
        for path, data in contents.items():
            self._point(path, torn=lambda p=path, d=data: self._half(p, d))
            self.inner.write_atomic(path, data)
        self._point("folder")

    def append(self, path: str, data: bytes) -> None:
        self._point(path)

        def half() -> None:
            self.inner.append(path, data[: len(data) // 2])

        try:
            self._point(path, half)
        except StoreError:
            half()
            raise
        self.inner.append(path, data)
        self._point(path)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        self._point(path)
        self._point(path, lambda: self._litter(path, data))
        if not self.inner.exists(path):
            self._point(path, torn=lambda: self._half(path, b""))
        made = self.inner.create_exclusive(path, data)
        self._point(path)
        return made

    def move(self, source: str, target: str) -> None:
        def copied() -> None:
            self.inner.write_atomic(target, self.inner.read_bytes(source))

        self._point(source, torn=copied)
        self.inner.move(source, target)
        self._point(source)

    # A full disk still lets go of files.
    def _removal(self) -> None:
        if self.is_full:
            return
        self._point("removal")

    def remove(self, path: str) -> None:
        self._removal()
        self.inner.remove(path)
        self._removal()

    def remove_tree(self, directory: str) -> None:
        self._removal()
        self.inner.remove_tree(directory)
        self._removal()

    def remove_stale(self, directory: str) -> list[str]:
        return self.inner.remove_stale(directory)

    def read_bytes(self, path: str) -> bytes:
        return self.inner.read_bytes(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def list_names(self, directory: str) -> list[str]:
        return self.inner.list_names(directory)

    def modified_time(self, path: str) -> float:
        return self.inner.modified_time(path)


def at_every_write_point(
    folder: Path, mode: str, act: Callable[[FaultyFiles, str], object]
) -> Iterator[tuple[FaultyFiles, str]]:
    """Runs `act` in new folders, failing at point 1, 2, ... until it gets through.

    Gives the file system and the folder after each failure.
    """
    for point in itertools.count(1):
        files = FaultyFiles(LocalFiles(), point, mode)
        directory = f"{folder}/{mode}-{point}"
        try:
            act(files, directory)
        except (Killed, StoreError):
            yield files, directory
        else:
            assert files.points < point or files.is_full, "a failure was swallowed"
            return
