"""Does the report say how far K* depends on the evaluation interval?"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis import sensitivity
from dps_tf.analysis.loading import Record, tables_of
from tests.made_up.known_curves import Truth, tables


def loaded(*truths):
    studies, trials, curves = tables(*truths)
    return tables_of(Record(studies, trials, curves, pd.DataFrame()))


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
