"""Owners: which process has something, whether it has ended, how long it may be silent.

The functions about processes and disks read `/proc`, and know little without it.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ENDED = ("Z", "X")  # states in Linux's list: waiting to be reaped, and dead
_LOCAL_DISKS = frozenset(
    ("apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs")
    + ("overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs")
)


@dataclass(frozen=True)
class Timing:
    """How owners show that they live.

    Attributes:
        beat_every: seconds between heartbeats.
        expire_after: seconds of silence, by the observer's clock, after which an owner
            that may live elsewhere is taken for dead.
    """

    beat_every: float = 15.0
    expire_after: float = 120.0


@dataclass(frozen=True)
class Owner:
    """A process, or one life of something inside a process.

    Attributes:
        pid: number of the process.
        process_start: see there; tells apart processes that had the same number.
        host: name for people.
        machine: where `pid` means something, see `machine`.
        started: seconds of the epoch, for people.
        token: random; the only thing that decides.
    """

    pid: int
    process_start: str
    host: str
    machine: str
    started: float
    token: str

    @classmethod
    def here(cls) -> Owner:
        """Returns a new owner in this process."""
        pid = os.getpid()
        return cls(
            pid=pid,
            process_start=process_start(pid),
            host=platform.node(),
            machine=machine(),
            started=time.time(),
            token=secrets.token_hex(8),
        )

    def is_here(self) -> bool:
        """Returns whether the owner runs, or ran, on this machine."""
        return self.machine == machine()

    def is_surely_dead(self) -> bool:
        """Returns whether its process ran on this machine and has ended."""
        return self.is_here() and is_surely_dead(self.pid, self.process_start)


@dataclass(frozen=True)
class Holder:
    """An owner as somebody else sees it; None where what it wrote cannot be read.

    The heartbeat is in seconds of the epoch by the file's clock, for people.
    """

    owner: Owner | None
    last_heartbeat: float | None

    def __str__(self) -> str:
        if self.owner is None:
            return "an owner whose file cannot be read"
        text = f"process {self.owner.pid} on {self.owner.host}"
        if self.last_heartbeat is None:
            return text
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.last_heartbeat))
        return f"{text}, last heartbeat {at}"


def machine() -> str:
    """Returns what all processes share that see each other's process numbers.

    On Linux the boot and the namespace of process numbers, elsewhere the host name: two
    containers of one host name, or one host before and after a restart, differ.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def process_start(pid: int) -> str:
    """Returns when a process began, in ticks since boot; '' where that is not known."""
    return _status(pid)[1]


def is_surely_dead(pid: int, start: str) -> bool:
    """Returns whether a process of this machine, of a known start or '', has ended."""
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
