"""Several workers in one cell: processes, GPUs of a node, machines.

They share a directory and nothing else. Each claims trials, advances them, and writes
its own log; each follows the logs of the others, so all know the finishers, and K_(m)
stops everybody. What a trial does is a function of its seeds and step, so it does not
matter who ran it, or whether two did: the result is that of one worker.

A worker that finds nothing to claim says that it is hungry; the others then save the
states of trials that they are not running just now, and let half of them go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from dps_tf.store.claims import Claim, Claims
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.log_follower import LogFollower
from dps_tf.store.study_record import StudyRecord

_EXCLUSIVE = "cell"  # The claim of an owner that shares with nobody (see Locks).
_FIRST = "first"  # The claim of the worker that came to a cell first.
_HUNGRY = "hungry-"
_WORKER = "worker-"
_CLOSING = "closing"
_LOOK_SECONDS = 0.5
"""How often the logs and the hunger of others are looked at."""


class Company(Protocol):
    """The other workers of a cell, as a driver sees them.

    Attributes:
        is_shared: whether there may be others.
    """

    is_shared: bool

    def news(self) -> set[int]:
        """Returns the trials of which others have told something new."""

    def take(self, trial: int) -> bool:
        """Returns whether this worker may run a trial."""

    def rest(self, idle: Iterable[int]) -> None:
        """Is told which trials are not being run just now; may let some go."""

    def starve(self) -> None:
        """Is told that there is nothing to run; waits a moment."""


class Alone:
    """The company of a worker that has the cell for itself: nobody."""

    is_shared = False

    def news(self) -> set[int]:
        """Returns nothing."""
        return set()

    def take(self, trial: int) -> bool:
        """Returns True."""
        del trial
        return True

    def rest(self, idle: Iterable[int]) -> None:
        """Does nothing."""

    def starve(self) -> None:
        """Never happens: what is pending can be run."""
        raise RuntimeError("nothing can be run although the study is not decided")


class SharedCell:
    """This worker's part in a cell that several workers run.

    Attributes:
        follower: of the logs of the others.

    Args:
        files: where the cell is.
        layout: its paths.
        claims: in the name of this worker, with its heartbeat.
        slots: trials that this worker runs side by side.
        sleep: waits; replaced in tests.
    """

    is_shared = True

    def __init__(
        self,
        files: FileSystem,
        layout: CellLayout,
        claims: Claims,
        slots: int,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Joins nothing yet: see `join`."""
        self._files = files
        self._layout = layout
        self._claims = claims
        self._slots = slots
        self._sleep = sleep
        self._trials: dict[int, Claim] = {}
        self._membership: Claim | None = None
        self._record: StudyRecord | None = None
        self.follower = LogFollower(files, layout.logs, self.writer)
        self._looked_at = -_LOOK_SECONDS
        self._is_hungry = False

    @property
    def writer(self) -> str:
        """The name of this worker's log."""
        return self._claims.owner.token

    def come_first(self) -> bool:
        """Returns whether no other worker has come to this cell; claims that if so."""
        return self._claims.claim(_FIRST) is not None

    def workers(self) -> int:
        """Returns how many living workers are in the cell, this one not counted."""
        return len(living_workers(self._claims))

    def join(self) -> bool:
        """Returns whether this worker is in; not while an owner does not share."""
        self._membership = self._claims.claim(_WORKER + self.writer)
        self._claims.start()
        if self._claims.holder(_EXCLUSIVE) is not None:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Lets go of everything."""
        for claim in self._trials.values():
            claim.release()
        self._trials.clear()
        for name in (_FIRST, _CLOSING):
            held = self._claims.mine(name)
            if held is not None:
                held.release()
        self._set_hungry(False)
        if self._membership is not None:
            self._membership.release()
            self._membership = None
        self._claims.leave()

    def follow_for(self, record: StudyRecord) -> None:
        """Keeps a record, which was opened with `follower`, up to date."""
        self._record = record

    def news(self) -> set[int]:
        """Returns the trials of which others have told something new."""
        assert self._record is not None
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return set()
        self._looked_at = now
        self._record.publish()
        told = self.follower.new_events()
        self._record.knowledge.add_all(told)
        return {event["trial"] for event in told if "trial" in event}

    def take(self, trial: int) -> bool:
        """Returns whether this worker may run a trial, claiming it if it is free."""
        assert self._record is not None
        if trial in self._trials:
            return True
        claim = self._claims.claim(f"trial-{trial:06d}")
        if claim is None:
            return False
        self._trials[trial] = claim
        self._record.reload_state(trial)
        self._set_hungry(False)
        return True

    def rest(self, idle: Iterable[int]) -> None:
        """Lets half of the waiting trials go, beyond one per slot, to a hungry one."""
        spare = [trial for trial in idle if trial in self._trials][self._slots :]
        if not spare or not self._somebody_is_hungry():
            return
        assert self._record is not None
        self._record.snapshot(force=True)
        for trial in spare[: (len(spare) + 1) // 2]:
            self._trials.pop(trial).release()

    def starve(self) -> None:
        """Says that this worker is hungry, and waits a moment."""
        self._set_hungry(True)
        self._sleep(_LOOK_SECONDS / 2)

    def claim_closing(self) -> bool:
        """Returns whether this worker is the one that closes the study."""
        return self._claims.claim(_CLOSING) is not None

    def _somebody_is_hungry(self) -> bool:
        mine = _HUNGRY + self.writer
        names = self._files.list_names(self._layout.claims)
        return any(name.startswith(_HUNGRY) and name != mine for name in names)

    def _set_hungry(self, hungry: bool) -> None:
        if hungry == self._is_hungry:
            return
        self._is_hungry = hungry
        path = f"{self._layout.claims}/{_HUNGRY}{self.writer}"
        if hungry:
            self._files.write_atomic(path, b"{}")
        else:
            self._files.remove(path)


def living_workers(claims: Claims) -> list[str]:
    """Returns the names of the claims of other living workers in a cell."""
    mine = _WORKER + claims.owner.token
    return [
        name
        for name in claims.names()
        if name.startswith(_WORKER) and name != mine and claims.holder(name) is not None
    ]
