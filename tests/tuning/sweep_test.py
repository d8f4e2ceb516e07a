from __future__ import annotations

import itertools
import math
import re
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest

from dps_tf.cli.sweep_run import SweepRun
from dps_tf.core import StudyResult, SweepSpecification, TrialResult, UserError
from dps_tf.store import (
    LocalFiles,
    Lock,
    LockLost,
    Owner,
    SweepLayout,
    SweepReader,
    read_json,
)
from dps_tf.tuning import sweep
from dps_tf.tuning.interruption import Interrupted
from dps_tf.tuning.sweep import (
    SweepOutcome,
    check_directory,
    describe_failures,
    describe_result,
    start_sweep,
)
from tests.core.naive_race import Study
from tests.made_up.studies import (
    GIN,
    MEMORY,
    SyntheticRunner,
    launch,
    run,
    study_of,
    trials_of,
)
from tests.store.object_store import MemoryFiles

SMALL = Study(0.25, 10, 30, points=3, finishers=1, feasible=False, max_draws=0)
TRIALS = trials_of([1, 0, 0], [1, 1, 1], ([1, 1, 1], 15))
CELLS = tuple(study_of(SMALL, batch_size=size) for size in (8, 16, 32))
SWEEP = SweepSpecification(CELLS)


def test_cells_run_in_order_and_each_is_told(tmp_path):
    order, said, runner = [], [], SyntheticRunner(TRIALS)
    runner.before_slice = lambda *_: order.append(runner.study.cell.batch_size)
    outcome = launch(tmp_path, CELLS, runner, say=said.append)
    assert [size for size, _ in itertools.groupby(order)] == [8, 16, 32]
    assert list(outcome.ran) == [study.cell.name for study in CELLS]
    assert outcome.failed == [] and outcome.busy == {}
    assert len(said) == 3
    assert said[0].endswith("K* = 20 in (10, 20], trial 0 (1 complete, 2 censored)")
    layout = SweepLayout(str(tmp_path))
    cells = read_json(LocalFiles(), layout.sweep)["cells"]
    assert cells == [study.cell.name for study in CELLS]
    planned = SweepReader(LocalFiles(), str(tmp_path)).identities
    assert planned == {study.cell.name: study.cell for study in CELLS}
    assert LocalFiles().read_bytes(layout.config) == GIN.encode()


def test_finished_cells_are_not_run_again_and_need_no_runner():
    disk = MemoryFiles()
    for study in CELLS[1:]:
        run(disk, study, SyntheticRunner(TRIALS))
    left, idle = SyntheticRunner(TRIALS), SyntheticRunner(TRIALS)
    outcome = launch(disk, CELLS, left)
    assert outcome.finished_before == [study.cell.name for study in CELLS[1:]]
    assert list(outcome.ran) == [CELLS[0].cell.name] and left.study == CELLS[0]
    again = launch(disk, CELLS, idle)
    assert len(again.finished_before) == 3 and not again.ran and idle.study is None


def test_failed_trial_in_one_cell_does_not_stop_the_next():
    disk = MemoryFiles()

    def before_slice(trial: int, step: int) -> None:
        if runner.study.cell.batch_size == 8 and trial == 0:
            raise MemoryError("no memory")

    said, runner = [], SyntheticRunner(TRIALS, before_slice=before_slice)
    outcome = launch(disk, CELLS, runner, say=said.append)
    assert outcome.failed == [CELLS[0].cell.name]
    assert "no trial reached the goal" in said[0] and "1 failed" in said[0]
    assert len(outcome.ran) == 3
    mended = launch(disk, CELLS, SyntheticRunner(TRIALS))
    assert list(mended.ran) == [CELLS[0].cell.name] and mended.failed == []


def test_a_directory_is_a_sweeps_from_the_first_moment(tmp_path):
    layout = SweepLayout(str(tmp_path))

    class Watched(LocalFiles):
        """Looks at the directory after each change, as another process might."""

        def write_atomic(self, path: str, data: bytes) -> None:
            super().write_atomic(path, data)
            check_directory(self, layout)

    start_sweep(Watched(), layout, SWEEP, "")


def test_bound_is_called_a_bound():
    complete = TrialResult("complete", 20, 20, 10)
    failed = TrialResult("failed", 0, error="no memory")
    result = StudyResult((complete, failed), ((20, 0),), False, False)
    text = describe_result("cell", result)
    assert text == "cell: K* = at most 20 in (10, 20], trial 0 (1 complete, 1 failed)"


def test_only_empty_directories_and_sweeps_are_taken(tmp_path):
    files = LocalFiles()
    check_directory(files, SweepLayout(str(tmp_path / "new")))
    check_directory(files, SweepLayout(str(tmp_path)))
    start_sweep(files, SweepLayout(str(tmp_path / "sweep")), SWEEP, "")
    check_directory(files, SweepLayout(str(tmp_path / "sweep")))
    with pytest.raises(
        UserError, match="holds sweep and no sweep: choose a new or empty"
    ):
        check_directory(files, SweepLayout(str(tmp_path)))


def test_cells_of_another_sweep_in_the_directory_are_told():
    disk, said, again = MemoryFiles(), [], []
    launch(disk, CELLS, SyntheticRunner(TRIALS), say=said.append)
    launch(disk, CELLS[:1], SyntheticRunner(TRIALS), say=again.append)
    assert not any("more cell" in line for line in said)
    (note,) = [line for line in again if "more cell" in line]
    others = sorted(study.cell.name for study in CELLS[1:])
    assert "holds 2 more cells" in note and others[0] in note


class Elsewhere:
    """An owner of the first cell on another machine, and a clock that can be put on.

    Attributes:
        waited: seconds that were waited for it.
        beats: whether it still shows life, every fifteen seconds.
    """

    def __init__(self, monkeypatch, beats: bool) -> None:
        self.waited, self.beats = 0.0, beats
        self.files, self.runner = MemoryFiles(), SyntheticRunner(TRIALS)
        self._thread, self._real_sleep = threading.get_ident(), time.sleep
        self.cell = SweepLayout(MEMORY).cell(CELLS[0].cell.name)
        owner = Owner(1, "", "far", "another machine", 0.0, "far")
        self.lock = Lock(self.files, self.cell.root, owner, beat_every=1e6)
        start_sweep(self.files, SweepLayout(MEMORY), SWEEP, "")
        self._alarm: tuple[float, Callable[[], None]] = (math.inf, lambda: None)
        monkeypatch.setattr(sweep.time, "sleep", self.sleep)
        known = partial(sweep.Lock, clock=lambda: self.waited)
        monkeypatch.setattr(sweep, "Lock", known)

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        """Does something once so many seconds have been waited."""
        self._alarm = seconds, do

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:
            # `sleep` is replaced for the whole process, and earlier tests have left
            # threads that look around now and then.
            self._real_sleep(seconds)
            return
        before = self.waited // 15
        self.waited += seconds
        if self.beats and self.waited // 15 > before:
            self.lock.beat()
        if self.waited > self._alarm[0]:
            self._alarm[1]()

    def run(self) -> SweepOutcome:
        return launch(self.files, CELLS[:1], self.runner)


def test_cell_of_an_owner_elsewhere_that_died_is_run_after_two_minutes(monkeypatch):
    far = Elsewhere(monkeypatch, beats=False)
    assert far.lock.acquire()
    outcome = far.run()
    assert list(outcome.ran) == [CELLS[0].cell.name] and not outcome.busy
    assert 120 <= far.waited < 125
    with pytest.raises(LockLost):
        far.lock.check()


def test_cell_of_an_owner_elsewhere_that_lives_is_left_to_it(monkeypatch):
    far = Elsewhere(monkeypatch, beats=True)
    assert far.lock.acquire()
    outcome = far.run()
    assert not outcome.ran
    assert "process 1 on far" in outcome.busy[CELLS[0].cell.name]
    assert far.waited <= 16
    assert far.lock.still_owned()


def test_waiting_for_an_owner_elsewhere_ends_with_a_signal(monkeypatch):
    far = Elsewhere(monkeypatch, beats=False)
    assert far.lock.acquire()
    far.at(3, far.runner.stop.set)
    with pytest.raises(Interrupted):
        far.run()
    assert far.waited < 5


def test_study_on_an_object_store_leaves_nothing_of_keras_tuner(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = MemoryFiles()
    run(files, CELLS[0], SyntheticRunner(TRIALS))
    assert files.list_names(SweepLayout(MEMORY).cell(CELLS[0].cell.name).root) == [
        *("closed.json", "curves.parquet", "log", "states", "study.json"),
        *("trials.parquet", "work.parquet"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_failures_are_told_with_the_cause_of_the_first():
    disk = MemoryFiles()

    def burst(trial: int, step: int) -> None:
        # Trial 0 has met the goal at 20 and was to go on: its curve is not whole.
        if trial == 2 or (trial, step) == (0, 20):
            raise ValueError(f"no memory for {trial}")

    study = study_of(SMALL, search_mode="exhaustive", stop_at_goal=False)
    failed = launch(disk, [study], SyntheticRunner(TRIALS, before_slice=burst))
    (name,) = failed.failed
    assert describe_failures("cell", failed.ran[name]) == (
        "cell: trials that failed: 0, 2; cause of the first: "
        "ValueError: no memory for 0"
    )
    mended = launch(disk, [study], SyntheticRunner(TRIALS)).ran[name]
    assert mended.decided and [t.end_step for t in mended.trials] == [30, 30, 15]


def test_a_failed_trial_is_tried_as_often_as_is_said(capsys):
    disk, tried = MemoryFiles(), set()

    def burst(start: int, trial: int, step: int) -> None:
        if trial == 2:
            tried.add(start)
            raise ValueError("no memory")

    study = study_of(SMALL, search_mode="exhaustive")
    teller = mock.create_autospec(SweepRun, instance=True)
    for start in range(5):
        runner = SyntheticRunner(TRIALS, before_slice=partial(burst, start))
        outcome = launch(disk, [study], runner)
        SweepRun.print_outcome(teller, outcome)
    (said,) = {*re.findall(r"tries a trial (.+) times", capsys.readouterr().err)}
    assert tried == {*range(int(said))}
