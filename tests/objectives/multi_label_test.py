"""Average precision against scikit-learn, Keras and the definition."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from sklearn.metrics import average_precision_score

from dps_tf import objectives
from dps_tf._keras import keras
from dps_tf.core import Goal, UserError
from tests.objectives.measuring import measured

PAIRS = "validation/average_precision"
CLASSES = "validation/macro_average_precision"


def problem(examples: int = 300, classes: int = 4, seed: int = 0, digits: int = 9):
    """Labels, and logits that know something of them; few digits make ties."""
    draw = np.random.default_rng(seed)
    labels = (draw.random((examples, classes)) < 0.2).astype(np.int32)
    logits = np.round(2.0 * labels + draw.normal(size=labels.shape), digits) - 1
    return labels, logits.astype(np.float32)


def by_definition(labels: np.ndarray, scores: np.ndarray) -> float:
    """Precision times the gain in recall, summed over the different scores."""
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        chosen = scores >= threshold
        true = int(labels[chosen].sum())
        area += (true / labels.sum() - recall) * true / chosen.sum()
        recall = true / labels.sum()
    return area


class ExactTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(9, 1, 0)
    def test_scikit_learn_and_the_definition(self, digits):
        labels, logits = problem(digits=digits)
        found = measured(objectives.build("sigmoid_cross_entropy"), labels, logits)
        micro = average_precision_score(labels, logits, average="micro")
        macro = average_precision_score(labels, logits, average="macro")
        self.assertAllClose(found[PAIRS], micro, rtol=1e-12)
        self.assertAllClose(found[CLASSES], macro, rtol=1e-12)
        naive = by_definition(labels.ravel(), logits.ravel())
        self.assertAllClose(found[PAIRS], naive, rtol=1e-9)
        for logits[3, 1] in (math.nan, math.inf, -math.inf):
            found = objectives.losses.exact_average_precision(labels, logits)
            self.assertTrue(math.isnan(found))

    @parameterized.parameters(0, 50)
    def test_unknown_labels_count_nothing(self, thresholds):
        labels, logits = problem()
        unknown = np.random.default_rng(1).random(labels.shape) < 0.3
        arguments = {"thresholds": thresholds}
        objective = objectives.build("sigmoid_cross_entropy", arguments)
        found = measured(objective, np.where(unknown, -1, labels), logits)
        # One column of what is known is the same ranking of pairs.
        known = labels[~unknown][:, None], logits[~unknown][:, None]
        alone = measured(objective, *known)
        self.assertAllClose(found[PAIRS], alone[PAIRS], rtol=1e-12)
        entropy = "validation/cross_entropy"
        self.assertAllClose(found[entropy], alone[entropy], rtol=1e-6)

    @parameterized.parameters(0, 50)
    def test_class_without_a_positive_is_left_out(self, thresholds):
        labels, logits = problem()
        arguments = {"thresholds": thresholds}
        objective = objectives.build("sigmoid_cross_entropy", arguments)
        expected = measured(objective, labels[:, 1:], logits[:, 1:])[CLASSES]
        labels[:, 0] = 0
        self.assertAllClose(measured(objective, labels, logits)[CLASSES], expected)
        nothing = measured(objective, np.zeros_like(labels), logits)
        self.assertTrue(math.isnan(nothing[PAIRS]) and math.isnan(nothing[CLASSES]))


class KnownValuesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(thresholds=(0, 2, 50), score=(0.0, -6.5, 200.0))
    def test_equal_scores_give_the_rate_of_positives(self, thresholds, score):
        """By steps as by interpolation: all pairs come at once."""
        labels, logits = problem()
        arguments = {"thresholds": thresholds}
        objective = objectives.build("sigmoid_cross_entropy", arguments)
        found = measured(objective, labels, np.full_like(logits, score))
        self.assertAllClose(found[PAIRS], labels.mean(), rtol=1e-12)
        self.assertAllClose(found[CLASSES], labels.mean(axis=0).mean(), rtol=1e-12)

    def test_classes_ranked_well_each_and_badly_together(self):
        # The negative of the first class comes before the positive of the second.
        labels = np.array([[1, 0], [0, 1]], np.int32)
        logits = np.array([[4.0, -4.0], [3.0, -3.0]], np.float32)
        found = measured(objectives.build("sigmoid_cross_entropy"), labels, logits)
        self.assertAllClose(found[CLASSES], 1.0, rtol=1e-12)
        self.assertAllClose(found[PAIRS], (1 / 1 + 2 / 3) / 2, rtol=1e-12)
        for column, average in ((CLASSES, "macro"), (PAIRS, "micro")):
            theirs = average_precision_score(labels, logits, average=average)
            self.assertAllClose(found[column], theirs, rtol=1e-12)

    def test_rare_class_ranked_badly_counts_as_much_as_the_others(self):
        # Of 100 positives one is of the second class, behind 99 negatives of it.
        labels = np.zeros((100, 2), np.int32)
        labels[:99, 0] = labels[99, 1] = 1
        logits = np.stack([np.full(100, 5.0), -np.arange(100.0)], axis=1)
        logits[99, 0] = -200
        found = measured(
            objectives.build("sigmoid_cross_entropy"), labels, logits.astype(np.float32)
        )
        self.assertAllClose(found[CLASSES], (1 + 1 / 100) / 2, rtol=1e-12)
        self.assertAllClose(found[PAIRS], (99 + 100 / 199) / 100, rtol=1e-12)


class ThresholdsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(2, 20, 200)
    def test_keras(self, thresholds):
        labels, logits = problem()
        arguments = {"thresholds": thresholds}
        objective = objectives.build("sigmoid_cross_entropy", arguments)
        found = measured(objective, labels, logits)
        for column, multi_label in ((PAIRS, False), (CLASSES, True)):
            theirs = keras.metrics.AUC(
                thresholds,
                "PR",
                "interpolation",
                multi_label=multi_label,
                num_labels=4 if multi_label else None,
            )
            theirs.update_state(labels, tf.sigmoid(logits))
            self.assertAllClose(found[column], theirs.result(), rtol=1e-5)

    def test_many_thresholds_come_near_the_exact_value(self):
        labels, logits = problem(2000)
        exact = measured(objectives.build("sigmoid_cross_entropy"), labels, logits)
        found = [
            abs(
                measured(
                    objectives.build("sigmoid_cross_entropy", {"thresholds": n}),
                    labels,
                    logits,
                )[PAIRS]
                - exact[PAIRS]
            )
            for n in (5, 5000)
        ]
        self.assertLess(found[1], 1e-3)
        self.assertLess(found[1], found[0])

    def test_logits_of_any_size_have_a_bin(self):
        labels = np.array([[1], [0], [1], [0]], np.int32)
        logits = np.array([[200.0], [-200.0], [math.inf], [-math.inf]], np.float32)
        objective = objectives.build("sigmoid_cross_entropy", {"thresholds": 10})
        self.assertAllClose(measured(objective, labels, logits)[PAIRS], 1.0)

    @parameterized.parameters(-1, 1, 2.0, True, "200")
    def test_numbers_that_are_none(self, thresholds):
        with self.assertRaisesRegex(UserError, "thresholds is"):
            objectives.build("sigmoid_cross_entropy", {"thresholds": thresholds})


class LossTest(tf.test.TestCase):
    def test_cross_entropy_is_that_of_keras(self):
        labels, logits = problem()
        found = measured(objectives.build("sigmoid_cross_entropy"), labels, logits)
        theirs = keras.losses.BinaryCrossentropy(from_logits=True)(labels, logits)
        self.assertAllClose(found["validation/cross_entropy"], theirs, rtol=1e-5)

    def test_goal_on_a_ranking_cannot_be_decided_early(self):
        objective = objectives.build("sigmoid_cross_entropy")
        with self.assertRaisesRegex(UserError, "average_precision early: use eval"):
            objective.bounded_metric(Goal(PAIRS, 0.3, "maximize"))
