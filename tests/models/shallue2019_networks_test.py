"""Are the networks of Shallue et al. 2019, and their modern kin, what they claim to be?

Parameters are counted against the published numbers; layers of our own against plain
NumPy.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models.sequence_layers import ProjectedLSTMCell, sinusoids


def trainable(model: keras.Model) -> int:
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def test_number_of_parameters():
    """What the files of Shallue et al. train is counted in `tests/contracts`."""
    model = models.build("gpt", (256,), 65, width=384, heads=6, depth=6)
    assert trainable(model) == 10_745_088
    assert model.output_shape == (None, 256, 65)


@pytest.mark.parametrize(("width", "blocks"), [(16, 1), (16, 3), (5, 2)])
def test_resnet8_has_so_many_blocks_of_such_a_width(width, blocks):
    model = models.build("resnet8", (32, 32, 3), 10, width=width, blocks=blocks)

    def convolution(before, after):
        return 9 * before * after + after

    count = convolution(3, width) + 10 * 4 * width + 10
    for stage in range(3):
        channels = width * 2**stage
        # Of 2n convolutions the first has the channels of the stage before.
        count += (2 * blocks - 1) * convolution(channels, channels)
        count += convolution(channels // 2 if stage else channels, channels)
    assert trainable(model) == count
    kernels = [v for v in model.trainable_variables if "kernel" in v.name]
    assert len(kernels) == 6 * blocks + 2
    sides = [layer.output_shape[1] for layer in model.layers if "add" in layer.name]
    assert sides == [side for side in (32, 16, 8) for _ in range(blocks)]


def test_resnet8_adds_what_a_block_is_given_before_its_relu():
    """He et al. 2016: with kernels of zeros a block of one width is the identity."""
    model = models.build("resnet8", (8, 8, 3), 10, width=4, blocks=2)
    for variable in model.weights:
        if variable.name.startswith(("conv2/", "conv3/", "conv8/", "conv9/")):
            variable.assign(tf.zeros_like(variable))
    images = np.random.default_rng(4).normal(size=(2, 8, 8, 3)).astype(np.float32)

    def output(name):
        return keras.Model(model.inputs, model.get_layer(name).output)(images).numpy()

    np.testing.assert_array_equal(output("block1_add"), output("conv1"))
    np.testing.assert_array_equal(output("block4_add"), output("block3_add"))
    assert output("conv1").min() < 0 and output("block3_add").min() < 0


@pytest.mark.parametrize("widths", [(64, 128, 256, 512, 512), (2, 3, 5, 7, 11)])
def test_vgg11_has_convolutions_of_such_widths(widths):
    with tf.Graph().as_default():
        model = models.build("vgg11", (64, 64, 3), 10, units=6, widths=widths)
        found = trainable(model)
    channels = [3, *(widths[i] for i in (0, 1, 2, 2, 3, 3, 4, 4))]
    count = sum(9 * a * b + b for a, b in itertools.pairwise(channels))
    dense = [2 * 2 * widths[-1], 6, 6, 10]
    assert found == count + sum(a * b + b for a, b in itertools.pairwise(dense))


@pytest.mark.parametrize("name", ["transformer", "lstm", "gpt"])
def test_logits_depend_neither_on_mates_nor_on_what_pads_behind(name):
    small = {
        "transformer": {"width": 16, "hidden": 32, "heads": 2, "depth": 2},
        "lstm": {"width": 8, "units": 16, "projection": 8},
        "gpt": {"width": 16, "heads": 2, "depth": 2},
    }[name]
    model = models.build(name, (10,), 20, **small)
    tokens = np.random.default_rng(1).integers(1, 20, (3, 10))
    padded = tokens.copy()
    padded[:, 6:] = 0
    alone = model(tokens[:1])
    np.testing.assert_allclose(model(tokens)[:1], alone, atol=1e-5)
    np.testing.assert_array_equal(model(padded)[:, :6], model(tokens)[:, :6])


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_network_for_any_length_gives_the_logits_of_one_for_that_length(name):
    arguments = {
        "transformer": {"width": 16, "hidden": 32, "heads": 2, "depth": 2},
        "lstm": {"width": 8, "units": 16, "projection": 8},
    }[name]
    anyone = models.build(name, (None,), 20, **arguments)
    anyone.set_weights(models.initial_point(anyone, 1))
    unknown = tf.function(
        anyone, input_signature=[tf.TensorSpec([None, None], "int32")]
    )
    for length in (1, 30):
        fixed = models.build(name, (length,), 20, **arguments)
        fixed.set_weights(anyone.get_weights())
        tokens = np.random.default_rng(length).integers(0, 20, (3, length), np.int32)
        expected = tf.function(fixed)(tf.constant(tokens))
        found = tf.function(anyone)(tf.constant(tokens))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(unknown(tokens), expected, atol=1e-5)


def test_projected_cell_is_its_published_recurrence():
    cell = ProjectedLSTMCell(5, 3)
    layer = keras.layers.RNN(cell, return_sequences=True)
    inputs = np.random.default_rng(2).normal(size=(2, 7, 4)).astype(np.float32)
    outputs = layer(inputs).numpy()
    kernel, recurrent, bias, projection = (
        w.numpy().astype(np.float64)
        for w in (cell.kernel, cell.recurrent_kernel, cell.bias, cell.projection)
    )
    np.testing.assert_array_equal(bias, [0] * 5 + [1] * 5 + [0] * 10)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    hidden, memory = np.zeros((2, 3)), np.zeros((2, 5))
    for step in range(7):
        gates = inputs[:, step] @ kernel + hidden @ recurrent + bias
        enter, keep, candidate, leave = np.split(gates, 4, axis=1)
        memory = sigmoid(keep) * memory + sigmoid(enter) * np.tanh(candidate)
        hidden = (sigmoid(leave) * np.tanh(memory)) @ projection
        np.testing.assert_allclose(outputs[:, step], hidden, atol=1e-5)


def test_waves_are_those_of_vaswani_et_al():
    waves = sinusoids(50, 8)
    for position in (0, 1, 49):
        for i in range(4):
            angle = position / 10_000 ** (i / 3)
            assert waves[position, i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert waves[position, 4 + i] == pytest.approx(math.cos(angle), abs=1e-6)


def test_tied_readout_is_the_product_with_the_embedding():
    model = models.build("gpt", (4,), 7, width=8, heads=2, depth=1)
    matrix = model.get_layer("embedding").embeddings.numpy()
    features = keras.Model(model.inputs, model.get_layer("norm").output)
    tokens = np.array([[1, 2, 3, 4]])
    np.testing.assert_allclose(
        model(tokens), features(tokens).numpy() @ matrix.T, atol=1e-5
    )


def test_dropout_stands_where_it_is_asked_for_only():
    def dropouts(name, shape, **arguments):
        model = models.build(name, shape, 10, **arguments)
        return [x for x in model.layers if isinstance(x, keras.layers.Dropout)]

    small = {"width": 16, "heads": 2, "depth": 2}
    assert not dropouts("gpt", (4,), **small)
    assert len(dropouts("gpt", (4,), dropout=0.1, **small)) == 5
    assert not dropouts("transformer", (4,), hidden=8, **small)
    assert not dropouts("lstm", (4,), width=8, units=8, projection=4)
    assert len(dropouts("vgg11", (32, 32, 3), units=8)) == 2


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_vit_sees_the_order_of_its_patches(positions):
    model = models.build(
        "vit", (8, 8, 1), 5, patch=4, width=16, heads=2, depth=1, positions=positions
    )
    image = np.random.default_rng(3).normal(size=(1, 8, 8, 1)).astype(np.float32)
    swapped = np.concatenate([image[:, 4:], image[:, :4]], axis=1)
    assert np.abs(model(image) - model(swapped)).max() > 1e-5


@pytest.mark.parametrize(
    ("name", "shape", "arguments", "sentence"),
    [
        ("resnet8", (8, 8, 3), {"width": 0}, "width of resnet8 is 0; .*at least 1"),
        ("resnet8", (8, 8, 3), {"blocks": 1.5}, "blocks of resnet8 is 1.5; .*whole"),
        ("vgg11", (28, 28, 3), {}, "sides of at least 32"),
        ("vgg11", (32, 32, 3), {"widths": (8, 8)}, r"\(8, 8\): give five whole"),
        ("vgg11", (32, 32, 3), {"widths": (8, 8, 8, 8, 0)}, "of at least 1"),
        ("vit", (30, 32, 3), {"patch": 4}, "choose divisors"),
        ("vit", (32, 32, 3), {"patch": 4, "positions": "none"}, "'none' is unknown"),
        ("gpt", (8, 8), {}, r"token sequences \[length\]"),
        ("transformer", (8,), {"heads": 3}, "width 512 and 3 heads"),
        ("gpt", (None,), {}, "one length: leave training_length out"),
        ("tiny_transformer", (None,), {}, "one length: leave training_length out"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        models.build(name, shape, 10, **arguments)
