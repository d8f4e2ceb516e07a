"""How far a study fell short, from tables that need not be of this package."""

from __future__ import annotations

import math

import pandas as pd

from dps_tf.core import Goal
from dps_tf.store import shortfall

ERROR = "validation/classification_error"
GOAL = Goal(ERROR, 0.1)
SPACE = '{"learning_rate": ["log", 0.001, 1.0]}'


def told(rate, interval, rows):
    study = {"evaluation_interval": interval, "step_budget": 100, "space": SPACE}
    trials = pd.DataFrame({"trial": [4], "outcome": ["incomplete"]})
    if rate is not None:
        trials["learning_rate"] = rate
    curves = pd.DataFrame(rows, columns=["step", ERROR, "is_bound"]).assign(trial=4)
    return shortfall(GOAL, study, trials, curves)


def test_bounds_are_no_values_and_nothing_is_said_without_any():
    assert told(0.1, 10, [(10, 0.11, True), (20, math.nan, False)]) is None
    found = told(0.1, 10, [(10, 0.11, True), (20, 0.4, False), (100, 0.5, False)])
    assert found.best == f"best {ERROR} 0.4, at step 20 of trial 4"
    assert found.advice.count("workload.") == 0


def test_points_outside_of_the_space_and_irregular_evaluations_are_no_error():
    for rate in (7.0, None, math.nan):
        found = told(rate, 0, [(3, 0.5, False), (70, 0.3, False)])
        assert "raise workload.step_budget" in found.advice
        assert "space" not in found.advice
    assert "budget" not in told(7.0, 0, [(3, 0.3, False), (70, 0.5, False)]).advice
