from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.reduce import results
from dps_tf.analysis.tables import study_key
from dps_tf.core import OUTCOMES, Goal, Space, UserError
from tests.made_up.specifications import ERROR
from tests.made_up.studies import SyntheticRunner
from tests.made_up.sweeps import tables, truth


def random_truth(rng, **changes) -> SyntheticRunner:
    """Returns 12 curves that fall from about 0.5, some of which diverge."""
    rate = rng.uniform(0.02, 0.5, (12, 1))
    level = np.exp(-rate * np.arange(1, 16)) * 0.6
    errors = np.clip(level + rng.normal(0, 0.03, (12, 15)), 0, 1)
    errors = np.round(errors, 2)  # Ties, and values equal to the threshold.
    for trial in np.flatnonzero(rng.random(12) < 0.25):
        errors[trial, rng.integers(15) :] = np.nan
    return truth(errors, **changes)


def naive(made: SyntheticRunner, goal: Goal):
    """K* and its trial from the full curves, by the slowest possible loop."""
    best = None
    for trial, whole in enumerate(made.trials):
        for place, value in enumerate(whole.errors):
            if np.isnan(value):
                break
            if goal.reaches(value):
                key = ((place + 1) * made.study.evaluations.interval, trial)
                best = key if best is None else min(best, key)
                break
    return best


def bounded(made: SyntheticRunner) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns the tables if evaluations stop once the goal is out of reach."""
    studies, trials, curves = tables(made)
    nearly = 1.05 * made.study.goal.threshold
    errors = {ERROR: curves[ERROR].clip(upper=nearly)}
    return studies, trials, curves.assign(is_bound=curves[ERROR] > nearly, **errors)


@pytest.mark.parametrize("finishers", [1, 3, 12])
@pytest.mark.parametrize("seed", range(2))
def test_own_goal_agrees_with_a_naive_loop(seed, finishers):
    made = random_truth(np.random.default_rng(seed), finishers=finishers)
    row = results(*tables(made)).iloc[0]
    assert (row.steps_to_result, row.best_trial) == naive(made, made.study.goal)
    assert row.bracket_low == row.steps_to_result - 100
    assert row.steps_bound == ""
    alone = [dataclasses.replace(made, trials=[each]) for each in made.trials]
    reached = sum(naive(one, made.study.goal) is not None for one in alone)
    assert row.finishers_known >= min(finishers, reached)
    assert sum(row[o] for o in OUTCOMES) == row.trials == 12


@pytest.mark.parametrize("schedule", ["race", "race5", "stop", "full", "bounds"])
@pytest.mark.parametrize("seed", range(3))
def test_another_goal_is_exact_or_a_bound_that_holds(seed, schedule):
    rng = np.random.default_rng(seed)
    changes = {
        "race": {},
        "race5": {"finishers": 5},
        "stop": {"search_mode": "exhaustive"},
        "full": {"search_mode": "exhaustive", "stop_at_goal": False},
        "bounds": {},
    }[schedule]
    made = random_truth(rng, **changes)
    studied = bounded(made) if schedule == "bounds" else tables(made)
    for threshold in (0.02, 0.05, 0.1, 0.104, 0.12, 0.2, 0.4):
        goal = Goal(ERROR, threshold, inclusive=bool(rng.integers(2)))
        row = results(*studied, goal).iloc[0]
        best = naive(made, goal)
        low = np.inf if pd.isna(row.steps_low) else row.steps_low
        high = np.inf if pd.isna(row.steps_high) else row.steps_high
        key = np.inf if best is None else best[0]
        assert low <= key <= high
        if row.steps_bound == "":
            assert low == high == key
        if np.isfinite(high):
            assert row.bracket_low < key <= row.steps_to_result
        if schedule == "full":
            assert low == high
        assert sum(row[o] for o in OUTCOMES) == row.trials


def test_looser_goal_is_exact_after_a_race():
    made = random_truth(np.random.default_rng(3), finishers=1)
    goal = Goal(ERROR, 0.3)
    row = results(*tables(made), goal).iloc[0]
    assert (row.steps_to_result, row.best_trial) == naive(made, goal)
    assert row.steps_bound == ""
    assert row.goal == str(goal)


def test_stricter_goal_after_a_race_is_a_lower_bound():
    errors = np.array([[0.3, 0.1, 0.05], [0.4, 0.3, 0.2]])
    row = results(*tables(truth(errors)), Goal(ERROR, 0.06)).iloc[0]
    assert pd.isna(row.steps_to_result)
    # Trial 1 stopped at the evaluation before K* = 200, so 200 remains possible.
    assert row.steps_bound == ">= 200"
    assert row.censored == 2


def test_bounds_never_prove_that_a_goal_was_reached():
    made = truth([[0.5, 0.4, 0.1]])
    row = results(*bounded(made), Goal(ERROR, 0.2)).iloc[0]
    assert row.steps_bound == ">= 100, <= 300"
    assert (row.bracket_low, row.steps_to_result) == (0, 300)


def test_nobody_reaching_is_said_with_the_budget():
    row = results(*tables(truth(np.full((3, 4), 0.5)))).iloc[0]
    assert pd.isna(row.steps_to_result) and pd.isna(row.best_trial)
    assert row.steps_bound == "> 400"
    assert row.incomplete == 3


def test_all_diverged_is_no_bound():
    row = results(*tables(truth(np.full((3, 4), np.nan)))).iloc[0]
    assert row.steps_bound == ""
    assert row.infeasible == 3 and row.infeasible_share == 1.0


def test_failed_trial_makes_an_upper_bound():
    row = results(*tables(truth([[0.3, 0.2, 0.1], [0.3]]))).iloc[0]
    assert row.steps_bound == ">= 200, <= 300"
    assert row.steps_to_result == 300 and row.bracket_low == 100
    assert row.failed == 1


def test_open_study_with_trials_to_draw_is_only_bounded():
    studies, trials, curves = tables(truth(np.array([[0.3, 0.1], [0.3, 0.2]])))
    studies["closed"] = False
    assert results(studies, trials, curves).iloc[0].steps_bound == ""
    studies["points"] = 5
    row = results(studies, trials, curves).iloc[0]
    assert row.steps_bound == ">= 100, <= 200"
    assert row.finishers_known == 0


def test_permuting_rows_changes_nothing():
    rng = np.random.default_rng(0)
    truths = [random_truth(rng, batch_size=b, finishers=2) for b in (8, 16, 32)]
    studies, trials, curves = tables(*truths)
    goal = Goal(ERROR, 0.2)
    shuffled = results(
        studies,
        trials.sample(frac=1, random_state=0),
        curves.sample(frac=1, random_state=1),
        goal,
    )
    pd.testing.assert_frame_equal(results(studies, trials, curves, goal), shuffled)


def test_best_point_boundary_and_layers_are_reported():
    space = {
        "learning_rate": ("log", 1e-4, 1.0),
        "momentum": ("reverse_log", 0.9, 0.9999),
    }
    made = truth([[0.3, 0.2], [0.3, 0.1]], space=Space.from_dict(space))
    studies, trials, curves = tables(made)
    trials = trials.assign(learning_rate=[0.01, 0.99], momentum=[0.95, 0.99])
    layers = [{"name": "conv", "parameters": 9, "kept": 0, "emptied": True}]
    trials["layers"] = json.dumps(layers)
    row = results(studies, trials, curves).iloc[0]
    assert (row.best_trial, row.learning_rate, row.momentum) == (1, 0.99, 0.99)
    assert row.at_boundary == "learning_rate"
    assert row.emptied_layers == "conv"
    assert row.interval_over_kstar == 0.5


def test_columns_start_with_those_of_the_result_table():
    made = random_truth(np.random.default_rng(0))
    frame = results(*tables(made))
    first = [*study_key(frame), "goal", "steps_to_result", "bracket_low", "best_trial"]
    then = ["at_boundary", "closed", "steps_bound"]
    wanted = [*first, "learning_rate", "trials", *OUTCOMES, *then]
    assert list(frame.columns)[: len(wanted)] == wanted
    assert str(frame.dtypes["steps_to_result"]) == "Int64"


def test_unknown_metric_names_the_near_ones():
    made = random_truth(np.random.default_rng(0))
    goal = Goal("validation/clasification_error", 0.1, "minimize")
    with pytest.raises(UserError, match="validation/classification_error"):
        results(*tables(made), goal)


def test_metric_that_was_never_recorded_is_refused():
    studies, trials, curves = tables(random_truth(np.random.default_rng(0)))
    curves["validation/cross_entropy"] = np.nan
    with pytest.raises(UserError, match="never recorded"):
        results(studies, trials, curves, Goal("validation/cross_entropy", 1.0))


def test_tables_that_do_not_belong_together_are_refused():
    studies, trials, curves = tables(random_truth(np.random.default_rng(0)))
    studies["batch_size"] = 3
    with pytest.raises(UserError, match="batch_size=8,"):
        results(studies, trials, curves)


@pytest.mark.parametrize("tables_of", [tables, bounded])
def test_goals_over_several_evaluations_are_asked_of_the_curves(tables_of):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        errors = np.clip(rng.uniform(0, 0.3, (6, 14)), 0, None)
        made = truth(errors, search_mode="exhaustive", stop_at_goal=False)
        studied = tables_of(made)
        for change in ({"in_a_row": 3}, {"mean_of": 3}):
            goal = Goal(ERROR, 0.12, **change)
            whole = [row[:last] for row in errors for last in range(1, 15)]
            met = [100 * len(row) for row in whole if goal.is_met(row.tolist())]
            row = results(*studied, goal).iloc[0]
            low = np.inf if pd.isna(row["steps_low"]) else row["steps_low"]
            high = np.inf if pd.isna(row["steps_high"]) else row["steps_high"]
            assert low <= min(met, default=np.inf) <= high
            assert tables_of is bounded or low == high


def test_cross_entropy_of_an_evaluation_that_stopped_early_may_have_met_a_goal():
    errors = np.array([[0.5, 0.3, 0.2, 0.05, 0.05]])
    studies, trials, curves = bounded(truth(errors))
    # Known only of whole evaluations, and the true one met the goal at step 200.
    loss = np.where(curves["is_bound"], np.nan, 0.1)
    curves["validation/cross_entropy"] = loss
    goal = Goal("validation/cross_entropy", 0.2)
    row = results(studies, trials, curves, goal).iloc[0]
    assert row["steps_to_result"] == 400
    assert row["steps_low"] == 100 and row["steps_bound"] == ">= 100, <= 400"
