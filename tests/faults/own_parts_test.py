"""One sentence for schedules, networks and selections that cannot be trained."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf import models, optim
from dps_tf._keras import keras
from dps_tf.core import UserError
from tests import interpreter

WRONG_RATES = {
    "float64": lambda point, step: tf.cast(point["learning_rate"], tf.float64),
    "vector": lambda point, step: point["learning_rate"] * tf.ones([2]),
    "one entry": lambda point, step: tf.ones([1]),
    "whole": lambda point, step: step,
    "array": lambda point, step: np.float64(0.1) * np.ones(1),
    "nothing": lambda point, step: None,
    "text": lambda point, step: "0.1",
}


NAMES = (f"of a test {number}" for number in itertools.count())
"""A name may be taken once."""


def rate_of(rate):
    name = next(NAMES)
    dps_tf.register_schedule(name, optim.Schedule({}, rate))
    point = {"learning_rate": tf.constant(0.5)}
    return optim.SCHEDULES[name].rate(point, tf.constant(3, tf.int64))


@pytest.mark.parametrize("kind", WRONG_RATES)
def test_a_rate_that_is_not_one_number_is_refused(kind):
    with pytest.raises(UserError, match="'of a test .* returns .*one number"):
        rate_of(WRONG_RATES[kind])


def test_a_metaparameter_that_is_not_declared_is_named():
    with pytest.raises(UserError, match="'of a test .* takes 'decay' .* `reads`"):
        rate_of(lambda point, step: point["learning_rate"] * point["decay"])


@pytest.mark.parametrize("value", [0.25, 1, np.float32(0.25)])
def test_a_plain_number_is_a_rate(value):
    rate = rate_of(lambda point, step: value)
    assert rate.dtype == tf.float32 and rate.shape == [] and float(rate) == value


def network(shapes, to):
    """Returns a builder of a network for inputs of some shapes, whatever the data."""

    def build(input_shape, classes):
        inputs = [keras.Input(shape) for shape in shapes]
        flat = [keras.layers.Flatten()(each) for each in inputs]
        joined = keras.layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
        return keras.Model(inputs, keras.layers.Dense(to)(joined))

    return build


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ([(7,)], r"takes inputs of \(7,\), and the data have \(6,\)"),
        ([(6, 1)], r"takes inputs of \(6, 1\), and the data have \(6,\)"),
        ([(6,), (6,)], "has 2 inputs: take one"),
    ],
)
def test_a_network_for_other_inputs_is_refused(shapes, sentence):
    name = next(NAMES)
    dps_tf.register_network(name, network(shapes, 3))
    with pytest.raises(UserError, match=sentence):
        models.build(name, (6,), 3)


def test_an_open_length_fits_any():
    def build(input_shape, classes):
        inputs = keras.Input([None])
        outputs = keras.layers.Dense(classes)(inputs[..., None])
        return keras.Model(inputs, outputs)

    name = next(NAMES)
    dps_tf.register_network(name, build)
    assert models.build(name, (9,), 3).count_params() == 6


@pytest.mark.parametrize(
    ("bindings", "sentence"),
    [
        ((), "keeps none of 4736 prunable parameters: choose a lower one"),
        (
            ("sweep.pruning = @pruning()", "pruning.scope = 'n_of_m'"),
            "sparsity 0.9999 cannot be reached",
        ),
    ],
)
def test_a_sparsity_out_of_reach_ends_a_sweep_before_its_first_cell(
    tmp_path, bindings, sentence
):
    lines = (
        "sweep.batch_sizes = (16,)",
        "sweep.sparsities = (0.0, 0.9999)",
        "sweep.sparsity_methods = ('snip',)",
        *bindings,
    )
    done = interpreter.run(
        [
            "-m",
            "dps_tf.train",
            "--gin_file=smoke/quickstart",
            f"--sweep_dir={tmp_path / 'sweep'}",
            *(f"--gin_bindings={line}" for line in lines),
        ]
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert sentence in line
    assert "cell 1 of 2" not in done.stdout
