"""Several workers in one cell: processes, GPUs of a node, machines.

They share a directory and nothing else. Each claims trials, advances them, and writes
its own log; each follows the logs of the others, so all know the finishers, and K_(m)
stops everybody. What a trial does is a function of its seeds and step, so it does not
matter who ran it, or whether two did: the result is that of one worker. No trial goes
far ahead of the others (see `core.lockstep`), so what is run in vain is bounded.

A worker keeps the trials that it has claimed, whose states it holds. One that finds
nothing to run says that it is hungry; another then saves the states of trials that it
would come to later, lets them go, and says that they are on offer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from dps_tf.store.claim_files import generations
from dps_tf.store.claims import Claim, Claims
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.log_follower import LogFollower
from dps_tf.store.study_record import StudyRecord

_EXCLUSIVE = "cell"  # The claim of an owner that shares with nobody (see Locks).
_FIRST = "first"  # The claim of the worker that came to a cell first.
_CLOSING = "closing"
_WORKER = "worker-"
_TRIAL = "trial-"
_HUNGRY = "hungry-"
_OFFER = "offer-"
_SHARE_OF_LOOKING = 0.05
"""Part of a worker's time that goes into looking at what the others do: it looks often
where that is cheap, and seldom on an object store."""
_LOOK_SECONDS = (0.02, 15.0)
"""The shortest and the longest time between two looks."""
_STARVE_SECONDS = (0.02, 0.5)
"""The first wait of one that has nothing to run, and the longest; each is doubled."""
_LAST_TURNS_SECONDS = 60.0
"""How long the one that closes a study waits for the turns that others are in."""
_RETRY = 100
"""Times the shortest or latest look for which a trial that somebody else has is not
asked for again, unless it is on offer."""


class SharedCell:
    """This worker's part in a cell that several workers run.

    Keep it while the worker lives: it remembers since when others have been silent.

    Attributes:
        follower: of the logs of the others; made anew by `join`.

    Args:
        files: where the cell is.
        layout: its paths.
        claims: in the name of this worker, with its heartbeat.
        slots: trials that this worker runs side by side.
        sleep: waits; replaced in tests.
        clock: monotonic, in seconds.
    """

    is_shared = True

    def __init__(  # noqa: PLR0913 - each is independent of the others
        self,
        files: FileSystem,
        layout: CellLayout,
        claims: Claims,
        slots: int,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Joins nothing yet: see `join`."""
        self._files = files
        self._layout = layout
        self._claims = claims
        self._slots = slots
        self._sleep = sleep
        self._clock = clock
        self._membership: Claim | None = None
        self._closing: Claim | None = None
        self._record: StudyRecord | None = None
        self._is_hungry = False
        self._forget()

    def _forget(self) -> None:
        """Begins behind nothing, holding nothing."""
        self.follower = LogFollower(self._files, self._layout.logs, self.writer)
        self._trials: dict[int, Claim] = {}
        self._denied: dict[int, float] = {}
        self._told: set[int] = set()
        self._names: list[str] = []
        self._look_again_at = -_LOOK_SECONDS[1]
        self._look_cost = 0.0
        self._starved = 0

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
        self._forget()
        self._membership = self._claims.claim(_WORKER + self.writer)
        self._claims.start()
        holder = self._claims.holder(_EXCLUSIVE)
        if holder is None:
            return True
        if holder.free_in > 0:
            self.leave()
            return False
        # Silent elsewhere. Should it return, it is to find that it has lost the cell.
        taken = self._claims.claim(_EXCLUSIVE)
        if taken is not None:
            taken.release()
        return True

    def owner_shows_life(self) -> bool:
        """Returns whether the owner that does not share surely lives."""
        return self._claims.shows_life(_EXCLUSIVE)

    def leave(self) -> None:
        """Lets go of everything."""
        for claim in self._trials.values():
            claim.release()
        for name in (_FIRST, _CLOSING):
            held = self._claims.mine(name)
            if held is not None:
                held.release()
        self._set_hungry(False)
        if self._membership is not None:
            self._membership.release()
            self._membership = None
        self._claims.leave()
        self._forget()

    def follow_for(self, record: StudyRecord) -> None:
        """Keeps a record, which was opened with `follower`, up to date."""
        self._record = record

    def news(self) -> set[int]:
        """Returns the trials of which others have told something new."""
        assert self._record is not None
        if self._files.can_append:
            self._record.publish()
        if self._clock() >= self._look_again_at:
            self._look()
        told, self._told = self._told, set()
        return told

    def tell(self) -> None:
        """Lets the others know at once what is known here."""
        assert self._record is not None
        self._record.publish()

    def take(self, trial: int) -> bool:
        """Returns whether this worker may run a trial, claiming it if it is free."""
        assert self._record is not None
        if trial not in self._trials and not self._claim(trial):
            return False
        self._starved = 0
        self._set_hungry(False)
        return True

    def rest(self, idle: Iterable[int]) -> None:
        """Offers waiting trials, the last ones, if somebody hungry has no offer yet."""
        assert self._record is not None
        hungry = self._hungry_others()
        offers = sum(name.startswith(_OFFER) for name in self._names)
        mine = [trial for trial in idle if trial in self._trials]
        if offers >= len(hungry) or not mine:
            return
        given = mine[len(mine) // (len(hungry) + 1) :]
        self._record.save(given)
        for trial in given:
            self._trials.pop(trial).release()
            self._files.write_atomic(self._file(_OFFER, f"{trial:06d}"), b"{}")
            self._names.append(f"{_OFFER}{trial:06d}")

    def starve(self) -> None:
        """Waits a moment, and says that this worker is hungry if that lasts."""
        if self._starved:
            self._set_hungry(True)
        first, longest = _STARVE_SECONDS
        wait = min(first * 2 ** min(self._starved, 10), longest)
        self._sleep(max(wait, 2 * self._look_cost))
        self._starved += 1
        self._look_again_at = self._clock()

    def claim_closing(self) -> bool:
        """Returns whether this worker is the one that closes the study."""
        self._closing = self._claims.claim(_CLOSING)
        return self._closing is not None

    def check_closing(self) -> None:
        """Raises LockLost if another worker closes the study in the place of this."""
        if self._closing is not None:
            self._closing.check()

    def await_others(self, stop: Callable[[], bool]) -> None:
        """Waits, not for long, until the others have told of their last turns and left.

        What they still do after that is in their logs, but not in the table of work.
        """
        until = self._clock() + _LAST_TURNS_SECONDS
        while self.workers() and self._clock() < until and not stop():
            self._sleep(_STARVE_SECONDS[1])
        self._look()

    def is_being_closed(self) -> bool:
        """Returns whether another worker that may live is closing the study."""
        holder = self._claims.holder(_CLOSING)
        return holder is not None and holder.free_in > 0

    def _claim(self, trial: int) -> bool:
        """Claims a trial; asks seldom for one that somebody else has."""
        assert self._record is not None
        name, offer = f"{_TRIAL}{trial:06d}", f"{_OFFER}{trial:06d}"
        is_offered = offer in self._names
        if self._denied.get(trial, 0.0) > self._clock() and not is_offered:
            return False
        claim = self._claims.claim(name)
        if is_offered:
            self._files.remove(self._file(offer))
            self._names.remove(offer)
        if claim is None:
            pause = _RETRY * max(_LOOK_SECONDS[0], self._look_cost)
            self._denied[trial] = self._clock() + pause
            return False
        self._trials[trial] = claim
        if claim.generation > 1:
            # Its last owner may have got further than was known here.
            self._look()
        self._record.reload_state(trial)
        return True

    def _look(self) -> None:
        """Learns what the others have done, and what they want."""
        assert self._record is not None
        begun = self._clock()
        self._record.publish()
        events = self._record.follow()
        self._told |= {event["trial"] for event in events if "trial" in event}
        self._names = self._files.list_names(self._layout.claims)
        self._let_go_of_lost()
        self._look_cost = self._clock() - begun
        shortest, longest = _LOOK_SECONDS
        pause = min(max(shortest, self._look_cost / _SHARE_OF_LOOKING), longest)
        self._look_again_at = self._clock() + pause

    def _let_go_of_lost(self) -> None:
        """Forgets trials that were taken over while this worker was silent."""
        newest: dict[str, int] = {}
        for name, generation in generations(self._names):
            newest[name] = max(generation, newest.get(name, 0))
        for trial, claim in list(self._trials.items()):
            if newest.get(claim.name, 0) > claim.generation:
                del self._trials[trial]

    def _hungry_others(self) -> list[str]:
        tokens = [
            name.removeprefix(_HUNGRY)
            for name in self._names
            if name.startswith(_HUNGRY) and name != _HUNGRY + self.writer
        ]
        return [token for token in tokens if self._claims.may_live(token)]

    def _set_hungry(self, hungry: bool) -> None:
        if hungry == self._is_hungry:
            return
        self._is_hungry = hungry
        if hungry:
            self._files.write_atomic(self._file(_HUNGRY, self.writer), b"{}")
        else:
            self._files.remove(self._file(_HUNGRY, self.writer))

    def _file(self, *parts: str) -> str:
        return f"{self._layout.claims}/{''.join(parts)}"


def living_workers(claims: Claims) -> list[str]:
    """Returns the names of the claims of other workers in a cell that may live."""
    mine = _WORKER + claims.owner.token
    holders = {
        name: claims.holder(name)
        for name in claims.names()
        if name.startswith(_WORKER) and name != mine
    }
    return [name for name, holder in holders.items() if holder and holder.free_in > 0]
