"""Two noisy rings, one inside the other, and how badly the worse one is told."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras as keras

from dps_tf import register_dataset, register_metric, register_network
from dps_tf.data import Source
from dps_tf.objectives import Metric, count


def rings(data_dir, examples=1200, noise=0.2, seed=0):
    """Returns points of the plane, and on which of two rings each lies."""
    generator = np.random.default_rng(seed)
    labels = np.arange(examples) % 2
    angle = generator.uniform(0, 2 * np.pi, examples)
    radius = 1 + labels + generator.normal(0, noise, examples)
    inputs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return Source(
        inputs.astype(np.float32), labels, classes=2, validation_examples=400
    )


def perceptron(input_shape, classes, width=32):
    """Returns a network with one hidden layer whose outputs are logits."""
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(width, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


def worse_ring_error():
    """Returns the larger of the two rings' classification errors."""

    def sums(labels, outputs, weights):
        wrong = tf.argmax(outputs, axis=-1, output_type=labels.dtype) != labels
        found = {}
        for ring in (0, 1):
            on_it = (labels == ring) & (weights > 0)
            found[f"wrong_{ring}"] = count(on_it & wrong)
            found[f"points_{ring}"] = count(on_it)
        return found

    def value(found):
        return max(found[f"wrong_{r}"] / found[f"points_{r}"] for r in (0, 1))

    return Metric("worse_ring_error", value, sums)


register_dataset("rings", rings)
register_network("perceptron", perceptron)
register_metric("worse_ring_error", worse_ring_error)
