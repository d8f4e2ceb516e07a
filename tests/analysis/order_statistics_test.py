from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.order_statistics import (
    best_of_n,
    is_lone_winner,
    mass_on_minimum,
    probability_among_first,
    repeats,
)
from dps_tf.core.errors import UserError

STEPS = np.array([300.0, 100.0, 200.0, 200.0, 500.0])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_quantiles_are_those_of_every_possible_redraw(n):
    levels = (0.05, 0.1, 0.5, 0.9, 0.95)
    found = best_of_n(STEPS, draws=[n], quantiles=levels)
    minima = np.sort([min(draw) for draw in itertools.product(STEPS, repeat=n)])
    wanted = [minima[int(np.ceil(q * len(minima) - 1e-9)) - 1] for q in levels]
    assert list(found.low[0]) == wanted
    assert list(found.high[0]) == wanted


def test_probabilities_are_those_of_every_possible_redraw():
    for n in (1, 2, 3):
        minima = np.array([min(d) for d in itertools.product(range(5), repeat=n)])
        wanted = [(minima < k).mean() for k in range(6)]
        found = probability_among_first(5, n)[0]
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_63_percent_of_the_mass_lies_on_the_observed_minimum():
    assert mass_on_minimum(1) == 1.0
    assert mass_on_minimum(100) == pytest.approx(0.634, abs=1e-3)
    assert best_of_n(STEPS).mass_on_minimum[-1] == pytest.approx(mass_on_minimum(5))


def test_beyond_the_last_uncensored_trial_quantiles_are_open():
    # A race of one finisher: four trials were stopped at 100.
    earliest = np.array([100.0, 100, 200, 200, 200])
    latest = np.array([100.0, np.inf, np.inf, np.inf, np.inf])
    frame = best_of_n(earliest, latest).to_frame().set_index("draws")
    # Two thirds of the mass of n = 5 lie on rank 1, which is known.
    assert frame.loc[5, "q50"] == 100 and not frame.loc[5, "q50_open"]
    assert frame.loc[1, "q50"] == 200 and frame.loc[1, "q50_open"]


def test_trials_that_never_reach_give_no_value():
    frame = best_of_n([100.0, np.inf, np.inf]).to_frame().set_index("draws")
    assert np.isnan(frame.loc[1, "q50"]) and not frame.loc[1, "q50_open"]
    assert frame.loc[3, "q50"] == 100


def test_open_bounds_hold_whatever_the_unknown_results_are():
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth = rng.integers(1, 30, 8).astype(float)
        stopped = rng.random(8) < 0.5
        low = np.where(stopped, np.minimum(truth, rng.integers(1, 30, 8)), truth)
        high = np.where(stopped, np.inf, truth)
        known, bounds = best_of_n(truth), best_of_n(low, high)
        assert (bounds.low <= known.low).all() and (known.low <= bounds.high).all()


def test_more_draws_never_raise_a_quantile():
    rng = np.random.default_rng(0)
    found = best_of_n(rng.integers(1, 1000, 100))
    assert (np.diff(found.low, axis=0) <= 0).all()


def test_a_winner_is_alone_if_the_second_best_is_far_behind():
    near = np.array([1000.0, 1100, 2000, 2000])
    far = np.array([2200.0, 1000, 1111, 2100])
    assert is_lone_winner(near, near, 10) is False
    assert is_lone_winner(far, far, 10) is True
    # Within one evaluation interval, whatever the share.
    assert is_lone_winner(far, far, 200) is False
    # Stopped at K*: whether a second is near is not in the record.
    assert is_lone_winner([1000.0] * 4, [1000.0, *[np.inf] * 3], 10) is None
    assert is_lone_winner([1000.0, 1111], [1000.0, np.inf], 10) is True
    assert is_lone_winner([np.inf] * 4, [np.inf] * 4, 10) is None
    assert is_lone_winner([1000.0], [1000.0], 10) is None


def test_repeats_give_least_and_greatest_over_seeds():
    results = pd.DataFrame(
        {
            "workload": "toy",
            "optimizer": "sgd",
            "sparsity_method": "none",
            "seed": [0, 1, 2, 0],
            "batch_size": [8, 8, 8, 16],
            "sparsity": 0.0,
            "precision": "float32",
            "goal": "g",
            "steps_to_result": pd.array([300, 200, None, 100], dtype="Int64"),
            "steps_bound": ["", "", "> 1000", "<= 100"],
        }
    )
    frame = repeats(results).set_index("batch_size")
    assert frame.loc[8, "repeats"] == 3 and frame.loc[8, "reached"] == 2
    assert (frame.loc[8, "steps_min"], frame.loc[8, "steps_max"]) == (200, 300)
    assert frame.loc[16, "reached"] == 0 and np.isnan(frame.loc[16, "steps_min"])


@pytest.mark.parametrize("draws", [[0], []])
def test_no_draws_are_refused(draws):
    with pytest.raises(UserError, match="at least 1"):
        best_of_n(STEPS, draws=draws)
