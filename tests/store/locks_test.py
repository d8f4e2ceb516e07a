"""Is a cell run by one owner at a time, and free as soon as that owner is dead?

`World` has owners on different machines, which share a folder and have clocks of their
own; `_run` has processes of this machine.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from dps_tf.store import LocalFiles, Lock, LockLost, Owner, StoreError, processes
from dps_tf.store.object_files import ObjectFiles
from tests.store.faulty_files import at_every_write_point
from tests.store.object_store import MemoryFiles

ROOT = Path(__file__).parents[2]


class NetworkFiles(LocalFiles):
    """A disk of several machines, whose flock does not reach from one to another."""

    is_local = False


class World:
    """Owners on different machines that share a folder and have their own clocks."""

    def __init__(self, files, directory: str) -> None:
        self.files, self.directory = files, directory
        self.claims = f"{directory}/claims"
        self.now: dict[str, float] = {}

    def lock(self, token: str) -> Lock:
        """Returns the lock as an owner elsewhere sees it, which beats by hand only."""
        self.now[token] = 1000.0
        return Lock(
            self.files,
            self.directory,
            replace(Owner(), machine=f"machine of {token}", token=token),
            beat_every=1e6,
            clock=lambda: self.now[token],
        )

    def here(self, **changes) -> Lock:
        """Returns the lock as a process of this machine sees it."""
        return Lock(self.files, self.directory, replace(Owner(), **changes))

    def expire(self, observer: str, seconds: float = 120) -> None:
        self.now[observer] += seconds


@pytest.fixture(params=["network disk", "objects"])
def world(request, tmp_path) -> World:
    if request.param == "objects":
        store = functools.cache(lambda url: MemoryStore())
        return World(ObjectFiles(store), "gs://bucket/cell")
    return World(NetworkFiles(), f"{tmp_path}/cell")


def test_a_held_lock_is_refused_to_others_until_released(world):
    a, b = world.lock("a"), world.lock("b")
    assert a.acquire() and a.still_owned() and not a.acquire()
    assert not b.acquire()
    assert str(a.owner.pid) in b.holder() and "last heartbeat" in b.holder()
    a.release()
    a.release()
    assert not a.still_owned() and b.holder() is None
    assert b.acquire() and b.still_owned()
    assert not a.acquire()


def test_a_silent_owner_expires_by_the_observers_clock(world):
    a, b = world.lock("a"), world.lock("b")
    assert a.acquire() and not b.acquire()
    world.expire("b", 119.9)
    assert not b.acquire()
    world.expire("b", 0.2)
    assert b.acquire()


def test_an_owner_that_beats_never_expires_however_seldom_one_looks(world):
    a, b = world.lock("a"), world.lock("b")
    a.acquire()
    for _ in range(5):
        assert not b.acquire()
        world.expire("b", 10_000)
        a.beat()
    assert not b.acquire()


def test_nothing_depends_on_the_clocks_of_files(tmp_path):
    world = World(NetworkFiles(), str(tmp_path))
    a, b = world.lock("a"), world.lock("b")
    a.acquire()
    for jump in (0, 4e9):
        for path in Path(world.claims).iterdir():
            os.utime(path, (jump, jump))
        assert not b.acquire() and a.still_owned()


def test_a_returning_owner_cannot_write_nor_undo_the_taking_over(world):
    lost, b = world.lock("a"), world.lock("b")
    lost.acquire()
    b.acquire()
    world.expire("b")
    assert b.acquire() and not lost.still_owned()
    with pytest.raises(LockLost, match=f"cell was taken over by process {os.getpid()}"):
        lost.check()
    lost.release()
    lost.beat()
    assert not lost.acquire()
    b.check()
    b.release()
    with pytest.raises(LockLost):
        lost.check()
    assert lost.acquire()
    assert f"cell.{3:08d}.claim" in world.files.list_names(world.claims)


def test_one_who_comes_two_generations_late_takes_nothing(world, monkeypatch):
    a, late, c = world.lock("a"), world.lock("late"), world.lock("c")
    a.acquire()
    a.release()
    a.acquire()
    c.acquire()
    world.expire("c")
    assert c.acquire()
    # Generation 2 could be made again, because the third owner has cleaned up.
    assert f"cell.{3:08d}.claim" in world.files.list_names(world.claims)
    real, outdated = Lock._newest, [(1, None)]
    monkeypatch.setattr(
        Lock, "_newest", lambda lock: outdated.pop() if outdated else real(lock)
    )
    assert not late.acquire()
    assert c.still_owned()


OPERATIONS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["acquire", "acquire", "release", "beat", "wait"]),
)


@given(st.lists(OPERATIONS, max_size=40))
def test_at_most_one_owns_whatever_happens(operations):
    world = World(MemoryFiles(), "cell")
    locks = {token: world.lock(token) for token in "abc"}
    try:
        for token, operation in operations:
            if operation == "wait":
                world.expire(token)
            else:
                getattr(locks[token], operation)()
            held = [token for token, lock in locks.items() if lock.still_owned()]
            assert len(held) <= 1
            assert (locks["a"].holder() is None) == (not held)
    finally:
        for lock in locks.values():
            lock.release()


def test_a_dead_process_of_this_machine_does_not_block(world):
    dead, alive = world.here(process_start="0", token="dead"), world.here()
    assert dead.acquire()
    assert alive.holder() is None and not alive.shows_life()
    assert alive.acquire()
    assert alive.shows_life()


def test_a_live_process_of_this_machine_blocks(world):
    first, second = world.here(), world.here()
    assert first.acquire() and not second.acquire()


def test_an_owner_elsewhere_shows_life_by_its_next_heartbeat(world):
    a, b = world.lock("a"), world.lock("b")
    assert not b.shows_life(), "nobody has it"
    a.acquire()
    assert not b.shows_life() and not b.shows_life()
    a.beat()
    assert b.shows_life()
    assert not world.lock("c").shows_life(), "it has not seen two heartbeats"
    a.release()
    assert not b.shows_life()


@pytest.mark.parametrize("damage", [b"", b"junk"])
@pytest.mark.parametrize("suffix", [".claim", ".owner"])
def test_damaged_files_expire_like_a_silent_owner(world, damage, suffix):
    a, b = world.lock("a"), world.lock("b")
    a.acquire()
    for name in world.files.list_names(world.claims):
        if name.endswith(suffix):
            world.files.write_atomic(f"{world.claims}/{name}", damage)
    assert not b.acquire() and b.holder()
    world.expire("b")
    assert b.acquire() and not a.still_owned()


def test_deleted_claims_are_lost_and_free(world):
    a, b = world.lock("a"), world.lock("b")
    a.acquire()
    for name in world.files.list_names(world.claims):
        world.files.remove(f"{world.claims}/{name}")
    assert b.acquire() and not a.still_owned()


def test_a_background_heartbeat_keeps_what_is_held(tmp_path):
    a, b = (
        Lock(
            NetworkFiles(),
            str(tmp_path),
            replace(Owner(), machine=token, token=token),
            beat_every=0.02,
            expire_after=0.4,
        )
        for token in "ab"
    )
    a.acquire()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        assert not b.acquire()
        time.sleep(0.02)
    assert a.still_owned()
    a._stop_heartbeat()
    until = time.monotonic() + 10.0
    while not b.acquire():
        assert time.monotonic() < until, "a stopped owner never expired"
        time.sleep(0.02)
    assert not a.still_owned()
    b.release()


def test_a_heartbeat_survives_a_full_disk(tmp_path):
    class Full(NetworkFiles):
        is_full = False

        def write_many(self, contents):
            if self.is_full:
                raise StoreError("full", "x", 28)
            super().write_many(contents)

    files = Full()
    lock = Lock(files, str(tmp_path), beat_every=0.01)
    lock.acquire()
    files.is_full = True
    time.sleep(0.1)
    files.is_full = False
    (file,) = tmp_path.glob("claims/*.owner")
    before, until = file.read_bytes(), time.monotonic() + 10.0
    while file.read_bytes() == before:
        assert time.monotonic() < until, "the heartbeat has stopped"
        time.sleep(0.01)
    lock.release()
    assert not list(tmp_path.glob("claims/*.owner"))


@pytest.mark.parametrize("mode", ["kill", "full", "torn"])
def test_a_kill_while_claiming_never_blocks_for_ever(tmp_path, mode):
    def act(files, folder):
        files.is_local = False
        lock = World(files, folder).lock("a")
        lock.acquire()
        lock.release()
        lock.acquire()

    for _, folder in at_every_write_point(tmp_path, mode, act):
        world = World(NetworkFiles(), folder)
        b, c = world.lock("b"), world.lock("c")
        if not b.acquire():
            world.expire("b")
            assert b.acquire()
        assert b.still_owned() and not c.acquire()


def test_a_lock_is_exclusive_inside_one_process_too(tmp_path):
    first, second = (Lock(LocalFiles(), str(tmp_path)) for _ in range(2))
    assert first.acquire()
    with first:
        assert not first.acquire() and not second.acquire()
    with pytest.raises(LockLost):
        first.check()
    assert second.holder() is None and second.acquire()
    assert not first.still_owned()
    second.release()


def test_a_link_named_lock_makes_nothing(tmp_path):
    cell, target = tmp_path / "cell", tmp_path / "elsewhere"
    cell.mkdir()
    (cell / "lock").symlink_to(target)
    with pytest.raises(StoreError, match="a link stands where a file belongs"):
        Lock(LocalFiles(), str(cell)).acquire()
    assert not target.exists()


def _without_power(files, directory: str) -> None:
    """Leaves what a power failure elsewhere leaves: a claim, and no flock."""
    lock = World(files, directory).lock("a machine that was switched off")
    lock.acquire()
    lock._stop_heartbeat()
    lock._release_flock()


def test_on_a_disk_of_this_machine_a_restart_does_not_block(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "is_on_local_disk", lambda _: True)
    _without_power(LocalFiles(), str(tmp_path))
    assert World(LocalFiles(), str(tmp_path)).lock("b").acquire()


def test_on_a_shared_disk_the_claim_of_another_machine_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "is_on_local_disk", lambda _: False)
    _without_power(LocalFiles(), str(tmp_path))
    world = World(LocalFiles(), str(tmp_path))
    b = world.lock("b")
    assert not b.acquire()
    world.expire("b")
    assert b.acquire()


def test_without_flock_the_claim_decides(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    monkeypatch.setattr(processes, "is_on_local_disk", lambda _: True)
    first, second = (Lock(LocalFiles(), str(tmp_path)) for _ in range(2))
    assert first.acquire() and not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_processes_are_told_apart_by_number_and_start(monkeypatch):
    pid = os.getpid()
    start = processes.process_start(pid)
    assert not processes.has_ended(pid, start) and not processes.has_ended(pid, "")
    assert processes.has_ended(pid, f"{start}1")
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert processes.has_ended(ended.pid, ""), "its parent has not asked yet"
    assert processes.has_ended(ended.pid, "")
    assert not processes.has_ended(1, "")
    assert not processes.is_on_local_disk("/no/such/place")
    assert not processes.is_on_local_disk("/proc")
    # Somebody sets the clock, by which psutil counts, ahead by an hour.
    before = psutil._pslinux.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: before + 3600)
    assert processes.process_start(pid) == start


def _run(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


HOLD = """
    import sys
    from dps_tf.store import LocalFiles, Lock
    print(Lock(LocalFiles(), sys.argv[1]).acquire(), flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_and_kill_9_releases(tmp_path):
    cell = str(tmp_path / "a cell")
    mine = Lock(LocalFiles(), cell)
    with _run(HOLD, cell) as child:
        try:
            assert child.stdout.readline() == "True\n"
            assert not mine.acquire()
            assert f"process {child.pid} on " in mine.holder()
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert mine.holder() is None
            assert mine.acquire() and mine.still_owned()
        finally:
            child.kill()
    with _run(HOLD, cell) as other:
        assert other.stdout.readline() == "False\n"
        other.stdin.close()
    mine.release()


WORK = """
    import os, signal, sys, time
    from pathlib import Path
    from dps_tf.store import LocalFiles, Lock
    class NetworkFiles(LocalFiles):
        is_local = False
    folder, dies = Path(sys.argv[1]), sys.argv[2] == "dies"
    files = LocalFiles() if sys.argv[3] == "flock" else NetworkFiles()
    locks = [Lock(files, f"{folder}/{n}") for n in range(12)]
    left = set(range(12))
    until = time.monotonic() + 60
    while left and time.monotonic() < until:
        for n in sorted(left):
            done = folder / f"{n}.done"
            if not done.exists() and not locks[n].acquire():
                continue
            if not done.exists():
                if dies and n >= 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                locks[n].check()
                with (folder / f"{n}.runs").open("a") as file:
                    file.write("x")
                done.write_text("")
            locks[n].release()
            left.discard(n)
        time.sleep(0.01)
    sys.exit(len(left))
"""


@pytest.mark.parametrize("by", ["flock", "claims"])
def test_processes_run_each_cell_once_and_take_over_from_the_killed(tmp_path, by):
    kinds = ("dies", "lives", "dies", "lives")
    children = [_run(WORK, str(tmp_path), kind, by) for kind in kinds]
    codes = [child.wait(90) for child in children]
    for child in children:
        child.stdin.close()
        child.stdout.close()
    assert codes[1] == codes[3] == 0
    assert [(tmp_path / f"{n}.runs").read_text() for n in range(12)] == ["x"] * 12
