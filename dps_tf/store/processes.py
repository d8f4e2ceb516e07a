"""Processes and disks of this machine: which have ended, which are its own."""

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
    """Returns what all processes share that see each other's process numbers.

    On Linux the boot and the namespace of process numbers, elsewhere the host name: two
    containers of one host name, or one host before and after a restart, differ.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str:
    """Returns when a process began, in hundredths of a second since the boot.

    Empty where that is not known. The clock may be set without changing it.
    """
    try:
        # In this order: psutil adds the time of the boot, which it may have kept.
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
        # The latest of several that are mounted at one place is the one that is seen.
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
