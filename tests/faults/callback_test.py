"""The callback in programs that count, report and reset in ways of their own."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import dps_tf
from dps_tf.analysis.interchange.runs import from_keras
from dps_tf.core import UserError

keras3 = importlib.import_module("keras")
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(22, 4)).astype("f"), RNG.integers(0, 2, 22)
NEVER = dps_tf.Goal("validation/classification_error", -1.0)
KERAS = pytest.mark.parametrize("keras", [tf_keras, keras3], ids=["tf_keras", "keras3"])


def model_of(keras, optimizer="sgd", outputs=1, activation=None, **compiling):
    inputs = keras.Input((4,))
    made = [keras.layers.Dense(2, activation)(inputs) for _ in range(outputs)]
    model = keras.Model(inputs, made if outputs > 1 else made[0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **compiling)
    return model


def watched(model, inputs=X, labels=Y, epochs=1, callback=None):
    callback = callback or dps_tf.StepsToResult(inputs, labels, NEVER, 1)
    targets = [Y] * len(model.outputs) if len(model.outputs) > 1 else Y
    arguments = {"callbacks": [callback], "verbose": 0, "shuffle": False}
    model.fit(X, targets, 4, epochs, **arguments)
    return callback


def losses_by_hand(model, epochs):
    """Losses of plain SGD on batches of 4, the last of 2, in the order of the file."""
    kernel, bias = (np.array(w, np.float64) for w in model.get_weights())
    for start in [*range(0, 22, 4)] * epochs:
        x, y = X[start : start + 4], Y[start : start + 4]
        logits = x @ kernel + bias
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        yield -np.log(shares[range(len(y)), y]).mean()
        gradient = (shares - np.eye(2)[y]) / len(y)
        kernel, bias = kernel - 0.01 * x.T @ gradient, bias - 0.01 * gradient.sum(0)


@KERAS
@pytest.mark.parametrize("is_first", [True, False])
def test_train_loss_is_that_of_the_step_whatever_others_reset(keras, is_first):
    class Evaluating(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.evaluate(X, Y, verbose=0)

    model = model_of(keras)
    wanted = list(losses_by_hand(model, 2))
    own = dps_tf.StepsToResult(X, Y, NEVER, 1)
    callbacks = [own, Evaluating()] if is_first else [Evaluating(), own]
    model.fit(X, Y, 4, 2, callbacks=callbacks, verbose=0, shuffle=False)
    assert [row["step"] for row in own.curve] == list(range(1, 13))
    if not is_first:  # what was reset is not known
        wanted[2] = wanted[8] = np.nan
    np.testing.assert_allclose([r["train/loss"] for r in own.curve], wanted, 1e-4)


def test_a_step_is_an_update_of_the_optimizer():
    model = model_of(keras3, keras3.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    found = watched(model, epochs=2)
    assert found.curve[-1]["step"] == int(model.optimizer.iterations) == 6
    again = dps_tf.StepsToResult(X, Y, NEVER, 1)
    assert watched(model, callback=again).curve[0]["step"] == 1


@KERAS
def test_what_cannot_be_measured_is_one_sentence(keras):
    for changes, message in (
        ({"steps_per_execution": 2}, "steps_per_execution=2"),
        ({"activation": "softmax"}, "ends in softmax"),
        ({"outputs": 2}, "has 2 outputs"),
    ):
        with pytest.raises(UserError, match=message):
            watched(model_of(keras, **changes))
    for labels, message in (
        (Y[:, None], r"shape \[1\]"),
        (np.eye(2, dtype=int)[Y], r"shape \[2\]"),
        (np.eye(2)[Y], "float64"),
        (Y + 1, "is 2"),
    ):
        with pytest.raises(UserError, match=message):
            watched(model_of(keras), labels=labels)
    used = watched(model_of(keras), tf.constant(X), tf.constant(Y))
    assert len(used.curve) == 6
    with pytest.raises(UserError, match="a new StepsToResult for each model"):
        watched(model_of(keras), callback=used)
    with pytest.raises(UserError, match="no model yet"):
        dps_tf.StepsToResult(X, Y, NEVER, 1).evaluate()


@pytest.mark.parametrize("every, epochs", [(1, [1, 2, 3, 4]), (2, [2, 4]), ([1], [1])])
def test_a_history_has_the_epochs_that_were_validated(every, epochs):
    history = model_of(tf_keras).fit(
        X, Y, 4, 4, 0, validation_data=(X, Y), validation_freq=every
    )
    options = {"batch_size": 4, "validation_freq": every}
    rows = from_keras({"a": history}, **options).evaluations
    known = rows["validation/loss"].notna()
    assert rows["step"][known].tolist() == [6 * epoch for epoch in epochs]
    assert rows["validation/loss"][known].tolist() == history.history["val_loss"]
    if every != 1:
        with pytest.raises(UserError, match="give validation_freq as fit had it"):
            from_keras({"a": history}, batch_size=4)
