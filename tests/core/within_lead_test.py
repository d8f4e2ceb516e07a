from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.core import EvaluationSchedule, RaceRule, Trajectory, plan, within_lead
from dps_tf.core.race import MAX_LEAD


def rule(points: int, **changes) -> RaceRule:
    values = {"finishers": 1, "step_budget": 1000, "schedule": EvaluationSchedule(10)}
    return RaceRule(points=points, **{**values, **changes})


def ready(steps: list[int], asked: RaceRule) -> tuple[int, ...]:
    known = [Trajectory(step) for step in steps]
    return within_lead(plan(known, asked), known, asked)


@pytest.mark.parametrize(
    "steps, expected",
    [
        ([0, 0, 0], (0, 1, 2)),
        ([10, 0, 20], (1, 0)),
        ([10, 10, 30], (0, 1)),
        # 5% of 600 is three evaluations, of 590 two.
        ([600, 620, 630], (0, 1)),
        ([590, 600, 610], (0, 1)),
    ],
)
def test_no_trial_goes_far_beyond_the_one_furthest_behind(steps, expected):
    assert ready(steps, rule(3)) == expected


def test_trials_that_have_ended_hold_nobody_up():
    known = [Trajectory(0, diverged_step=3), Trajectory(200), Trajectory(210)]
    assert within_lead(plan(known, rule(3)), known, rule(3)) == (1, 2)


def test_trials_that_have_not_begun_hold_up_the_others():
    known = [Trajectory(200)]
    assert within_lead(plan(known, rule(3)), known, rule(3)) == (1, 2)


def test_draws_that_replace_others_do_not():
    asked = rule(2, feasible_only=True, max_draws=9)
    known = [Trajectory(20, diverged_step=25), Trajectory(500)]
    todo = plan(known, asked)
    assert 2 in (*todo.pending, *todo.speculative)
    assert set(within_lead(todo, known, asked)) == {1, 2}


def test_an_exhaustive_study_has_nothing_to_outrun():
    assert ready([0, 500], rule(2, exhaustive=True)) == (0, 1)


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 60) | st.none(), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_in_whatever_order_trials_go_on_little_is_run_in_vain(
    finishes, finishers, workers, seed
):
    """Also where what is known of others is old, for each slot otherwise."""
    asked = rule(len(finishes), finishers=finishers, step_budget=600)
    chance = random.Random(seed)
    start = [Trajectory()] * len(finishes)
    truth = list(start)
    seen = [list(start) for _ in range(workers)]
    while not plan(truth, asked).decided:
        mine = chance.randrange(workers)
        if chance.random() < 0.3:
            seen[mine] = list(truth)
        todo = plan(seen[mine], asked)
        allowed = within_lead(todo, seen[mine], asked)
        if not allowed:
            continue
        trial = chance.choice(allowed)
        step = truth[trial].last_step
        if truth[trial] == seen[mine][trial]:
            step += 10
        finish = finishes[trial]
        met = finish is not None and step >= 10 * finish
        truth[trial] = Trajectory(step, 10 * finish if met else None)
        seen[mine][trial] = truth[trial]
    cutoff, _ = plan(truth, asked).cutoff
    assert max(t.last_step for t in truth) <= max(cutoff + 10, (1 + MAX_LEAD) * cutoff)
