"""Exclusive ownership of cells, on one machine and across machines.

On one machine `flock` decides: it is free at once after kill -9. Where the disk may be
shared with other machines, a claim with a heartbeat decides as well; the same claim
tells everybody who the owner is.

A claim is a file `cell.<generation>.claim` made exclusively; the highest generation
owns. Taking over makes the next generation and overwrites nothing of the former
owner's, so a returning owner cannot undo it: it finds a higher generation, and must
stop. The highest generation is never removed, only marked as released.

Owners show that they live by a counter in `<token>.owner`. Whoever wants a claimed
cell must see that counter unchanged for the whole expiry on its own monotonic clock;
the clocks of two machines are never compared. An owner whose process ran on this
machine and is gone needs no waiting.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dps_tf.store import owners
from dps_tf.store.errors import DamagedError, LockLost, StoreError, explained
from dps_tf.store.files import FileSystem, open_file
from dps_tf.store.layout import CellLayout
from dps_tf.store.owners import Holder, Owner, Timing
from dps_tf.store.records import encode_record, read_json, write_json

_FILE = re.compile(r"cell\.(\d{8,})\.claim")
_LOOKS = 3  # times to look for a claim that vanishes between listing and reading


def _nothing_proven(owner: Owner | None) -> bool:
    del owner
    return False


class Locks:
    """The locks of one process; keep it, it remembers since when others are silent.

    The owner is this process by default; `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        files: FileSystem,
        owner: Owner | None = None,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._owner = owner or Owner.here()
        self._timing = timing
        self._clock = clock
        self._claims: dict[str, Claims] = {}

    def acquire(self, directory: str) -> Lock | None:
        """Returns the lock of a cell, or None while it has a live owner; never waits.

        Its heartbeat runs in the background until the lock is released. An owner on
        this machine that has died does not block. One elsewhere blocks until it has
        been silent for the expiry, counted from the first call of this method.
        """
        flock = _Flock(CellLayout(directory).lock) if self._files.is_local else None
        if flock is not None and not flock.acquire():
            return None
        claims = self._claims_of(directory)
        claim = claims.claim(_nothing_proven if flock is None else flock.proves_death)
        if claim is None:
            if flock is not None:
                flock.release()
            return None
        claims.start()
        return Lock(claims, claim, flock)

    def holder(self, directory: str) -> Holder | None:
        """Returns who has a cell, or None if it is free."""
        return self._claims_of(directory).holder()

    def shows_life(self, directory: str) -> bool:
        """Returns whether the owner of a cell surely lives; see `Claims.shows_life`."""
        return self._claims_of(directory).shows_life()

    def _claims_of(self, directory: str) -> Claims:
        if directory not in self._claims:
            folder = CellLayout(directory).claims
            self._claims[directory] = Claims(
                self._files, folder, self._owner, self._timing, self._clock
            )
        return self._claims[directory]


class Lock:
    """The ownership of a cell."""

    def __init__(self, claims: Claims, claim: Claim, flock: _Flock | None) -> None:
        self.claims = claims
        self.still_owned = claim.still_owned
        self.check = claim.check
        self._claim = claim
        self._flock = flock
        self._is_held = True

    def release(self) -> None:
        """Lets go of the cell."""
        if self._is_held:
            self._is_held = False
            try:
                self._claim.release()
                self.claims.leave()
            finally:
                if self._flock is not None:
                    self._flock.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Flock:
    """An flock on a file; the system releases it when the process ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_supported = True

    def acquire(self) -> bool:
        """Returns False if another process, or another lock of this one, has it."""
        with explained("lock", self._path):
            # A link of that name must neither make nor lock what it points to.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            descriptor = open_file(Path(self._path), flags)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            # Some network file systems have no flock: the claim alone decides there.
            self._is_supported = False
        self._descriptor = descriptor
        return True

    def proves_death(self, owner: Owner | None) -> bool:
        """Returns whether having this flock means that a former owner is dead."""
        if not self._is_supported:
            return False
        if owner is not None and owner.is_here():
            return True
        return owners.is_on_local_disk(self._path)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class Newest:
    """The newest claim to a cell.

    Attributes:
        generation: its number, from 1; 0 if there never was one.
        token: whose it is; one that nobody has if the file cannot be read.
        is_released: whether the cell is free, as it is before any claim.
    """

    generation: int
    token: str
    is_released: bool


class Claims:
    """The claims to one cell: what one owner makes, and sees of the others.

    Keep the object: it remembers since when others have been silent. `directory` holds
    the claims and nothing else; `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        owner: Owner,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.owner = owner
        self._files = files
        self._directory = directory
        self._timing = timing or Timing()
        self._clock = clock
        self._beats = 0
        self._is_visible = False
        self._seen: dict[str, tuple[int | None, float]] = {}
        self._first_beats: dict[str, int | None] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(
        self, proves_death: Callable[[Owner | None], bool] = _nothing_proven
    ) -> Claim | None:
        """Returns the claim if the cell is free or its owner is dead, else None.

        Never waits: call again later.

        Args:
            proves_death: whether an owner (None if it cannot be read) is known to be
                dead although its process did not end on this machine.
        """
        newest = self.newest()
        if not newest.is_released and not self._is_dead(newest, proves_death):
            return None
        if not self._is_visible:
            # Others must be able to see this owner as soon as they see the claim.
            self.beat()
        claim = Claim(self, newest.generation + 1)
        data = encode_record({"token": self.owner.token, "released": False})
        path = self._path(claim.generation)
        made = self._files.create_exclusive(path, data)
        if not claim.still_owned():
            if made:
                # Somebody had taken a later generation before this one was made.
                self._files.remove(path)
            return None
        for older in self._generations():
            if older < claim.generation:
                self._files.remove(self._path(older))
        return claim

    def newest(self) -> Newest:
        """Returns the claim of the highest generation."""
        generation = 0
        for _ in range(_LOOKS):
            generation = max(self._generations(), default=0)
            if generation == 0:
                return Newest(0, "", True)
            try:
                content = read_json(self._files, self._path(generation))
            except FileNotFoundError:
                # Taken back just now by one who came too late.
                continue
            except DamagedError:
                break
            return Newest(generation, content["token"], content["released"])
        return Newest(generation, f"unreadable-{generation}", False)

    def mark_released(self, generation: int) -> None:
        """Makes the cell free, by the newest claim to it."""
        content = {"token": self.owner.token, "released": True}
        write_json(self._files, self._path(generation), content)

    def holder(self) -> Holder | None:
        """Returns who has the cell, or None if it is free or its owner surely dead."""
        newest = self.newest()
        if newest.is_released:
            return None
        owner, _ = self._read_owner(newest.token)
        if _process_has_ended(owner):
            return None
        try:
            heard = self._files.modified_time(self._owner_path(newest.token))
        except (FileNotFoundError, StoreError):
            heard = None
        return Holder(owner, heard)

    def shows_life(self) -> bool:
        """Returns whether the owner of the cell surely lives.

        That is a process of this machine, or an owner that has beaten since this object
        first looked: one elsewhere shows it within one interval of its heartbeat.
        """
        newest = self.newest()
        if newest.is_released:
            return False
        owner, beat = self._read_owner(newest.token)
        if owner is not None and owner.is_here():
            return not owner.is_surely_dead()
        return beat != self._first_beats.setdefault(newest.token, beat)

    def beat(self) -> None:
        """Shows once that this owner lives."""
        # Never counted back: an observer may remember an old number for long.
        self._beats += 1
        content = {"owner": asdict(self.owner), "beat": self._beats}
        write_json(self._files, self._owner_path(self.owner.token), content)
        self._is_visible = True

    def start(self) -> None:
        """Beats in the background from now on, until `stop`."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(
                target=self._keep_beating, name="dps_tf heartbeat", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Ends the heartbeat; what is still claimed expires."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def leave(self) -> None:
        """Ends the heartbeat of an owner that has released the cell."""
        self.stop()
        self._files.remove(self._owner_path(self.owner.token))
        self._is_visible = False

    def _keep_beating(self) -> None:
        while not self._stopping.wait(self._timing.beat_every):
            try:
                self.beat()
            except StoreError:
                # The next beat may succeed; if none does, others take over, and the
                # check before the next write tells this owner.
                continue

    def _is_dead(
        self, newest: Newest, proves_death: Callable[[Owner | None], bool]
    ) -> bool:
        """Returns whether an owner is known to be dead, or has been silent for long."""
        owner, beat = self._read_owner(newest.token)
        if newest.token == self.owner.token:
            return False
        if _process_has_ended(owner) or proves_death(owner):
            return True
        now = self._clock()
        before, since = self._seen.setdefault(newest.token, (beat, now))
        if before != beat:
            self._seen[newest.token] = (beat, now)
            return False
        return now - since >= self._timing.expire_after

    def _read_owner(self, token: str) -> tuple[Owner | None, int | None]:
        """Returns an owner and the number of its last heartbeat, or Nones."""
        try:
            content = read_json(self._files, self._owner_path(token))
            return Owner(**content["owner"]), int(content["beat"])
        except (FileNotFoundError, DamagedError):
            return None, None

    def _generations(self) -> list[int]:
        names = self._files.list_names(self._directory)
        return [int(match[1]) for match in map(_FILE.fullmatch, names) if match]

    def _path(self, generation: int) -> str:
        return f"{self._directory}/cell.{generation:08d}.claim"

    def _owner_path(self, token: str) -> str:
        return f"{self._directory}/{token}.owner"


class Claim:
    """The ownership of a cell, for as long as no higher generation is claimed."""

    def __init__(self, claims: Claims, generation: int) -> None:
        self._claims = claims
        self.generation = generation

    def still_owned(self) -> bool:
        """Returns whether nobody has taken over; asks the file system each time."""
        token = self._claims.owner.token
        return self._claims.newest() == Newest(self.generation, token, False)

    def check(self) -> None:
        """Raises LockLost if another owner has taken over: call before each write.

        The moment between this and the write stays open, so nothing that two owners
        write may depend on it: states are functions of trial and step.
        """
        if not self.still_owned():
            raise LockLost(
                f"cell was taken over by {self._claims.holder() or 'another owner'} "
                "while this process was silent; nothing more is written here. Run the "
                "command again to continue with what is free."
            )

    def release(self) -> None:
        """Lets go of the cell; does nothing if it was lost already."""
        if self.still_owned():
            self._claims.mark_released(self.generation)


def _process_has_ended(owner: Owner | None) -> bool:
    return owner is not None and owner.is_surely_dead()
