"""Exclusive ownership of cells, on one machine and across machines.

On one machine `flock` decides: it is free at once after kill -9. Where the disk may be
shared with other machines, a claim with a heartbeat decides as well (see `claims`);
the same claim tells everybody who the owner is.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from dps_tf.store import durable, owners
from dps_tf.store.claims import Claim, Claims
from dps_tf.store.errors import explained
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.owners import Holder, Owner, Timing


class Locks:
    """The locks of one process; keep it, it remembers since when others are silent.

    Args:
        files: where the cells are.
        owner: in whose name; this process by default.
        timing: of heartbeats.
        clock: monotonic, in seconds.
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
        claim = claims.claim(None if flock is None else flock.proves_death)
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
    """The ownership of a cell.

    Attributes:
        claims: to the cell.
    """

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
            descriptor = durable.open_file(Path(self._path), flags)
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
        if owner is not None and owner.is_surely_dead():
            return True
        if not self._is_supported:
            return False
        if owner is not None and owner.is_here():
            return True
        return owners.is_on_local_disk(self._path)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
