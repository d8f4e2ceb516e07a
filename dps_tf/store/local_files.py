"""Files on local and mounted disks.

A file is written under a temporary name first. That name says which process writes the
file, so that others can remove it once that process has ended.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dps_tf.core import UserError
from dps_tf.store import processes
from dps_tf.store.errors import explained
from dps_tf.store.layout import MARKER

_BATCH = 64  # temporary files at a time, far under the usual limit on open files
_SYNCING_THREADS = 8
# Answers of file systems that do not support an operation at all.
_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_TEMPORARY = re.compile(r"\.writing-([0-9a-f]{8})-(\d+)-([0-9a-f]{8})-\d+\.temporary")
_STALE_AFTER = 3600.0  # seconds; writing one file does not take that long
_PROCESS_TOKEN = secrets.token_hex(4)
_SERIAL = itertools.count()


class LocalFiles:
    """Implements `FileSystem` on local and mounted disks."""

    can_append = True
    is_local = True

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content; FileNotFoundError without a file."""
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
                    waiting[path] = temporary_path(path)
                    descriptors.append(_create(waiting[path]))
                    _write_all(descriptors[-1], data)
            folders = {Path(path).parent for path in contents}
            with explained("write to", ", ".join(sorted(map(str, folders)))):
                _sync_all(descriptors)
                for path in contents:
                    waiting[path].replace(path)
                    del waiting[path]
                for folder in folders:
                    _sync_folder(folder)
        except Exception:
            # KeyboardInterrupt and the like leave at once: such files are harmless.
            for temporary in waiting.values():
                _discard(temporary)
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def append(self, path: str, data: bytes) -> None:
        """Adds to the end of a file; see `FileSystem.append`."""
        place = Path(path)
        with explained("append to", path):
            is_new = not place.exists()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = open_file(place, flags)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    _write_all(descriptor, data)
                    os.fsync(descriptor)
                except OSError:
                    # Giving space back works on a full disk too.
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
            if is_new:
                _sync_folder(place.parent)

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
        return sorted(name for name in names if not is_temporary(name))

    def remove(self, path: str) -> None:
        """Removes a file, if there is one."""
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
        place, temporary = Path(path), temporary_path(path)
        with explained("write", path):
            if place.exists():
                return False
            try:
                _write_new(temporary, data)
                _publish(temporary, place, data)
            except FileExistsError:
                return False
            finally:
                _discard(temporary)
            _sync_folder(place.parent)
        return True

    def move(self, source: str, target: str) -> None:
        """Renames a file; an existing target is replaced."""
        with explained("rename", source):
            Path(source).replace(target)
            for folder in {Path(source).parent, Path(target).parent}:
                _sync_folder(folder)

    def modified_time(self, path: str) -> float:
        """Returns when the content was last written, in seconds of the epoch."""
        with explained("look at", path):
            return Path(path).stat().st_mtime

    def remove_stale(self, directory: str) -> list[str]:
        """Removes temporary files in a folder whose writers are dead."""
        removed = []
        with explained("clean", directory):
            folder = Path(directory)
            for place in sorted(folder.iterdir()) if folder.is_dir() else ():
                if _is_stale(place):
                    _discard(place)
                    removed.append(place.name)
        return removed


def _discard(temporary: Path) -> None:
    # The folder is cleaned when it is opened next; the first error matters more.
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)


def _make_folders(folder: Path) -> None:
    """Makes a folder and all above it, so that they survive a loss of power."""
    above = (folder, *folder.parents)
    missing = list(itertools.takewhile(lambda place: not place.exists(), above))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        # The answer of /proc and the like, where only the system makes folders.
        raise PermissionError(errno.EPERM, "no folder can be made there") from error
    for place in missing:
        _sync_folder(place.parent)


def open_file(place: Path, flags: int) -> int:
    """Returns a new descriptor; makes missing folders."""
    try:
        return os.open(place, flags, 0o666)
    except FileNotFoundError:
        _make_folders(place.parent)
        return os.open(place, flags, 0o666)


def _create(place: Path) -> int:
    """Returns a descriptor of a file that did not exist, else FileExistsError."""
    return open_file(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes every byte; the system may take fewer at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _write_new(place: Path, data: bytes) -> None:
    """Writes a file that did not exist and waits for the disk."""
    descriptor = _create(place)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temporary: Path, place: Path, data: bytes) -> None:
    """Gives a written file its final name, else FileExistsError."""
    try:
        os.link(temporary, place)
    except OSError as error:
        if error.errno not in {*_UNSUPPORTED, errno.EPERM, errno.EMLINK}:
            raise
        # Without hard links the file is exclusive, but not atomic with its content.
        _write_new(place, data)


def _sync_all(descriptors: Sequence[int]) -> None:
    """Waits until the disk has all these files."""
    if len(descriptors) == 1:
        os.fsync(descriptors[0])
        return
    # In threads, because the disk then commits several files at once: for 64 files of
    # 250 KB on ext4 this is ten times faster than one after the other.
    with ThreadPoolExecutor(_SYNCING_THREADS) as pool:
        list(pool.map(os.fsync, descriptors))


def _sync_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


@functools.cache
def _machine_tag() -> str:
    return hashlib.sha256(processes.machine().encode()).hexdigest()[:8]


def temporary_path(path: str) -> Path:
    """Returns a new name beside a file, to be written first and renamed then."""
    writer = f"{_machine_tag()}-{os.getpid()}-{_PROCESS_TOKEN}-{next(_SERIAL)}"
    return Path(path).parent / f".writing-{writer}.temporary"


def is_temporary(name: str) -> bool:
    """Returns whether a name is one that `temporary_path` makes."""
    return _TEMPORARY.fullmatch(name) is not None


def _is_stale(place: Path) -> bool:
    """Returns whether a temporary file was left by a writer that has ended."""
    match = _TEMPORARY.fullmatch(place.name)
    if match is None:
        return False
    tag, pid, token = match.groups()
    if tag == _machine_tag():
        if int(pid) == os.getpid():
            # An earlier process had this number, which is common in containers.
            return token != _PROCESS_TOKEN
        if processes.has_ended(int(pid), ""):
            return True
    try:
        return time.time() - place.stat().st_mtime > _STALE_AFTER
    except FileNotFoundError:
        return False
