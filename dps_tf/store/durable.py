"""Steps of the operating system from which durable writes are made.

All raise the plain OSError; `local_files` explains it to the user. A file that is being
written has a name that tells who writes it, and so whether the writer is dead.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import re
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dps_tf.store import owners

_SYNCING_THREADS = 8
# What file systems answer that cannot do a thing, rather than failing at it.
_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_TEMPORARY = re.compile(r"\.writing-([0-9a-f]{8})-(\d+)-([0-9a-f]{8})-\d+\.temporary")
_STALE_AFTER = 3600.0  # seconds; writing one file does not take that long
_PROCESS_TOKEN = secrets.token_hex(4)
_SERIAL = itertools.count()


def make_folders(folder: Path) -> None:
    """Makes a folder and those above it, each known to its parent after power loss."""
    above = (folder, *folder.parents)
    missing = list(itertools.takewhile(lambda place: not place.exists(), above))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        # So /proc and its like answer, whose files and folders only the system makes.
        raise PermissionError(errno.EPERM, "no folder can be made there") from error
    for place in missing:
        sync_folder(place.parent)


def open_file(place: Path, flags: int) -> int:
    """Returns a new descriptor; makes missing folders."""
    try:
        return os.open(place, flags, 0o666)
    except FileNotFoundError:
        make_folders(place.parent)
        return os.open(place, flags, 0o666)


def create(place: Path) -> int:
    """Returns a descriptor of a file that did not exist, else FileExistsError."""
    return open_file(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes every byte; the system may take fewer at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_new(place: Path, data: bytes) -> None:
    """Writes a file that did not exist and waits for the disk."""
    descriptor = create(place)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, place: Path, data: bytes) -> None:
    """Gives a written file its final name, else FileExistsError.

    Where hard links are not supported the file is written a second time: exclusive,
    but not atomic with its content.
    """
    try:
        os.link(temporary, place)
    except OSError as error:
        if error.errno not in {*_UNSUPPORTED, errno.EPERM, errno.EMLINK}:
            raise
        write_new(place, data)


def sync_all(descriptors: Sequence[int]) -> None:
    """Waits until the disk has all these files.

    Side by side, because the disk then commits several at once: for 64 files of 250 KB
    on ext4 ten times faster than one after the other.
    """
    if len(descriptors) == 1:
        os.fsync(descriptors[0])
        return
    with ThreadPoolExecutor(_SYNCING_THREADS) as pool:
        list(pool.map(os.fsync, descriptors))


def sync_folder(folder: Path) -> None:
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
    return hashlib.sha256(owners.machine().encode()).hexdigest()[:8]


def temporary_path(path: str) -> Path:
    """Returns a new name beside a file, to be written first and renamed then."""
    writer = f"{_machine_tag()}-{os.getpid()}-{_PROCESS_TOKEN}-{next(_SERIAL)}"
    return Path(path).parent / f".writing-{writer}.temporary"


def is_temporary(name: str) -> bool:
    """Returns whether `temporary_path` makes such names."""
    return _TEMPORARY.fullmatch(name) is not None


def is_stale(place: Path) -> bool:
    """Returns whether nobody will finish a temporary file any more."""
    match = _TEMPORARY.fullmatch(place.name)
    if match is None:
        return False
    tag, pid, token = match.groups()
    if tag == _machine_tag():
        if int(pid) == os.getpid():
            # A former life of this process number, which is common in containers.
            return token != _PROCESS_TOKEN
        if owners.is_surely_dead(int(pid), ""):
            return True
    try:
        return time.time() - place.stat().st_mtime > _STALE_AFTER
    except FileNotFoundError:
        return False
