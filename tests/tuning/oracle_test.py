from __future__ import annotations

import math

import keras_tuner
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps_tf.core import Space, UserError
from dps_tf.tuning.oracle import OBJECTIVE, adaptive_oracle, hyperparameters, point_of

SPACE = Space.from_dict(
    {
        "learning_rate": ("log", 1e-4, 1.0),
        "momentum": ("reverse_log", 0.9, 0.9999),
        "label_smoothing": ("linear", 0.0, 0.1),
        "decay_steps": ("integer", 10, 20),
        "factor": ("discrete", (0.1, 0.2, 0.4)),
    }
)
RANDOM = "keras_tuner.oracles.RandomSearchOracle"
BAYESIAN = "keras_tuner.oracles.BayesianOptimizationOracle"


def test_keras_tuner_knows_the_ranges_of_the_space():
    known = {p.name: p for p in hyperparameters(SPACE).space}
    assert list(known) == list(SPACE.names)
    rate = known["learning_rate"]
    assert (rate.min_value, rate.max_value, rate.sampling) == (1e-4, 1.0, "log")
    assert list(known["factor"].values) == [0.1, 0.2, 0.4]
    assert (known["decay_steps"].min_value, known["decay_steps"].max_value) == (10, 20)


@given(st.floats(0.0, 1.0))
def test_adaptive_search_is_log_uniform_in_one_minus_momentum(u):
    known = {p.name: p for p in hyperparameters(SPACE, adaptive=True).space}
    found = known["one_minus_momentum"].prob_to_value(min(u, 1 - 1e-9))
    momentum = point_of({"one_minus_momentum": found})["momentum"]
    assert 1 - momentum == pytest.approx(10 ** (-4 + 3 * u), rel=1e-6)
    assert 0.9 - 1e-9 <= momentum <= 0.9999 + 1e-9


@pytest.mark.parametrize("name", [RANDOM, BAYESIAN])
def test_each_seed_of_a_study_has_draws_of_its_own(name):
    space = Space.from_dict({"rate": ("log", 1e-4, 1.0)})

    def drawn(seed: int) -> list[float]:
        oracle = adaptive_oracle(name, {}, space, 3, seed)
        return [oracle.populate_space(str(i))["values"]["rate"] for i in range(3)]

    assert drawn(0) == drawn(0)
    # Nor do the draws of one seed come again, later, under another.
    assert len({value for seed in range(9) for value in drawn(seed)}) == 27


def test_arguments_go_to_the_oracle():
    oracle = adaptive_oracle(BAYESIAN, {"num_initial_points": 7}, SPACE, 9, 0)
    assert oracle.num_initial_points == 7
    assert oracle.max_trials == 9
    assert oracle.objective == OBJECTIVE
    assert oracle.verbose == 0


@pytest.mark.parametrize(
    "name", ["bayesian", "keras_tuner.oracles.Bayes", "no_such_module.Oracle", "", "."]
)
def test_unknown_oracle_is_one_sentence(name):
    with pytest.raises(UserError) as caught:
        adaptive_oracle(name, {}, SPACE, 3, 0)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["math.sqrt", "keras_tuner.Objective"])
def test_class_that_is_no_oracle_is_one_sentence(name):
    with pytest.raises(UserError, match="oracle"):
        adaptive_oracle(name, {}, SPACE, 3, 0)


def test_unknown_argument_of_an_oracle_is_one_sentence():
    with pytest.raises(UserError, match="betta"):
        adaptive_oracle(BAYESIAN, {"betta": 1}, SPACE, 3, 0)


def test_objective_is_minimized_and_finite_numbers_order_as_they_should():
    assert OBJECTIVE.better_than(700.0, 800.0)
    assert not OBJECTIVE.better_than(math.inf, 800.0)
    assert isinstance(OBJECTIVE, keras_tuner.Objective)
