from __future__ import annotations

import numpy as np
import pandas as pd

from dps_tf.analysis.heuristics import best_rates, effective_learning_rate, rules
from dps_tf.analysis.reduce import with_bounds
from tests.made_up.sweeps import tables, truth

RATES = 2.0 ** np.arange(-8, 4)


def reaching_at(steps, batch_size, **changes):
    """One trial per rate that reaches the goal at the given evaluation (0: never)."""
    errors = np.full((len(steps), 40), 0.5)
    for trial, place in enumerate(steps):
        if place:
            errors[trial, place - 1 :] = 0.05
    return truth(errors, batch_size=batch_size, interval=10, **changes)


def bounded(*truths):
    studies, trials, curves = tables(*truths)
    trials = trials.assign(learning_rate=RATES[trials["trial"]])
    return studies, with_bounds(studies, trials, curves)


def test_momentum_divides_by_what_it_leaves():
    trials = pd.DataFrame(
        {"learning_rate": [0.1, 0.1, 0.1], "momentum": [0.9, 0.99, np.nan]}
    )
    np.testing.assert_allclose(effective_learning_rate(trials), [1.0, 10.0, 0.1])
    np.testing.assert_allclose(effective_learning_rate(trials[["learning_rate"]]), 0.1)


def test_spread_holds_the_trials_near_the_best():
    steps = [0, 0, 40, 22, 20, 21, 30, 0, 0, 0, 0, 0]
    studies, trials = bounded(reaching_at(steps, 8, search_mode="exhaustive"))
    row = best_rates(studies, trials).iloc[0]
    assert row["effective_learning_rate"] == RATES[4]
    assert (row["effective_low"], row["effective_high"]) == (RATES[3], RATES[5])
    assert not row["spread_open"]


def test_a_race_that_stopped_the_others_leaves_the_spread_open():
    studies, trials = bounded(reaching_at([0, 0, 22, 20, 21] + [0] * 7, 8))
    row = best_rates(studies, trials).iloc[0]
    assert row["effective_low"] == row["effective_high"] and row["spread_open"]


def test_rules_count_from_the_smallest_batch_size_with_a_result():
    # The best rate doubles from batch 8 to 32: the square root of 4.
    small = [0, 0, 40, 30, 20, 30, 40, 0, 0, 0, 0, 0]
    large = [0, 0, 0, 40, 25, 10, 15, 0, 0, 0, 0, 0]
    studies, trials = bounded(
        reaching_at([0] * 12, 4), reaching_at(small, 8), reaching_at(large, 32)
    )
    frame = rules(studies, trials).set_index(["batch_size", "rule"])
    assert set(frame["anchor"]) == {8}
    assert frame["rule_rate"][32, "square_root"] == 2 * RATES[4]
    assert frame["rule_rate"][32, "linear"] == 4 * RATES[4]
    assert frame["rule_rate"][4, "linear"] == RATES[4] / 2


def test_cells_that_nobody_reached_have_no_rate():
    studies, trials = bounded(reaching_at([0] * 12, 8))
    row = best_rates(studies, trials).iloc[0]
    assert np.isnan(row["effective_learning_rate"]) and not row["spread_open"]
    assert rules(studies, trials).empty
