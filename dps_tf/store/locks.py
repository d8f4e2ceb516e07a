"""Locks give one process exclusive ownership of a cell, also across machines.

On one machine `flock` decides: it is free at once after kill -9. Where the disk may be
shared with other machines, a claim with a heartbeat decides as well; the claim also
names the owner.

A claim is a file `cell.<generation>.claim` that is created exclusively; the highest
generation owns the cell. Taking over creates the next generation and overwrites nothing
of the former owner's. An owner that was silent for long and returns finds a higher
generation, and must stop. The highest generation is never removed, only marked as
released.

Owners show that they live by a counter in `<token>.owner`. A process that wants a
claimed cell must see that counter unchanged for the whole expiry on its own monotonic
clock; the clocks of two machines are never compared. An owner whose process ran on this
machine and has ended needs no waiting.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dps_tf.store import processes
from dps_tf.store.errors import DamagedError, LockLost, StoreError, explained
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.local_files import open_file
from dps_tf.store.records import encode_record, read_json, write_json

BEAT_EVERY = 15.0
"""Seconds between the heartbeats of an owner."""
EXPIRE_AFTER = 120.0
"""Seconds without a heartbeat after which an owner elsewhere is taken for dead."""
_CLAIM = re.compile(r"cell\.(\d{8,})\.claim")
_LOOKS = 3  # number of looks for a claim that vanishes between listing and reading


@dataclass(frozen=True)
class Owner:
    """A process that wants a cell, by default this one.

    Attributes:
        pid: number of the process.
        process_start: start of the process, which no other process of this number has.
        host: name of the machine, for people.
        machine: the machine on which `pid` is valid, see `processes.machine`.
        started: time of creation in seconds of the epoch, for people.
        token: random text, which alone identifies the owner.
    """

    pid: int = field(default_factory=os.getpid)
    process_start: str = field(
        default_factory=lambda: processes.process_start(os.getpid())
    )
    host: str = field(default_factory=platform.node)
    machine: str = field(default_factory=processes.machine)
    started: float = field(default_factory=time.time)
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def is_here(self) -> bool:
        """Returns whether the owner runs, or ran, on this machine."""
        return self.machine == processes.machine()

    def has_ended(self) -> bool:
        """Returns whether its process ran on this machine and has ended."""
        return self.is_here() and processes.has_ended(self.pid, self.process_start)


class Lock:
    """The lock of one cell for one owner, who holds it or waits for it.

    Keep the object: it remembers since when other owners have been silent.

    Args:
        files: file system of the cell.
        directory: folder of the cell.
        owner: owner that acquires the lock; None for this process.
        beat_every, expire_after: see BEAT_EVERY and EXPIRE_AFTER.
        clock: returns monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - all but the first two are for tests
        self,
        files: FileSystem,
        directory: str,
        owner: Owner | None = None,
        beat_every: float = BEAT_EVERY,
        expire_after: float = EXPIRE_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.owner = owner or Owner()
        self._files = files
        self._layout = CellLayout(directory)
        self._beat_every = beat_every
        self._expire_after = expire_after
        self._clock = clock
        self._generation: int | None = None  # of the claim, while the lock is held
        self._flock: int | None = None  # descriptor of the file under flock
        self._beats = 0
        self._seen: dict[str, tuple[int | None, float]] = {}
        self._first_beats: dict[str, int | None] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> bool:
        """Returns whether the lock was free and is held from now on; never waits.

        Its heartbeat runs in the background until the lock is released. An owner on
        this machine that has died does not block. An owner elsewhere blocks until it
        has been silent for the expiry, counted from the first call of this method.
        """
        if self._generation is not None or not self._acquire_flock():
            return False
        try:
            self._generation = self._claim()
        finally:
            if self._generation is None:
                self._release_flock()
        if self._generation is None:
            return False
        self._start_heartbeat()
        return True

    def still_owned(self) -> bool:
        """Returns whether no other owner has taken over; reads the files each time."""
        return self._newest() == (self._generation, self.owner.token)

    def check(self) -> None:
        """Raises LockLost if another owner has taken over: call before each write.

        Another owner can take over between this check and the write, so no result may
        depend on which owner wrote a file: states are functions of trial and step.
        """
        if not self.still_owned():
            raise LockLost(
                f"cell was taken over by {self.holder() or 'another owner'} while this "
                "process was silent; nothing more is written here. Run the command "
                "again to continue with what is free."
            )

    def release(self) -> None:
        """Makes the cell free, unless another owner has taken over."""
        if self._generation is None:
            return
        try:
            if self.still_owned():
                content = {"token": self.owner.token, "released": True}
                write_json(self._files, self._claim_path(self._generation), content)
            self._stop_heartbeat()
            self._files.remove(self._owner_path(self.owner.token))
        finally:
            self._generation = None
            self._release_flock()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def holder(self) -> str | None:
        """Returns the owner of the cell, in words; None if the cell is free."""
        _, token = self._newest()
        if token is None:
            return None
        owner, _ = self._read_owner(token)
        if owner is None:
            return "an owner whose file cannot be read"
        if owner.has_ended():
            return None
        text = f"process {owner.pid} on {owner.host}"
        try:
            last_beat = self._files.modified_time(self._owner_path(token))
        except (FileNotFoundError, StoreError):
            return text
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last_beat))
        return f"{text}, last heartbeat {at}"

    def shows_life(self) -> bool:
        """Returns whether the owner of the cell surely lives.

        An owner on this machine lives if its process does. One elsewhere lives if its
        heartbeat has changed since this object first looked, which takes one interval.
        """
        _, token = self._newest()
        if token is None:
            return False
        owner, beat = self._read_owner(token)
        if owner is not None and owner.is_here():
            return not owner.has_ended()
        return beat != self._first_beats.setdefault(token, beat)

    def beat(self) -> None:
        """Shows once that this owner lives."""
        # The counter only grows: an observer may remember an old number for long.
        self._beats += 1
        content = {"owner": asdict(self.owner), "beat": self._beats}
        write_json(self._files, self._owner_path(self.owner.token), content)

    def _start_heartbeat(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._keep_beating, name="dps_tf heartbeat", daemon=True
        )
        self._thread.start()

    def _keep_beating(self) -> None:
        while not self._stopping.wait(self._beat_every):
            try:
                self.beat()
            except StoreError:
                # The next beat may succeed; if none does, others take over, and the
                # check before the next write tells this owner.
                continue

    def _stop_heartbeat(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _acquire_flock(self) -> bool:
        """Takes the flock of the cell; returns False if another Lock or process has it.

        The system releases the flock when the process ends.
        """
        if not self._files.is_local:
            return True
        path = self._layout.lock
        with explained("lock", path):
            # A link of that name must neither make nor lock what it points to.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            descriptor = open_file(Path(path), flags)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            # Some network file systems have no flock: the claim alone decides there.
            os.close(descriptor)
            return True
        self._flock = descriptor
        return True

    def _release_flock(self) -> None:
        if self._flock is not None:
            os.close(self._flock)
            self._flock = None

    def _claim(self) -> int | None:
        """Returns the generation of a new claim; None if the cell has a live owner."""
        newest, token = self._newest()
        if token is not None and not self._is_dead(token):
            return None
        # Others must be able to see this owner as soon as they see the claim.
        self.beat()
        generation = newest + 1
        data = encode_record({"token": self.owner.token, "released": False})
        path = self._claim_path(generation)
        created = self._files.create_exclusive(path, data)
        if self._newest() != (generation, self.owner.token):
            if created:
                # Another owner had taken a later generation before this one was made.
                self._files.remove(path)
            return None
        for older in self._generations():
            if older < generation:
                self._files.remove(self._claim_path(older))
        return generation

    def _is_dead(self, token: str) -> bool:
        """Returns whether an owner has surely ended, or has been silent for long."""
        owner, beat = self._read_owner(token)
        if token == self.owner.token:
            return False
        if owner is not None and owner.has_ended():
            return True
        # A live owner that this flock reaches would have the flock.
        if self._flock is not None and (
            (owner is not None and owner.is_here())
            or processes.is_on_local_disk(self._layout.lock)
        ):
            return True
        now = self._clock()
        before, since = self._seen.setdefault(token, (beat, now))
        if before != beat:
            self._seen[token] = (beat, now)
            return False
        return now - since >= self._expire_after

    def _newest(self) -> tuple[int, str | None]:
        """Returns the highest generation, 0 if there is none, and its owner's token.

        The token is None if the cell is free, and a token without an owner if the file
        of the claim cannot be read.
        """
        generation = 0
        for _ in range(_LOOKS):
            generation = max(self._generations(), default=0)
            if generation == 0:
                return 0, None
            try:
                content = read_json(self._files, self._claim_path(generation))
            except FileNotFoundError:
                # An owner that came too late has just removed its claim.
                continue
            except DamagedError:
                break
            return generation, None if content["released"] else content["token"]
        return generation, f"unreadable-{generation}"

    def _read_owner(self, token: str) -> tuple[Owner | None, int | None]:
        """Returns an owner and the number of its last heartbeat, or Nones."""
        try:
            content = read_json(self._files, self._owner_path(token))
            return Owner(**content["owner"]), int(content["beat"])
        except (FileNotFoundError, DamagedError):
            return None, None

    def _generations(self) -> list[int]:
        names = self._files.list_names(self._layout.claims)
        return [int(match[1]) for match in map(_CLAIM.fullmatch, names) if match]

    def _claim_path(self, generation: int) -> str:
        return f"{self._layout.claims}/cell.{generation:08d}.claim"

    def _owner_path(self, token: str) -> str:
        return f"{self._layout.claims}/{token}.owner"
