"""The loss and the counts against closed forms and Keras."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf._keras import keras
from dps_tf.objectives import losses

LABELS = np.array([2, 0, 1, 2], np.int32)
LOGITS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32) * 3


def closed_form(labels, logits, smoothing: float) -> np.ndarray:
    """-sum_k q_k log p_k in float64, q = (1 - a) one-hot + a / classes."""
    logits = np.asarray(logits, np.float64)
    classes = logits.shape[-1]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    q = (1 - smoothing) * np.eye(classes)[labels] + smoothing / classes
    return -(q * np.log(probabilities)).sum(-1)


class CrossEntropyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(0.0, 0.01, 0.1, 0.5, 0.99)
    def test_closed_form(self, smoothing):
        expected = closed_form(LABELS, LOGITS, smoothing)
        for value in (smoothing, tf.constant(smoothing, tf.float32)):
            found = losses.softmax_cross_entropy(LABELS, LOGITS, value)
            self.assertAllClose(found, expected, rtol=1e-5)
            self.assertDTypeEqual(found, np.float32)

    @parameterized.parameters(0.0, 0.1)
    def test_keras(self, smoothing):
        theirs = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=smoothing, reduction="none"
        )(tf.one_hot(LABELS, 3), LOGITS)
        ours = losses.softmax_cross_entropy(LABELS, LOGITS, smoothing)
        self.assertAllClose(ours, theirs, rtol=1e-5)

    def test_tensor_of_zero_is_the_plain_loss_to_the_bit(self):
        plain = losses.softmax_cross_entropy(LABELS, LOGITS)
        zero = losses.softmax_cross_entropy(LABELS, LOGITS, tf.constant(0.0))
        self.assertAllEqual(plain, zero)
        theirs = keras.losses.SparseCategoricalCrossentropy(True, reduction="none")
        self.assertAllEqual(plain, theirs(LABELS, LOGITS))

    def test_gradient_is_probability_minus_smoothed_label(self):
        logits, smoothing = tf.constant(LOGITS), 0.1
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.reduce_sum(
                losses.softmax_cross_entropy(LABELS, logits, tf.constant(smoothing))
            )
        q = (1 - smoothing) * np.eye(3)[LABELS] + smoothing / 3
        expected = tf.nn.softmax(LOGITS) - q
        self.assertAllClose(tape.gradient(loss, logits), expected, atol=1e-6)

    def test_sequences_have_a_loss_per_position(self):
        labels, logits = LABELS.reshape(2, 2), LOGITS.reshape(2, 2, 3)
        found = losses.softmax_cross_entropy(labels, logits, 0.1)
        self.assertAllClose(found, closed_form(labels, logits, 0.1), rtol=1e-5)

    def test_large_logits_overflow_nothing(self):
        found = losses.softmax_cross_entropy([0, 1], [[1e4, 0.0], [1e4, 0.0]], 0.1)
        self.assertAllClose(found, [500.0, 9500.0])


class WrongTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ([0.1, 0.3, 0.2], 1, False),
        ([0.1, 0.3, 0.2], 2, True),
        ([0.3, 0.3, 0.2], 0, False),  # The first of equal logits counts.
        ([0.3, 0.3, 0.2], 1, True),
        ([0.0, 0.0, 0.0], 0, False),
        ([math.nan, 0.3, 0.2], 1, True),
        ([math.nan] * 3, 0, True),
        ([0.1, math.inf, 0.2], 1, False),
        ([-math.inf, 0.1, 0.0], 1, False),
    )
    def test_largest_logit_decides(self, logits, label, expected):
        found = losses.wrong(tf.constant([label]), tf.constant([logits]))
        self.assertAllEqual(found, [expected])

    def test_sequences_are_judged_per_position(self):
        labels, logits = LABELS.reshape(2, 2), LOGITS.reshape(2, 2, 3)
        self.assertAllEqual(
            losses.wrong(tf.constant(labels), logits), logits.argmax(-1) != labels
        )


if __name__ == "__main__":
    tf.test.main()
