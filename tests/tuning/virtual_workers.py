"""Workers of one cell in virtual time: the real driver and claims, on a disk in memory.

One of them runs at a time, until it waits; then the one that is to wake first. So
everything is a function of what is asked, and hours take seconds.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.core.execution import Job, Runner, TrialProvenance, TurnReport
from dps_tf.core.study import StudySpecification
from dps_tf.store import owners
from dps_tf.store.claims import Claims
from dps_tf.store.layout import CellLayout
from dps_tf.store.owners import Owner
from dps_tf.store.study_history import StudyHistory
from dps_tf.store.study_opening import open_study
from dps_tf.store.study_reader import StudyReader, study_tables
from dps_tf.store.study_record import StudyRecord
from dps_tf.tuning import driver
from dps_tf.tuning.driver import StudyDriver
from dps_tf.tuning.sharing import SharedCell
from tests.store.object_store import ObjectFiles
from tests.tuning.studies import ENVIRONMENT, TRAINING_INPUTS

LAYOUT = CellLayout("gs://bucket/sweep/cells/cell")


class Killed(BaseException):
    """Ends a worker where it stands; what it would still write is not written."""


class World:
    """Virtual time.

    Attributes:
        now: seconds.
        errors: of actors, those of killed ones left out.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.errors: list[BaseException] = []
        self._waking: list[tuple[float, int, threading.Event]] = []
        self._count = 0
        self._threads: list[threading.Thread] = []
        self._all_done = threading.Event()

    def clock(self) -> float:
        return self.now

    def add(self, act: Callable[[], object], at: float = 0.0) -> None:
        """Adds an actor that begins at a time; before `run`, or by another actor."""
        woken = self._wake(at)

        def live() -> None:
            woken.wait()
            try:
                act()
            except Killed:
                pass
            except BaseException as error:
                self.errors.append(error)
            self._next()

        self._threads.append(threading.Thread(target=live, daemon=True))
        self._threads[-1].start()

    def run(self) -> None:
        """Returns when every actor has ended; raises the first error of one."""
        self._next()
        assert self._all_done.wait(600), "the actors wait for ever"
        if self.errors:
            raise self.errors[0]

    def sleep(self, seconds: float) -> None:
        woken = self._wake(self.now + seconds)
        self._next()
        woken.wait()

    def _wake(self, at: float) -> threading.Event:
        woken = threading.Event()
        self._count += 1
        heapq.heappush(self._waking, (at, self._count, woken))
        return woken

    def _next(self) -> None:
        if not self._waking:
            self._all_done.set()
            return
        self.now, _, woken = heapq.heappop(self._waking)
        woken.set()


class VirtualFiles(ObjectFiles):
    """One worker's view of the disk; nothing reaches it any more once he is dead.

    Args:
        world: whose time requests take.
        objects: of the disk.
        latency: seconds that a request takes.
        can_append: whether logs grow, as on a disk.
    """

    def __init__(
        self, world: World, objects: dict, latency: float, can_append: bool
    ) -> None:
        super().__init__()
        self.objects = objects
        self.is_dead = False
        self.silent_until = 0.0
        self.can_append = can_append
        self._world, self._latency = world, latency

    def _request(self) -> None:
        if self._latency and not self.is_dead:
            self._world.sleep(self._latency)
        while self.silent_until > self._world.now:
            self._world.sleep(self.silent_until - self._world.now)
        if self.is_dead:
            raise Killed

    def read_bytes(self, path: str) -> bytes:
        self._request()
        return super().read_bytes(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self._request()
        super().write_atomic(path, data)

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        self._request()
        for path, data in contents.items():
            super().write_atomic(path, data)

    def append(self, path: str, data: bytes, sync: bool = True) -> None:
        self._request()
        known = self.objects.get(path, (b"", 0.0))[0]
        super().write_atomic(path, known + data)

    def list_names(self, directory: str) -> list[str]:
        self._request()
        return super().list_names(directory)

    def remove(self, path: str) -> None:
        self._request()
        super().remove(path)

    def create_exclusive(self, path: str, data: bytes) -> bool:
        self._request()
        if path in self.objects:
            return False
        super().write_atomic(path, data)
        return True


@dataclass(frozen=True)
class Worker:
    """How one worker is.

    Attributes:
        speed: steps that a slot makes in a second.
        slots: turns side by side.
        arrives: when.
        dies: when, without a word; None is never.
        silent: from when to when it is stopped, like a machine that is suspended.
        spread: of the logarithm of the time of a turn.
        is_here: whether its processes can be seen by the other workers.
    """

    speed: float = 100.0
    slots: int = 1
    arrives: float = 0.0
    dies: float | None = None
    silent: tuple[float, float] | None = None
    spread: float = 0.2
    is_here: bool = True


class _Slots:
    """In the place of a pool of threads: a turn is computed when its time is over."""

    def __init__(self, slots: int, prefix: str) -> None:
        del slots, prefix

    def __enter__(self) -> _Slots:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def submit(self, run: Any, slot: int, job: Job, stop: Any) -> _Turn:
        return _Turn(run.__self__, lambda: run(slot, job, stop), job)


class _Turn(Future):
    """A turn under way."""

    def __init__(
        self, runner: TimedRunner, compute: Callable[[], TurnReport], job: Job
    ) -> None:
        super().__init__()
        self.world = runner.world
        self.ends = self.world.now + runner.seconds(job)
        self.compute = compute

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Is asked before the end only by a driver that leaves."""
        if not self.done():
            self.world.sleep(max(0.0, self.ends - self.world.now))
            self.set_result(self.compute())
        return super().exception(timeout)


def _wait(running: Mapping[Any, Any], timeout: float, when: str) -> tuple[set, set]:
    del when
    if not any(turn.done() for turn in running):
        world = next(iter(running)).world
        end = min(turn.ends for turn in running)
        world.sleep(min(max(0.0, end - world.now), timeout))
        for turn in running:
            if turn.ends <= world.now:
                turn.set_result(turn.compute())
    return {turn for turn in running if turn.done()}, set()


@dataclass
class TimedRunner:
    """Makes turns of another runner take the time of a worker."""

    inner: Runner
    world: World
    worker: Worker
    random: np.random.Generator
    runs: list[int] = field(default_factory=list)

    @property
    def slots(self) -> int:
        return self.worker.slots

    def provenance(self, trial: int) -> TrialProvenance:
        return self.inner.provenance(trial)

    def seconds(self, job: Job) -> float:
        steps = job.until - (0 if job.state is None else job.state.step)
        noise = self.random.normal(0.0, self.worker.spread)
        return steps / self.worker.speed * float(np.exp(noise))

    def run(self, slot: int, job: Job, stop: Callable[[], bool]) -> TurnReport:
        del slot
        self.runs.append(job.trial)
        return replace(self.inner.run(0, job, stop), seconds=0.0)


@dataclass
class Outcome:
    """What the workers have left on the disk.

    Attributes:
        tables: `trials`, `curves`, `work`.
        seconds: until the last of them knew the result.
        history: of all logs.
    """

    tables: dict[str, pd.DataFrame]
    seconds: float
    history: StudyHistory

    def total(self, quantity: str) -> float:
        work = self.tables["work"]
        rows = work[work["trial"].isna() & (work["quantity"] == quantity)]
        return float(rows["value"].iloc[0])

    @property
    def step_ratio(self) -> float:
        """Steps that were executed over those that the result needs."""
        return self.total("steps") / self.total("floor_steps")


@dataclass
class _Cell:
    """What the workers of a cell have in common."""

    study: StudySpecification
    runner: Runner
    latency: float
    can_append: bool
    seed: int
    world: World = field(default_factory=World)
    objects: dict = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    decided_at: list[float] = field(default_factory=list)
    closed_by: list[str] = field(default_factory=list)

    def add(self, number: int, worker: Worker) -> None:
        self.world.add(lambda: self._live(number, worker), worker.arrives)

    def _live(self, number: int, worker: Worker) -> None:
        world = self.world
        files = VirtualFiles(world, self.objects, self.latency, self.can_append)
        machine = owners.machine() if worker.is_here else f"machine {number}"
        owner = Owner(number, "", "host", machine, 0.0, f"worker{number}")
        claims = Claims(files, LAYOUT.claims, owner, clock=world.clock)
        claims.start = lambda: None  # type: ignore[method-assign]
        left = self._begin_to_beat(files, claims)
        self._add_misfortune(number, worker, files)
        share = SharedCell(
            files, LAYOUT, claims, worker.slots, world.sleep, world.clock
        )
        try:
            assert share.join()
            record = self._open(files, share)
            random = np.random.default_rng([self.seed, number])
            timed = TimedRunner(self.runner, world, worker, random)
            self._drive(record, timed, share)
            share.leave()
        finally:
            left.set()

    def _begin_to_beat(self, files: VirtualFiles, claims: Claims) -> threading.Event:
        left = threading.Event()

        def beat() -> None:
            while not left.is_set() and not files.is_dead:
                claims.beat()
                self.world.sleep(15.0)

        self.world.add(beat, self.world.now)
        return left

    def _add_misfortune(self, number: int, worker: Worker, files: VirtualFiles) -> None:
        def die() -> None:
            files.is_dead = True
            self.ended.add(number)

        def fall_silent(until: float) -> None:
            files.silent_until = until

        if worker.dies is not None:
            self.world.add(die, worker.dies)
        if worker.silent is not None:
            start, end = worker.silent
            self.world.add(lambda: fall_silent(end), start)

    def _open(self, files: VirtualFiles, share: SharedCell) -> StudyRecord:
        record = open_study(
            files,
            LAYOUT,
            self.study,
            ENVIRONMENT,
            TRAINING_INPUTS,
            writer=share.writer,
            follower=share.follower,
        )
        record._clock, record._saved_at = self.world.clock, self.world.now
        share.follow_for(record)
        return record

    def _drive(
        self, record: StudyRecord, runner: TimedRunner, share: SharedCell
    ) -> None:
        study = self.study
        points = study.workload.draw(study.cell.seed, study.rule.draws_limit)
        plan = StudyDriver(
            record, runner, points.__getitem__, lambda: False, company=share
        ).run()
        assert plan.decided
        self.decided_at.append(self.world.now)
        if self.closed_by or not share.claim_closing():
            return
        self.closed_by.append(share.writer)
        share.await_others(lambda: False)
        share.check_closing()
        for trial in range(plan.prefix):
            if record.history[trial].provenance is None:
                record.add_provenance(trial, runner.provenance(trial))
        record.snapshot(force=True)


def run_together(
    study: StudySpecification,
    runner: Runner,
    workers: Sequence[Worker],
    monkeypatch: Any,
    *,
    latency: float = 0.0,
    can_append: bool = True,
    seed: int = 0,
) -> Outcome:
    """Runs a study in the company of virtual workers; exactly one closes it."""
    cell = _Cell(study, runner, latency, can_append, seed)
    monkeypatch.setattr(driver, "ThreadPoolExecutor", _Slots)
    monkeypatch.setattr(driver, "wait", _wait)
    monkeypatch.setattr(owners, "is_surely_dead", lambda pid, start: pid in cell.ended)
    for number, worker in enumerate(workers):
        cell.add(number, worker)
    cell.world.run()
    assert len(cell.closed_by) == 1
    return _outcome(study, cell.objects, max(cell.decided_at))


def _outcome(study: StudySpecification, objects: dict, seconds: float) -> Outcome:
    files = ObjectFiles()
    files.objects = objects
    reader = StudyReader(files, LAYOUT)
    history = reader.history
    assert reader.problems == []
    _, tables = study_tables(study, history, TRAINING_INPUTS, closed=True)
    return Outcome(tables, seconds, history)
