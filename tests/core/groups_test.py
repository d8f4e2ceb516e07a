"""Which trials advance together, whatever their lanes: the result is never another."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dps_tf.core import (
    EvaluationSchedule,
    RaceRule,
    Space,
    Trajectory,
    gathered,
    most_groups,
    plan,
    points,
    reduce_study,
    reserve,
    within_lead,
)
from tests.core.naive_race import Study, WholeTrial, answer
from tests.core.race_test import Race, answer_of, studies

LANES = st.sampled_from([1, 3, 15])
TRIALS = st.lists(st.integers(0, 40), unique=True, max_size=25)


@settings(max_examples=200)
@given(TRIALS, st.integers(0, 25), st.integers(0, 25), LANES, st.randoms())
def test_groups_hold_all_trials_once_in_as_few_turns_as_their_lanes_allow(
    trials, first, second, lanes, rng
):
    first, second = sorted((first, second))
    pending, speculative, spare = trials[:first], trials[first:second], trials[second:]
    steps = {trial: rng.choice([0, 10, 20]) for trial in trials}
    groups = gathered(pending, speculative, spare, steps, lanes)
    known = [trial for group in groups for trial in group]
    assert len(known) == len(set(known)) and set(known) <= set(trials)
    assert set(pending) | set(speculative) <= set(known)
    for group in groups:
        assert len({steps[trial] for trial in group}) == 1
        assert [t % lanes for t in group] == sorted({t % lanes for t in group})
        assert not set(group) <= set(spare)
    needed = [group for group in groups if set(group) & set(pending)]
    at = [steps[group[0]] for group in needed]
    assert groups[: len(needed)] == needed and at == sorted(at)
    for step, count in Counter(at).items():
        behind = [trial % lanes for trial in pending if steps[trial] == step]
        assert count == max(Counter(behind).values())
    # A lane is empty only where nobody at this step could take it.
    for group in groups:
        left = [t for t in trials if t not in known and steps[t] == steps[group[0]]]
        assert {t % lanes for t in left} <= {t % lanes for t in group}


def test_groups_stay_together_until_one_of_them_is_not_needed():
    everyone = [*range(12)]
    steps = dict.fromkeys(everyone, 10)

    def groups(*without):
        left = [trial for trial in everyone if trial not in without]
        return set(gathered(left, [], [], steps, 3))

    whole = {(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)}
    assert groups() == whole
    assert groups(4) == whole - {(3, 4, 5)} | {(3, 5)}
    assert groups(4, 9, 11) == {(0, 1, 2), (6, 7, 8), (3, 10, 5)}


@settings(max_examples=200)
@given(studies(), LANES, st.integers(1, 4), st.booleans(), st.integers(0, 2**32))
def test_a_race_in_lanes_gives_what_running_everything_to_the_end_gives(
    found, lanes, slots, holds_states, seed
):
    study, trials = found
    race, chance = Race(study, trials), random.Random(seed)
    running: list[tuple[int, ...]] = []
    while True:
        todo = race.plan()
        busy = {trial for group in running for trial in group}
        spare = reserve(todo, race.known, race.rule, lanes)
        assert max(spare, default=0) < race.rule.draws_limit
        go_on = (*todo.pending, *todo.speculative)
        if holds_states:
            go_on = within_lead(todo, race.known, race.rule)
        ready = [
            [t for t in of_kind if t not in busy and (t in go_on or of_kind is spare)]
            for of_kind in (todo.pending, todo.speculative, spare)
        ]
        steps = {t: known.last_step for t, known in enumerate(race.known)}
        running += gathered(*ready, steps, lanes)[: slots - len(running)]
        if not running:
            break
        for trial in running.pop(chance.randrange(len(running))):
            race.advance(trial)
    assert todo.decided
    result = reduce_study(race.known, race.rule)
    assert answer_of(result) == answer(trials, study)


REACHES = WholeTrial((0.3, 0.0), None)
TIED = [WholeTrial((0.0, 0.0), None), REACHES, WholeTrial((0.0, 0.0), 1)]


@settings(max_examples=100)
@given(studies(), LANES)
@example((Study(0.0, 1, 2, 5, 2, False, 1, False), [*TIED, REACHES, REACHES]), 3)
def test_one_slot_makes_no_more_turns_than_the_fullest_lane_has(found, lanes):
    study, trials = dataclasses.replace(found[0], feasible=False), found[1]
    race, turns = Race(study, trials), []
    while groups := gathered(
        race.plan().pending,
        (),
        (),
        {t: k.last_step for t, k in enumerate(race.known)},
        lanes,
    ):
        turns.append(groups[0])
        for trial in groups[0]:
            race.advance(trial)
    rows = answer(trials, study).rows
    # Of trials that end at the last step, the first ones suffice: until it is known
    # that they do, the others go on beside them.
    last = max((row.end_step for row in rows), default=0) - study.interval
    assert len(turns) <= sum(
        most_groups(
            [
                number
                for number, row in enumerate(rows)
                if row.end_step > step
                or (row.end_step == step == last and row.outcome == "censored")
            ],
            lanes,
        )
        for step in range(0, study.budget, study.interval)
    )


FEASIBLE = RaceRule(
    points=4,
    finishers=1,
    step_budget=100,
    schedule=EvaluationSchedule(10),
    feasible_only=True,
    max_draws=9,
)


def test_free_lanes_take_the_next_draws_of_a_feasible_budget_and_nothing_beyond():
    assert reserve(plan([], FEASIBLE), [], FEASIBLE, 3) == (4, 5, 6)
    assert reserve(plan([], FEASIBLE), [], FEASIBLE, 15) == (4, 5, 6, 7, 8)
    fixed = dataclasses.replace(FEASIBLE, feasible_only=False)
    assert reserve(plan([], fixed), [], fixed, 15) == ()
    known = [Trajectory(20)] * 3 + [Trajectory(10, diverged_step=15)]
    known += [Trajectory(20), Trajectory(30, diverged_step=33), Trajectory(20)]
    todo = plan(known, FEASIBLE)
    # Trial 4 stands in for trial 3 by now; 6 goes on beside others, 7 and 8 may begin.
    assert 4 in (*todo.pending, *todo.speculative)
    assert reserve(todo, known, FEASIBLE, 1) == (6,)
    assert reserve(todo, known, FEASIBLE, 15) == (7, 8, 6)


@pytest.mark.parametrize("sequence", ["sobol", "lee2021"])
def test_neighbours_of_a_sobol_sequence_would_share_the_lanes_of_a_power_of_two(
    sequence,
):
    space = Space.from_dict(dict.fromkeys(("rate", "momentum"), ("linear", 0.0, 1.0)))
    drawn = points(space, sequence, 0, 100)
    # The upper 40 % of the rates diverge.
    left = [trial for trial, point in enumerate(drawn) if point["rate"] < 0.6]
    lanes_in_use = {lanes: len({t % lanes for t in left}) for lanes in (15, 16)}
    assert lanes_in_use == {15: 15, 16: 10}
    assert most_groups(left, 16) == 7 and most_groups(left, 15) in (5, 6)
