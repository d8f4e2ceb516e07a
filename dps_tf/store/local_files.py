"""The file system of this machine, with writes that are all or nothing."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from dps_tf.core.errors import UserError
from dps_tf.store import durable
from dps_tf.store.errors import explained
from dps_tf.store.layout import MARKER

_BATCH = 64  # temporary files at a time, far under the usual limit on open files


class LocalFiles:
    """Implements `FileSystem` on local and mounted disks."""

    can_append = True
    is_local = True

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content; FileNotFoundError if there is none."""
        with explained("read", path):
            return Path(path).read_bytes()

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replaces the content; it is on the disk when this returns."""
        self.write_many({path: data})

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        """Replaces several contents, each atomically; all on the disk on return."""
        paths = list(contents)
        for start in range(0, len(paths), _BATCH):
            self._write_batch({p: contents[p] for p in paths[start : start + _BATCH]})

    def _write_batch(self, contents: Mapping[str, bytes]) -> None:
        waiting: dict[str, Path] = {}
        descriptors: list[int] = []
        try:
            for path, data in contents.items():
                with explained("write", path):
                    waiting[path] = durable.temporary_path(path)
                    descriptors.append(durable.create(waiting[path]))
                    durable.write_all(descriptors[-1], data)
            folders = {Path(path).parent for path in contents}
            with explained("write to", ", ".join(sorted(map(str, folders)))):
                durable.sync_all(descriptors)
                for path in contents:
                    waiting[path].replace(path)
                    del waiting[path]
                for folder in folders:
                    durable.sync_folder(folder)
        except Exception:
            # Not for KeyboardInterrupt and its like: leave at once, litter is harmless.
            for temporary in waiting.values():
                _discard(temporary)
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def append(self, path: str, data: bytes, sync: bool = True) -> None:
        """Adds to the end of a file; see `FileSystem.append`."""
        place = Path(path)
        with explained("append to", path):
            is_new = not place.exists()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = durable.open_file(place, flags)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    durable.write_all(descriptor, data)
                    if sync:
                        os.fsync(descriptor)
                except OSError:
                    # Giving space back works on a full disk too.
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
            if is_new:
                durable.sync_folder(place.parent)

    def exists(self, path: str) -> bool:
        """Returns whether there is a file or folder of that name."""
        with explained("look at", path):
            return Path(path).exists()

    def list_names(self, directory: str) -> list[str]:
        """Returns the sorted names in a folder, temporary files left out."""
        with explained("list", directory):
            try:
                names = [place.name for place in Path(directory).iterdir()]
            except FileNotFoundError:
                return []
        return sorted(name for name in names if not durable.is_temporary(name))

    def make_directory(self, directory: str) -> None:
        """Makes a folder and those above it."""
        with explained("make the folder", directory):
            try:
                durable.make_folders(Path(directory))
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, "it is a file") from error

    def remove(self, path: str) -> None:
        """Removes a file; a missing one is as good."""
        with explained("remove", path):
            Path(path).unlink(missing_ok=True)

    def remove_tree(self, directory: str) -> None:
        """Removes a folder of the package with all below it."""
        place = Path(directory)
        if place.is_symlink():
            raise UserError(
                f"{directory} is a link: it is not deleted; remove it by hand."
            )
        real = place.resolve()
        if not any((folder / MARKER).is_file() for folder in (real, *real.parents)):
            raise UserError(
                f"{directory} is not deleted, because neither it nor a folder above "
                f"it carries the marker file {MARKER} of this package; remove it by "
                "hand if you are sure."
            )
        with explained("remove", directory):
            if place.exists():
                shutil.rmtree(place)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        """Writes a file that must not exist yet; returns whether this caller did."""
        place, temporary = Path(path), durable.temporary_path(path)
        with explained("write", path):
            if place.exists():
                return False
            try:
                durable.write_new(temporary, data)
                durable.publish(temporary, place, data)
            except FileExistsError:
                return False
            finally:
                _discard(temporary)
            durable.sync_folder(place.parent)
        return True

    def move(self, source: str, target: str) -> None:
        """Renames a file; an existing target is replaced."""
        with explained("rename", source):
            Path(source).replace(target)
            for folder in {Path(source).parent, Path(target).parent}:
                durable.sync_folder(folder)

    def modified_time(self, path: str) -> float:
        """Returns when the content was last written, in seconds of the epoch."""
        with explained("look at", path):
            return Path(path).stat().st_mtime

    def remove_stale(self, directory: str) -> list[str]:
        """Removes temporary files in a folder whose writers are dead."""
        removed = []
        with explained("clean", directory):
            for place in sorted(_entries(directory)):
                if durable.is_stale(place):
                    _discard(place)
                    removed.append(place.name)
        return removed


def _entries(directory: str) -> Iterable[Path]:
    place = Path(directory)
    return place.iterdir() if place.is_dir() else ()


def _discard(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:
        # It is cleaned when the folder is opened next; the first error matters more.
        return
