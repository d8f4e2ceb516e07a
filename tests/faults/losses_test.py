"""Losses, metrics and networks that would train something else are refused at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from dps_tf.core import UserError
from dps_tf.models import check_functional
from dps_tf.objectives import Metric, Objective, build, fractions
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


def network(outputs=1, dtype="float32", trainable=True):
    inputs = tf_keras.Input([4])
    layers = [tf_keras.layers.Dense(2, dtype=dtype) for _ in range(outputs)]
    for layer in layers:
        layer.trainable = trainable
    return tf_keras.Model(inputs, [layer(inputs) for layer in layers])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"outputs": 2}, "has 2 outputs: return one"),
        ({"dtype": "float64"}, "has weights of float64"),
        ({"trainable": False}, "has no weights to train"),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused_when_built(change, message):
    check_functional("own", network(), [4])
    with pytest.raises(UserError, match=message):
        check_functional("own", network(**change), [4])


def test_a_loss_without_a_gradient_is_named_with_the_weight():
    problem = problems.Problem()
    flat = dataclasses.replace(
        PLAIN, loss=lambda y, o, _: tf.cast(tf.argmax(o, -1), tf.float32)
    )
    task = dataclasses.replace(problem.task, objective=flat)
    held = DeviceData(task.dataset, problems.one_device())
    with pytest.raises(UserError, match="has no gradient for .*kernel"):
        Program(task, held, 16)
