"""Every registered network keeps the contract; the papers' networks have their form."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models.layers import GhostBatchNormalization

SHAPES = {
    "simple_cnn": (28, 28, 1),
    "resnet8": (32, 32, 3),
    "mlp": (8, 8, 1),
    "mlp_batch_norm": (8, 8, 1),
    "tiny_transformer": (12,),
    "shallue2019_simple_cnn": (12, 12, 1),
    "vgg11": (32, 32, 3),
    "resnet50": (32, 32, 3),
    "vit": (8, 8, 3),
    "transformer": (12,),
    "lstm": (12,),
    "gpt": (12,),
}
# Of the large ones small forms: what holds of them holds of all sizes.
SMALL = {
    "shallue2019_simple_cnn": {"filters": (4, 8), "units": 16},
    "vgg11": {"units": 16, "dropout": 0.0},
    "resnet50": {"width": 4, "blocks": (1, 2, 1, 1), "ghost_batch_size": None},
    "vit": {"patch": 4, "width": 16, "depth": 2, "heads": 2},
    "transformer": {"width": 16, "hidden": 32, "heads": 2, "depth": 2},
    "lstm": {"width": 8, "units": 16, "projection": 6},
    "gpt": {"width": 16, "heads": 2, "depth": 2},
}
LANGUAGE = ("gpt", "lstm", "tiny_transformer", "transformer")
CLASSES = 10


def batch_of(name: str, size: int = 6) -> tf.Tensor:
    generator = np.random.default_rng(1)
    shape = (size, *SHAPES[name])
    if name in LANGUAGE:
        return tf.constant(generator.integers(0, CLASSES, shape), tf.int32)
    return tf.constant(generator.normal(size=shape), tf.float32)


def build(name: str) -> keras.Model:
    return models.build(name, SHAPES[name], CLASSES, **SMALL.get(name, {}))


@functools.cache
def built(name: str) -> keras.Model:
    """Returns a network that tests share, as building takes most of their time."""
    return build(name)


class EveryNetworkTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*models.NETWORKS.names())
    def test_gives_float32_logits(self, name):
        logits = built(name)(batch_of(name))
        positions = SHAPES[name] if name in LANGUAGE else ()
        self.assertEqual(logits.shape, (6, *positions, CLASSES))
        self.assertEqual(logits.dtype, tf.float32)

    @parameterized.parameters(*models.NETWORKS.names())
    def test_variable_names_do_not_depend_on_what_was_built_before(self, name):
        first, second = built(name), build(name)
        self.assertEqual(
            [w.name for w in first.weights], [w.name for w in second.weights]
        )
        self.assertLen({w.name for w in first.weights}, len(first.weights))

    @parameterized.parameters(*models.NETWORKS.names())
    def test_clone_computes_the_same(self, name):
        model = built(name)
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        self.assertAllEqual(clone(batch_of(name)), model(batch_of(name)))

    @parameterized.parameters(*models.NETWORKS.names())
    def test_every_trainable_variable_has_a_gradient(self, name):
        model = built(name)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(batch_of(name), training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for gradient, variable in zip(
            gradients, model.trainable_variables, strict=True
        ):
            size = tf.norm(tf.convert_to_tensor(gradient))
            self.assertGreater(float(size), 0.0, variable.name)


class PaperNetworksTest(tf.test.TestCase, parameterized.TestCase):
    def test_resnet8_variables_come_in_layer_order_kernel_before_bias(self):
        names = [w.name for w in build("resnet8").weights]
        convolutions = [
            f"conv{i}/{v}:0" for i in range(1, 8) for v in ("kernel", "bias")
        ]
        self.assertEqual(names, [*convolutions, "dense/kernel:0", "dense/bias:0"])

    def test_pooled_perceptron_is_the_perceptron_of_averaged_images(self):
        pooled = models.build("mlp", (8, 6, 1), CLASSES, widths=(5,), pooling=2)
        plain = models.build("mlp", (4, 3, 1), CLASSES, widths=(5,))
        plain.set_weights(pooled.get_weights())
        images = np.random.default_rng(0).normal(size=(3, 8, 6, 1))
        averages = images.reshape(3, 4, 2, 3, 2, 1).mean(axis=(2, 4))
        self.assertAllClose(pooled(images), plain(averages), atol=1e-5)
        with self.assertRaisesRegex(UserError, "takes images"):
            models.build("mlp", (8,), CLASSES, pooling=2)

    @parameterized.parameters(*LANGUAGE)
    def test_language_model_does_not_look_ahead(self, name):
        model = build(name)
        tokens = batch_of(name).numpy()
        changed = tokens.copy()
        changed[:, 7] = (changed[:, 7] + 1) % CLASSES
        before, after = model(tokens), model(changed)
        self.assertAllEqual(before[:, :7], after[:, :7])
        self.assertNotAllClose(before[:, 7:], after[:, 7:])


GAMMA, BETA = np.array([1.0, 2.0, 0.5]), np.array([0.0, -1.0, 3.0])


def drifting(examples: int, seed: int = 0) -> np.ndarray:
    """Returns float32 [examples, 2, 2, 3] whose mean and size grow by the example."""
    generator = np.random.default_rng(seed)
    place = np.arange(examples)[:, None, None, None] / 8
    noise = generator.normal(size=(examples, 2, 2, 3))
    return (noise * (1 + place) + place).astype(np.float32)


def scaled(layer: GhostBatchNormalization) -> GhostBatchNormalization:
    """Returns the layer, built for three channels and with a scale and a shift."""
    layer.build(tf.TensorShape([None, 2, 2, 3]))
    layer.gamma.assign(GAMMA)
    layer.beta.assign(BETA)
    return layer


def normalized(inputs: np.ndarray) -> np.ndarray:
    """Returns one batch, normalized as by definition."""
    exact = inputs.astype(np.float64)
    mean, variance = exact.mean(axis=(0, 1, 2)), exact.var(axis=(0, 1, 2))
    return (exact - mean) / np.sqrt(variance + 1e-3) * GAMMA + BETA


class GhostBatchNormalizationTest(tf.test.TestCase, parameterized.TestCase):
    def test_64_examples_in_ghosts_of_32_are_two_batches_of_32(self):
        inputs = drifting(64)
        outputs = scaled(GhostBatchNormalization(32))(inputs, training=True)
        for half in (slice(32), slice(32, 64)):
            alone = scaled(GhostBatchNormalization())(inputs[half], training=True)
            self.assertAllEqual(outputs[half], alone)
            self.assertAllClose(outputs[half], normalized(inputs[half]), atol=1e-5)

    def test_order_counts_across_ghosts_only(self):
        inputs, draw = drifting(24), np.random.default_rng(1)
        inside = np.concatenate([8 * g + draw.permutation(8) for g in range(3)])
        across = np.arange(24)
        across[[0, 8]] = across[[8, 0]]
        layer, other = GhostBatchNormalization(8), GhostBatchNormalization(8)
        outputs = layer(inputs, training=True).numpy()
        permuted = other(inputs[inside], training=True)
        self.assertAllClose(permuted, outputs[inside], atol=1e-5)
        self.assertAllClose(layer.get_weights(), other.get_weights(), atol=1e-6)
        swapped = layer(inputs[across], training=True)
        self.assertGreater(np.abs(swapped - outputs[across]).max(), 0.1)

    def test_averages_move_by_the_mean_over_ghosts(self):
        layer = GhostBatchNormalization(8, momentum=0.7)
        mean, variance = np.zeros(3), np.ones(3)
        for seed in range(3):
            inputs = drifting(32, seed)
            layer(inputs, training=True)
            ghosts = inputs.astype(np.float64).reshape(4, -1, 3)
            mean = 0.7 * mean + 0.3 * ghosts.mean(axis=1).mean(axis=0)
            variance = 0.7 * variance + 0.3 * ghosts.var(axis=1).mean(axis=0)
        self.assertAllClose(layer.moving_mean, mean, atol=1e-5)
        self.assertAllClose(layer.moving_variance, variance, atol=1e-5)

    @parameterized.parameters(None, 2, 4, 100)
    def test_evaluation_has_no_ghosts(self, size):
        layer = scaled(GhostBatchNormalization(size))
        mean, variance = np.array([1.0, -2.0, 0.0]), np.array([0.5, 1.0, 4.0])
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(variance)
        inputs = drifting(5)  # which neither 2 nor 4 divides
        expected = (inputs - mean) / np.sqrt(variance + 1e-3) * GAMMA + BETA
        self.assertAllClose(layer(inputs), expected, atol=1e-5)
        self.assertAllClose(layer(inputs, training=False), expected, atol=1e-5)
        self.assertAllClose(layer.moving_mean, mean)
        self.assertAllClose(layer.moving_variance, variance)

    @parameterized.parameters(None, 8, 100)
    def test_whole_batch_equals_stock_keras(self, size):
        inputs = tf.constant(
            np.random.default_rng(0).normal(size=(8, 4, 4, 3)), tf.float32
        )
        own = GhostBatchNormalization(size, momentum=0.7)
        stock = keras.layers.BatchNormalization(momentum=0.7, fused=False)
        for _ in range(3):
            self.assertAllClose(
                own(inputs, training=True), stock(inputs, training=True)
            )
        self.assertAllClose(own.moving_variance, stock.moving_variance)
        self.assertAllClose(own(inputs), stock(inputs), atol=1e-6)

    def test_unknown_batch_size_gives_the_same_in_a_graph(self):
        layer = GhostBatchNormalization(2)
        inputs = tf.random.stateless_normal([6, 5], [1, 2])

        @tf.function(input_signature=[tf.TensorSpec([None, 5])])
        def train(x):
            return layer(x, training=True)

        self.assertAllClose(train(inputs), layer(inputs, training=True))
        self.assertAllEqual(train(inputs[:1]), tf.zeros([1, 5]))  # one ghost
        message = "given a batch, not a multiple of ghost_batch_size 2: use"
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            train(inputs[:5])

    def test_batch_that_ghosts_do_not_divide_is_refused(self):
        message = (
            "normalization is given 6 examples, not a multiple of ghost_batch_size 4: "
            "use a batch size that is one or is smaller, or a ghost_batch_size that "
            "divides it."
        )
        # All of what is said: Keras would put the arguments of the call around it.
        with self.assertRaisesRegex(UserError, f"^{message}$"):
            GhostBatchNormalization(4)(tf.zeros([6, 5]), training=True)
        with self.assertRaisesRegex(UserError, "at least 2"):
            GhostBatchNormalization(1)


class RegistryTest(tf.test.TestCase, parameterized.TestCase):
    def test_inputs_that_are_no_images_are_refused(self):
        with self.assertRaisesRegex(UserError, r"images .* not inputs of shape \[4\]"):
            models.build("simple_cnn", (4,), 2)

    def test_user_model_is_built_by_name_and_keeps_its_name(self):
        def linear(input_shape, classes):
            inputs = keras.Input(input_shape)
            return keras.Sequential([inputs, keras.layers.Dense(classes)])

        models.register("linear_for_test", linear)
        self.assertIsInstance(models.build("linear_for_test", (4,), 2), keras.Model)
