from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.budgets import Budget, best_under_budget
from dps_tf.core import UserError
from tests.made_up.known_curves import ERROR, Truth, random_truth, tables

FULL = {"exhaustive": True, "stop_at_goal": False}


@pytest.mark.parametrize("seed", range(4))
def test_best_value_is_that_of_a_naive_loop(seed):
    truth = random_truth(
        np.random.default_rng(seed), points={"learning_rate": np.arange(12.0)}, **FULL
    )
    studies, trials, curves = tables(truth)
    for steps in (150, 700, 1500):
        row = best_under_budget(
            studies, trials, curves, Budget(steps=steps), ERROR
        ).iloc[0]
        seen = truth.errors[:, : steps // 100]
        assert row["best_value"] == np.nanmin(seen)
        assert seen[row["best_trial"]].tolist().count(row["best_value"]) >= 1
        assert row["is_exact"] and row["reason"] == ""
        assert row["learning_rate"] == row["best_trial"]
        assert row["learning_rate_low"] <= row["learning_rate"]


def test_epochs_are_steps_that_depend_on_the_batch_size():
    rng = np.random.default_rng(0)
    truths = [random_truth(rng, batch_size=b, **FULL) for b in (1, 10, 100)]
    studies, trials, curves = tables(*truths)  # 1,000 training examples.
    frame = best_under_budget(studies, trials, curves, Budget(epochs=1), ERROR)
    assert list(frame["budget_steps"]) == [1000, 100, 10]
    assert frame["best_value"].notna().tolist() == [True, True, False]
    assert set(frame["budget"]) == {"1 epochs"}


def test_a_batch_size_with_a_smaller_step_budget_is_left_out():
    studies, trials, curves = tables(random_truth(np.random.default_rng(0), **FULL))
    row = best_under_budget(studies, trials, curves, Budget(steps=1600), ERROR).iloc[0]
    assert np.isnan(row["best_value"]) and "smaller" in row["reason"]


@pytest.mark.parametrize("changes", [{}, {"exhaustive": True}])
def test_trials_that_were_stopped_make_the_best_inexact(changes):
    errors = np.array([[0.3, 0.1, 0.05], [0.4, 0.3, 0.02]])
    studies, trials, curves = tables(Truth(errors, **changes))
    row = best_under_budget(studies, trials, curves, Budget(steps=300), ERROR).iloc[0]
    assert not row["is_exact"]
    assert "stopped before the budget" in row["reason"]


def test_bounds_are_never_taken_for_values():
    errors = np.array([[0.5, 0.4, 0.2], [0.5, 0.1, 0.1]])
    truth = Truth(errors, bounds=True, exhaustive=True)
    studies, trials, curves = tables(truth)
    row = best_under_budget(studies, trials, curves, Budget(steps=100), ERROR).iloc[0]
    assert np.isnan(row["best_value"]) and not row["is_exact"]


def test_metrics_to_maximize_take_the_greatest():
    errors = np.array([[0.3, 0.1], [0.4, 0.05]])
    studies, trials, curves = tables(Truth(errors, **FULL))
    curves["validation/accuracy"] = 1 - curves[ERROR]
    row = best_under_budget(
        studies, trials, curves, Budget(steps=200), "validation/accuracy", "maximize"
    ).iloc[0]
    assert row["best_value"] == 0.95 and row["best_trial"] == 1


def test_good_trials_span_the_region_of_good_metaparameters():
    errors = np.array([[0.100], [0.105], [0.109], [0.2]])
    points = {"learning_rate": np.array([0.2, 0.1, 0.4, 0.9])}
    studies, trials, curves = tables(Truth(errors, points=points, **FULL))
    row = best_under_budget(studies, trials, curves, Budget(steps=100), ERROR).iloc[0]
    assert row["good_trials"] == 3
    assert (row["learning_rate_low"], row["learning_rate_high"]) == (0.1, 0.4)


@pytest.mark.parametrize("arguments", [{}, {"steps": 1, "epochs": 1}, {"steps": 0}])
def test_a_budget_is_steps_or_epochs(arguments):
    with pytest.raises(UserError, match="one of them"):
        Budget(**arguments)


def test_rows_of_cells_are_in_the_order_of_the_studies():
    rng = np.random.default_rng(0)
    truths = [random_truth(rng, batch_size=b, **FULL) for b in (32, 8, 16)]
    frame = best_under_budget(*tables(*truths), Budget(steps=500), ERROR)
    assert list(frame["batch_size"]) == [32, 8, 16]
    assert isinstance(frame["best_trial"].dtype, pd.Int64Dtype)
