"""Which processes of this machine have ended, and which disks it alone uses."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import psutil

_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_LOCAL_DISKS = frozenset(
    ("apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs")
    + ("overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs")
)


@functools.cache
def machine() -> str:
    """Returns one text for all processes that see each other's process numbers.

    On Linux it is made of the boot and the namespace of process numbers. So two
    containers of one host name differ, and one host before and after a restart.
    Elsewhere it is the host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str:
    """Returns when a process began, in hundredths of a second since the boot.

    The text is empty if that cannot be read. Setting the clock does not change it.
    """
    try:
        # The boot comes first: psutil adds its time, which it may have kept.
        boot = psutil.boot_time()
        began = psutil.Process(pid).create_time()
    except (psutil.Error, OSError):
        return ""
    return str(round(100 * (began - boot)))


def has_ended(pid: int, start: str) -> bool:
    """Returns whether a process of this machine has surely ended.

    A later process may have the same number: `start`, if it is not empty, tells them
    apart.
    """
    try:
        # A killed child keeps its number until its parent asks for its exit code.
        if psutil.Process(pid).status() in _ENDED:
            return True
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    now = process_start(pid)
    return bool(start and now and start != now)


def is_on_local_disk(path: str) -> bool:
    """Returns whether a path surely lies on a disk that only this machine uses."""
    try:
        device = Path(path).stat().st_dev
        # Of several disks that are mounted at one place, the latest is in use.
        for mount in reversed(psutil.disk_partitions(all=True)):
            if _device(mount.mountpoint) == device:
                return mount.fstype in _LOCAL_DISKS
    except OSError:
        return False
    return False


def _device(place: str) -> int | None:
    try:
        return Path(place).stat().st_dev
    except OSError:
        return None
