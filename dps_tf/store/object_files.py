"""Files in the object stores of Google Cloud Storage, Amazon S3 and Azure.

The library obstore makes the requests, and repeats them up to a limit where a store is
too busy. It takes credentials and settings such as the region from the environment
variables that these stores' own clients read.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import obstore.store
from obstore import exceptions

from dps_tf.core import UserError
from dps_tf.store.errors import store_error
from dps_tf.store.layout import MARKER

_SCHEMES = ("gs", "s3", "az", "file")
_PARALLEL_PUTS = 8  # they wait for the network


class ObjectFiles:
    """Implements `FileSystem` on object stores; paths are URLs such as `gs://bucket/a`.

    * Putting an object is atomic: readers find the old content or the new one.
    * Objects do not grow: nothing is appended. Renaming is a copy and a deletion.
    * Folders are prefixes: they need no making and vanish with their last object.
    * The store itself decides which caller creates an object that must not exist yet.

    `file://` URLs are objects in a folder of this machine, for trying out this class.

    Args:
        connect: function that returns obstore's store for the URL of a bucket.
    """

    can_append = False
    is_local = False

    def __init__(self, connect: Callable[[str], Any] = obstore.store.from_url) -> None:
        self._connect = functools.cache(connect)
        self._heeding: set[str] = set()

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content; FileNotFoundError without an object."""
        with _explained("read", path):
            store, name = self._place(path)
            return bytes(store.get(name).bytes())

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replaces the content with one put."""
        with _explained("write", path, missing="there is no such bucket"):
            store, name = self._place(path)
            store.put(name, data)

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        """Replaces several contents with one put each, some at a time."""
        with ThreadPoolExecutor(_PARALLEL_PUTS) as pool:
            puts = [pool.submit(self.write_atomic, *item) for item in contents.items()]
        for put in puts:
            put.result()

    def append(self, path: str, data: bytes) -> None:
        """Raises NotImplementedError: objects do not grow."""
        raise NotImplementedError(f"{path} is in an object store: nothing is appended.")

    def exists(self, path: str) -> bool:
        """Returns whether there is an object or folder of that name."""
        with _explained("look at", path):
            store, name = self._place(path)
            try:
                store.head(name)
            except FileNotFoundError:
                return bool(self.list_names(path))
            return True

    def list_names(self, directory: str) -> list[str]:
        """Returns the sorted names in a folder; a missing one gives an empty list."""
        with _explained("list", directory, missing="there is no such bucket"):
            store, name = self._place(directory)
            listed = store.list_with_delimiter(name)
        paths = [*listed["common_prefixes"], *(o["path"] for o in listed["objects"])]
        # Some tools make an object of the name of the folder itself.
        return sorted({p.rpartition("/")[2] for p in paths if p != name})

    def remove(self, path: str) -> None:
        """Removes an object, if there is one."""
        try:
            with _explained("remove", path):
                store, name = self._place(path)
                store.delete(name)
        except FileNotFoundError:
            return

    def remove_tree(self, directory: str) -> None:
        """Removes a folder of the package with all below it, object by object."""
        parts = directory.rstrip("/").split("/")
        above = ["/".join(parts[:end]) for end in range(4, len(parts) + 1)]
        if not any(self.exists(f"{folder}/{MARKER}") for folder in above):
            raise UserError(
                f"{directory} is not deleted, because neither it nor a folder above "
                f"it carries the marker file {MARKER} of this package; remove it by "
                "hand if you are sure."
            )
        with _explained("remove", directory):
            store, name = self._place(directory)
            for objects in store.list(name):
                store.delete([entry["path"] for entry in objects])

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Writes an object that must not exist yet; returns whether this caller did.

        If several callers try, exactly one succeeds, by the store's precondition.

        Raises:
            UserError: the store creates an object although it exists.
        """
        with _explained("write", path, missing="there is no such bucket"):
            store, name = self._place(path)
            if _create(store, name, data):
                self._check_heeds_creation(path, data)
                return True
        # If the answer to the first request was lost, obstore has repeated it, and the
        # object that exists is this caller's own.
        return self.read_bytes(path) == data

    def _check_heeds_creation(self, path: str, data: bytes) -> None:
        """Raises UserError if a store creates an object twice; asks each store once."""
        bucket = path.split("/")[2]
        if bucket in self._heeding:
            return
        store, name = self._place(path)
        # Twice, because another process may have removed the object meanwhile.
        if _create(store, name, data) and _create(store, name, data):
            raise UserError(
                f"the store of {path} creates objects that exist already, so two "
                "processes might train one cell: use a store that heeds the header "
                "If-None-Match."
            )
        self._heeding.add(bucket)

    def move(self, source: str, target: str) -> None:
        """Copies, then deletes; after a kill both may exist."""
        with _explained("rename", source):
            store, name = self._place(source)
            store.rename(name, self._place(target)[1], overwrite=True)

    def modified_time(self, path: str) -> float:
        """Returns when the content was last written, in seconds of the epoch."""
        with _explained("look at", path):
            store, name = self._place(path)
            return float(store.head(name)["last_modified"].timestamp())

    def remove_stale(self, directory: str) -> list[str]:
        """Returns an empty list: there are no temporary files."""
        del directory
        return []

    def _place(self, path: str) -> tuple[Any, str]:
        """Returns the store of a URL, and the name of the object in it."""
        scheme, _, place = path.partition("://")
        if scheme not in _SCHEMES:
            raise UserError(
                f"{path} has an unknown scheme: sweep directories lie on disks, or in "
                "object stores whose URLs begin with gs://, s3:// or az://."
            )
        bucket, _, name = place.partition("/")
        return self._connect(f"{scheme}://{bucket}"), name.rstrip("/")


def _create(store: Any, name: str, data: bytes) -> bool:
    """Returns whether an object was put that did not exist."""
    try:
        store.put(name, data, mode="create", use_multipart=False)
    except exceptions.AlreadyExistsError:
        return False
    return True


@contextmanager
def _explained(doing: str, path: str, missing: str = "") -> Iterator[None]:
    """Turns errors of obstore, and of names that it refuses, into StoreError.

    A missing object is a FileNotFoundError, or a StoreError of the reason `missing`.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        if missing:
            raise store_error(doing, path, errno.ENOENT, missing) from error
        raise FileNotFoundError(errno.ENOENT, "No such file", path) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise store_error(doing, path, errno.EACCES, "access is denied") from error
    except (exceptions.BaseError, ValueError) as error:
        # The lines after the first are for debugging.
        reason = str(error).splitlines()[0].rstrip(".;:")
        raise store_error(doing, path, None, reason) from error
