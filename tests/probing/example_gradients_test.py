from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, objectives
from dps_tf.data import Examples, load
from dps_tf.objectives.losses import cross_entropy
from dps_tf.probing import ExampleGradients
from tests.training.problems import sequences, successors


class ExampleGradientsTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        data = load("synthetic", examples=90, classes=3, shape=(6,))
        self.examples = data.train  # 68 of them: batches of 30, 30 and 8
        self.build = functools.partial(models.build, "mlp", (6,), 3, widths=(5,))
        self.model = self.build()
        self.weights = models.initial_point(self.model, 3)

    def gradients(self, **arguments):
        given = {"batch_size": 30, "threads": 1, **arguments}
        return ExampleGradients(self.build, self.examples, **given)

    def truth(self, weights, rows, label_smoothing=0.0):
        """Returns the gradient of the mean loss over some examples, plainly."""
        for variable, value in zip(self.model.weights, weights, strict=True):
            variable.assign(value)
        with tf.GradientTape() as tape:
            logits = self.model(self.examples.inputs[rows])
            labels = tf.constant(self.examples.labels[rows])
            each = cross_entropy(labels, logits, label_smoothing)
            loss = tf.reduce_mean(each)
        return tape.gradient(loss, self.model.trainable_variables)

    @parameterized.parameters(0.0, 0.1)
    def test_mean_is_that_over_all_examples(self, smoothing):
        found = self.gradients().at(self.weights, point={"label_smoothing": smoothing})
        truth = self.truth(self.weights, slice(None), tf.constant(smoothing))
        self.assertEqual(found.examples, 68)
        for ours, theirs in zip(found.values, truth, strict=True):
            self.assertAllClose(ours, theirs, rtol=1e-5, atol=1e-7)
        square = sum(float(tf.reduce_sum(part**2)) for part in truth)
        self.assertAllClose(found.square, square, rtol=1e-5)

    def test_masks_take_coordinates_out_of_gradient_and_norms(self):
        gradients = self.gradients()
        draw = np.random.default_rng(1)
        masks = [
            draw.integers(0, 2, v.shape).astype(np.float32)
            for v in self.model.trainable_variables
        ]
        dense, found = gradients.at(self.weights), gradients.at(self.weights, masks)
        for ours, all_, mask in zip(found.values, dense.values, masks, strict=True):
            self.assertAllEqual(ours, all_ * mask)
        self.assertLess(found.batch_square, dense.batch_square)
        again = gradients.at(self.weights)
        self.assertEqual(again.batch_square, dense.batch_square)

    def test_square_of_batches_is_over_full_batches_in_a_fixed_order(self):
        gradients = self.gradients()
        found = gradients.at(self.weights)
        order = list(gradients._order)
        self.assertCountEqual(order, range(68))
        squares = [
            sum(
                float(tf.reduce_sum(part**2))
                for part in self.truth(self.weights, order[start : start + 30])
            )
            for start in (0, 30)
        ]
        self.assertAllClose(found.batch_square, np.mean(squares), rtol=1e-5)

    def test_number_of_threads_changes_no_bit(self):
        one = self.gradients(batch_size=7).at(self.weights)
        many = self.gradients(batch_size=7, threads=3).at(self.weights)
        self.assertEqual(one.batch_square, many.batch_square)
        for a, b in zip(one.values, many.values, strict=True):
            self.assertAllEqual(a, b)

    def test_one_trace_serves_all_points_masks_and_losses(self):
        gradients = self.gradients()
        ones = [np.ones(v.shape) for v in self.model.trainable_variables]
        gradients.at(self.weights)
        gradients.at([2 * w for w in self.weights], ones, {"label_smoothing": 0.1})
        self.assertEqual(gradients.traces, 1)

    def test_sequences_count_as_examples_and_their_positions_are_averaged(self):
        self.build, self.examples = successors, sequences().train
        self.model = self.build()
        weights = models.initial_point(self.model, 0)
        found = self.gradients(batch_size=6).at(weights)
        truth = self.truth(weights, slice(None))
        for ours, theirs in zip(found.values, truth, strict=True):
            dense = tf.convert_to_tensor(theirs)
            self.assertAllClose(ours, dense, rtol=1e-4, atol=1e-6)

    def test_padding_weights_and_penalties_are_those_of_training(self):
        train = sequences().train
        labels = train.labels.copy()
        labels[::2, 1:] = -1
        self.build, self.examples = successors, Examples(train.inputs, labels)
        self.model = self.build()
        weights = models.initial_point(self.model, 0)
        objective = dataclasses.replace(
            objectives.build("token_cross_entropy"),
            weights=lambda labels: tf.cast(tf.maximum(3 * labels + 1, 0), tf.float32),
        )
        gradients = self.gradients(
            objective=objective, metaparameters=("l2_penalty",), batch_size=6
        )
        found = gradients.at(weights, point={"l2_penalty": 0.3})
        for variable, value in zip(self.model.weights, weights, strict=True):
            variable.assign(value)
        kernels = [v for v in self.model.trainable_variables if v.shape.rank > 1]
        with tf.GradientTape() as tape:
            logits = self.model(self.examples.inputs)
            each = cross_entropy(labels[labels >= 0], logits[labels >= 0])
            squares = [tf.reduce_sum(kernel**2) for kernel in kernels]
            share = 3.0 * labels[labels >= 0] + 1
            loss = tf.reduce_sum(each * share / share.sum()) + 0.15 * sum(squares)
        truth = tape.gradient(loss, self.model.trainable_variables)
        for ours, theirs in zip(found.values, truth, strict=True):
            dense = tf.convert_to_tensor(theirs)
            self.assertAllClose(ours, dense, rtol=1e-4, atol=1e-6)

    def test_batch_norm_reads_the_batch_and_keeps_what_it_was_given(self):
        norm = {"ghost_batch_size": 12}  # batches of 24, 24 and 20 would not do
        self.build = functools.partial(models.build, "mlp_batch_norm", (6,), 3, **norm)
        weights = models.initial_point(self.build(), 0)
        gradients = self.gradients()
        self.assertEqual(gradients.batch_size, 12)
        first, second = gradients.at(weights), gradients.at(weights)
        self.assertEqual(first.batch_square, second.batch_square)
        self.assertEqual(len(gradients.trainable(weights)), len(first.values))
        self.assertLess(len(first.values), len(weights))

    def test_trained_weights_are_replaced_where_they_stand(self):
        self.build = functools.partial(models.build, "mlp_batch_norm", (6,), 3)
        weights = models.initial_point(self.build(), 0)
        gradients = self.gradients()
        moved = gradients.with_trainable(
            weights, [w + 1 for w in gradients.trainable(weights)]
        )
        changed = [
            not np.array_equal(a, b) for a, b in zip(weights, moved, strict=True)
        ]
        self.assertEqual(sum(changed), len(gradients.trainable(weights)))

    def test_batches_are_at_most_half_of_the_examples(self):
        few = Examples(self.examples.inputs[:5], self.examples.labels[:5])
        self.assertEqual(ExampleGradients(self.build, few).batch_size, 2)
        one = Examples(self.examples.inputs[:1], self.examples.labels[:1])
        self.assertEqual(ExampleGradients(self.build, one).batch_size, 1)
