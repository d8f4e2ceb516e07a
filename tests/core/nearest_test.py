"""How near a trial came to a goal, and what the sentence advises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import Goal, GoalWatch, Nearest, Space, advice, nearest_of
from dps_tf.core.nearest import reachable

ERROR = "validation/classification_error"
SPACE = Space.from_dict({"learning_rate": ("log", 1e-3, 1.0)})
GOAL = Goal(ERROR, 0.1)
VALUES = st.floats(-1e6, 1e6)
GOALS = st.builds(
    Goal,
    st.just("validation/loss"),
    st.floats(-10, 10),
    st.sampled_from(["minimize", "maximize"]),
    st.booleans(),
)


def nearest_in(goal, trial, curve):
    """Returns the evaluation of one trial that came nearest, up to the goal."""
    watch = GoalWatch(goal, trial)
    for step, value in curve.items():
        watch.add(step, value)
    return watch.nearest


@given(goal=GOALS, values=st.lists(VALUES | st.just(math.nan), max_size=8))
def test_the_nearest_evaluation_is_the_first_best_one(goal, values):
    curve = {5 * (place + 1): value for place, value in enumerate(values)}
    near = nearest_in(goal, 2, curve)
    met = [place for place, value in enumerate(values) if goal.reaches(value)]
    values = values[: met[0] + 1] if met else values
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        assert near is None
        return
    best = min(numbers) if goal.direction == "minimize" else max(numbers)
    assert near == Nearest(best, 5 * (values.index(best) + 1), 2)
    assert goal.reaches(best) == any(map(goal.reaches, numbers))


@given(goal=GOALS, value=VALUES)
def test_the_threshold_that_is_advised_is_met_and_close(goal, value):
    threshold = float(reachable(goal, value))
    advised = Goal(goal.metric, threshold, goal.direction, goal.inclusive)
    assert advised.reaches(value)
    assert abs(threshold - value) <= max(0.011 * abs(value), 0.0011)


def test_an_error_in_percent_is_advised_as_it_was_recorded():
    assert reachable(GOAL, 12.5) == "12.5"


def test_a_goal_over_several_evaluations_is_compared_over_them():
    curve = {1: 0.2, 2: 0.4, 3: 0.3, 4: 0.35}
    in_a_row = Goal(ERROR, 0.1, in_a_row=2)
    assert nearest_in(in_a_row, 0, curve) == Nearest(0.35, 4, 0)
    mean = nearest_in(Goal(ERROR, 0.1, mean_of=2), 0, curve)
    assert (mean.value, mean.step) == (pytest.approx(0.3), 2)
    assert nearest_in(in_a_row, 0, {1: 0.2, 2: math.nan, 3: 0.3}) is None


def test_of_several_trials_the_earliest_of_equals_counts():
    found = [Nearest(0.5, 3, 1), None, Nearest(0.5, 2, 4), Nearest(math.nan, 1, 0)]
    assert nearest_of(GOAL, found) == Nearest(0.5, 2, 4)
    assert nearest_of(GOAL, [None]) is None


CASES = {
    "budget": (100, ["incomplete"] * 4, 0.1, ["step_budget"]),
    "space": (60, ["incomplete"] * 4, 0.99, ["widen workload.space"]),
    "diverged": (
        60,
        ["infeasible"] * 3 + ["incomplete"],
        0.1,
        ["smaller learning rates (3 of 4 trials diverged)"],
    ),
    "goal": (60, ["incomplete"] * 4, 0.1, []),
}


@pytest.mark.parametrize("name", CASES)
def test_what_would_have_helped_is_advised(name):
    step, outcomes, rate, told = CASES[name]
    near, point = Nearest(0.25, step, 0), {"learning_rate": rate}
    text = advice(GOAL, near, 100, outcomes, SPACE, point)
    assert all(part in text for part in told)
    assert text.count("; or ") == len(told)
    assert text.endswith("set goal.threshold to 0.250, which it met.")
