from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.reduce import results
from dps_tf.analysis.search_health import (
    at_boundary,
    best_of_n,
    is_lone_winner,
    probability_among_first,
)
from dps_tf.core import UserError
from tests.made_up.sweeps import tables, truth

STEPS = np.array([300.0, 100.0, 200.0, 200.0, 500.0])
SPACE = {
    "learning_rate": ["log", 1e-4, 1.0],
    "momentum": ["reverse_log", 0.9, 0.9999],
    "decay_steps": ["integer", 1000, 2000],
    "label_smoothing": ["discrete", [0.0, 0.1]],
}


def ends(**point):
    best = pd.DataFrame([{"best_trial": 0, **point}])
    studies = pd.DataFrame([{"space": json.dumps(SPACE)}])
    return at_boundary(best, studies, best.assign(trial=0), np.arange(len(best)))[0]


def test_ends_are_within_a_twentieth_of_the_range_on_its_scale():
    inside = {"learning_rate": 1e-2, "momentum": 0.99, "decay_steps": 1500.0}
    assert ends(**inside, label_smoothing=0.1) == ""
    assert ends(**{**inside, "learning_rate": 0.64}) == "learning_rate"
    assert ends(**{**inside, "learning_rate": 0.62}) == ""
    assert ends(**{**inside, "momentum": 0.901}) == "momentum"
    both = {**inside, "momentum": 0.9999, "decay_steps": 1000.0}
    assert ends(**both) == "momentum,decay_steps"


def test_values_outside_of_the_range_are_at_its_end():
    assert ends(learning_rate=2.0) == "learning_rate"


def test_names_that_a_workload_lacks_have_no_end():
    assert ends(learning_rate=np.nan, momentum=0.99) == ""


def test_cells_without_k_star_have_no_end():
    best = pd.DataFrame({"best_trial": pd.array([None], "Int64"), "learning_rate": [9]})
    studies = pd.DataFrame([{"space": json.dumps(SPACE)}])
    assert at_boundary(best, studies, best.assign(trial=0), np.arange(len(best))) == [
        ""
    ]


def test_health_of_a_race_and_of_an_exhaustive_study():
    errors = np.full((8, 10), 0.5)
    errors[0, 4:] = 0.05
    errors[1, 5:] = 0.05
    errors[2:4, 2:] = np.nan
    race = results(*tables(truth(errors))).iloc[0]
    assert race["infeasible_share"] == 0.25
    assert race["interval_over_kstar"] == 0.2
    # Only the winner was followed to the end: whether others were near is not known.
    assert pd.isna(race["lone_winner"])
    full = results(*tables(truth(errors, search_mode="exhaustive"))).iloc[0]
    assert not full["lone_winner"]
    errors[1, 5:9] = 0.5
    far = results(*tables(truth(errors, search_mode="exhaustive"))).iloc[0]
    assert far["lone_winner"]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_quantiles_are_those_of_every_possible_redraw(n):
    levels = (0.05, 0.1, 0.5, 0.9, 0.95)
    low, high = best_of_n(STEPS, draws=[n], quantiles=levels)
    minima = np.sort([min(draw) for draw in itertools.product(STEPS, repeat=n)])
    wanted = [minima[int(np.ceil(q * len(minima) - 1e-9)) - 1] for q in levels]
    assert list(low[0]) == wanted
    assert list(high[0]) == wanted


def test_probabilities_are_those_of_every_possible_redraw():
    for n in (1, 2, 3):
        minima = np.array([min(d) for d in itertools.product(range(5), repeat=n)])
        wanted = [(minima < k).mean() for k in range(6)]
        found = probability_among_first(5, n)[0]
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_63_percent_of_the_mass_lies_on_the_observed_minimum():
    assert probability_among_first(100, 100)[0, 1] == pytest.approx(0.634, abs=1e-3)


def test_beyond_the_last_uncensored_trial_quantiles_are_open():
    # A race of one finisher: four trials were stopped at 100.
    earliest = np.array([100.0, 100, 200, 200, 200])
    latest = np.array([100.0, np.inf, np.inf, np.inf, np.inf])
    low, high = best_of_n(earliest, latest, [1, 5], quantiles=[0.5])
    # Two thirds of the mass of n = 5 lie on rank 1, which is known.
    assert low[1] == 100 and high[1] == 100
    assert low[0] == 200 and high[0] == np.inf


def test_open_bounds_hold_whatever_the_unknown_results_are():
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth = rng.integers(1, 30, 8).astype(float)
        stopped = rng.random(8) < 0.5
        low = np.where(stopped, np.minimum(truth, rng.integers(1, 30, 8)), truth)
        high = np.where(stopped, np.inf, truth)
        (known, _), (least, greatest) = best_of_n(truth), best_of_n(low, high)
        assert (least <= known).all() and (known <= greatest).all()


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


@pytest.mark.parametrize("draws", [[0], []])
def test_no_draws_are_refused(draws):
    with pytest.raises(UserError, match="at least 1"):
        best_of_n(STEPS, draws=draws)
