from __future__ import annotations

import json

import numpy as np
import pandas as pd

from dps_tf.analysis.reduce import results
from dps_tf.analysis.search_health import at_boundary
from tests.analysis.synthetic import Truth, tables

SPACE = {
    "learning_rate": ["log", 1e-4, 1.0],
    "momentum": ["reverse_log", 0.9, 0.9999],
    "decay_steps": ["integer", 1000, 2000],
    "label_smoothing": ["discrete", [0.0, 0.1]],
}


def ends(**point):
    best = pd.DataFrame([{"best_trial": 0, **point}])
    studies = pd.DataFrame([{"space": json.dumps(SPACE)}])
    return at_boundary(best, studies)[0]


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
    assert at_boundary(best, studies) == [""]


def test_health_of_a_race_and_of_an_exhaustive_study():
    errors = np.full((8, 10), 0.5)
    errors[0, 4:] = 0.05
    errors[1, 5:] = 0.05
    errors[2:4, 2:] = np.nan
    race = results(*tables(Truth(errors))).iloc[0]
    assert race["infeasible_share"] == 0.25
    assert race["interval_over_kstar"] == 0.2
    # Only the winner was followed to the end: whether others were near is not known.
    assert pd.isna(race["lone_winner"])
    full = results(*tables(Truth(errors, exhaustive=True))).iloc[0]
    assert not full["lone_winner"]
    errors[1, 5:9] = 0.5
    far = results(*tables(Truth(errors, exhaustive=True))).iloc[0]
    assert far["lone_winner"]
