"""Sweep directories on object stores: a file system of the store made of tf.io.gfile.

Made for `gs://`. Any other scheme that TensorFlow knows will do as well, as long as
writing a file and closing it puts the whole object at once.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from dps_tf.core.errors import UserError
from dps_tf.store.durable import is_temporary
from dps_tf.store.errors import StoreError, store_error
from dps_tf.store.files import FileSystem, LocalFiles
from dps_tf.store.layout import MARKER

_CHUNK = 1 << 19  # what tf.io.gfile asks of the store at a time, hence one generation
_PARALLEL_PUTS = 8  # they wait for the network
_READS = 6  # until an object that others keep replacing is given up
_ERRNO = {
    tf.errors.PermissionDeniedError: errno.EACCES,
    tf.errors.UnauthenticatedError: errno.EACCES,
}


def files_for(directory: str) -> FileSystem:
    """Returns the file system that a sweep directory needs: gfile's for `gs://`."""
    return GFileFiles() if "://" in directory else LocalFiles()


class GFileFiles:
    """Implements `FileSystem` on an object store.

    What holds there, and what that asks of the callers:

    * Putting an object is atomic: readers find the old content or the new. TensorFlow
      collects it in a temporary file of this machine first; that this disk has room is
      checked before anything is put.
    * Objects do not grow, so nothing can be appended.
    * There is no 'put if absent' and no renaming: see `create_exclusive` and `move`.
    * Folders are prefixes: they need no making and vanish with their last object.

    TensorFlow remembers sizes and times of objects for five seconds, unless
    GCS_STAT_CACHE_MAX_AGE=0 was set before it was imported. Contents are read up to
    their end without asking for a size, so that only `exists` and `modified_time` are
    that much behind for what another machine has changed.

    Args:
        gfile: tf.io.gfile, or what stands in for it.
        put_seconds: longer than the put of a small object takes, its look for an older
            one included; `create_exclusive` waits that long.
        sleep: waits for some seconds.
        clock: monotonic, in seconds.
    """

    can_append = False
    is_local = False

    def __init__(
        self,
        gfile: Any = tf.io.gfile,
        *,
        put_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gfile = gfile
        self._put_seconds = put_seconds
        self._sleep = sleep
        self._clock = clock

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content; FileNotFoundError if there is none."""
        data = self._read_once(path)
        for _ in range(_READS):
            if len(data) < _CHUNK:
                return data
            # Two requests may have met two generations of the object. Two equal
            # readings have not: what the first saw last, the second saw throughout.
            before, data = data, self._read_once(path)
            if data == before:
                return data
        raise store_error("read", path, None, "others keep replacing it")

    def _read_once(self, path: str) -> bytes:
        with _explained("read", path), self._gfile.GFile(path, "rb") as file:
            # Not read(): that asks for the size, which may be an old one.
            chunks = [file.read(_CHUNK)]
            while len(chunks[-1]) == _CHUNK:
                chunks.append(file.read(_CHUNK))
            return b"".join(chunks)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replaces the content with one put."""
        self.write_many({path: data})

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        """Replaces several contents with one put each, some at a time."""
        _check_room(contents)
        if len(contents) <= 1:
            for path, data in contents.items():
                self._put(path, data)
            return
        with ThreadPoolExecutor(_PARALLEL_PUTS) as pool:
            puts = [pool.submit(self._put, *item) for item in contents.items()]
        for put in puts:
            put.result()

    def _put(self, path: str, data: bytes) -> None:
        try:
            with _explained("write", path):
                try:
                    self._write(path, data)
                except tf.errors.NotFoundError:
                    # A store with real folders misses one.
                    self._gfile.makedirs(path.rpartition("/")[0])
                    self._write(path, data)
        except FileNotFoundError as error:
            reason = "there is no such bucket"
            raise store_error("write", path, errno.ENOENT, reason) from error

    def _write(self, path: str, data: bytes) -> None:
        with self._gfile.GFile(path, "wb") as file:
            file.write(data)

    def append(self, path: str, data: bytes, sync: bool = True) -> None:
        """Raises NotImplementedError: objects do not grow."""
        raise NotImplementedError(f"{path} is on an object store: nothing is appended.")

    def exists(self, path: str) -> bool:
        """Returns whether there is an object or folder of that name."""
        with _explained("look at", path):
            return bool(self._gfile.exists(path))

    def list_names(self, directory: str) -> list[str]:
        """Returns the sorted names in a folder, temporary files left out."""
        with _explained("list", directory):
            try:
                names = self._gfile.listdir(directory)
            except tf.errors.NotFoundError:
                # Said also when the store did not answer; `exists` tells these apart.
                if not self._gfile.exists(directory):
                    return []
                names = self._gfile.listdir(directory)
        # A folder has a slash behind it, and may be listed as an object of its own.
        found = {name.rstrip("/") for name in names} - {""}
        return sorted(name for name in found if not is_temporary(name))

    def make_directory(self, directory: str) -> None:
        """Does nothing: writing makes what is needed."""

    def remove(self, path: str) -> None:
        """Removes an object; a missing one is as good."""
        try:
            with _explained("remove", path):
                self._gfile.remove(path)
        except FileNotFoundError:
            return

    def remove_tree(self, directory: str) -> None:
        """Removes a folder of the package with all below it, object by object."""
        directory = directory.rstrip("/")
        scheme, _, place = directory.rpartition("://")
        parts = place.split("/")
        start = f"{scheme}://" if scheme else ""
        above = [start + "/".join(parts[: n + 1]) for n in range(len(parts))]
        is_plain = not {"", ".", ".."}.intersection(parts[1:])
        if not is_plain or not any(self.exists(f"{top}/{MARKER}") for top in above):
            raise UserError(
                f"{directory} is not deleted, because neither it nor a folder above "
                f"it carries the marker file {MARKER} of this package; remove it by "
                "hand if you are sure."
            )
        try:
            with _explained("remove", directory):
                self._gfile.rmtree(directory)
        except FileNotFoundError:
            return

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Writes an object that must not exist yet; returns whether this caller did.

        Puts it if there is none, waits until whoever else saw none must have put
        theirs, and looks whose it is: the last put stands, and all agree on it. A
        caller whose own put took longer than the others wait is told that it lost,
        even if its bytes stand, because another may have won before they came. So a
        claim is to be looked at again before each write; see `Claim.check`.
        """
        started = self._clock()
        if self._is_there(path):
            return False
        self.write_atomic(path, data)
        if self._clock() - started > self._put_seconds:
            return False
        self._sleep(self._put_seconds)
        try:
            return self.read_bytes(path) == data
        except FileNotFoundError:
            return False

    def _is_there(self, path: str) -> bool:
        """Returns whether there is an object, by looking into it: never outdated."""
        try:
            self._read_once(path)
        except FileNotFoundError:
            return False
        return True

    def move(self, source: str, target: str) -> None:
        """Copies, then deletes; after a kill both may exist."""
        with _explained("rename", source):
            self._gfile.rename(source, target, overwrite=True)

    def modified_time(self, path: str) -> float:
        """Returns when the content was last written, in seconds of the epoch."""
        with _explained("look at", path):
            return float(self._gfile.stat(path).mtime_nsec) / 1e9

    def remove_stale(self, directory: str) -> list[str]:
        """Returns an empty list: there are no temporary files."""
        del directory
        return []


def _check_room(contents: Mapping[str, bytes]) -> None:
    """Raises StoreError unless TensorFlow can collect the objects before it puts them.

    On a full disk it would put what it has collected so far.
    """
    needed = sum(len(data) for data in contents.values())
    folder = tempfile.gettempdir()
    if needed > shutil.disk_usage(folder).free:
        path = ", ".join(sorted(contents)[:3])
        reason = f"{folder} has no room for {needed} bytes on their way there"
        raise store_error("write", path, errno.ENOSPC, reason)


@contextmanager
def _explained(doing: str, path: str) -> Iterator[None]:
    """Turns TensorFlow's errors into StoreError, and a missing file into what it is."""
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "No such file", path) from error
    except tf.errors.OpError as error:
        number = _ERRNO.get(type(error))
        reason = (str(error.message) or type(error).__name__).splitlines()[0]
        raise store_error(doing, path, number, reason.rstrip(".;")) from error
    except OSError as error:
        if isinstance(error, (StoreError, FileNotFoundError)):
            raise
        raise store_error(doing, path, error.errno, error.strerror) from error
