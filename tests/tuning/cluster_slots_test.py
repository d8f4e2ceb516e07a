"""Slots of a cluster, and the pool that leases them, without a cluster."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import Job, TrialState
from dps_tf.tuning.cluster_slots import RemoteSlot, SlotPool, StateMissing
from dps_tf.tuning.options import Options
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
        (there,) = slot.run(CELL, [job], None)
        (here,) = runner.run(0, [job], lambda: False)
        assert there.metrics == here.metrics and there.step == here.step
        assert there.state == TrialState(job.until, ())


def test_a_state_is_shown_or_moves_for_good(slot):
    first, second = jobs(2)
    slot.run(CELL, [first], None)
    assert slot.give(CELL, 0, keep=True).step == first.until
    moved = slot.give(CELL, 0, keep=False)
    assert slot.give(CELL, 0, keep=True) is None
    with pytest.raises(StateMissing, match="trial 0"):
        slot.run(CELL, [second], None)
    assert slot.run(CELL, [second], moved)[0].step == second.until


def test_a_state_of_another_step_is_not_gone_on_from(slot):
    first, _, third = jobs(3)
    slot.run(CELL, [first], None)
    with pytest.raises(StateMissing):
        slot.run(CELL, [third], None)


def test_states_outlive_the_programs_that_make_way_for_other_studies(slot):
    first, second = jobs(2)
    slot.run(CELL, [first], None)
    for study in STUDIES.studies[1:]:
        slot.open(study.to_json())
    assert slot.run(CELL, [second], None)[0].step == second.until
    slot.close(CELL)
    assert slot.give(CELL, 0, keep=True) is None


def pool_of(slots: int) -> SlotPool:
    pool = SlotPool()
    for slot in range(slots):
        pool.add(slot)
    return pool


def test_an_earlier_study_gets_slots_back_as_they_become_idle():
    pool = pool_of(2)
    pool.enter("a", 1)
    pool.enter("b", 2)
    assert pool.lease("a", (), 1) == [0]
    assert pool.lease("b", (), 2) == [1]
    assert pool.lease("a", (0,), 2) == []
    # Never while a trial runs in it.
    assert pool.lease("b", (1,), 2) == []
    assert pool.lease("a", (0,), 2) == []
    assert pool.lease("b", (), 2) == []
    assert pool.lease("a", (0,), 2) == [1]


def test_slots_that_are_lost_are_replaced_by_others():
    pool = pool_of(2)
    pool.enter("a", 2)
    pool.lease("a", (), 2)
    pool.remove(0)
    pool.remove(0)
    assert pool.lease("a", (), 2) == [1]
    pool.add(7)
    assert pool.lease("a", (1,), 2) == [7]
    pool.leave("a")
    assert pool.spare == len(pool) == 2


@given(st.data())
def test_no_slot_has_two_studies_and_none_is_idle_while_somebody_wants_it(data):
    """200 slots, as many studies as there may be, at random demands."""
    slots = data.draw(st.sampled_from([1, 3, 200]))
    pool, names = pool_of(slots), [f"study {n}" for n in range(5)]
    wanted = {}
    for name in names:
        wanted[name] = data.draw(st.integers(0, 2 * slots))
        pool.enter(name, wanted[name])
    for _ in range(3):
        changed = data.draw(st.sampled_from(names))
        wanted[changed] = data.draw(st.integers(0, 2 * slots))
        for _ in range(2):  # once to give back, once to take
            leased = {name: pool.lease(name, (), wanted[name]) for name in names}
        every = [slot for found in leased.values() for slot in found]
        assert len(set(every)) == len(every) == min(slots, sum(wanted.values()))
        left = slots
        for name in names:
            assert len(leased[name]) == min(wanted[name], left)
            left -= len(leased[name])
        assert pool.spare == max(0, slots - sum(wanted.values()))
