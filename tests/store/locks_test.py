from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from dps_tf.store import (
    LocalFiles,
    LockLost,
    Locks,
    Owner,
    StoreError,
    Timing,
    locks,
    owners,
)
from tests.store.object_store import ObjectFiles

ROOT = Path(__file__).parents[2]


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
    from dps_tf.store.files import LocalFiles
    from dps_tf.store.locks import Locks
    lock = Locks(LocalFiles()).acquire(sys.argv[1])
    print("have it" if lock else "refused", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_and_kill_9_releases(tmp_path):
    cell = str(tmp_path / "a cell")
    mine = Locks(LocalFiles())
    with _run(HOLD, cell) as child:
        try:
            assert child.stdout.readline() == "have it\n"
            assert mine.acquire(cell) is None
            assert mine.holder(cell).owner.pid == child.pid
            assert str(child.pid) in str(mine.holder(cell))
            child.send_signal(signal.SIGKILL)
            child.wait()
            assert mine.holder(cell) is None
            lock = mine.acquire(cell)
            assert lock is not None and lock.still_owned()
        finally:
            child.kill()
    with _run(HOLD, cell) as other:
        assert other.stdout.readline() == "refused\n"
        other.stdin.close()
    lock.release()


COMPETE = """
    import sys
    from pathlib import Path
    from dps_tf.store.files import LocalFiles
    from dps_tf.store.locks import Locks
    locks, folder = Locks(LocalFiles()), Path(sys.argv[1])
    sys.stdin.readline()
    for n in range(10):
        lock = locks.acquire(f"{folder}/{n}")
        if lock is not None:
            lock.check()
            with (folder / f"{n}.done").open("a") as file:
                file.write("x")
"""


def test_of_competing_processes_each_cell_gets_exactly_one(tmp_path):
    children = [_run(COMPETE, str(tmp_path)) for _ in range(4)]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    # Each holds what it got until it ends; the last cells go to whoever is left.
    assert [child.wait(60) for child in children] == [0] * 4
    for child in children:
        child.stdin.close()
        child.stdout.close()
    locks_ = Locks(LocalFiles())
    for n in range(10):
        assert (tmp_path / f"{n}.done").read_text().startswith("x")
        lock = locks_.acquire(f"{tmp_path}/{n}")
        assert lock is not None, "a process that has ended blocks"
        lock.release()


def test_a_lock_is_exclusive_inside_one_process_too(tmp_path):
    first, second = Locks(LocalFiles()), Locks(LocalFiles())
    with first.acquire(str(tmp_path)) as lock:
        assert first.acquire(str(tmp_path)) is None
        assert second.acquire(str(tmp_path)) is None
    assert not lock.still_owned()
    with pytest.raises(LockLost):
        lock.check()
    assert second.holder(str(tmp_path)) is None
    with second.acquire(str(tmp_path)) as other:
        assert other.still_owned() and not lock.still_owned()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _on(files, machine: str) -> tuple[Locks, Clock]:
    owner, clock = replace(Owner.here(), machine=machine, token=machine), Clock()
    return Locks(files, owner, Timing(15, 120), clock), clock


def test_a_link_named_lock_makes_nothing(tmp_path):
    cell, target = tmp_path / "cell", tmp_path / "elsewhere"
    cell.mkdir()
    (cell / "lock").symlink_to(target)
    with pytest.raises(StoreError, match="a link stands where a file belongs"):
        Locks(LocalFiles()).acquire(str(cell))
    assert not target.exists()


def test_across_machines_a_silent_owner_is_taken_over(monkeypatch):
    files = ObjectFiles()
    (a, _), (b, clock) = _on(files, "a"), _on(files, "b")
    lost = a.acquire("gs://b/cell")
    assert b.acquire("gs://b/cell") is None
    assert a.acquire("gs://b/cell") is None
    lost.claims.stop()
    clock.now += 120
    taken = b.acquire("gs://b/cell")
    assert taken.still_owned()
    with pytest.raises(LockLost, match="taken over"):
        lost.check()
    lost.release()
    assert taken.still_owned()
    taken.release()


def test_on_a_disk_of_this_machine_a_restart_does_not_block(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.owners, "is_on_local_disk", lambda _: True)
    before, _ = _on(LocalFiles(), "this machine before it was restarted")
    lock = before.acquire(str(tmp_path))
    # What a power failure leaves: the claim, but nobody who holds the flock.
    lock.claims.stop()
    lock._flock.release()
    assert Locks(LocalFiles()).acquire(str(tmp_path)) is not None


def test_on_a_shared_disk_the_claim_of_another_machine_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.owners, "is_on_local_disk", lambda _: False)
    (a, _), (b, clock) = _on(LocalFiles(), "a"), _on(LocalFiles(), "b")
    lock = a.acquire(str(tmp_path))
    # As on network file systems whose flock does not reach other machines.
    lock._flock.release()
    assert b.acquire(str(tmp_path)) is None
    lock.claims.stop()
    clock.now += 121
    assert b.acquire(str(tmp_path)).still_owned()
    assert not lock.still_owned()


def test_without_flock_the_claim_decides(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    first = Locks(LocalFiles()).acquire(str(tmp_path))
    assert first is not None
    assert Locks(LocalFiles()).acquire(str(tmp_path)) is None
    first.release()
    assert Locks(LocalFiles()).acquire(str(tmp_path)) is not None


def test_processes_are_told_apart_by_number_and_start():
    pid = os.getpid()
    start = owners.process_start(pid)
    assert not owners.is_surely_dead(pid, start)
    assert not owners.is_surely_dead(pid, "")
    if start:
        assert owners.is_surely_dead(pid, f"{start}1")
    child = subprocess.run(["true"], check=False)
    assert child.returncode == 0
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert owners.is_surely_dead(ended.pid, ""), "its parent has not asked yet"
    assert owners.is_surely_dead(ended.pid, "")
    assert not owners.is_surely_dead(1, "")
    assert owners.machine() == owners.machine()
    assert not owners.is_on_local_disk("/no/such/place")
    assert not owners.is_on_local_disk("/proc")


CLAIM = """
    import os, signal, sys, time
    from pathlib import Path
    from dps_tf.store.locks import Claims
    from dps_tf.store.files import LocalFiles
    from dps_tf.store.owners import Owner
    folder, dies = Path(sys.argv[1]), sys.argv[2] == "dies"
    claims = [
        Claims(LocalFiles(), f"{folder}/claims/{n}", Owner.here()) for n in range(12)
    ]
    open_trials = set(range(12))
    until = time.monotonic() + 60
    while open_trials and time.monotonic() < until:
        for trial in sorted(open_trials):
            done = folder / f"{trial}.done"
            if done.exists():
                open_trials.discard(trial)
                continue
            claim = claims[trial].claim()
            if claim is None:
                continue
            if done.exists():
                claim.release()
                continue
            if dies and trial >= 3:
                os.kill(os.getpid(), signal.SIGKILL)
            claim.check()
            with (folder / f"{trial}.runs").open("a") as file:
                file.write("x")
            done.write_text("")
            claim.release()
            open_trials.discard(trial)
        time.sleep(0.01)
    sys.exit(len(open_trials))
"""


def test_workers_split_what_there_is_and_take_over_from_the_killed(tmp_path):
    children = [
        _run(CLAIM, str(tmp_path), kind) for kind in ("dies", "lives", "dies", "lives")
    ]
    codes = [child.wait(90) for child in children]
    for child in children:
        child.stdin.close()
        child.stdout.close()
    assert codes[1] == codes[3] == 0
    assert [(tmp_path / f"{n}.runs").read_text() for n in range(12)] == ["x"] * 12
