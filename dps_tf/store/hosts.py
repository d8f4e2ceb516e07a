"""Which machine and process this is, and whether another process is surely dead."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_PROC = Path("/proc")
_ENDED = ("Z", "X")  # states in Linux's list: waiting to be reaped, and dead
_LOCAL_DISKS = frozenset(
    ("apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs")
    + ("overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs")
)


def machine() -> str:
    """Returns what all processes share that see each other's process numbers.

    On Linux the boot and the namespace of process numbers: two containers of one host
    name, or one host before and after a restart, differ. Elsewhere the host name.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str:
    """Returns when a process began, in ticks since boot; '' where that is not known.

    Numbers of processes are used again; together with this they are unique.
    """
    return _status(pid)[1]


def is_surely_dead(pid: int, start: str) -> bool:
    """Returns whether a process of this machine has ended.

    Args:
        pid: its number, as seen on this machine.
        start: what `process_start` gave for it while it ran.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    state, now = _status(pid)
    # A killed child keeps its number until its parent asks for its exit code.
    return state in _ENDED or bool(start and now and start != now)


def _status(pid: int) -> tuple[str, str]:
    """Returns the state and the start of a process, '' where not known."""
    try:
        line = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "", ""
    # The second field is the command in parentheses and may hold anything; the state
    # is the third field of the line and the start the 22nd.
    after_command = line.rpartition(")")[2].split()
    return after_command[0], after_command[19]


def is_on_local_disk(path: str) -> bool:
    """Returns whether a path surely lies on a disk that only this machine uses."""
    try:
        mounts = (_PROC / "self/mounts").read_text().splitlines()
        device = Path(path).stat().st_dev
    except OSError:
        return False
    for mount in reversed(mounts):
        _, point, kind, *_ = mount.split()
        try:
            # Spaces in the name of a mount point are written as octal numbers.
            place = Path(point.encode().decode("unicode_escape"))
            if place.stat().st_dev == device:
                return kind in _LOCAL_DISKS
        except (OSError, ValueError):
            continue
    return False
