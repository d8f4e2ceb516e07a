"""Budgets, intervals and points that follow from the batch size."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf

from dps_tf.core import (
    EvaluationInterval,
    ScalingRule,
    StepsInExamples,
    UserError,
    WorkloadFamily,
    grid,
)
from dps_tf.core.sweep import steps_at
from dps_tf.optim.schedules import constant, warmed_up
from dps_tf.workloads.reading import read_configuration
from tests.made_up.specifications import specification, workload


def test_study_is_the_same_whether_its_budget_was_a_table_or_a_number():
    family = WorkloadFamily(
        workload(step_budget=1), {8: 120, 16: 60}, evaluation={8: 20, 16: 10}
    )
    one, two = grid([family], (8, 16)).studies
    interval = EvaluationInterval(steps=20)
    plain = specification(8, step_budget=120, evaluation_interval=interval)
    assert one.to_json() == plain.to_json()
    assert one.fingerprint == plain.fingerprint
    assert (two.workload.step_budget, two.evaluations.interval) == (60, 10)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({4: 7}, "nothing for batch size 8: add it to the table, which has 4"),
        ({8: 0}, "for batch size 8 is 0"),
        ({8: 2.5}, "for batch size 8 is 2.5"),
    ],
)
def test_table_without_a_whole_number_for_a_batch_size_is_refused(rule, expected):
    with pytest.raises(UserError, match=expected):
        steps_at("workload.step_budget", rule, 8)


def test_budget_in_examples_stays_within_its_ends():
    rule = StepsInExamples(examples=1000, minimum=10, maximum=400)
    assert [steps_at("x", rule, size) for size in (1, 8, 1000)] == [400, 125, 10]


def test_rates_grow_with_the_batch_size_or_its_root():
    point = {"learning_rate": 0.1, "momentum": 0.9}
    linear, root = (ScalingRule(point, 128, e) for e in (1.0, 0.5))
    assert linear.at(512)["learning_rate"] == pytest.approx(0.4)
    assert root.at(512)["learning_rate"] == pytest.approx(0.2)
    assert linear.at(64) == {"learning_rate": 0.05, "momentum": 0.9}
    with pytest.raises(UserError, match="learning_rate"):
        ScalingRule({"momentum": 0.9}, 128, 1.0)


def test_warm_up_begins_at_the_base_rate_and_ends_at_the_scaled_one():
    rule = ScalingRule({"learning_rate": 0.1}, 128, 1.0, warmup_examples=5120)
    point = {name: tf.constant(value) for name, value in rule.at(512).items()}
    rates = [float(warmed_up(constant)(point, tf.constant(t))) for t in range(12)]
    # Ten updates, in equal steps from 0.1, whose last has 0.4.
    expected = [0.1 + 0.3 * min(1.0, (t + 1) / 10) for t in range(12)]
    assert rates == pytest.approx(expected)
    assert rule.at(128)["warmup_steps"] == 0
    assert rule.at(64)["learning_rate"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "exponent"), [("mnist_linear_rule", 1.0), ("mnist_square_root_rule", 0.5)]
)
def test_named_policies_have_one_trial_at_each_batch_size(name, exponent):
    studies = read_configuration([f"shallue2019/{name}"], [])[0].studies
    rates = {
        s.cell.batch_size: s.workload.draw(0, 1)[0]["learning_rate"] for s in studies
    }
    assert all(study.rule.points == 1 for study in studies)
    slope = math.log(rates[8192] / rates[128]) / math.log(8192 / 128)
    assert slope == pytest.approx(exponent)
    if exponent == 0.5:
        assert len({s.workload.step_budget for s in studies}) == 1


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        ("workload.step_budget = {4: 7}", "nothing for batch size 32: add it"),
        ("evaluation.steps = {4: 7}", "examples, minimum or maximum is bound too"),
        ("scaling_rule.exponent = 1.0", "nothing refers to @scaling_rule()"),
    ],
)
def test_gin_tells_what_is_wrong_with_a_rule(binding, expected):
    sizes = "sweep.batch_sizes = (32,)"
    name = "shallue2019/mnist_simple_cnn_base_sgd"
    with pytest.raises(UserError, match=expected):
        read_configuration([name], [binding, sizes])
