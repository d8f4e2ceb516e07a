"""Who owns something, and how long an owner may be silent."""

from __future__ import annotations

import os
import platform
import secrets
import time
from dataclasses import asdict, dataclass
from typing import Any

from dps_tf.store import hosts


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
        process_start: tells processes of the same number apart; '' if not known.
        host: name for people.
        machine: where `pid` means something, see `hosts.machine`.
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
            process_start=hosts.process_start(pid),
            host=platform.node(),
            machine=hosts.machine(),
            started=time.time(),
            token=secrets.token_hex(8),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the owner as a JSON object, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Owner:
        """Returns the owner that `to_json` described."""
        return cls(**value)

    def is_here(self) -> bool:
        """Returns whether the owner runs, or ran, on this machine."""
        return self.machine == hosts.machine()

    def is_surely_dead(self) -> bool:
        """Returns whether its process ran on this machine and has ended."""
        return self.is_here() and hosts.is_surely_dead(self.pid, self.process_start)


@dataclass(frozen=True)
class Holder:
    """An owner as somebody else sees it.

    Attributes:
        owner: who; None if what it wrote cannot be read.
        beat: number of its last heartbeat; None if it cannot be read.
        last_heartbeat: seconds of the epoch, by the file's clock, for people; or None.
        free_in: seconds until this observer may take over if the owner stays silent.
    """

    owner: Owner | None
    beat: int | None
    last_heartbeat: float | None
    free_in: float

    def __str__(self) -> str:
        if self.owner is None:
            return "an owner whose file cannot be read"
        text = f"process {self.owner.pid} on {self.owner.host}"
        if self.last_heartbeat is None:
            return text
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.last_heartbeat))
        return f"{text}, last heartbeat {at}"
