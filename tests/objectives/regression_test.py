"""Squared error against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from sklearn.metrics import mean_squared_error, r2_score

from dps_tf import objectives
from tests.objectives.measuring import measured

ERROR, R_SQUARED = "validation/mean_squared_error", "validation/r_squared"


class SquaredErrorTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        draw = np.random.default_rng(0)
        # Far from 0, where the sum of squares is large beside the deviations.
        self.labels = (100 + draw.normal(size=(200, 3))).astype(np.float32)
        self.outputs = (self.labels + draw.normal(size=(200, 3))).astype(np.float32)
        self.objective = objectives.build("squared_error")

    def test_scikit_learn(self):
        found = measured(self.objective, self.labels, self.outputs)
        truth = self.labels, self.outputs
        self.assertAllClose(found[ERROR], mean_squared_error(*truth), rtol=1e-5)
        self.assertAllClose(found[R_SQUARED], r2_score(*truth), rtol=1e-5)

    def test_unknown_labels_count_nothing_in_loss_metrics_and_gradient(self):
        labels = self.labels.copy()
        labels[::2] = math.nan
        found = measured(self.objective, labels, self.outputs)
        truth = measured(self.objective, self.labels[1::2], self.outputs[1::2])
        self.assertAllClose(list(found.values()), list(truth.values()), rtol=1e-9)
        outputs = tf.constant(self.outputs)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = self.objective.mean_loss(tf.constant(labels), outputs, {})
        self.assertAllClose(loss, found[ERROR], rtol=1e-5)
        expected = np.where(
            np.isnan(labels), 0, 2 * (self.outputs - self.labels) / (100 * 3)
        )
        self.assertAllClose(tape.gradient(loss, outputs), expected, atol=1e-6)

    def test_output_that_never_varies_has_no_r_squared(self):
        expected = measured(self.objective, self.labels[:, 1:], self.outputs[:, 1:])
        self.labels[:, 0] = 1e4 / 3
        found = measured(self.objective, self.labels, self.outputs)
        self.assertAllClose(found[R_SQUARED], expected[R_SQUARED])
        alone = measured(self.objective, self.labels[:, :1], self.outputs[:, :1])
        self.assertTrue(math.isnan(alone[R_SQUARED]))
