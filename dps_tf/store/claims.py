"""Exclusive ownership of named things through files, across machines.

A claim is a file `<name>.<generation>.claim` made exclusively; the highest generation
owns. Taking over makes the next generation and overwrites nothing of the former
owner's, so a returning owner cannot undo it: it finds a higher generation, and must
stop. The highest generation is never removed, only marked as released.

Owners show that they live by a counter in `<token>.owner`. Whoever wants a claimed
thing must see that counter unchanged for the whole expiry on its own monotonic clock;
the clocks of two machines are never compared. An owner whose process ran on this
machine and is gone needs no waiting.

`<name>.<generation>.claim` holds a token and whether the claim was released;
`<token>.owner` holds the owner and the number of its last heartbeat.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dps_tf.store.errors import DamagedError, LockLost, StoreError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import check_name
from dps_tf.store.owners import Holder, Owner, Timing
from dps_tf.store.records import encode_record, read_json, write_json

_FILE = re.compile(r"(.+)\.(\d{8,})\.claim")
_LOOKS = 3  # times to look for a claim that vanishes between listing and reading


@dataclass(frozen=True)
class Newest:
    """The newest claim to a name.

    Attributes:
        generation: its number, from 1; 0 if there never was one.
        token: whose it is; one that nobody has if the file cannot be read.
        is_released: whether the thing is free.
    """

    generation: int
    token: str
    is_released: bool


@dataclass(frozen=True)
class ClaimFiles:
    """Reads and writes the files of claims; decides nothing.

    Attributes:
        files: where the folder is.
        directory: the folder.
    """

    files: FileSystem
    directory: str

    def newest(self, name: str) -> Newest:
        """Returns the claim of the highest generation."""
        generation = 0
        for _ in range(_LOOKS):
            found = [n for other, n in self._generations() if other == name]
            if not found:
                return Newest(0, "", True)
            generation = max(found)
            try:
                content = read_json(self.files, self._path(name, generation))
            except FileNotFoundError:
                # Taken back just now by one who came too late.
                continue
            except DamagedError:
                break
            return Newest(generation, content["token"], content["released"])
        return Newest(generation, f"unreadable-{name}-{generation}", False)

    def create(self, name: str, generation: int, token: str) -> bool:
        """Makes a claim; returns False if there is one of that generation."""
        data = encode_record({"token": token, "released": False})
        return self.files.create_exclusive(self._path(name, generation), data)

    def mark_released(self, name: str, generation: int, token: str) -> None:
        """Makes the thing free, if the claim is still the newest."""
        content = {"token": token, "released": True}
        write_json(self.files, self._path(name, generation), content)

    def remove(self, name: str, generation: int) -> None:
        """Removes one claim; never the newest."""
        self.files.remove(self._path(name, generation))

    def remove_older(self, name: str, generation: int) -> None:
        """Removes the claims of all generations before the given one."""
        for other, number in self._generations():
            if other == name and number < generation:
                self.remove(name, number)

    def read_owner(self, token: str) -> tuple[Owner | None, int | None]:
        """Returns an owner and the number of its last heartbeat, or Nones."""
        try:
            content = read_json(self.files, self._owner_path(token))
            return Owner.from_json(content["owner"]), int(content["beat"])
        except (FileNotFoundError, DamagedError):
            return None, None

    def write_owner(self, owner: Owner, beat: int) -> None:
        """Writes a heartbeat."""
        content = {"owner": owner.to_json(), "beat": beat}
        write_json(self.files, self._owner_path(owner.token), content)

    def remove_owner(self, token: str) -> None:
        """Removes an owner that claims nothing any more."""
        self.files.remove(self._owner_path(token))

    def last_heartbeat(self, token: str) -> float | None:
        """Returns when an owner was last heard by the file's clock, for people."""
        try:
            return self.files.modified_time(self._owner_path(token))
        except (FileNotFoundError, StoreError):
            return None

    def _generations(self) -> list[tuple[str, int]]:
        names = self.files.list_names(self.directory)
        matches = map(_FILE.fullmatch, names)
        return [(match[1], int(match[2])) for match in matches if match]

    def _path(self, name: str, generation: int) -> str:
        return f"{self.directory}/{name}.{generation:08d}.claim"

    def _owner_path(self, token: str) -> str:
        return f"{self.directory}/{token}.owner"


class Claims:
    """What one owner claims in one folder, and what it sees of the others.

    Keep the object: it remembers since when others have been silent.

    Args:
        files: where the folder is.
        directory: the folder; used for nothing else.
        owner: in whose name.
        timing: of heartbeats.
        clock: monotonic, in seconds.

    Attributes:
        owner: in whose name.
        files: of the claims.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        owner: Owner,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.files = ClaimFiles(files, directory)
        self.owner = owner
        self._timing = timing or Timing()
        self._clock = clock
        self._beats = 0
        self._is_visible = False
        self._seen: dict[str, tuple[int | None, float]] = {}
        self._first_beats: dict[str, int | None] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(
        self,
        name: str,
        is_dead: Callable[[Owner | None], bool] | None = None,
    ) -> Claim | None:
        """Returns the claim if the thing is free or its owner is dead, else None.

        Never waits: call again later. Claiming what one has gives it again.

        Args:
            name: of the thing; a safe file name.
            is_dead: a proof of death that needs no waiting, given the owner (None if
                it cannot be read); by default, that its process here has ended.
        """
        newest = self.files.newest(check_name(name))
        if newest.token == self.owner.token and not newest.is_released:
            return Claim(self, name, newest.generation)
        if not self._is_free(newest, is_dead or _process_has_ended):
            return None
        if not self._is_visible:
            # Others must be able to see this owner as soon as they see the claim.
            self.beat()
        generation = newest.generation + 1
        made = self.files.create(name, generation, self.owner.token)
        claim = Claim(self, name, generation)
        if not claim.still_owned():
            if made:
                # Somebody had taken a later generation before this one was made.
                self.files.remove(name, generation)
            return None
        self.files.remove_older(name, generation)
        return claim

    def holder(self, name: str) -> Holder | None:
        """Returns who has a thing, or None if it is free or its owner surely dead."""
        newest = self.files.newest(check_name(name))
        if newest.generation == 0 or newest.is_released:
            return None
        owner, beat = self.files.read_owner(newest.token)
        if _process_has_ended(owner):
            return None
        heard = self.files.last_heartbeat(newest.token)
        silent = self._silent_for(newest.token, beat)
        return Holder(owner, beat, heard, max(0.0, self._timing.expire_after - silent))

    def shows_life(self, name: str) -> bool:
        """Returns whether the owner of a thing surely lives.

        That is a process of this machine, or an owner that has beaten since this object
        first looked; an owner elsewhere shows it within one interval of its heartbeat.
        """
        newest = self.files.newest(check_name(name))
        if newest.generation == 0 or newest.is_released:
            return False
        owner, beat = self.files.read_owner(newest.token)
        if owner is not None and owner.is_here():
            return not owner.is_surely_dead()
        return beat != self._first_beats.setdefault(newest.token, beat)

    def beat(self) -> None:
        """Shows once that this owner lives."""
        # Never counted back: an observer may remember an old number for long.
        self._beats += 1
        self.files.write_owner(self.owner, self._beats)
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
        """Ends the heartbeat of an owner that has released everything."""
        self.stop()
        self.files.remove_owner(self.owner.token)
        self._is_visible = False

    def _keep_beating(self) -> None:
        while not self._stopping.wait(self._timing.beat_every):
            try:
                self.beat()
            except StoreError:
                # The next beat may succeed; if none does, others take over, and the
                # check before the next write tells this owner.
                continue

    def _is_free(self, newest: Newest, is_dead: Callable[[Owner | None], bool]) -> bool:
        if newest.generation == 0 or newest.is_released:
            return True
        owner, beat = self.files.read_owner(newest.token)
        if is_dead(owner):
            return True
        return self._silent_for(newest.token, beat) >= self._timing.expire_after

    def _silent_for(self, token: str, beat: int | None) -> float:
        now = self._clock()
        seen = self._seen.get(token)
        if seen is None or seen[0] != beat:
            self._seen[token] = (beat, now)
            return 0.0
        return now - seen[1]


class Claim:
    """The ownership of one thing, for as long as nobody else has taken over.

    Attributes:
        name: of the thing.
        generation: of the claim; higher than that of every former owner.
    """

    def __init__(self, claims: Claims, name: str, generation: int) -> None:
        self._claims = claims
        self.name = name
        self.generation = generation

    def still_owned(self) -> bool:
        """Returns whether nobody has taken over; asks the file system each time."""
        newest = self._claims.files.newest(self.name)
        token = self._claims.owner.token
        return newest == Newest(self.generation, token, False)

    def check(self) -> None:
        """Raises LockLost if another owner has taken over: call before each write.

        What remains open is the moment between this and the write; so nothing that two
        owners write may depend on it: logs have one writer each, and states are
        functions of trial and step.
        """
        if not self.still_owned():
            holder = self._claims.holder(self.name)
            raise LockLost(
                f"{self.name} was taken over by {holder or 'another owner'} while this "
                "process was silent; nothing more is written here. Run the command "
                "again to continue with what is free."
            )

    def release(self) -> None:
        """Lets go of the thing; does nothing if it was lost already."""
        if self.still_owned():
            token = self._claims.owner.token
            self._claims.files.mark_released(self.name, self.generation, token)


def _process_has_ended(owner: Owner | None) -> bool:
    return owner is not None and owner.is_surely_dead()
