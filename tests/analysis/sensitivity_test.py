"""Does the report say how far K* depends on interval, points and goal?"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis import sensitivity
from dps_tf.analysis.loading import Record, tables_of
from dps_tf.core import Goal
from tests.analysis.synthetic import ERROR, Truth, random_truth, tables


def loaded(*truths, goal=None):
    studies, trials, curves = tables(*truths)
    return tables_of(Record(studies, trials, curves, pd.DataFrame()), goal)


def k_star(errors, interval, every, threshold):
    """K* of full curves seen at every so many evaluations, by the slowest loop."""
    met = [
        (place + 1) * interval
        for row in errors
        for place, value in enumerate(row)
        if (place + 1) % every == 0 and value <= threshold
    ]
    return min(met, default=np.inf)


def up_and_down(rng, trials=6, evaluations=24):
    """Errors that fall to 0.05 and scatter by as much as they fall in six steps."""
    trend = np.exp(-np.arange(evaluations) / rng.uniform(4, 12, (trials, 1)))
    return 0.05 + 0.5 * trend + 0.05 * np.abs(rng.standard_normal(trend.shape))


@pytest.mark.parametrize("seed", range(5))
def test_k_star_at_coarser_intervals_is_that_of_fewer_evaluations(seed):
    errors = up_and_down(np.random.default_rng(seed))
    full = Truth(errors, exhaustive=True, stop_at_goal=False, interval=10)
    found = sensitivity.by_interval(loaded(full)).set_index("multiple")
    for multiple in (2, 4):
        wanted = k_star(errors, 10, multiple, 0.1)
        assert found.loc[multiple, "evaluation_interval"] == 10 * multiple
        assert found.loc[multiple, "low"] == found.loc[multiple, "high"] == wanted
    assert (found["steps_to_result"] == k_star(errors, 10, 1, 0.1)).all()


def test_a_bracket_misses_an_earlier_evaluation_that_met_the_goal():
    # The goal is met at step 10 by luck, and for good from step 50 on.
    errors = np.full((1, 8), 0.3)
    errors[0, [0, *range(4, 8)]] = 0.05
    coarse = Truth(errors[:, 1::2], interval=20)
    row = loaded(coarse).results.iloc[0]
    assert (row["bracket_low"], row["steps_to_result"]) == (40, 60)
    fine = loaded(Truth(errors, interval=10)).results.iloc[0]
    assert fine["steps_to_result"] == 10  # Before the bracket (40, 60].


@pytest.mark.parametrize("seed", range(5))
def test_ranges_from_a_race_hold_what_full_curves_give(seed):
    rng = np.random.default_rng(seed)
    errors = up_and_down(rng)
    race = loaded(Truth(errors, interval=10, finishers=2))
    for _, row in sensitivity.by_interval(race).iterrows():
        wanted = k_star(errors, 10, row["multiple"], 0.1)
        assert row["low"] <= wanted <= row["high"]
    row = sensitivity.by_points(race).iloc[0]
    assert row["points"] == 3
    assert row["low"] <= k_star(errors[:3], 10, 1, 0.1) <= row["high"]


def test_the_first_half_is_the_first_half_and_no_redraw():
    errors = np.full((6, 10), 0.5)
    errors[0, 7:] = errors[4, 2:] = 0.05
    row = sensitivity.by_points(loaded(Truth(errors, exhaustive=True))).iloc[0]
    assert (row["steps_to_result"], row["low"], row["high"]) == (300, 800, 800)
    race = sensitivity.by_points(loaded(Truth(errors))).iloc[0]
    # The race stopped the other five at 300 steps.
    assert race["low"] == 300 or race["low"] == 400
    assert race["high"] == np.inf


def test_looser_goals_are_answered_by_the_curves_and_need_fewer_steps():
    truths = [
        random_truth(np.random.default_rng(size), batch_size=size, exhaustive=True)
        for size in (8, 16, 32, 64)
    ]
    of_goal = sensitivity.by_goal(loaded(*truths))
    assert of_goal["threshold"].unique() == pytest.approx(
        [truths[0].goal.threshold * m for m in sensitivity.GOALS]
    )
    for truth in truths:
        mine = of_goal[of_goal["batch_size"] == truth.batch_size]
        assert (np.diff(mine["high"]) <= 0).all()
        for _, row in mine.iterrows():
            wanted = k_star(truth.errors, truth.interval, 1, row["threshold"])
            assert row["low"] <= wanted <= row["high"]


def test_a_metric_that_is_maximized_keeps_its_distance_from_one():
    truth = Truth(
        np.full((2, 4), 0.95), goal=Goal("validation/accuracy", 0.9, "maximize")
    )
    studies, trials, curves = tables(truth)
    curves = curves.rename(columns={ERROR: "validation/accuracy"})
    found = sensitivity.by_goal(
        tables_of(Record(studies, trials, curves, pd.DataFrame()))
    )
    assert found["threshold"].to_list() == pytest.approx([0.9, 0.875, 0.85, 0.8, 0.7])


def test_the_law_is_fitted_for_each_goal():
    sizes = 2 ** np.arange(8)
    truths = []
    for size in sizes:
        # Goal 0.1 needs twice the steps of goal 0.2, at every batch size.
        steps = np.ceil(400 / size + 4).astype(int)
        row = np.full(2 * steps, 0.5)
        row[steps:], row[-1] = 0.2, 0.1
        truths.append(Truth(row[None], batch_size=int(size), interval=1))
    law = sensitivity.law_by_goal(sensitivity.by_goal(loaded(*truths), (1.0, 2.0)))
    strict, loose = (law[law["multiple"] == m].iloc[0] for m in (1.0, 2.0))
    assert strict["c1"] == pytest.approx(2 * loose["c1"], rel=0.1)
    assert strict["c2"] == pytest.approx(2 * loose["c2"], rel=0.2)
    assert loose["c1_low"] < loose["c1"] < loose["c1_high"]
