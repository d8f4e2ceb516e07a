"""The initial point is a function of a model's form and the seed, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import UserError
from tests import interpreter

IN_OTHER_PROCESS = """
from dps_tf import models
models.build("resnet8", (8, 8, 3), 3)
point = models.initial_point(models.build("mlp", (4,), 3), 5)
print(sum(float(abs(value).sum()) for value in point).hex())
"""


def point_of(name="mlp", shape=(4,), seed=5, **arguments):
    return models.initial_point(models.build(name, shape, 3, **arguments), seed)


class InitialPointTest(tf.test.TestCase, parameterized.TestCase):
    def test_is_the_same_in_another_process_that_built_other_models(self):
        here = sum(float(abs(value).sum()) for value in point_of()).hex()
        there = interpreter.run(["-c", IN_OTHER_PROCESS])
        self.assertEqual(there.stdout.strip(), here)

    @parameterized.parameters(1, 6, 2**31, 2**63 - 1)
    def test_other_seed_gives_another_point(self, seed):
        self.assertNotAllClose(point_of(seed=0)[0], point_of(seed=seed)[0])

    def test_frozen_values(self):
        """Another value here would make every stored study a different one."""
        kernel = point_of(seed=0)[0]
        self.assertAllClose(kernel[0, :3], FROZEN, atol=1e-7)

    def test_two_kernels_of_one_shape_differ(self):
        point = point_of(shape=(8,), widths=(8, 8))
        self.assertNotAllClose(point[0], point[2])

    def test_variable_does_not_depend_on_those_after_it(self):
        self.assertAllEqual(point_of(widths=(5,))[0], point_of(widths=(5, 7))[0])

    def test_kernels_have_variance_one_over_fan_in_and_biases_are_zero(self):
        point = point_of("simple_cnn", (28, 28, 1))
        fan_in = 5 * 5 * 32
        self.assertAllClose(point[2].std(), math.sqrt(1 / fan_in), rtol=0.02)
        # Truncated at two standard deviations of the untruncated normal.
        self.assertLess(abs(point[2]).max(), 2 / 0.8796 * math.sqrt(1 / fan_in) + 1e-6)
        for bias in point[1::2]:
            self.assertAllEqual(bias, np.zeros_like(bias))

    def test_every_network_and_stock_recurrent_layers_are_covered(self):
        for name, shape in (("mlp_batch_norm", (4,)), ("tiny_transformer", (4,))):
            model = models.build(name, shape, 3)
            for value, variable in zip(
                point_of(name, shape), model.weights, strict=True
            ):
                self.assertEqual(value.shape, tuple(variable.shape))
                self.assertEqual(value.dtype, np.float32)
        stock = keras.Sequential(
            [keras.layers.LSTM(3, return_sequences=True), keras.layers.GRU(2)]
        )
        stock.build((None, 4, 2))
        self.assertLen(models.initial_point(stock, 0), len(stock.weights))

    def test_does_not_change_the_model_and_works_under_a_strategy(self):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = models.build("mlp_batch_norm", (4,), 3)
            before = model.get_weights()
            point = models.initial_point(model, 5)
        self.assertAllClose(model.get_weights(), before)
        self.assertAllClose(point, point_of("mlp_batch_norm"))

    def test_weights_of_an_own_layer_are_drawn_as_keras_draws_them(self):
        class Own(keras.layers.Layer):
            def build(self, shape):
                self.kernel = self.add_weight("kernel", [400, 600])
                self.scale = self.add_weight("scale", [2], initializer="ones")
                self.listed = [
                    self.add_weight("listed", [1000], initializer=wide()) for _ in "ab"
                ]

            def call(self, inputs):
                return inputs * self.scale

        def wide():
            return keras.initializers.RandomNormal(3.0, 0.5)

        def network(input_shape, classes):
            inputs = keras.Input(input_shape)
            return keras.Model(inputs, keras.layers.Dense(classes)(Own()(inputs)))

        models.register("own_weights", network)
        model = models.build("own_weights", (2,), 3)
        kernel, scale, one, other, *_ = models.initial_point(model, 0)
        # Glorot and Bengio 2010: uniform up to sqrt(6 / (fan_in + fan_out)).
        limit = math.sqrt(6 / 1000)
        self.assertLess(abs(kernel).max(), limit)
        self.assertAllClose(kernel.std(), limit / math.sqrt(3), rtol=0.01)
        self.assertAllEqual(scale, [1, 1])
        self.assertAllClose((one.mean(), one.std()), (3.0, 0.5), atol=0.06)
        self.assertNotAllClose(one, other)
        self.assertAllEqual(models.initial_point(model, 0)[0], kernel)
        self.assertNotAllClose(models.initial_point(model, 1)[0], kernel)
        copy = models.in_precision(model, "mixed_bfloat16")
        self.assertAllEqual(models.initial_point(copy, 0)[0], kernel)

    def test_variable_without_initializer_is_named(self):
        class Bare(keras.layers.Layer):
            def build(self, shape):
                self.scale = tf.Variable(tf.random.normal([2]), name="scale")

            def call(self, inputs):
                return inputs * self.scale

        model = keras.Sequential([Bare(name="bare")])
        model.build((None, 2))
        with self.assertRaisesRegex(UserError, "'bare/scale:0'.*add_weight"):
            models.initial_point(model, 0)

    def test_statistics_of_data_are_no_weights(self):
        def adapted(input_shape, classes):
            layer = keras.layers.Normalization(name="normal")
            layer.adapt(np.arange(6.0).reshape(3, 2))
            first = keras.Input(input_shape)
            return keras.Model(first, keras.layers.Dense(classes)(layer(first)))

        models.register("adapted", adapted)
        with self.assertRaisesRegex(UserError, "'normal' .*`adapt`.*as arguments"):
            models.build("adapted", [2], 2)
        given = keras.layers.Normalization(mean=[2.0, 3.0], variance=[2.7, 2.7])
        model = keras.Sequential([keras.Input((2,)), given, keras.layers.Dense(2)])
        self.assertLen(models.initial_point(model, 0), 2)

    def test_initializer_that_cannot_be_repeated_is_refused(self):
        generator = np.random.default_rng(0)

        class Unseeded(keras.initializers.Initializer):
            def __call__(self, shape, dtype=None):
                return tf.constant(generator.normal(size=shape), dtype)

        model = keras.Sequential([keras.layers.Dense(2, kernel_initializer=Unseeded())])
        model.build((None, 2))
        with self.assertRaisesRegex(UserError, "no `seed`"):
            models.initial_point(model, 0)


FROZEN = (0.7639454007, -0.4077770114, -0.3407635987)
