"""What holds for every objective: sums merge, labels are checked, penalties count."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from dps_tf import objectives
from dps_tf._keras import keras
from dps_tf.core import Goal, UserError
from dps_tf.objectives import Metric, Objective
from dps_tf.objectives.objective import CLASSES, INDICATORS, NUMBERS
from tests.objectives.measuring import measured

EXAMPLES = 23
DRAW = np.random.default_rng(0)
OUTPUTS = {
    CLASSES: DRAW.normal(size=(EXAMPLES, 3, 6)).astype(np.float32),
    INDICATORS: DRAW.normal(size=(EXAMPLES, 4)).astype(np.float32),
    NUMBERS: DRAW.normal(size=(EXAMPLES, 2)).astype(np.float32),
}
LABELS = {
    CLASSES: DRAW.integers(0, 6, (EXAMPLES, 3)).astype(np.int32),
    INDICATORS: DRAW.integers(0, 2, (EXAMPLES, 4)).astype(np.int32),
    NUMBERS: DRAW.normal(size=(EXAMPLES, 2)).astype(np.float32),
}
SHIPPED = [
    objectives.build("softmax_cross_entropy", {"top": (2, 5)}),
    objectives.build("token_cross_entropy", {"token_bytes": (1, 2, 1, 3, 1, 1)}),
    objectives.build("sigmoid_cross_entropy"),
    objectives.build("sigmoid_cross_entropy", {"thresholds": 20}),
    objectives.build("squared_error"),
]


@st.composite
def partitions(draw: st.DrawFn) -> list[np.ndarray]:
    """The examples in any order, cut anywhere, and some padding in each part."""
    order = draw(st.permutations(range(EXAMPLES)))
    cuts = sorted(draw(st.sets(st.integers(1, EXAMPLES - 1), max_size=6)))
    return [
        np.array([*part, *[-1] * draw(st.integers(0, 3))])
        for part in np.split(np.array(order), cuts)
    ]


@settings(max_examples=30, deadline=None)
@given(partitions(), st.sampled_from(SHIPPED), st.booleans())
def test_metrics_are_those_of_all_examples_however_they_are_divided(
    parts, objective, with_padding
):
    labels, outputs = LABELS[objective.labels].copy(), OUTPUTS[objective.labels]
    if with_padding and objective.weights is not None:
        labels[::3] = np.nan if objective.labels == NUMBERS else -1
    found = measured(objective, labels, outputs, parts)
    whole = measured(objective, labels, outputs)
    assert list(found) == list(whole)
    np.testing.assert_allclose(list(found.values()), list(whole.values()), rtol=1e-7)


@pytest.mark.parametrize("objective", SHIPPED[1:3])
def test_example_that_is_all_padding_counts_nothing(objective):
    labels, outputs = LABELS[objective.labels].copy(), OUTPUTS[objective.labels]
    labels[5:] = -1
    found = measured(objective, labels, outputs)
    truth = measured(objective, labels[:5], outputs[:5])
    assert found == pytest.approx(truth, rel=1e-6)
    assert objective.positions(labels) == labels[:5].size
    mean = objective.mean_loss(tf.constant(labels), tf.constant(outputs), {})
    alone = objective.mean_loss(tf.constant(labels[:5]), tf.constant(outputs[:5]), {})
    np.testing.assert_allclose(mean, alone, rtol=1e-6)


@pytest.mark.parametrize("objective", SHIPPED)
def test_bound_is_reached_only_by_what_counts_against_the_goal(objective):
    labels, outputs = LABELS[objective.labels], OUTPUTS[objective.labels]
    whole = measured(objective, labels, outputs)
    for metric in objective.metrics:
        if not metric.can_be_bounded:
            continue
        column = f"validation/{metric.name}"
        direction = "minimize" if metric.grows else "maximize"
        goal = Goal(column, whole[column], direction)
        against = metric.counts_against(tf.constant(labels), tf.constant(outputs))
        count, total = int(np.sum(against)), objective.positions(labels)
        assert metric.most_against(goal, total) == count
        bounds = objective.bounds("validation", metric, count, total)
        assert bounds[column] == whole[column]
        assert np.isnan(bounds["validation/cross_entropy"])


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("softmax_cross_entropy", [0.0, 1.0], "float64.*one whole number"),
        ("token_cross_entropy", np.float32([[0, 1]]), "float32.*one whole number"),
        ("sigmoid_cross_entropy", [[0.5, 1.0]], "float64.*0 or 1 for each class"),
        ("squared_error", [1, 2], "int64.*floating-point numbers"),
        ("softmax_cross_entropy", ["cat"], "<U3.*one whole number|str"),
    ],
)
def test_labels_of_another_kind_are_refused(name, labels, message):
    with pytest.raises(UserError, match=message):
        objectives.build(name).checked_labels(labels, "data set 'mine'")


def test_labels_are_kept_or_become_what_is_computed_with():
    softmax = objectives.build()
    plain = np.array([0, 2], np.int32)
    assert softmax.checked_labels(plain, "x") is plain
    assert softmax.checked_labels([True, False], "x").dtype == np.int32
    numbers = objectives.build("squared_error").checked_labels([0.5], "x")
    assert numbers.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "labels", "outputs", "message"),
    [
        ("softmax_cross_entropy", [[0], [1]], (None, 3), r"shape \[1\].*take.*\[\]"),
        ("squared_error", [0.5, 1.0], (None, 1), r"shape \[\].*take.*\[1\]"),
        ("softmax_cross_entropy", [0, 3], (None, 3), "is 3: .* from 0 to 2"),
        ("softmax_cross_entropy", [0, -1], (None, 3), "is -1: .* from 0 to 2"),
        ("token_cross_entropy", [[0, -1], [4, 1]], (None, 2, 3), "is 4"),
        ("sigmoid_cross_entropy", [[0, 2]], (None, 2), "is 2: .* from 0 to 1"),
    ],
)
def test_labels_that_do_not_go_with_the_outputs(name, labels, outputs, message):
    objective = objectives.build(name)
    checked = objective.checked_labels(labels, "mine")
    with pytest.raises(UserError, match=message):
        objective.check_outputs(checked, outputs, "mine")


def test_padding_goes_with_objectives_that_know_it():
    objective = objectives.build("token_cross_entropy")
    objective.check_outputs(np.int32([[0, -1], [2, 1]]), (None, 2, 3), "mine")


def test_penalty_is_what_keras_adds_and_half_of_the_square_norm_of_kernels():
    model = keras.Sequential(
        [
            keras.Input([3]),
            keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.1)),
            keras.layers.Dense(1, activity_regularizer=keras.regularizers.L1(0.5)),
        ]
    )
    inputs = np.ones([4, 3], np.float32)
    outputs = model(inputs, training=True)
    first, bias, second, _ = model.get_weights()
    bias += 1.0
    model.layers[0].bias.assign(bias)  # of rank 1: no part of the L2 penalty
    added = 0.1 * np.sum(first**2) + 0.5 * np.abs(outputs).sum() / 4
    np.testing.assert_allclose(objectives.penalty(model, {}), added, rtol=1e-5)
    squares = np.sum(first**2) + np.sum(second**2)
    found = objectives.penalty(model, {"l2_penalty": tf.constant(0.3)})
    np.testing.assert_allclose(found, added + 0.15 * squares, rtol=1e-5)


def test_plain_network_has_no_penalty():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    model(np.ones([4, 3], np.float32))
    assert objectives.penalty(model, {"label_smoothing": 0.1}) is None


def test_registered_objectives_and_metrics_are_built_by_name():
    def absolute(scale: float = 1.0) -> Objective:
        def loss(labels, outputs, metaparameters):
            del metaparameters
            return scale * tf.abs(outputs - labels)

        return Objective(loss, (), labels=NUMBERS)

    def largest() -> Metric:
        def rows(labels, outputs, weights):
            del weights
            return {"errors": tf.abs(outputs - labels)}

        def value(found):
            return found["errors"].max()

        return Metric("largest_error", value, rows, keeps_examples=True)

    objectives.register("absolute", absolute)
    objectives.register("absolute", absolute)
    objectives.register_metric("largest_error", largest)
    arguments = {"scale": 2.0, "metrics": ("largest_error",)}
    objective = objectives.build("absolute", arguments)
    found = measured(objective, np.float32([[1], [2]]), np.float32([[1.5], [0]]))
    assert found == {"validation/largest_error": 2.0}
    with pytest.raises(UserError, match="absolute' is registered already"):
        objectives.register("absolute", lambda: objective)
    with pytest.raises(UserError, match="largest_error' is registered already"):
        objectives.register_metric("largest_error", lambda: objective.metrics[0])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("softmax", {}, "objective 'softmax' is unknown: .*softmax_cross_entropy"),
        ("squared_error", {"tops": 1}, "reads nothing named 'tops'"),
        ("squared_error", {"metrics": ("f2",)}, "metric 'f2' is unknown"),
        ("softmax_cross_entropy", {"smoothing": "keras"}, "'keras' is unknown"),
    ],
)
def test_names_that_nobody_registered(name, arguments, message):
    with pytest.raises(UserError, match=message):
        objectives.build(name, arguments)


def test_point_is_split_between_loss_and_optimizer():
    point = {"learning_rate": 0.1, "l2_penalty": 1e-4, "label_smoothing": 0.1}
    loss, optimizer = objectives.build().split_point(point)
    assert loss == {"l2_penalty": 1e-4, "label_smoothing": 0.1}
    assert optimizer == {"learning_rate": 0.1}
    loss, optimizer = objectives.build("squared_error").split_point(point)
    assert loss == {"l2_penalty": 1e-4}
