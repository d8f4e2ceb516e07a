"""Losses, metrics and networks that would train something else are refused at once."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import dps_tf
from dps_tf.core import UserError
from dps_tf.models import check_functional
from dps_tf.objectives import Metric, Objective, build, fractions, merge
from dps_tf.training import DeviceData, Program
from tests.training import problems

PLAIN = build("softmax_cross_entropy", None)


def each(labels, outputs):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


LOSSES = {
    "reduced": lambda y, o: tf.reduce_mean(each(y, o)),
    "of Keras": lambda y, o: tf_keras.losses.SparseCategoricalCrossentropy(True)(y, o),
    "with one dimension more": lambda y, o: each(y, o)[..., None],
    "broadcast": lambda y, o: each(y, o)[..., None] + each(y, o)[..., None, :],
    "one less": lambda y, o: each(y, o)[1:],
    "float64": lambda y, o: tf.cast(each(y, o), tf.float64),
    "float16": lambda y, o: tf.cast(each(y, o), tf.float16),
    "a Python number": lambda y, o: 1.0,
    "an array": lambda y, o: np.ones(16, np.float32),
}
USES = {
    "training": lambda of, y, o: of.batch_loss(y, o, {}, 16),
    "scores": lambda of, y, o: of.mean_loss(y, o, {}),
    "evaluation": lambda of, y, o: of.sums(y, o, tf.ones(16, tf.bool)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("positions", [(), (3,)])
def test_a_loss_is_one_number_for_each_label(loss, use, positions):
    labels, outputs = (
        tf.zeros([16, *positions], tf.int32),
        tf.zeros([16, *positions, 4]),
    )
    own = dataclasses.replace(PLAIN, loss=lambda y, o, _: LOSSES[loss](y, o))
    traced = tf.function(lambda: USES[use](own, labels, outputs), autograph=False)
    with pytest.raises(UserError, match="the loss of the objective is .* each label"):
        traced.get_concrete_function()
    USES[use](PLAIN, labels, outputs)


def chosen(y, o):
    return each(y, o) if tf.reduce_mean(o) > 0 else 2.0 * each(y, o)


OUTSIDE = {
    "an if": chosen,
    "NumPy": lambda y, o: tf.constant(np.log1p(each(y, o))),
    "a value": lambda y, o: each(y, o) * o.numpy().mean(),
    "a number": lambda y, o: each(y, o) * float(tf.reduce_mean(o)),
}


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("part", ["loss", "metric"])
def test_what_no_graph_holds_is_refused_with_its_line(kind, part):
    own = OUTSIDE[kind]
    metrics = fractions(lambda y, o: own(y, o) > 0, "own_error")
    changed = {
        "loss": {"loss": lambda y, o, _: own(y, o)},
        "metric": {"metrics": metrics},
    }
    objective = dataclasses.replace(PLAIN, **changed[part])
    specs = tf.TensorSpec([16], tf.int32), tf.TensorSpec([16, 4])
    traced = tf.function(objective.sums, autograph=False)
    fails = rf"{part} of the objective fails with .*losses_test.py, line \d+"
    with pytest.raises(UserError, match=fails):
        traced.get_concrete_function(*specs, tf.TensorSpec([16], tf.bool))


WEIGHTS = {
    "one for all": lambda w: tf.constant(2.0),
    "a column": lambda w: w[..., None],
    "a row": lambda w: w[None],
    "one less": lambda w: w[1:],
    "whole": lambda w: tf.cast(w, tf.int32),
    "flags": lambda w: w > 0,
    "float64": lambda w: tf.cast(w, tf.float64),
    "a Python number": lambda w: 1.0,
    "an array": lambda w: np.ones(16, np.float32),
}
USES_OF_WEIGHTS = {
    **USES,
    "steps": lambda of, y, o: of.weights(y),
    "valid": lambda of, y, o: of.valid_weights(y, tf.ones(16, tf.bool)),
}


def weighted(weights, loss=PLAIN.loss, **change):
    return dataclasses.replace(PLAIN, loss=loss, weights=weights, **change)


@pytest.mark.parametrize("use", USES_OF_WEIGHTS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_weight_is_one_number_for_each_label(kind, use):
    labels, outputs = tf.zeros([16], tf.int32), tf.zeros([16, 4])
    ones = lambda y: tf.ones_like(y, tf.float32)  # noqa: E731
    own = weighted(lambda y: WEIGHTS[kind](ones(y)))
    traced = tf.function(
        lambda: USES_OF_WEIGHTS[use](own, labels, outputs), autograph=False
    )
    with pytest.raises(UserError, match="the weight of a label is .* each label"):
        traced.get_concrete_function()
    USES_OF_WEIGHTS[use](weighted(ones), labels, outputs)


@pytest.mark.parametrize(
    "values, message",
    [
        ((1, -1), "weights of labels of it go from -1.0 to 1.0"),
        ((1, -1e-9), "go from -9.9.* at least 0"),
        ((1, math.nan), "go from nan .* must be finite"),
        ((math.inf, 1), "go from 1.0 to inf"),
        ((0, 0), "weights of all labels of it are 0"),
    ],
)
def test_weights_are_not_negative_and_not_all_zero(values, message):
    labels = np.arange(20_001) % 2 == 0  # more than are read at a time
    labels = labels.astype(np.int32)

    def of(values):
        return weighted(lambda y: tf.gather(tf.constant(values, tf.float32), y))

    of((0, 1)).check_outputs(labels, [None, 4], "it")
    of((0.5, 3)).check_outputs(labels, [None, 4], "it")
    with pytest.raises(UserError, match=message):
        of(values).check_outputs(labels, [None, 4], "it")


KNOWN = lambda y: tf.cast(y >= 0, tf.float32)  # noqa: E731
NOT_NAN = lambda y: tf.cast(y == y, tf.float32)  # noqa: E731


@pytest.mark.parametrize(
    "positions, outputs", [((), ()), ((3,), (3,)), ((3,), (None,))]
)
def test_a_loss_takes_the_labels_that_have_no_weight(positions, outputs):
    labels = np.ones([50, *positions], np.int32)
    labels[7:9] = -1
    given = labels, [None, *outputs, 4], "it"
    fails = lambda y, o, _: each(y, o)  # noqa: E731
    shifted = lambda y, o, _: each(tf.maximum(y, 0), o) / tf.cast(y + 1, "float32")  # noqa: E731
    holds = lambda y, o, _: each(tf.maximum(y, 0), o)  # noqa: E731
    weighted(KNOWN, holds).check_outputs(*given)
    for loss in (fails, shifted):
        with pytest.raises(UserError, match="for labels of it that have weight 0"):
            weighted(KNOWN, loss).check_outputs(*given)


def test_a_number_may_be_unknown_where_the_objective_says_so():
    labels = np.ones([20, 2], np.float32)
    plain = lambda y, o, _: tf.square(o - y)  # noqa: E731
    held = lambda y, o, _: tf.square(tf.where(y == y, o - y, 0.0))  # noqa: E731
    given = [None, 2], "it"
    for weights in (None, NOT_NAN):
        weighted(weights, plain, labels="numbers").check_outputs(labels, *given)
    labels[11, 1] = math.nan
    build("squared_error").check_outputs(labels, *given)
    weighted(NOT_NAN, held, labels="numbers").check_outputs(labels, *given)
    for weights in (None, lambda y: tf.ones_like(y)):
        with pytest.raises(UserError, match="a label of it is NaN, and counts"):
            weighted(weights, held, labels="numbers").check_outputs(labels, *given)
    with pytest.raises(UserError, match="NaN for labels of it that have weight 0"):
        weighted(NOT_NAN, plain, labels="numbers").check_outputs(labels, *given)


@pytest.mark.parametrize("change", [lambda w: w[..., None], tf.reduce_any, lambda w: 1])
def test_what_a_metric_counts_is_one_flag_for_each_label(change):
    labels, outputs = tf.zeros([16], tf.int32), tf.zeros([16, 4])
    wrong = lambda y, o: change(tf.not_equal(tf.argmax(o, -1, tf.int32), y))  # noqa: E731
    own = Objective(PLAIN.loss, fractions(wrong, "own_error"))
    with pytest.raises(UserError, match="what counts for own_error is"):
        own.sums(labels, outputs, tf.ones(16, tf.bool))


@pytest.mark.parametrize(
    "kept, returned, message",
    [
        (False, lambda w: w, "'own' .* not added up over the batch"),
        (False, lambda w: 1.0, "'own' .* is float, no tensor"),
        (False, lambda w: tf.reduce_sum(tf.cast(w, tf.int32)), "'own' .* is int32"),
        (False, lambda w: tf.reduce_any(w > 0), "'own' .* is bool, .* int64"),
        (True, lambda w: tf.reduce_sum(w), "'own' .* not a row for each example"),
        (True, lambda w: tf.ones([3, 2]), "'own' .* not a row for each example"),
    ],
)
def test_sums_of_an_own_metric_can_be_merged(kept, returned, message):
    def objective(own):
        sums = lambda y, o, w: {"own": own(w)}  # noqa: E731
        metric = Metric("own", lambda sums: 0.0, sums, keeps_examples=kept)
        return Objective(PLAIN.loss, (metric,))

    def trace(own, batch):
        specs = [tf.TensorSpec([batch], tf.int32), tf.TensorSpec([batch, 4])]
        valid = tf.TensorSpec([batch], tf.bool)
        tf.function(objective(own).sums, autograph=False).get_concrete_function(
            *specs, valid
        )

    trace(lambda w: w if kept else tf.reduce_sum(w), None)
    with pytest.raises(UserError, match=message):
        trace(returned, 16 if kept else None)


@pytest.mark.parametrize(
    ("total", "is_of_examples"),
    [
        (lambda y, o, w: tf.reduce_sum(w * o[:, 0]), True),
        (lambda y, o, w: tf.reduce_mean(o), False),
        (lambda y, o, w: tf.reduce_sum(o), False),  # of padding too
        (lambda y, o, w: tf.reduce_sum(w * (o[:, :1] - w)), False),
        (lambda y, o, w: tf.cast(tf.size(y), tf.int64), False),
    ],
)
def test_sums_of_an_own_metric_are_of_the_examples_that_count(total, is_of_examples):
    sums = lambda y, o, w: {"own": total(y, o, w)}  # noqa: E731
    own = Objective(PLAIN.loss, (Metric("own", lambda sums: 0.0, sums),))
    for count in (1, 2, 40):
        labels = np.arange(count, dtype=np.int32) % 4
        if is_of_examples or count == 1:
            own.check_outputs(labels, [None, 4], "mine")
            continue
        with pytest.raises(UserError, match="'own' of a metric's sums changes with"):
            own.check_outputs(labels, [None, 4], "mine")


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "returned, message",
    [
        (lambda w: {"weight": w}, "'weight' of a metric's sums is named as"),
        (lambda w: {"loss": w}, "'loss' of a metric's sums is named as"),
        (lambda w: [w], "sums of a metric are list: return a dictionary"),
        (lambda w: w, "sums of a metric are .*Tensor: return a dictionary"),
        (lambda w: None, "sums of a metric are NoneType"),
    ],
)
def test_sums_have_names_of_their_own(kept, returned, message):
    sums = lambda y, o, w: returned(w if kept else tf.reduce_sum(w))  # noqa: E731
    metric = Metric("own", lambda sums: 0.0, sums, keeps_examples=kept)
    labels, outputs = tf.zeros([16], tf.int32), tf.zeros([16, 4])
    with pytest.raises(UserError, match=message):
        Objective(PLAIN.loss, (metric,)).sums(labels, outputs, tf.ones(16, tf.bool))


def test_sums_of_batches_are_added_in_float64():
    sums = lambda y, o, w: {"own": tf.constant(2.0**24)}  # noqa: E731
    one = lambda y, o, w: {"own": tf.constant(1.0)}  # noqa: E731
    labels, outputs = tf.zeros([16], tf.int32), tf.zeros([16, 4])
    batches = []
    for function in (sums, one, one):
        metric = Metric("own", lambda sums: float(sums["own"]), function)
        own = Objective(PLAIN.loss, (metric,))
        found = own.sums(labels, outputs, tf.ones(16, tf.bool))
        batches.append(tf.nest.map_structure(lambda value: value.numpy(), found))
    assert own.values("validation", merge(batches))["validation/own"] == 2**24 + 2


class Trained(tf_keras.Model):
    def train_step(self, data):
        return {}


def network(kind=tf_keras.Model, outputs=1, trainable=True, made=list, **options):
    inputs = tf_keras.Input([4])
    layers = [tf_keras.layers.Dense(2, **options) for _ in range(outputs)]
    for layer in layers:
        layer.trainable = trainable
    return kind(inputs, made(layer(inputs) for layer in layers))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"outputs": 2}, "has 2 outputs: return one"),
        ({"made": lambda outputs: {"a": next(outputs)}}, "returns a dict: return one"),
        ({"dtype": "float64"}, "has weights of float64"),
        ({"trainable": False}, "has no weights to train"),
        ({"kernel_constraint": "max_norm"}, "constrains weights, which no step does"),
        ({"bias_constraint": "non_neg"}, "constrains weights, which no step does"),
        ({"kind": Trained}, "has a train_step of its own, which no trial calls"),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused_when_built(change, message):
    check_functional("own", network(), [4])
    with pytest.raises(UserError, match=message):
        check_functional("own", network(**change), [4])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN", "Bidirectional"])
@pytest.mark.parametrize("stateful", [True, False])
def test_a_network_with_a_state_between_batches_is_refused(kind, stateful):
    inputs = tf_keras.Input(batch_shape=(8, 2, 2))
    layers = tf_keras.layers
    inner = "LSTM" if kind == "Bidirectional" else kind
    layer = getattr(layers, inner)(3, stateful=stateful)
    layer = layers.Bidirectional(layer) if kind == "Bidirectional" else layer
    model = tf_keras.Model(inputs, layers.Dense(2)(layer(inputs)))
    if not stateful:
        check_functional("own", model, (2, 2))
        return
    with pytest.raises(UserError, match="is stateful: leave that out"):
        check_functional("own", model, (2, 2))


def test_a_loss_without_a_gradient_is_named_with_the_weight():
    problem = problems.Problem()
    flat = dataclasses.replace(
        PLAIN, loss=lambda y, o, _: tf.cast(tf.argmax(o, -1), tf.float32)
    )
    task = dataclasses.replace(problem.task, objective=flat)
    held = DeviceData(task.dataset, problems.one_device())
    with pytest.raises(UserError, match="has no gradient for .*kernel"):
        Program(task, held, 16)


NO_NUMBERS = {
    "nothing": (lambda sums: None, "'q' is None: its value must return one number"),
    "complex": (lambda sums: 1j, "'q' is 1j"),
    "two": (lambda sums: np.ones(2), r"'q' is array\(\[1., 1.\]\)"),
    "misspelt": (lambda sums: sums["rigth"], "reads the sum 'rigth', .*'right'"),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_a_metric_is_one_number(kind):
    value, message = NO_NUMBERS[kind]
    metric = Metric("q", value, lambda y, o, w: {"right": tf.reduce_sum(w)})
    objective = Objective(lambda y, o, m: each(y, o), (metric,))
    sums = objective.sums(tf.zeros(4, tf.int32), tf.zeros([4, 3]), tf.ones(4, tf.bool))
    with pytest.raises(UserError, match=message):
        objective.values("validation", tf.nest.map_structure(np.asarray, sums))


@pytest.mark.parametrize("use", USES)
def test_a_metaparameter_that_the_loss_lacks_is_named(use):
    objective = Objective(lambda y, o, m: each(y, o) / m["heat"], PLAIN.metrics)
    with pytest.raises(UserError, match="loss reads 'heat' .* by .get with a default"):
        USES[use](objective, tf.zeros(16, tf.int32), tf.zeros([16, 3]))


def test_what_makes_an_objective_returns_one_and_its_metrics_are_several():
    dps_tf.register_objective("three of a test", lambda: 3)
    with pytest.raises(UserError, match="is a int: its function must return an Obj"):
        build("three of a test")
    with pytest.raises(UserError, match="metrics of an objective are a Metric: give a"):
        Objective(lambda y, o, m: each(y, o), PLAIN.metrics[0])
