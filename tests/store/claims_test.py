from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.store import Claims, LocalFiles, LockLost, Owner, StoreError, Timing
from tests.store.faulty_files import at_every_write_point
from tests.store.object_store import ObjectFiles


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _elsewhere(token: str) -> Owner:
    """An owner on another machine, of whose process nothing is known here."""
    return replace(Owner.here(), machine=f"machine of {token}", token=token)


class World:
    """Owners on different machines that share a folder and have their own clocks."""

    def __init__(self, files, directory: str) -> None:
        self.files, self.directory = files, directory
        self.clocks: dict[str, Clock] = {}

    def owner(self, token: str) -> Claims:
        self.clocks[token] = Clock()
        return Claims(
            self.files,
            self.directory,
            _elsewhere(token),
            Timing(beat_every=15, expire_after=120),
            self.clocks[token],
        )

    def expire(self, observer: str, seconds: float = 120) -> None:
        self.clocks[observer].now += seconds


@pytest.fixture(params=["local", "objects"])
def world(request, tmp_path) -> World:
    if request.param == "objects":
        return World(ObjectFiles(), "gs://bucket/claims")
    return World(LocalFiles(), f"{tmp_path}/claims")


def test_a_claimed_thing_is_refused_to_others_until_released(world):
    a, b = world.owner("a"), world.owner("b")
    claim = a.claim()
    assert claim.still_owned() and a.claim() is None
    assert b.claim() is None
    assert b.holder().owner == a.owner
    claim.release()
    claim.release()
    assert not claim.still_owned()
    assert b.holder() is None
    assert b.claim().still_owned()
    assert a.claim() is None


def test_a_silent_owner_expires_by_the_observers_clock(world):
    a, b = world.owner("a"), world.owner("b")
    a.claim()
    assert b.claim() is None
    world.expire("b", 119.9)
    assert b.claim() is None
    world.expire("b", 0.2)
    assert b.claim().still_owned()


def test_an_owner_that_beats_never_expires_however_seldom_one_looks(world):
    a, b = world.owner("a"), world.owner("b")
    a.claim()
    for _ in range(5):
        assert b.claim() is None
        world.expire("b", 10_000)
        a.beat()
    assert b.claim() is None


def test_an_owner_that_comes_back_is_not_taken_for_its_former_self(world):
    a, b = world.owner("a"), world.owner("b")
    first = a.claim()
    assert b.claim() is None
    first.release()
    a.leave()
    world.expire("b", 10_000)
    claim = a.claim()
    assert b.claim() is None and claim.still_owned()


def test_nothing_depends_on_the_clocks_of_files(tmp_path):
    world = World(LocalFiles(), str(tmp_path))
    a, b = world.owner("a"), world.owner("b")
    claim = a.claim()
    for jump in (0, 4e9):
        for path in tmp_path.iterdir():
            os.utime(path, (jump, jump))
        assert b.claim() is None and claim.still_owned()


def test_a_returning_owner_cannot_write_nor_undo_the_taking_over(world):
    a, b = world.owner("a"), world.owner("b")
    lost = a.claim()
    b.claim()
    world.expire("b")
    taken = b.claim()
    assert not lost.still_owned()
    with pytest.raises(LockLost, match=f"cell was taken over by process {os.getpid()}"):
        lost.check()
    lost.release()
    a.beat()
    assert a.claim() is None
    assert taken.still_owned() and taken.generation > lost.generation
    taken.check()
    taken.release()
    with pytest.raises(LockLost):
        lost.check()
    assert a.claim().generation == 3


def test_of_two_that_take_over_at_once_one_owns(world):
    a, b, c = world.owner("a"), world.owner("b"), world.owner("c")
    a.claim()
    for observer in (b, c):
        observer.claim()
    world.expire("b")
    world.expire("c")
    claims = [b.claim(), c.claim()]
    assert claims[0].still_owned() and claims[1] is None


def test_one_who_comes_two_generations_late_takes_nothing(world, monkeypatch):
    a, late, c = world.owner("a"), world.owner("late"), world.owner("c")
    first = a.claim()
    outdated = late.newest()
    first.release()
    a.claim()
    c.claim()
    world.expire("c")
    taken = c.claim()
    real, answers = Claims.newest, [replace(outdated, is_released=True)]
    monkeypatch.setattr(
        Claims,
        "newest",
        lambda self: answers.pop() if answers else real(self),
    )
    # Generation 2 could be made again, because the third owner has cleaned up.
    assert taken.generation == 3
    assert late.claim() is None
    assert taken.still_owned()


OPERATIONS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["claim", "claim", "release", "beat", "wait"]),
)


@given(st.lists(OPERATIONS, max_size=40))
def test_at_most_one_owns_whatever_happens(operations):
    world = World(ObjectFiles(), "claims")
    owners = {token: world.owner(token) for token in "abc"}
    claims = {}
    for token, operation in operations:
        if operation == "wait":
            world.expire(token)
        elif operation == "beat":
            owners[token].beat()
        elif operation == "claim":
            claims[token] = owners[token].claim() or claims.get(token)
        elif claims.get(token) is not None:
            claims[token].release()
        held = [
            token for token, claim in claims.items() if claim and claim.still_owned()
        ]
        assert len(held) <= 1
        free = owners["a"].holder() is None
        assert free == (not held)


def test_a_dead_process_of_this_machine_does_not_block(world):
    dead = replace(Owner.here(), process_start="0", token="dead")
    Claims(world.files, world.directory, dead).claim()
    b = Claims(world.files, world.directory, Owner.here())
    assert b.holder() is None
    assert b.claim().still_owned()


def test_a_live_process_of_this_machine_blocks(world):
    first = Claims(world.files, world.directory, Owner.here())
    second = Claims(world.files, world.directory, Owner.here())
    assert first.claim() is not None
    assert second.claim() is None
    assert str(os.getpid()) in str(second.holder())
    assert "last heartbeat" in str(second.holder())


def test_an_owner_elsewhere_shows_life_by_its_next_heartbeat(world):
    a, b = world.owner("a"), world.owner("b")
    assert not b.shows_life(), "nobody has it"
    claim = a.claim()
    assert not b.shows_life() and not b.shows_life()
    a.beat()
    assert b.shows_life()
    assert not world.owner("c").shows_life(), "it has not seen two heartbeats"
    claim.release()
    assert not b.shows_life()


def test_an_owner_here_shows_life_by_its_process(world):
    claims = Claims(world.files, world.directory, Owner.here())
    dead = replace(Owner.here(), process_start="0", token="dead")
    Claims(world.files, world.directory, dead).claim()
    assert not claims.shows_life()
    claims.claim()
    assert claims.shows_life()


@pytest.mark.parametrize("damage", [b"", b"junk"])
@pytest.mark.parametrize("suffix", [".claim", ".owner"])
def test_damaged_files_expire_like_a_silent_owner(world, damage, suffix):
    a, b = world.owner("a"), world.owner("b")
    lost = a.claim()
    for name in world.files.list_names(world.directory):
        if name.endswith(suffix):
            world.files.write_atomic(f"{world.directory}/{name}", damage)
    assert b.claim() is None
    assert str(b.holder())
    world.expire("b")
    assert b.claim().still_owned() and not lost.still_owned()


def test_deleted_claims_are_lost_and_free(world):
    a, b = world.owner("a"), world.owner("b")
    lost = a.claim()
    for name in world.files.list_names(world.directory):
        world.files.remove(f"{world.directory}/{name}")
    assert b.claim().generation == lost.generation
    assert not lost.still_owned()


def test_a_background_heartbeat_keeps_what_is_claimed(tmp_path):
    timing = Timing(beat_every=0.02, expire_after=0.4)
    a = Claims(LocalFiles(), str(tmp_path), _elsewhere("a"), timing)
    b = Claims(LocalFiles(), str(tmp_path), _elsewhere("b"), timing)
    claim = a.claim()
    a.start()
    a.start()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        assert b.claim() is None
        time.sleep(0.02)
    assert claim.still_owned()
    a.stop()
    until = time.monotonic() + 10.0
    while b.claim() is None:
        assert time.monotonic() < until, "a stopped owner never expired"
        time.sleep(0.02)
    assert not claim.still_owned()


def test_a_heartbeat_survives_a_full_disk(tmp_path):
    class Full(LocalFiles):
        is_full = False

        def write_many(self, contents):
            if self.is_full:
                raise StoreError("full", "x", 28)
            super().write_many(contents)

    files = Full()
    a = Claims(files, str(tmp_path), _elsewhere("a"), Timing(0.01, 1))
    a.claim()
    a.start()
    files.is_full = True
    time.sleep(0.1)
    files.is_full = False
    (file,) = tmp_path.glob("*.owner")
    before, until = file.read_bytes(), time.monotonic() + 10.0
    while file.read_bytes() == before:
        assert time.monotonic() < until, "the heartbeat has stopped"
        time.sleep(0.01)
    a.leave()
    assert not any(p.suffix == ".owner" for p in tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["kill", "full", "torn"])
def test_a_kill_while_claiming_never_blocks_for_ever(tmp_path, mode):
    def act(files, folder):
        world = World(files, folder)
        first = world.owner("a")
        first.claim().release()
        first.claim()

    for _, folder in at_every_write_point(tmp_path, mode, act):
        world = World(LocalFiles(), folder)
        b, c = world.owner("b"), world.owner("c")
        claim = b.claim()
        if claim is None:
            world.expire("b")
            claim = b.claim()
        assert claim is not None and claim.still_owned()
        assert c.claim() is None
