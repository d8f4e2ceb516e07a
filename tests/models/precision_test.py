"""The same network in another precision: same variables, float32 where it matters."""

from __future__ import annotations

import functools
import threading
import time

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core import UserError
from tests.models.networks_test import batch_of, build

BFLOAT16 = "mixed_bfloat16"


@functools.cache
def both(name: str) -> tuple[keras.Model, keras.Model]:
    """A network in float32 and in bfloat16, at one initial point."""
    plain = build(name)
    mixed = models.in_precision(plain, BFLOAT16)
    for model in (plain, mixed):
        for variable, value in zip(
            model.weights, models.initial_point(model, 0), strict=True
        ):
            variable.assign(value)
    return plain, mixed


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


class PrecisionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*models.NETWORKS.names())
    def test_variables_and_initial_point_are_those_of_float32(self, name):
        plain, mixed = both(name)
        self.assertEqual(
            [(v.name, v.shape, v.dtype) for v in plain.weights],
            [(v.name, v.shape, v.dtype) for v in mixed.weights],
        )
        self.assertEqual({v.dtype for v in mixed.weights}, {tf.float32})
        self.assertEqual(
            [v.name for v in plain.trainable_variables],
            [v.name for v in mixed.trainable_variables],
        )
        for one, other in zip(
            models.initial_point(plain, 7), models.initial_point(mixed, 7), strict=True
        ):
            self.assertEqual(one.tobytes(), other.tobytes())

    @parameterized.parameters(*models.NETWORKS.names())
    def test_layers_compute_in_bfloat16_and_outputs_in_float32(self, name):
        _, mixed = both(name)
        # A tied embedding stands at both ends.
        (last,) = {tensor._keras_history.layer for tensor in mixed.outputs}
        hidden = [
            layer
            for layer in mixed._flatten_layers(include_self=False)
            if not isinstance(layer, keras.layers.InputLayer) and layer is not last
        ]
        self.assertEqual({layer.compute_dtype for layer in hidden}, {"bfloat16"})
        self.assertEqual(last.compute_dtype, "float32")
        before_last = keras.Model(mixed.inputs, last.get_input_at(-1))(batch_of(name))
        self.assertEqual(before_last.dtype, tf.bfloat16)
        self.assertEqual(mixed(batch_of(name)).dtype, tf.float32)

    @parameterized.parameters(*models.NETWORKS.names())
    def test_logits_and_gradients_are_near_those_of_float32(self, name):
        found = []
        for model in both(name):
            inputs = batch_of(name, 20 if name == "resnet50" else 60)
            # With the averages of batch normalization as they were made, too.
            logits = [model(inputs, training=False)]
            with tf.GradientTape() as tape:
                logits.append(model(inputs, training=True))
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(
                        tf.ones(logits[1].shape[:-1], tf.int32), logits[1]
                    )
                )
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients = [tf.convert_to_tensor(g) for g in gradients]
            self.assertEqual({g.dtype for g in gradients}, {tf.float32})
            whole = np.concatenate([np.ravel(g) for g in gradients])
            found.append((np.stack(logits), whole))
        (logits, exact), (rounded_logits, rounded) = found
        # A bfloat16 has 8 bits; some roundings follow on each other, and a rounded
        # activation may be the largest of its pool where the exact one was not.
        # Each of seventeen normalizations rounds anew.
        for one, other in zip(rounded_logits, logits, strict=True):
            self.assertLess(_error(one, other), 0.1 if name == "resnet50" else 0.01)
            self.assertNotAllEqual(one, other)
        self.assertLess(_error(rounded, exact), 0.02 if name == "mlp" else 0.2)

    def test_averages_of_batch_norm_keep_float32(self):
        mixed = models.in_precision(build("mlp_batch_norm"), BFLOAT16)
        norm = mixed.get_layer("norm1")
        inputs = tf.cast(tf.random.normal([6, 64], 1000.0, 1.0), tf.bfloat16)
        for _ in range(5):
            self.assertEqual(norm(inputs, training=True).dtype, tf.bfloat16)
        expected = (1 - norm.momentum**5) * np.mean(inputs.numpy().astype(float), 0)
        self.assertAllClose(norm.moving_mean, expected, rtol=1e-5)

    def test_parts_with_a_policy_of_their_own_and_parts_of_parts(self):
        inner_input = keras.Input((4,))
        inner = keras.Model(
            inner_input,
            keras.layers.Dense(4, dtype="float64", name="exact")(
                keras.layers.Dense(4, name="inner")(inner_input)
            ),
            name="part",
        )
        inputs = keras.Input((4,))
        model = keras.Model(inputs, keras.layers.Dense(2, name="last")(inner(inputs)))
        mixed = models.in_precision(model, BFLOAT16)
        found = {
            layer.name: layer.compute_dtype
            for layer in mixed._flatten_layers(include_self=False)
            if isinstance(layer, keras.layers.Dense)
        }
        self.assertEqual(
            found, {"inner": "bfloat16", "exact": "float64", "last": "float32"}
        )

    def test_float32_is_the_network_itself(self):
        model = build("mlp")
        self.assertIs(models.in_precision(model, "float32"), model)

    def test_nothing_leaks_into_other_networks_or_threads(self):
        before = keras.mixed_precision.global_policy().name
        seen = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.append(keras.layers.Dense(1).compute_dtype)
                time.sleep(0.001)

        watcher = threading.Thread(target=watch)
        watcher.start()
        models.in_precision(build("resnet8"), BFLOAT16)
        done.set()
        watcher.join()
        self.assertEqual(set(seen), {"float32"})
        self.assertEqual(keras.mixed_precision.global_policy().name, before)

    def test_network_whose_copy_differs_is_refused(self):
        class Forgetful(keras.layers.Dense):
            def get_config(self):
                return {**super().get_config(), "use_bias": False}

        inputs = keras.Input((4,))
        hidden = Forgetful(3, name="hidden")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(2)(hidden), name="odd")
        with self.assertRaisesRegex(UserError, "'odd' has other variables when"):
            models.in_precision(model, BFLOAT16)
