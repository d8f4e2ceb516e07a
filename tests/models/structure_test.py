"""Which edits of a network's builder are noticed, and which make no difference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models import structure_hash
from tests import interpreter

layers = keras.layers

PLAIN = """
import tensorflow as tf
from dps_tf._keras import keras
from dps_tf.core.errors import UserError

SCALE = 2.0

def squash(x):
    return tf.tanh(x) * SCALE

class Shift(keras.layers.Layer):
    def call(self, inputs):
        return inputs + 1.0

def network():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, activation="relu")(inputs)
    hidden = keras.layers.Lambda(squash)(hidden)
    hidden = Shift()(hidden) * 0.5
    side = keras.layers.Dense(3)(inputs)
    outputs = keras.layers.Dense(2)(hidden + side)
    return keras.Model(inputs, outputs)
"""


def hash_of(text: str, folder: Path) -> str:
    """Returns the hash of the network that a module of this text builds."""
    path = folder / f"module_{abs(hash(text))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return structure_hash(module.network())


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    return hash_of(PLAIN, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Dense(3", "Dense(5"),
        ('activation="relu"', 'activation="elu"'),
        ("Dense(2)", "Dense(2, use_bias=False)"),
        ("Dense(2)", 'Dense(2, kernel_initializer="he_normal")'),
        ("Dense(2)", "Dense(2, kernel_regularizer=keras.regularizers.L2(0.1))"),
        ("SCALE = 2.0", "SCALE = 2.5"),
        ("tf.tanh(x)", "tf.sin(x)"),
        ("inputs + 1.0", "inputs + 1.5"),
        ("* 0.5", "* 0.25"),
        ("hidden + side", "hidden + hidden"),
        ("Dense(3)(inputs)", "Dense(3)(hidden)"),
    ],
)
def test_an_edit_of_the_builder_is_noticed(plain, tmp_path, before, after):
    assert before in PLAIN
    assert hash_of(PLAIN.replace(before, after), tmp_path) != plain


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("inputs + 1.0", "inputs + 1.0  # a comment"),
        ("    return tf.tanh", '    """Squashes."""\n\n    return tf.tanh'),
        ("keras.layers.Dense(2)", 'keras.layers.Dense(2, name="head")'),
        ("\nSCALE", "\n\n\n\nSCALE"),
    ],
)
def test_what_changes_no_number_is_left_alone(plain, tmp_path, before, after):
    assert before in PLAIN
    assert hash_of(PLAIN.replace(before, after), tmp_path) == plain


def test_shipped_networks_differ_and_each_keeps_its_hash_in_a_process():
    shapes = {"simple_cnn": (28, 28, 1), "resnet8": (8, 8, 3), "mlp": (8,)}
    shapes["mlp_batch_norm"] = (8,)
    first = {n: structure_hash(models.build(n, s, 10)) for n, s in shapes.items()}
    # Keras has numbered its layers on meanwhile.
    again = {n: structure_hash(models.build(n, s, 10)) for n, s in shapes.items()}
    assert first == again
    assert len(set(first.values())) == len(shapes)
    assert first["mlp"] != structure_hash(models.build("mlp", (9,), 10))


def test_hash_is_that_of_another_process():
    code = (
        "from dps_tf import models; from dps_tf.models.structure import structure_hash;"
        "print(structure_hash(models.build('mlp_batch_norm', (8,), 10)))"
    )
    done = interpreter.run(["-c", code])
    own = structure_hash(models.build("mlp_batch_norm", (8,), 10))
    assert done.stdout.strip() == own


def test_cell_of_the_lstm_stays_where_recorded_studies_know_it():
    # Keras writes the module of a recurrent layer's cell into its configuration.
    layer = models.build("lstm", (4,), 9, width=2, units=3).get_layer("lstm")
    assert layer.get_config()["cell"]["module"] == "dps_tf.models.sequence_layers"


def test_layer_without_configuration_is_told_by_its_weights():
    class Own(layers.Layer):
        def __init__(self, units):
            super().__init__()
            self.units = units

        def build(self, shape):
            self.kernel = self.add_weight("kernel", (shape[-1], self.units))

        def call(self, inputs):
            return tf.matmul(inputs, self.kernel)

    found = []
    for units in (3, 4):
        inputs = keras.Input((2,))
        found.append(structure_hash(keras.Model(inputs, Own(units)(inputs))))
    assert found[0] != found[1]


class _Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = layers.Dense(10)

    def call(self, inputs):
        return self.last(inputs)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (_Subclassed, "its builder must return a functional model"),
        (lambda: keras.Sequential([layers.Dense(10)]), "begins with keras.Input"),
        (lambda: None, "is a builtins.NoneType"),
        (lambda: 1 / 0, r"fails with .* by zero \(.*structure_test.py, line"),
        (lambda: tf.Module(), "Keras 3 keeps variables of another kind"),
    ],
)
def test_what_is_no_functional_model_is_refused(monkeypatch, model, sentence):
    monkeypatch.setitem(models.NETWORKS._entries, "mlp", lambda *_, **__: model())
    with pytest.raises(UserError, match=sentence):
        models.build("mlp", (8,), 10)


def exponential(x):
    return tf.exp(x - tf.reduce_max(x, -1, keepdims=True))


def summed(x):
    return tf.reduce_sum(exponential(x), -1, keepdims=True)


@pytest.mark.parametrize(
    ("link", "last", "is_refused"),
    [
        ("softmax", lambda: layers.Dense(3, activation="softmax"), True),
        ("softmax", lambda: layers.Softmax(), True),
        ("softmax", lambda: layers.Activation("softmax"), True),
        ("softmax", lambda: layers.Dense(3), False),
        ("softmax", lambda: layers.Dense(3, activation="sigmoid"), False),
        ("softmax", lambda: layers.Lambda(lambda x: tf.nn.softmax(x) * 1.0), True),
        ("softmax", lambda: layers.Lambda(lambda x: exponential(x) / summed(x)), True),
        ("softmax", lambda: layers.Lambda(lambda x: tf.nn.log_softmax(x)), False),
        ("softmax", lambda: layers.Dense(3, activation="relu"), False),
        ("sigmoid", lambda: layers.Dense(3, activation="sigmoid"), True),
        ("sigmoid", lambda: layers.Lambda(lambda x: 1 / (1 + tf.exp(-x))), True),
        (
            "sigmoid",
            lambda: layers.Lambda(lambda x: 0.5 * tf.tanh(0.5 * x) + 0.5),
            True,
        ),
        ("sigmoid", lambda: layers.Dense(3), False),
        ("sigmoid", lambda: layers.Dense(3, activation="relu"), False),
        ("sigmoid", lambda: layers.Dense(3, activation="tanh"), False),
        ("", lambda: layers.Dense(3, activation="softmax"), False),
    ],
)
def test_probabilities_are_not_taken_for_logits(link, last, is_refused):
    for model in (
        keras.Sequential([keras.Input((2,)), layers.Dense(3), last()]),
        keras.Model(inputs := keras.Input((2,)), last()(layers.Dense(3)(inputs))),
    ):
        if is_refused:
            with pytest.raises(UserError, match=f"ends in {link}"):
                models.check_logits(model, link)
        else:
            models.check_logits(model, link)


def _assigned(layer):
    layer.kernel.assign(tf.ones_like(layer.kernel))


def _changed(change):
    def built(inputs, classes):
        layer = layers.Dense(classes)
        outputs = layer(inputs)
        change(layer)
        return outputs

    return built


def _with_weights(inputs, classes):
    values = [np.ones([4, classes]), np.zeros(classes)]
    return layers.Dense(classes, weights=values)(inputs)


def _padded(inputs, classes):
    """Sets a table of 0 to one whose first row, of padding, is 0 too."""
    layer = layers.Embedding(3, 64, embeddings_initializer="zeros")
    outputs = layers.Dense(classes)(layers.Flatten()(layer(inputs)))
    layer.set_weights([np.repeat([0.0, 1.0, 2.0], 64).reshape(3, 64)])
    return outputs


@pytest.mark.parametrize(
    ("built", "variable"),
    [
        (_changed(lambda x: x.set_weights([w + 1 for w in x.get_weights()])), "kernel"),
        (_changed(_assigned), "kernel"),
        (_changed(lambda x: x.bias.assign_add([1.0, 0.0])), "bias"),
        (_with_weights, "kernel"),
        (_padded, "embeddings"),
        (_changed(lambda x: None), ""),
    ],
)
def test_values_that_a_builder_sets_are_refused(monkeypatch, built, variable):
    """Each trial draws its own from the initializers, so these would be lost."""

    def build(shape, classes, **_):
        inputs = keras.Input(shape)
        return keras.Model(inputs, built(inputs, classes))

    monkeypatch.setitem(models.NETWORKS._entries, "mlp", build)
    if not variable:
        models.build("mlp", (4,), 2)
        return
    with pytest.raises(
        UserError, match=f"sets the values of .*{variable}.*initializer"
    ):
        models.build("mlp", (4,), 2)
