"""Handwritten digits under noise, a network, and the error of the worst digit."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras as keras
from sklearn.datasets import load_digits

from dps_tf import register_dataset, register_metric, register_network
from dps_tf.data import Source
from dps_tf.objectives import Metric


def noisy_digits(data_dir, noise=0.2, seed=0):
    """Returns 1,797 digits of 8 x 8 pixels with noise; 600 are for validation."""
    inputs, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    inputs = inputs / 8 - 1 + generator.normal(0, noise, inputs.shape)
    return Source(
        inputs.astype(np.float32), labels, classes=10, validation_examples=600
    )


def perceptron(input_shape, classes, width=64):
    """Returns a network with one hidden layer whose outputs are logits."""
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(width, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


def worst_digit_error():
    """Returns the largest of the ten digits' classification errors."""

    def sums(labels, outputs, weights):
        wrong = tf.argmax(outputs, axis=-1, output_type=labels.dtype) != labels
        is_digit = tf.one_hot(labels, 10) * weights[:, None]
        wrong_ones = is_digit * tf.cast(wrong, tf.float32)[:, None]
        return {
            "pictures": tf.reduce_sum(is_digit, axis=0),
            "wrong": tf.reduce_sum(wrong_ones, axis=0),
        }

    def value(found):
        return float(np.max(found["wrong"] / found["pictures"]))

    return Metric("worst_digit_error", value, sums)


register_dataset("noisy_digits", noisy_digits)
register_network("perceptron", perceptron)
register_metric("worst_digit_error", worst_digit_error)
