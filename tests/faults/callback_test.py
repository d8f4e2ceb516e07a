"""The callback in programs that count, report and reset in ways of their own."""

from __future__ import annotations

import copy
import importlib
import itertools

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras

import dps_tf
from dps_tf.analysis.interchange.runs import from_keras
from dps_tf.core import UserError
from dps_tf.models import check_logits

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


def at(array, place, value, kind=None):
    changed = np.array(array, kind)
    changed[place] = value
    return changed


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


@pytest.mark.parametrize("every, epochs", [(2, [2, 4]), ([1], [1])])
def test_a_history_has_the_epochs_that_were_validated(every, epochs):
    history = model_of(tf_keras).fit(
        X, Y, 4, 4, 0, validation_data=(X, Y), validation_freq=every
    )
    options = {"batch_size": 4, "validation_freq": every}
    rows = from_keras({"a": history}, **options).evaluations
    known = rows["validation/loss"].notna()
    assert rows["step"][known].tolist() == [6 * epoch for epoch in epochs]
    assert rows["validation/loss"][known].tolist() == history.history["val_loss"]
    with pytest.raises(UserError, match="give validation_freq as fit had it"):
        from_keras({"a": history}, batch_size=4)


@pytest.mark.parametrize(
    ("cause", "keras"),
    [
        ("accumulated", keras3),
        *(("stopped", tf_keras), ("stopped", keras3)),
        *(("doubled", tf_keras), ("doubled", keras3)),
        *(("", tf_keras), ("", keras3)),
    ],
)
def test_a_history_whose_batches_are_no_updates_is_refused(cause, keras):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training |= cause == "stopped" and batch == 2

    optimizer = "sgd"
    if cause == "accumulated":
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model = model_of(keras, optimizer)
    options = {"validation_data": (X, Y), "verbose": 0}
    if cause == "doubled":
        model.fit(X, Y, 4, 2, verbose=0)  # as if each batch had two updates
    given = [Stops()] if cause != "accumulated" else []
    history = model.fit(X, Y, 4, 2, callbacks=given, **options)
    if cause in ("", "doubled"):
        runs = from_keras({"a": history}, batch_size=4)
        assert runs.evaluations["step"].tolist() == [6, 12]
        assert ("made 24 updates: each K*" in str(runs.notes)) == bool(cause)
        return
    with pytest.raises(UserError, match="batches, and the optimizer .* updates"):
        from_keras({"a": history}, batch_size=4)


def test_a_history_of_a_model_compiled_again_is_named():
    model = model_of(keras3, keras3.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    history = model.fit(X, Y, 4, validation_data=(X, Y), verbose=0)
    model.compile("sgd", "mse")
    [note] = from_keras({"a": history}, batch_size=4).notes
    assert "made 0 updates (compiled again): each K* is too large if" in note


@KERAS
def test_a_callback_that_restores_the_optimizer_comes_first(keras):
    class Restores(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.optimizer.iterations.assign(12)

    model, own = model_of(keras), dps_tf.StepsToResult(X, Y, NEVER, 1)
    with pytest.raises(UserError, match="made 13 updates in one batch: .* before it"):
        model.fit(X, Y, 4, verbose=0, callbacks=[own, Restores()])
    model, own = model_of(keras), dps_tf.StepsToResult(X, Y, NEVER, 1)
    model.fit(X, Y, 4, verbose=0, callbacks=[Restores(), own])
    assert [row["step"] for row in own.curve] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "make",
    [
        lambda: [X, X],
        lambda: {"a": X, "b": X},
        lambda: (row for row in X),
        lambda: tf.data.Dataset.from_tensor_slices((X, Y)),
        lambda: None,
        lambda: tf.sparse.from_dense(X),
        lambda: scipy.sparse.csr_matrix(X),
        lambda: tf.ragged.constant([[1.0, 2.0], [3.0]] * 11),
        lambda: [[1.0, 2.0], [3.0]] * 11,
        lambda: X[0, 0],
    ],
)
def test_a_callback_takes_one_array_of_inputs_and_one_of_labels(make):
    for given in ((make(), Y), (X, make())):
        with pytest.raises(UserError, match="give one array of inputs"):
            dps_tf.StepsToResult(*given, NEVER, 1)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_that_nobody_would_see_is_refused(make):
    """As keras-tuner's search makes one for each trial."""
    with pytest.raises(UserError, match="cannot be copied"):
        make(dps_tf.StepsToResult(X, Y, NEVER, 1))


@KERAS
def test_a_run_that_has_ended_is_named_in_the_next_fit(keras, capsys):
    model = model_of(keras)
    met = dps_tf.StepsToResult(X, Y, dps_tf.Goal("validation/cross_entropy", 1e9), 2)
    for said in (0, 1):
        watched(model, callback=met)
        assert met.steps_to_result == 2
        assert ("was complete before this fit" in capsys.readouterr().out) == said


@KERAS
@pytest.mark.parametrize("is_set", [True, False])
def test_a_loop_without_an_optimizer_or_a_model_is_one_sentence(keras, is_set):
    inputs = keras.Input((4,))
    own = dps_tf.StepsToResult(X, Y, NEVER, 1)
    if is_set:
        own.set_model(keras.Model(inputs, keras.layers.Dense(2)(inputs)))
        assert own.evaluate().metrics["validation/accuracy"] <= 1
    for hook in (own.on_train_batch_begin, own.on_train_batch_end):
        with pytest.raises(UserError, match="no optimizer" if is_set else "no model"):
            hook(0)


BEYOND = r": .*indices\[.*\] = 9 is not in"


def embedding(input_shape, classes, keras=tf_keras):
    inputs = keras.Input(input_shape, dtype="int32")
    outputs = keras.layers.Flatten()(keras.layers.Embedding(9, 2)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(outputs))


@KERAS
def test_a_token_beyond_the_vocabulary_is_one_sentence(keras):
    tokens = np.full((22, 4), 9)
    own = dps_tf.StepsToResult(tokens, Y, NEVER, 1)
    own.set_model(embedding((4,), 2, keras))
    with pytest.raises(UserError, match=BEYOND):
        own.evaluate()


def test_a_token_beyond_the_vocabulary_is_one_sentence_of_a_sweep(tmp_path):
    given = {"network": embedding, "dataset": (np.full((22, 4), 9), Y), "goal": 0.1}
    given |= {"sweep_dir": tmp_path, "batch_sizes": (8,), "step_budget": 5}
    with pytest.raises(UserError, match=BEYOND):
        dps_tf.run(**given, slots=1)


@KERAS
def test_a_model_of_another_backend_is_one_sentence(keras, monkeypatch):
    monkeypatch.setattr(keras3.backend, "backend", lambda: "jax")
    model, own = model_of(keras), dps_tf.StepsToResult(X, Y, NEVER, 1)
    if keras is tf_keras:
        own.set_model(model)
        assert own.evaluate().metrics["validation/accuracy"] <= 1
        return
    with pytest.raises(UserError, match="computes by jax, and StepsToResult"):
        own.set_model(model)


def test_a_program_without_eager_execution_is_one_sentence():
    with tf.Graph().as_default():
        model = model_of(tf_keras)
        with pytest.raises(UserError, match="call fit outside of it"):
            watched(model)


@KERAS
@pytest.mark.parametrize("is_whole", [True, False])
def test_positions_that_keras_masks_are_not_counted(keras, is_whole):
    """Keras leaves them out of its loss and metrics, and an evaluation does not."""
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Embedding(9, 2, mask_zero=True)(inputs)
    hidden = hidden if is_whole else keras.layers.GlobalAveragePooling1D()(hidden)
    labels = np.repeat(Y[:, None], 4, 1) if is_whole else Y
    own = dps_tf.StepsToResult(np.full((22, 4), 1), labels, NEVER, 1)
    own.set_model(keras.Model(inputs, keras.layers.Dense(2)(hidden)))
    if not is_whole:
        own.evaluate()
        return
    with pytest.raises(UserError, match="masks positions of its outputs"):
        own.evaluate()


def test_masks_of_tfmot_are_no_change_of_the_training():
    """An evaluation masks weights, and the next mask is drawn from all of them."""
    weights = []
    for callbacks in (0, 1):
        tf_keras.utils.set_random_seed(1)
        model, loss = model_of(tf_keras), model_of(tf_keras).loss
        schedule = tfmot.sparsity.keras.ConstantSparsity(0.5, 2, frequency=2)
        pruned = tfmot.sparsity.keras.prune_low_magnitude(model, schedule)
        pruned.compile(tf_keras.optimizers.SGD(0.1, momentum=0.9), loss)
        own = [dps_tf.StepsToResult(X, Y, NEVER, 1)] * callbacks
        update = [tfmot.sparsity.keras.UpdatePruningStep()]
        arguments = {"callbacks": update + own, "verbose": 0, "shuffle": False}
        pruned.fit(X, Y, 4, 2, **arguments)
        stripped = tfmot.sparsity.keras.strip_pruning(pruned)
        weights.append(stripped.get_weights())
    assert (weights[0][0] == 0).sum() == 4
    assert all((a == b).all() for a, b in zip(*weights, strict=True))
    wrong = np.argmax(stripped(X), 1) != Y
    assert own[0].curve[-1]["validation/classification_error"] == wrong.mean()


@KERAS
def test_optimizers_may_take_turns(keras):
    model = model_of(keras)
    first, second = model.optimizer, keras.optimizers.Adam()
    own = watched(model)
    for optimizer in (second, first, second):
        model.compile(optimizer, model.loss)
        watched(model, callback=own)
    assert [row["step"] for row in own.curve] == [*range(1, 25)]
    model.optimizer.iterations.assign(0)
    with pytest.raises(UserError, match="do not set the iterations back"):
        watched(model, callback=own)


@KERAS
def test_nothing_is_measured_beyond_the_budget(keras):
    model, own = model_of(keras), dps_tf.StepsToResult(X, Y, NEVER, 2, step_budget=4)
    for _ in range(5):
        watched(model, callback=own)
    assert [row["step"] for row in own.curve] == [2, 4]


def test_a_lost_batch_belongs_to_the_update_that_it_is_accumulated_for():
    optimizer = keras3.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    own = dps_tf.StepsToResult(X, Y, NEVER, 1)
    model = model_of(keras3, optimizer)
    lost = at(X, 2 * 4, np.nan)  # the third batch
    model.fit(lost, Y, 4, shuffle=False, callbacks=[own], verbose=0)
    assert (own.outcome, own.diverged_step) == ("infeasible", 2)


@KERAS
def test_a_weight_that_a_relu_hides_is_a_divergence(keras):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    own = dps_tf.StepsToResult(X, Y, NEVER, 1)
    lost = at(X, 2 * 4, np.nan)
    model.fit(lost, Y, 4, shuffle=False, callbacks=[own], verbose=0)
    assert np.isnan(model.get_weights()[0]).any()
    assert (own.outcome, own.diverged_step) == ("infeasible", 3)


@KERAS
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "counter"])
def test_an_evaluation_that_would_change_the_training_is_refused(keras, kind):
    class Counter(keras.layers.Layer):
        def build(self, shape):
            given = {"shape": (), "initializer": "zeros", "trainable": False}
            self.calls = self.add_weight(name="calls", **given)

        def call(self, inputs):
            self.calls.assign_add(1.0)
            return keras.layers.Flatten()(inputs)

    inputs = keras.Input(batch_shape=(2, 2, 2))
    made = (
        Counter() if kind == "counter" else getattr(keras.layers, kind)(3, stateful=1)
    )
    model = keras.Model(inputs, keras.layers.Dense(2)(made(inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    rows = X.reshape(-1, 2, 2)
    own = dps_tf.StepsToResult(rows, Y, NEVER, 1, evaluation_batch_size=2)
    with pytest.raises(UserError, match="evaluating model .* changes its state"):
        model.fit(rows, Y, 2, callbacks=[own], verbose=0)


@pytest.mark.parametrize("wrong", [0, -3, 3.5, "3", True])
def test_numbers_of_steps_are_whole(wrong):
    for name in ("interval", "step_budget", "evaluation_batch_size"):
        with pytest.raises(UserError, match=repr(wrong)):
            dps_tf.StepsToResult(X, Y, NEVER, **{"interval": 1, name: wrong})
        dps_tf.StepsToResult(X, Y, NEVER, **{"interval": 1, name: np.int64(3)})
    with pytest.raises(UserError, match="give a Goal"):
        dps_tf.StepsToResult(X, Y, wrong, 1)


FORMS = ["cast", "nested", "lambda", "subclass", "reshape", "scaled"]


@pytest.mark.parametrize(
    ("form", "keras", "is_softmax"),
    [
        *((form, keras, True) for form in FORMS for keras in (tf_keras, keras3)),
        *((form, tf_keras, False) for form in FORMS[:4]),
        *((form, keras3, False) for form in FORMS[2:]),
    ],
)
def test_a_softmax_of_any_form_is_refused_and_no_other_end(form, keras, is_softmax):
    layers = keras.layers
    inputs = keras.Input((4,))
    end = "softmax" if is_softmax else None
    dense = layers.Dense(2, end)
    function = tf.nn.softmax if is_softmax else tf.nn.log_softmax

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = dense
            self.dropped = layers.Dropout(0.5)
            self.attention = layers.Softmax()

        def call(self, x, training=None):
            return self.last(self.dropped(x, training=training))

    outputs = {
        "cast": lambda: layers.Activation("linear", dtype="float32")(dense(inputs)),
        "nested": lambda: keras.Sequential([keras.Input((4,)), dense])(inputs),
        "lambda": lambda: layers.Lambda(function)(layers.Dense(2)(inputs)),
        "scaled": lambda: layers.Rescaling(1.0)(dense(inputs)),
        "reshape": lambda: layers.Flatten()(layers.Reshape((1, 2))(dense(inputs))),
        "subclass": lambda: None,
    }[form]()
    model = Own() if outputs is None else keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not is_softmax)
    model.compile("sgd", loss)
    callback = dps_tf.StepsToResult(X, Y, NEVER, 1)
    if is_softmax:
        with pytest.raises(UserError, match="ends in softmax"):
            model.fit(X, Y, 4, callbacks=[callback], verbose=0)
        if keras is tf_keras and form != "subclass":
            with pytest.raises(UserError, match="ends in softmax"):
                check_logits(model, "softmax")
        return
    model.fit(X, Y, 4, callbacks=[callback], verbose=0)
    assert len(callback.curve) == 6


def test_mixed_precision_evaluates():
    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        found = watched(model_of(tf_keras))
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    assert found.curve and np.isfinite([r["train/loss"] for r in found.curve]).all()


@KERAS
def test_an_update_that_overflows_is_none(keras):
    """A scale of 2^40 is halved until float16 holds the gradients."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        scaled = getattr(keras.mixed_precision, "LossScaleOptimizer", None)
        optimizer = (scaled or keras.optimizers.LossScaleOptimizer)(
            keras.optimizers.SGD(0.1), initial_scale=2.0**40
        )
        weights = []

        class Noting(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                weights.append(np.concatenate([w.ravel() for w in model.get_weights()]))

        model = model_of(keras, optimizer)
        own = dps_tf.StepsToResult(X, Y, NEVER, 1)
        for _ in range(2):
            callbacks = [own, Noting()]
            model.fit(X, Y, 4, 8, callbacks=callbacks, verbose=0, shuffle=False)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    updates = sum((a != b).any() for a, b in itertools.pairwise(weights))
    assert 16 < updates < len(weights) - 16
    assert [row["step"] for row in own.curve] == list(range(1, updates + 1))


@KERAS
def test_updates_of_others_are_named_before_the_callback_and_refused_later(
    keras, capsys
):
    model = model_of(keras)
    watched(model)
    assert "note" not in capsys.readouterr().out
    own = watched(model)
    assert [row["step"] for row in own.curve] == list(range(1, 7))
    assert "note: the optimizer has made 6 updates before" in capsys.readouterr().out
    model.fit(X, Y, 4, verbose=0)
    with pytest.raises(UserError, match="has made 12 updates, and .* seen 6"):
        watched(model, callback=own)


def test_steps_per_execution_that_keras_chooses_is_refused():
    model = model_of(keras3)
    model.steps_per_execution = "auto"
    with pytest.raises(UserError, match="steps_per_execution='auto': use 1"):
        watched(model)


@KERAS
@pytest.mark.parametrize("begun", [(), (0,), range(4)])
def test_a_loop_of_batches_of_its_own_is_counted(keras, begun):
    model = model_of(keras)
    own = dps_tf.StepsToResult(X, Y, NEVER, 1)
    own.set_model(model)
    own.on_train_begin()
    for batch in range(4):
        if batch in begun:
            own.on_train_batch_begin(batch)
        loss = model.train_on_batch(X, Y)
        own.on_train_batch_end(batch, {"loss": loss})
    assert [row["step"] for row in own.curve] == [1, 2, 3, 4]
    known = [row["train/loss"] for row in own.curve]
    assert np.isnan(known[1:]).all() or len(begun) == 4


@KERAS
def test_inputs_of_another_width_and_one_output_with_a_name(keras):
    with pytest.raises(UserError, match=r"validation inputs of shape \[3\]"):
        watched(model_of(keras), inputs=X[:, :3])
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"a": keras.layers.Dense(2, name="a")(inputs)})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"a": loss})
    own = dps_tf.StepsToResult(X, Y, NEVER, 1)
    model.fit(X, {"a": Y}, 4, callbacks=[own], verbose=0)
    assert len(own.curve) == 6


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (X, at(Y, 3, 2**32 + 1, np.int64), "labels of example 3 .* hold 4294967297"),
        (X, np.ma.masked_array(Y, Y == 1), "labels are a masked array"),
        (np.ma.masked_array(X, X > 0), Y, "inputs are a masked array"),
        (X + 1j, Y, "inputs are complex"),
        (X.astype(object), Y, "inputs are object"),
        (at(X, (5, 1), np.nan), Y, r"inputs of example 5 .* hold nan at \[1\]"),
        (at(X, (5, 1), -np.inf), Y, r"inputs of example 5 .* hold -inf at \[1\]"),
    ],
)
def test_validation_data_are_checked_as_those_of_a_sweep(inputs, labels, message):
    with pytest.raises(UserError, match=message):
        dps_tf.StepsToResult(inputs, labels, NEVER, 1)


@KERAS
@pytest.mark.filterwarnings("ignore:Even though the `tf.config")
def test_a_program_that_runs_functions_eagerly_has_the_same_curve(keras):
    model = model_of(keras)
    expected = list(losses_by_hand(model, 1))
    tf.config.run_functions_eagerly(True)
    try:
        found = watched(model)
        with pytest.raises(UserError, match="ends in softmax"):
            watched(model_of(keras, activation="softmax"))
    finally:
        tf.config.run_functions_eagerly(False)
    losses = [row["train/loss"] for row in found.curve]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
