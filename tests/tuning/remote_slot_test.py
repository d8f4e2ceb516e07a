"""The process of a slot, called as a cluster calls it, without one."""

from __future__ import annotations

import dataclasses

import pytest

from dps_tf.core.execution import Job, TrialState
from dps_tf.tuning.options import Options
from dps_tf.tuning.remote_slot import RemoteSlot, StateMissing
from dps_tf.tuning.simulation import SimulatedRunner
from dps_tf.workloads.reading import read_configuration

STUDIES = read_configuration(["nqm/sgd"], ["sweep.batch_sizes = (64, 256, 1024)"])[0]
STUDY = STUDIES.studies[0]
CELL = STUDY.cell.name


@pytest.fixture(name="slot")
def _slot() -> RemoteSlot:
    slot = RemoteSlot(dataclasses.asdict(Options("unused")))
    slot.open(STUDY.to_json())
    return slot


def jobs(turns: int) -> list[Job]:
    """Returns the turns of one trial, each on from the one before."""
    interval = STUDY.evaluations.interval
    states = [None, *(TrialState(interval * n, ()) for n in range(1, turns))]
    point = {"learning_rate": 0.01}
    return [Job(0, point, state, interval * (n + 1)) for n, state in enumerate(states)]


def test_turns_are_those_of_one_machine_and_states_stay(slot):
    runner = SimulatedRunner(STUDY)
    for job in jobs(4):
        there = slot.run(CELL, job, None)
        here = runner.run(0, job, lambda: False)
        assert there.metrics == here.metrics and there.step == here.step
        assert there.state == TrialState(job.until, ())


def test_a_state_is_shown_or_moves_for_good(slot):
    first, second = jobs(2)
    slot.run(CELL, first, None)
    assert slot.give(CELL, 0, keep=True).step == first.until
    moved = slot.give(CELL, 0, keep=False)
    assert slot.give(CELL, 0, keep=True) is None
    with pytest.raises(StateMissing, match="trial 0"):
        slot.run(CELL, second, None)
    assert slot.run(CELL, second, moved).step == second.until


def test_a_state_of_another_step_is_not_gone_on_from(slot):
    first, _, third = jobs(3)
    slot.run(CELL, first, None)
    with pytest.raises(StateMissing):
        slot.run(CELL, third, None)


def test_states_outlive_the_programs_that_make_way_for_other_studies(slot):
    first, second = jobs(2)
    slot.run(CELL, first, None)
    for study in STUDIES.studies[1:]:
        slot.open(study.to_json())
    assert slot.run(CELL, second, None).step == second.until
    slot.close(CELL)
    assert slot.give(CELL, 0, keep=True) is None
