from __future__ import annotations

import itertools
import random
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.core import TurnReport
from dps_tf.store import Irreproducible, StoreError, StudyHistory, saving
from dps_tf.tuning.interruption import Interrupted
from tests.core.naive_race import Study, answer
from tests.core.race_test import studies
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    SyntheticRunner,
    frames,
    reader_of,
    run,
    study_of,
    tables,
    trials_of,
    undisturbed,
)
from tests.store.object_store import MemoryFiles

STUDY = study_of(SIX)


def a_look_takes(seconds: float):
    """Patches the clock by which states are saved."""
    clock = SimpleNamespace(monotonic=itertools.count(seconds, seconds).__next__)
    return mock.patch.object(saving, "time", clock)


class KeptFiles(MemoryFiles):
    """Remembers what was on the disk after each write, as a kill would leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[str, tuple[bytes, float]]] = []

    def write_atomic(self, path: str, data: bytes) -> None:
        super().write_atomic(path, data)
        self.history.append(dict(self.objects))

    def remove(self, path: str) -> None:
        if path in self.objects:
            super().remove(path)
            self.history.append(dict(self.objects))

    def after(self, writes: int) -> MemoryFiles:
        """Returns the disk as a kill after that many writes leaves it."""
        files = MemoryFiles()
        files.objects = dict(self.history[writes])
        return files


@settings(max_examples=15)
@given(studies(), st.booleans(), st.integers(0, 2**32))
def test_kill_after_any_write_leaves_a_study_that_goes_on(found, often, seed):
    study, trials = found
    rng = random.Random(seed)
    expected = undisturbed(study, trials)
    disk, asked = KeptFiles(), study_of(study)
    runner = SyntheticRunner(trials, slots=2, slice_steps=4)
    with a_look_takes(30.0 if often else 0.0):
        run(disk, asked, runner)
    writes = range(len(disk.history))
    for write in rng.sample(writes, min(8, len(writes))):
        second, said = disk.after(write), []
        run(second, asked, SyntheticRunner(trials), say=said.append)
        # The log is on the disk before the states are.
        lost = "note: No state is left"
        assert all(told.startswith(lost) for told in said)
        assert tables(second, asked) == expected


@pytest.mark.parametrize("slots", [2, 4, 6])
def test_slots_execute_little_more_than_the_floor(slots):
    disk, runner = MemoryFiles(), SyntheticRunner(SIX_TRIALS, slots=slots)
    run(disk, STUDY, runner)
    floor = sum(row.end_step for row in answer(SIX_TRIALS, SIX).rows)
    steps = sum(turn.last - turn.first for turn in runner.turns)
    assert floor <= steps <= floor + 2 * slots * SIX.interval


def test_trials_run_side_by_side_in_as_many_slots_as_there_are():
    barrier = threading.Barrier(3, timeout=30)

    def meet(trial: int, step: int) -> None:
        if step == 0 and trial < 3:
            barrier.wait()

    runner = SyntheticRunner(SIX_TRIALS, slots=3, before_slice=meet)
    run(MemoryFiles(), STUDY, runner)
    assert runner.turns  # all three met, or the barrier would have broken


def test_feasible_budget_that_runs_out_is_said():
    study = Study(0.25, 10, 50, points=3, finishers=1, feasible=True, max_draws=7)
    trials = trials_of(*[([1] * 5, 5)] * 7)
    disk, asked = MemoryFiles(), study_of(study)
    result = run(disk, asked, SyntheticRunner(trials, slots=2))
    assert result.draws_exhausted and result.decided and len(result.trials) == 7


def failing(*numbers: int, at: int = 0):
    """Returns a `before_slice` in which trials fail at every step from one on."""

    def before_slice(trial: int, step: int) -> None:
        if trial in numbers and step >= at:
            raise MemoryError(f"no memory for trial {trial}")

    return before_slice


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("at", [0, 10, 14])
def test_failing_trial_is_tried_alone_and_stops_nobody(slots, at):
    # Trial 1 would be K_(1) at 30; without it K_(1) = 40, and one finisher is missing.
    disk = MemoryFiles()
    runner = SyntheticRunner(
        SIX_TRIALS, slots=slots, slice_steps=2, before_slice=failing(1, at=at)
    )
    run(disk, STUDY, runner)
    found = frames(disk, STUDY)["trials"].set_index("trial")
    assert found.loc[1, "outcome"] == "failed"
    assert "MemoryError: no memory for trial 1" in found.loc[1, "error"]
    assert found.loc[1, "end_step"] == at // 10 * 10
    assert list(found["outcome"].drop(1)) == [
        "incomplete",
        "incomplete",
        "infeasible",
        "complete",
        "incomplete",
    ]
    result = reader_of(disk, STUDY).result()
    assert result.finishers == ((40, 4),)
    assert not result.decided


def test_trial_that_only_fails_in_company_is_not_failed():
    running = set()
    lock = threading.Lock()

    class Crowded(SyntheticRunner):
        def run(self, slot: int, jobs, stop) -> list[TurnReport]:
            (job,) = jobs
            with lock:
                running.add(job.trial)
                crowded = len(running) > 1
            try:
                if job.trial == 2 and crowded:
                    raise MemoryError("too many")
                return super().run(slot, jobs, stop)
            finally:
                with lock:
                    running.discard(job.trial)

    disk = MemoryFiles()
    slowly = Crowded(SIX_TRIALS, slots=3, before_slice=lambda *_: time.sleep(0.002))
    run(disk, STUDY, slowly)
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)
    assert reader_of(disk, STUDY).history[2].failures == []


def test_failing_trial_is_tried_again_on_three_starts_and_then_no_more():
    disk = MemoryFiles()
    tried = []
    for _ in range(5):
        runner = SyntheticRunner(
            SIX_TRIALS,
            before_slice=lambda trial, step: (
                tried.append(trial) if trial == 1 else None,
                failing(1)(trial, step),
            ),
        )
        run(disk, STUDY, runner)
        tried.append(None)
    # In each of three starts: once with the others, once alone.
    assert tried == [1, 1, None] * 3 + [None] * 2
    assert len(reader_of(disk, STUDY).history[1].failures) == 3
    assert reader_of(disk, STUDY).result().trials[1].outcome == "failed"


def test_trial_that_cannot_be_pruned_fails_and_stops_nobody():
    class Unprunable(SyntheticRunner):
        def provenance(self, trial: int):
            if trial == 1:
                raise MemoryError("no memory for scores")
            return super().provenance(trial)

    disk = MemoryFiles()
    run(disk, STUDY, Unprunable(SIX_TRIALS, slots=2))
    found = frames(disk, STUDY)["trials"].set_index("trial")
    assert found.loc[1, "outcome"] == "failed"
    assert "no memory for scores" in found.loc[1, "error"]
    assert list(found["outcome"]).count("failed") == 1
    run(disk, STUDY, SyntheticRunner(SIX_TRIALS))
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)


def test_failed_trial_that_others_out_ran_decides_nothing():
    # Trial 5 fails at 30, and K_(2) = 40 of trial 4 needs it to 30 only.
    disk = MemoryFiles()
    runner = SyntheticRunner(SIX_TRIALS, slots=3, before_slice=failing(5, at=30))
    run(disk, STUDY, runner)
    assert reader_of(disk, STUDY).result().decided
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)


@pytest.mark.parametrize(
    "error",
    [StoreError("full", "p"), Irreproducible("other bits"), KeyboardInterrupt()],
)
def test_errors_that_are_no_trials_own_end_the_run_with_all_saved(error):
    def before_slice(trial: int, step: int) -> None:
        if trial == 4 and step == 10:
            raise error

    disk = MemoryFiles()
    runner = SyntheticRunner(SIX_TRIALS, slots=2, before_slice=before_slice)
    with pytest.raises(type(error)):
        run(disk, STUDY, runner)
    assert reader_of(disk, STUDY).history[4].failures == []
    again = SyntheticRunner(SIX_TRIALS)
    run(disk, STUDY, again)
    assert tables(disk, STUDY) == undisturbed(SIX, SIX_TRIALS)
    assert all(
        turn.first
        >= max((t.last for t in runner.turns if t.trial == turn.trial), default=0)
        for turn in again.turns
    )


def test_other_numbers_for_an_evaluation_that_is_known_are_refused():
    disk = MemoryFiles()
    with pytest.raises(Interrupted):
        run(disk, STUDY, SyntheticRunner(SIX_TRIALS, stop_at=9))
    for path in [path for path in disk.objects if "/states/" in path]:
        disk.remove(path)
    other = trials_of(*[[0.5] * 5] * 6)
    with pytest.raises(Irreproducible, match=r"Trial \d gave .* 0\.5"):
        run(disk, STUDY, SyntheticRunner(other))


def test_versions_may_stop_an_evaluation_elsewhere_and_differ_in_nothing_else():
    history = StudyHistory()
    values = {"train/loss": 1.0, "validation/classification_error": 0.30}
    work = {"kind": "evaluation", "trial": 0, "steps_executed": 10, "seconds": 0.0}
    event = work | {"step": 10, "metrics": values, "is_bound": True}
    history.add(event)
    elsewhere = values | {"validation/classification_error": 0.34}
    history.add(event | {"metrics": elsewhere})
    assert history[0].evaluations[10] == values
    for change in (
        {"metrics": elsewhere, "is_bound": False},
        {"metrics": values | {"train/loss": 1.5}},
    ):
        with pytest.raises(Irreproducible, match="rounds otherwise"):
            history.add(event | change)


def test_a_stop_that_comes_first_of_all_changes_nothing():
    runner = SyntheticRunner(SIX_TRIALS)
    runner.stop.set()
    with pytest.raises(Interrupted):
        run(MemoryFiles(), STUDY, runner)
    assert runner.turns == []


def test_a_stop_that_comes_when_all_is_decided_is_no_interruption():
    disk, runner = MemoryFiles(), SyntheticRunner(SIX_TRIALS)
    run(disk, STUDY, runner)
    runner.stop.set()
    assert run(disk, STUDY, runner).decided
