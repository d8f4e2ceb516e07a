from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.heuristics import best_rates, effective_learning_rate, rules
from dps_tf.analysis.reduce import with_bounds
from dps_tf.core import UserError
from tests.analysis.synthetic import Truth, tables

RATES = 2.0 ** np.arange(-8, 4)


def reaching_at(steps, batch_size, **changes):
    """One trial per rate that reaches the goal at the given evaluation (0: never)."""
    errors = np.full((len(steps), 40), 0.5)
    for trial, place in enumerate(steps):
        if place:
            errors[trial, place - 1 :] = 0.05
    changes.setdefault("points", {"learning_rate": RATES})
    return Truth(errors, batch_size=batch_size, interval=10, **changes)


def bounded(*truths):
    studies, trials, curves = tables(*truths)
    return studies, with_bounds(studies, trials, curves)


def test_momentum_divides_by_what_it_leaves():
    trials = pd.DataFrame(
        {"learning_rate": [0.1, 0.1, 0.1], "momentum": [0.9, 0.99, np.nan]}
    )
    np.testing.assert_allclose(effective_learning_rate(trials), [1.0, 10.0, 0.1])
    np.testing.assert_allclose(effective_learning_rate(trials[["learning_rate"]]), 0.1)


def test_spread_holds_the_trials_near_the_best():
    steps = [0, 0, 40, 22, 20, 21, 30, 0, 0, 0, 0, 0]
    studies, trials = bounded(reaching_at(steps, 8, exhaustive=True))
    row = best_rates(studies, trials, within=0.1).iloc[0]
    assert row["steps_to_result"] == 200
    assert row["effective_learning_rate"] == RATES[4]
    assert (row["effective_low"], row["effective_high"]) == (RATES[3], RATES[5])
    assert row["trials_within"] == 3 and not row["spread_open"]


def test_a_race_that_stopped_the_others_leaves_the_spread_open():
    studies, trials = bounded(reaching_at([0, 0, 22, 20, 21] + [0] * 7, 8))
    row = best_rates(studies, trials, within=0.2).iloc[0]
    assert row["trials_within"] == 1 and row["spread_open"]


def test_rules_are_read_off_the_nearest_trial():
    # The best rate doubles from batch 8 to 32: the square root of 4.
    small = [0, 0, 40, 30, 20, 30, 40, 0, 0, 0, 0, 0]
    large = [0, 0, 0, 40, 25, 10, 15, 0, 0, 0, 0, 0]
    studies, trials = bounded(
        reaching_at(small, 8, exhaustive=True), reaching_at(large, 32, exhaustive=True)
    )
    frame = rules(studies, trials).set_index(["batch_size", "rule"])
    root, linear = frame.loc[(32, "square_root")], frame.loc[(32, "linear")]
    assert root["rule_rate"] == 2 * RATES[4] and root["nearest_trial"] == 5
    assert root["steps_to_result"] == 100 and root["over_best"] == 1.0
    assert linear["rule_rate"] == 4 * RATES[4] and linear["steps_to_result"] == 150
    assert linear["over_best"] == 1.5 and linear["anchor"] == 8


def test_a_rule_that_leaves_the_measured_rates_gives_nothing():
    steps = [0] * 11 + [20]
    studies, trials = bounded(reaching_at(steps, 8), reaching_at(steps, 32))
    row = rules(studies, trials).set_index(["batch_size", "rule"]).loc[(32, "linear")]
    assert pd.isna(row["nearest_trial"]) and pd.isna(row["steps_to_result"])
    assert np.isnan(row["over_best"]) and row["steps_bound"] == ""


def test_a_nearest_trial_that_was_stopped_gives_a_bound():
    small = [0, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0]
    large = [0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0]
    studies, trials = bounded(reaching_at(small, 8), reaching_at(large, 32))
    row = rules(studies, trials).set_index(["batch_size", "rule"]).loc[(32, "linear")]
    assert row["outcome"] == "censored"
    assert pd.isna(row["steps_to_result"]) and row["steps_bound"] == ">= 110"


def test_anchor_can_be_chosen_and_must_have_a_result():
    steps = [0, 0, 40, 30, 20, 30, 40, 0, 0, 0, 0, 0]
    truths = [reaching_at(steps, b, exhaustive=True) for b in (8, 16, 32)]
    studies, trials = bounded(*truths)
    frame = rules(studies, trials, anchor=16)
    assert set(frame["anchor"]) == {16}
    with pytest.raises(UserError, match="anchor batch size 64"):
        rules(studies, trials, anchor=64)


def test_cells_that_nobody_reached_have_no_rate():
    studies, trials = bounded(reaching_at([0] * 12, 8))
    row = best_rates(studies, trials).iloc[0]
    assert np.isnan(row["effective_learning_rate"]) and row["trials_within"] == 0
