"""Where trials meet a goal, and how they end, against a plain reading of the rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf.core import OUTCOMES, Goal, GoalWatch, crossings, trial_outcome

METRIC = "validation/classification_error"
VALUE = st.sampled_from([0.0, 0.1, 0.2, 0.3, math.nan])
CURVE = st.lists(st.tuples(st.integers(1, 9), VALUE, st.booleans()), max_size=7)
GOALS = st.builds(
    Goal,
    st.just(METRIC),
    st.sampled_from([0.1, 0.2]),
    st.sampled_from(["minimize", "maximize"]),
    st.booleans(),
    st.integers(1, 3),
) | st.builds(
    Goal, st.just(METRIC), st.sampled_from([0.1, 0.2]), mean_of=st.integers(2, 3)
)


def naive_first(goal: Goal, curve: list, possible: bool) -> int | None:
    """Returns the place at which a curve meets the goal first, surely or possibly.

    Every completion of what is not known is tried: a bound is at most as good as it
    says, so it stands for itself where that may count, and NaN for anything.
    """
    for end in range(goal.window, len(curve) + 1):
        recent = curve[end - goal.window : end]
        if not possible:
            exact = [math.nan if bound else value for _, value, bound in recent]
            if goal.is_met(exact):
                return end - 1
            continue
        best = -1e9 if goal.direction == "minimize" else 1e9
        choices = [
            (best,) if bound and math.isnan(value) else (value,)
            for _, value, bound in recent
        ]
        if any(goal.is_met(list(values)) for values in itertools.product(*choices)):
            return end - 1
        if goal.mean_of > 1 and any(b and math.isnan(v) for _, v, b in recent):
            return end - 1
    return None


@settings(max_examples=400)
@given(GOALS, st.lists(CURVE, min_size=1, max_size=4), st.randoms())
def test_crossings_are_those_of_reading_each_curve(goal, curves, random):
    curves = [sorted({row[0]: row for row in curve}.values()) for curve in curves]
    rows = [(code, *row) for code, curve in enumerate(curves) for row in curve]
    rows += [(-1, 3, 0.0, False), (-1, 4, 0.3, False)]  # of a trial that is not asked
    random.shuffle(rows)
    codes, steps, values, bounds = map(np.array, zip(*rows, strict=True))
    found = crossings(goal, len(curves), codes, steps, values, bounds)
    for code, curve in enumerate(curves):
        sure = naive_first(goal, curve, possible=False)
        maybe = naive_first(goal, curve, possible=True)
        at = [row[0] for row in curve]
        assert found.sure[code] == (math.inf if sure is None else at[sure])
        assert found.maybe[code] == (math.inf if maybe is None else at[maybe])
        before = math.inf if maybe is None else [0, *at][maybe]
        assert found.before[code] == before
        assert found.last[code] == max(at, default=0)
        watch = GoalWatch(goal)
        met = [watch.add(s, math.nan if b else v) for s, v, b in curve]
        assert watch.finish == (None if sure is None else at[sure])
        assert watch.last == max(at, default=0) and any(met) == (sure is not None)


def test_no_evaluation_meets_nothing():
    none = np.zeros(0)
    empty = none.astype(np.int64)
    found = crossings(Goal(METRIC, 0.1), 2, empty, empty, none, none.astype(bool))
    assert np.isinf([found.sure, found.maybe, found.before]).all()
    assert found.last.tolist() == [0, 0]


ENDS = {
    # reached, diverged, failed, open: the first that holds names it
    (True, True, True, True): "complete",
    (True, False, False, False): "complete",
    (False, True, True, True): "infeasible",
    (False, False, True, True): "failed",
    (False, False, True, False): "failed",
    (False, False, False, True): "censored",
    (False, False, False, False): "incomplete",
}


@pytest.mark.parametrize("ends", ENDS)
def test_the_name_of_an_end(ends):
    names = ("reached", "diverged", "failed", "is_open")
    assert trial_outcome(**dict(zip(names, ends, strict=True))) == ENDS[ends]
    assert set(ENDS.values()) == set(OUTCOMES)
