"""One class per position, against closed forms, Keras and text counted by hand."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import objectives
from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.objectives import losses
from tests.objectives.measuring import measured

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
            found = losses.cross_entropy(LABELS, LOGITS, value)
            self.assertAllClose(found, expected, rtol=1e-5)
            self.assertDTypeEqual(found, np.float32)

    @parameterized.parameters(0.0, 0.1)
    def test_keras(self, smoothing):
        theirs = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=smoothing, reduction="none"
        )(tf.one_hot(LABELS, 3), LOGITS)
        ours = losses.cross_entropy(LABELS, LOGITS, smoothing)
        self.assertAllClose(ours, theirs, rtol=1e-5)

    def test_tensor_of_zero_is_the_plain_loss_to_the_bit(self):
        plain = losses.cross_entropy(LABELS, LOGITS)
        zero = losses.cross_entropy(LABELS, LOGITS, tf.constant(0.0))
        self.assertAllEqual(plain, zero)
        theirs = keras.losses.SparseCategoricalCrossentropy(True, reduction="none")
        self.assertAllEqual(plain, theirs(LABELS, LOGITS))

    def test_gradient_is_probability_minus_smoothed_label(self):
        logits, smoothing = tf.constant(LOGITS), 0.1
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = tf.reduce_sum(
                losses.cross_entropy(LABELS, logits, tf.constant(smoothing))
            )
        q = (1 - smoothing) * np.eye(3)[LABELS] + smoothing / 3
        expected = tf.nn.softmax(LOGITS) - q
        self.assertAllClose(tape.gradient(loss, logits), expected, atol=1e-6)

    def test_sequences_have_a_loss_per_position(self):
        labels, logits = LABELS.reshape(2, 2), LOGITS.reshape(2, 2, 3)
        found = losses.cross_entropy(labels, logits, 0.1)
        self.assertAllClose(found, closed_form(labels, logits, 0.1), rtol=1e-5)

    @parameterized.parameters(0.01, 0.1, 0.5)
    def test_shallue_spreads_the_rest_over_the_other_classes(self, theta):
        found = losses.cross_entropy(LABELS, LOGITS, tf.constant(theta), "shallue2019")
        q = np.full((4, 3), theta / 2)
        q[np.arange(4), LABELS] = 1 - theta
        logits = LOGITS.astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        self.assertAllClose(found, -(q * log_p).sum(-1), rtol=1e-5)
        # Ordinary smoothing at theta C / (C - 1).
        theirs = closed_form(LABELS, LOGITS, theta * 3 / 2)
        self.assertAllClose(found, theirs, rtol=1e-5)

    def test_objective_smooths_in_the_convention_it_is_given(self):
        point = {"label_smoothing": tf.constant(0.1)}
        for name, amount in (("szegedy2016", 0.1), ("shallue2019", 0.15)):
            objective = objectives.build(arguments={"smoothing": name})
            found = objective.loss(LABELS, LOGITS, point)
            self.assertAllClose(found, closed_form(LABELS, LOGITS, amount), rtol=1e-5)
            plain = objective.loss(LABELS, LOGITS, {})
            self.assertAllClose(plain, closed_form(LABELS, LOGITS, 0.0), rtol=1e-5)

    def test_large_logits_overflow_nothing(self):
        found = losses.cross_entropy([0, 1], [[1e4, 0.0], [1e4, 0.0]], 0.1)
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


class TopTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(2, 3, 5)
    def test_label_is_among_the_first_of_a_stable_order(self, k):
        draw = np.random.default_rng(k)
        # Whole numbers, so that many are equal.
        logits = draw.integers(0, 5, (200, 7)).astype(np.float32)
        labels = draw.integers(0, 7, 200).astype(np.int32)
        first = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
        expected = np.mean(~(first == labels[:, None]).any(-1))
        objective = objectives.build(arguments={"top": (k,)})
        found = measured(objective, labels, logits)
        self.assertEqual(found[f"validation/top_{k}_error"], expected)
        self.assertGreater(found["validation/classification_error"], expected)

    def test_numbers_that_are_no_rank_are_refused(self):
        for k in (1, 0, 2.0, True):
            with self.assertRaisesRegex(UserError, "whole numbers of at least 2"):
                objectives.build(arguments={"top": (k,)})

    @parameterized.parameters(2, 3, 5)
    def test_a_rank_that_holds_every_class_is_refused(self, k):
        objective = objectives.build(arguments={"top": (k,)})
        with self.assertRaisesRegex(UserError, f"top holds {k}, .* has 2 outputs"):
            measured(objective, np.zeros(3, np.int32), np.zeros((3, 2), np.float32))


class TokensTest(tf.test.TestCase):
    def test_padding_counts_nothing_and_bytes_are_those_of_the_text(self):
        draw = np.random.default_rng(0)
        logits = draw.normal(size=(3, 4, 5)).astype(np.float32)
        labels = np.array([[1, 4, -1, -1], [0, -1, -1, -1], [2, 2, 3, 1]], np.int32)
        token_bytes = [1, 3, 1, 2, 4]
        objective = objectives.build("token_cross_entropy", token_bytes=token_bytes)
        found = measured(objective, labels, logits)
        nats, size, wrong = [], 0, 0
        for row, label in zip(logits.reshape(-1, 5), labels.reshape(-1), strict=True):
            if label >= 0:
                nats.append(np.log(np.exp(np.float64(row)).sum()) - row[label])
                size += token_bytes[label]
                wrong += int(row.argmax() != label)
        self.assertLen(nats, 7)
        expected = {
            "cross_entropy": np.mean(nats),
            "perplexity": np.exp(np.mean(nats)),
            "classification_error": wrong / 7,
            "accuracy": 1 - wrong / 7,
            "bits_per_byte": sum(nats) / np.log(2) / size,
        }
        self.assertEqual([name.split("/")[1] for name in found], list(expected))
        self.assertAllClose(list(found.values()), list(expected.values()), rtol=1e-6)

    def test_without_padding_it_is_the_objective_of_examples(self):
        draw = np.random.default_rng(1)
        logits = draw.normal(size=(6, 4, 5)).astype(np.float32)
        labels = draw.integers(0, 5, (6, 4)).astype(np.int32)
        tokens = objectives.build("token_cross_entropy")
        self.assertNotIn("validation/bits_per_byte", tokens.columns("validation"))
        found = measured(tokens, labels, logits)
        for name, value in measured(objectives.build(), labels, logits).items():
            self.assertEqual(found[name], value)

    def test_hopeless_model_has_infinite_perplexity(self):
        objective = objectives.build("token_cross_entropy")
        logits = np.zeros([1, 1, 2], np.float32)
        logits[..., 1] = 1e4
        found = measured(objective, np.zeros([1, 1], np.int32), logits)
        self.assertEqual(found["validation/perplexity"], math.inf)
