"""Sweep directories on object stores: a file system of the store made of tf.io.gfile.

Made for `gs://`. Sweeps on any other scheme that TensorFlow knows can be read, but not
run: owning a cell needs the store's 'create if absent'.
"""

from __future__ import annotations

import errno
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from dps_tf.core import UserError
from dps_tf.store import (
    MARKER,
    FileSystem,
    LocalFiles,
    StoreError,
    is_temporary,
    store_error,
)

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

    * Putting an object is atomic: readers find the old content or the new. TensorFlow
      collects it in a temporary file of this machine first; that this disk has room is
      checked before anything is put.
    * Objects do not grow, so nothing can be appended; and nothing is renamed.
    * Folders are prefixes: they need no making and vanish with their last object.

    TensorFlow remembers sizes and times of objects for five seconds, unless
    GCS_STAT_CACHE_MAX_AGE=0 was set before it was imported: `exists` and
    `modified_time` are that much behind for what another machine has changed.

    Args:
        gfile: tf.io.gfile, or what stands in for it.
        create: creates an object exclusively; `put_if_absent` by default.
    """

    can_append = False
    is_local = False

    def __init__(
        self,
        gfile: Any = tf.io.gfile,
        create: Callable[[str, bytes], bool] | None = None,
    ) -> None:
        self._gfile = gfile
        self._create = create or put_if_absent

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
        _check_room({path: data})
        self._put(path, data)

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        """Replaces several contents with one put each, some at a time."""
        _check_room(contents)
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

    def append(self, path: str, data: bytes) -> None:
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
        """Writes an object that must not exist yet; returns whether this caller did."""
        with _explained("write", path):
            return self._create(path, data)

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


def put_if_absent(path: str, data: bytes) -> bool:
    """Puts an object that must not exist yet; returns whether this caller made it.

    Uses the precondition of Google Cloud Storage that the object has no generation
    (if_generation_match=0): of callers at the same time exactly one succeeds.

    Args:
        path: `gs://bucket/name`.
        data: differs between callers: where an answer was lost and the client has asked
            again, it tells whose object it is.

    Raises:
        UserError: another scheme, or the package google-cloud-storage is missing.
        StoreError: the store refused.
    """
    scheme, _, place = path.partition("://")
    if scheme != "gs":
        raise UserError(
            f"{path}: sweeps can be run on local disks, and on object stores that "
            "create objects only if absent, of which only gs:// is known."
        )
    client = gcs_client()
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    bucket, _, name = place.partition("/")
    blob = client.bucket(bucket).blob(name)
    try:
        try:
            blob.upload_from_string(data, if_generation_match=0)
        except exceptions.PreconditionFailed:
            return bool(blob.download_as_bytes() == data)
    except exceptions.NotFound as error:
        reason = "there is no such bucket"
        raise store_error("write", path, errno.ENOENT, reason) from error
    except exceptions.Forbidden as error:
        raise store_error("write", path, errno.EACCES, "access is denied") from error
    except (exceptions.GoogleAPIError, GoogleAuthError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise store_error("write", path, None, reason.rstrip(".;")) from error
    return True


@functools.cache
def gcs_client() -> Any:
    """Returns the process's client of Google Cloud Storage.

    Raises:
        UserError: its package is missing, or no credentials are found.
    """
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage
    except ImportError as error:
        raise UserError(
            "a sweep on gs:// needs the client of Google Cloud Storage: "
            "pip install 'dps_tf[gcs]'."
        ) from error
    try:
        return storage.Client()
    except (GoogleAuthError, OSError) as error:
        raise UserError(
            f"no access to gs://: {str(error).splitlines()[0]} Give credentials, for "
            "example by GOOGLE_APPLICATION_CREDENTIALS."
        ) from error


def _check_room(contents: Mapping[str, bytes]) -> None:
    """Raises StoreError unless TensorFlow can collect the objects on its disk."""
    # On a full disk it would put what it has collected so far.
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
