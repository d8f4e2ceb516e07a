"""The interface of a file system, and the one that a sweep directory needs.

All input and output of the store goes through `FileSystem`. Paths are strings with `/`:
paths on a disk, which `layout` makes absolute, or URLs of objects (`gs://bucket/name`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dps_tf.core import UserError
from dps_tf.store.local_files import LocalFiles


class FileSystem(Protocol):
    """Files whose writes are all or nothing: `LocalFiles` and `ObjectFiles`.

    Every method that writes raises `StoreError` with a sentence for the user when the
    disk is full, broken or read-only, and then leaves the old content in place.
    Missing folders above a written file are made.
    """

    @property
    def can_append(self) -> bool:
        """Whether `append` works; if not, logs are written as numbered segments."""

    @property
    def is_local(self) -> bool:
        """Whether paths are paths of this operating system, so that flock applies."""

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content; FileNotFoundError without a file.

        Readers see the old or the new content of an atomic write, never a mix.
        """

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replaces the content; it is on the disk when this returns.

        After a failure or a kill the file has its old or its new content.
        Local: temporary file in the folder, fsync, rename, fsync of the folder.
        Objects: one object put.
        """

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        """Replaces several contents, each atomically; all on the disk on return.

        After a failure or a kill each file has its old or its new content; a full disk
        is noticed before the first file of a batch is replaced. Local: one fsync of the
        folder for all. Objects: one put each, may be in parallel.
        """

    def append(self, path: str, data: bytes) -> None:
        """Adds to the end of a file, made if absent; on the disk when this returns.

        Only one writer may append to a file. After a failure the file has its old
        content; after a kill a part of `data` may stand at its end. Objects: not
        possible; raises NotImplementedError.
        """

    def exists(self, path: str) -> bool:
        """Returns whether there is a file or folder of that name."""

    def list_names(self, directory: str) -> list[str]:
        """Returns the sorted names in a folder, temporary files left out.

        Names of folders have no slash at the end. A missing folder gives an empty list.
        """

    def remove(self, path: str) -> None:
        """Removes a file, if there is one."""

    def remove_tree(self, directory: str) -> None:
        """Removes a folder, if there is one, with all below it.

        UserError for a link, and unless the folder itself or one above it carries the
        package's marker file. Not atomic: after a kill a part may remain.
        """

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Writes a file that must not exist yet; returns whether this caller made it.

        Local: atomic with its content (hard link); where links are not supported the
        file may be empty after a kill. Objects: by the store's own precondition.
        `data` must differ between callers.
        """

    def move(self, source: str, target: str) -> None:
        """Renames a file; an existing target is replaced.

        Local: atomic. Objects: copy, then delete; after a kill both may exist.
        """

    def modified_time(self, path: str) -> float:
        """Returns when the content was last written, in seconds of the epoch."""

    def remove_stale(self, directory: str) -> list[str]:
        """Removes temporary files in a folder whose writers are dead; returns names.

        Objects: there are none.
        """


def files_for(directory: str) -> FileSystem:
    """Returns the file system of a sweep directory: objects for a URL, else files.

    Raises:
        UserError: the directory is a URL, and the library for object stores is missing.
    """
    if "://" not in directory:
        return LocalFiles()
    try:
        from dps_tf.store.object_files import ObjectFiles
    except ImportError as error:
        raise UserError(
            f"{directory} lies in an object store, which needs the package obstore: "
            "pip install 'dps_tf[cloud]'."
        ) from error
    return ObjectFiles()
