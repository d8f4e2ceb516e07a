"""Slots that hold states, and are lost: the race of a cluster, in memory."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import ClusterRunner, Job, SlotLost, TrialState, TurnReport
from dps_tf.store import saving
from dps_tf.tuning.driver import assign
from tests.made_up.studies import (
    SIX,
    SIX_TRIALS,
    SyntheticRunner,
    reader_of,
    run,
    study_of,
)
from tests.store.object_store import MemoryFiles

STUDY = study_of(SIX)


@dataclass(frozen=True)
class Held(TrialState):
    slot: int = -1


@dataclass
class LosingRunner(SyntheticRunner, ClusterRunner):
    """Keeps states in its slots, some of which are lost during a turn, at random.

    Attributes:
        seed: of what is lost.
        chance: of a turn to lose its slot.
        killers: trials whose every turn ends the process of its slot.
        moves: turns before which a state went to another slot.
    """

    seed: int = 0
    chance: float = 0.0
    killers: frozenset[int] = frozenset()
    moves: int = 0
    live: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._guard = threading.Lock()
        self.live = list(range(self.slots))
        self._next = self.slots
        self._states: dict[int, tuple[int, TrialState]] = {}
        self._lost: list[int] = []

    def idle_slots(self, busy: Collection[int], wanted: int) -> list[int]:
        return [slot for slot in self.live if slot not in busy][:wanted]

    def slot_of(self, trial: int) -> int | None:
        with self._guard:
            return self._states[trial][0] if trial in self._states else None

    def lost_trials(self) -> list[int]:
        with self._guard:
            lost, self._lost = self._lost, []
            return lost

    def fetch(self, states: Mapping[int, TrialState]) -> Mapping[int, TrialState]:
        with self._guard:
            return {
                trial: self._states[trial][1] if isinstance(state, Held) else state
                for trial, state in states.items()
                if not isinstance(state, Held) or trial in self._states
            }

    def new_environments(self) -> list:
        return []

    def run(self, slot: int, jobs: Sequence[Job], stop) -> list[TurnReport]:
        with self._guard:
            jobs = [self._with_state(job, slot) for job in jobs]
        reports = super().run(0, jobs, stop)
        with self._guard:
            is_killed = any(job.trial in self.killers for job in jobs)
            if is_killed or self._chance.random() < self.chance:
                self._lose(slot)
                raise SlotLost("gone", is_suspect=is_killed)
            self._states |= {r.trial: (slot, r.state) for r in reports}
        return [replace(r, state=Held(r.step, (), slot=slot)) for r in reports]

    def _with_state(self, job: Job, slot: int) -> Job:
        if not isinstance(job.state, Held):
            return job
        if job.trial not in self._states:
            raise SlotLost(f"slot {job.state.slot} is gone")
        home, state = self._states.pop(job.trial)
        self.moves += home != slot
        return replace(job, state=state)

    def _lose(self, slot: int) -> None:
        self.live.remove(slot)
        self.live.append(self._next)
        self._next += 1
        self._lost += [t for t, (home, _) in self._states.items() if home == slot]
        self._states = {t: s for t, s in self._states.items() if s[0] != slot}


class SlowFiles(MemoryFiles):
    """A disk on which saving states takes ten seconds, by its clock: 20 s a look."""

    now, saves = 0.0, 0

    def monotonic(self) -> float:
        self.now += 20.0
        return self.now

    def write_many(self, contents: Mapping[str, bytes]) -> None:
        super().write_many(contents)
        self.now += 10.0
        self.saves += 1


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_saving_takes_no_more_than_its_share_of_the_time(monkeypatch, share):
    monkeypatch.setattr(saving, "SNAPSHOT_SHARE", share)
    files = SlowFiles()
    monkeypatch.setattr(saving, "time", files)
    run(files, STUDY, SyntheticRunner(SIX_TRIALS))
    # The first comes before anything is known, two because all is at an end: the states
    # and the tables.
    assert 3 <= files.saves <= 3 + share * files.now / 10.0


def test_one_slow_save_does_not_put_off_the_next_for_ever(monkeypatch):
    monkeypatch.setattr(saving, "SNAPSHOT_SHARE", 1e-6)
    monkeypatch.setattr(saving, "SNAPSHOT_LIMIT", 200.0)
    files = SlowFiles()
    monkeypatch.setattr(saving, "time", files)
    run(files, STUDY, SyntheticRunner(SIX_TRIALS))
    # A look may come late by two, and saving itself takes one and a half.
    assert files.saves >= files.now / (200.0 + 2 * 20.0 + 30.0) - 1
    assert files.saves > 3


def test_the_log_is_written_while_saving_states_waits(monkeypatch):
    monkeypatch.setattr(saving, "SNAPSHOT_SHARE", 1e-6)
    monkeypatch.setattr(saving, "SNAPSHOT_LIMIT", math.inf)
    files = SlowFiles()
    monkeypatch.setattr(saving, "time", files)
    known = []

    def look(trial: int, step: int) -> None:
        trials = reader_of(files, STUDY).history.trials.values()
        known.append(sum(len(trial.evaluations) for trial in trials))

    run(files, STUDY, SyntheticRunner(SIX_TRIALS, before_slice=look))
    assert files.saves == 3
    assert len(set(known)) > 3


@pytest.mark.parametrize(
    ("idle", "ready", "homes", "expected"),
    [
        ([0, 1], [7, 8], {7: 1, 8: 0}, {(0, 8), (1, 7)}),
        ([0, 1], [7, 8], {}, {(0, 7), (1, 8)}),
        ([0, 1], [7, 8], {7: 0, 8: 0}, {(0, 7), (1, 8)}),
        ([2], [7, 8], {7: 0, 8: None}, {(2, 8)}),
        ([2], [7, 8], {7: 0, 8: 1}, {(2, 7)}),
        ([0, 1], [], {}, set()),
    ],
    ids=["at home", "anywhere", "moved", "begins", "most urgent", "nothing"],
)
def test_who_runs_where(idle, ready, homes, expected):
    assert set(assign(idle, ready, homes)) == expected


@given(st.data())
def test_no_slot_is_idle_while_a_trial_is_ready(data):
    idle = data.draw(st.lists(st.integers(0, 9), unique=True))
    ready = data.draw(st.lists(st.integers(0, 30), unique=True))
    homes = {t: data.draw(st.none() | st.integers(0, 9)) for t in ready}
    found = assign(idle, ready, homes)
    assert len(found) == min(len(idle), len(ready))
    assert len({slot for slot, _ in found}) == len({t for _, t in found}) == len(found)
