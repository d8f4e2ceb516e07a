"""Scores against truths that know nothing of the package: float64 formulas."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, objectives
from dps_tf._keras import keras
from dps_tf.core import Pruning, UserError, processors
from dps_tf.sparsity import MaskRequest, scores
from dps_tf.sparsity.score_gradients import GradientProgram
from tests.sparsity import data
from tests.training.problems import successors

FEATURES, HIDDEN, CLASSES = 3, 4, 3


def point(network, seed=0):
    """An initial point whose biases are not zero, so that they matter."""
    draw = np.random.default_rng(seed)
    values = models.initial_point(network, seed)
    return [v if v.any() else draw.normal(size=v.shape).astype(v.dtype) for v in values]


def loss64(theta, inputs, labels, temperature=1.0):
    """Mean cross-entropy of a network with one hidden layer, float64 tensors."""
    kernel1, bias1, kernel2, bias2 = theta
    hidden = tf.nn.relu(tf.constant(inputs, tf.float64) @ kernel1 + bias1)
    logits = (hidden @ kernel2 + bias2) / temperature
    log_p = logits - tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    return -tf.reduce_mean(tf.gather(log_p, labels, batch_dims=1))


class ObjectiveTest(tf.test.TestCase):
    def test_scores_are_of_the_objective_and_its_regularizers(self):
        inputs = keras.Input([3])
        regularizer = keras.regularizers.L2(0.1)
        outputs = keras.layers.Dense(2, kernel_regularizer=regularizer)(inputs)
        network = keras.Model(inputs, outputs)
        draw = np.random.default_rng(0)
        x = draw.normal(size=(100, 3)).astype(np.float32)
        labels = draw.normal(size=(100, 2)).astype(np.float32)
        labels[::3, 0] = np.nan  # unknown
        theta = point(network)
        program = GradientProgram(network, objectives.build("squared_error"))
        program.set_point(theta)
        found = program.loss_gradient(x, labels)
        kernel, bias = theta
        error = np.where(np.isnan(labels), 0, x @ kernel + bias - labels)
        slope = 2 * error / np.sum(~np.isnan(labels))
        self.assertAllClose(found[0], x.T @ slope + 0.2 * kernel, rtol=1e-4, atol=1e-6)
        self.assertAllClose(found[1], slope.sum(0), rtol=1e-4, atol=1e-6)


class TinyTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.network = models.build("mlp", (FEATURES,), CLASSES, widths=(HIDDEN,))
        self.theta = point(self.network)
        self.dataset = data.gaussian((FEATURES,), 250, CLASSES)
        train = self.dataset.train
        self.inputs, self.labels = train.inputs, train.labels
        self.program = GradientProgram(self.network)
        self.program.set_point(self.theta)

    def sums(self):
        """Derivatives of the loss in the mask, at the point of the program."""
        gradients = self.program.loss_gradient(self.inputs, self.labels)
        return [t * g for t, g in zip(self.theta, gradients, strict=True)]

    def request(self, method, theta=None, **pruning):
        theta = self.theta if theta is None else theta
        asked = method, 0.5, Pruning(**pruning), {}
        return MaskRequest(self.network, theta, self.dataset, *asked)

    def total_loss(self, theta):
        """Sum over batches of 100 (the last has 50) of their mean loss."""
        theta = [tf.constant(part, tf.float64) for part in theta]
        return sum(
            float(loss64(theta, self.inputs[s : s + 100], self.labels[s : s + 100]))
            for s in (0, 100, 200)
        )

    def mask_differences(self, mask, step=1e-5):
        """Central differences of the loss in each entry of the mask."""
        theta = [part.astype(np.float64) for part in self.theta]
        differences = []
        for position, part in enumerate(theta):
            difference = np.zeros(part.shape)
            for place in np.ndindex(part.shape):
                losses = []
                for sign in (1, -1):
                    moved = [m.astype(np.float64) for m in mask]
                    moved[position][place] += sign * step
                    pairs = zip(theta, moved, strict=True)
                    losses.append(self.total_loss([t * m for t, m in pairs]))
                difference[place] = (losses[0] - losses[1]) / (2 * step)
            differences.append(difference)
        return differences

    def test_snip_is_the_derivative_of_the_loss_in_the_mask(self):
        ones = data.ones_like(self.theta)
        found = self.sums()
        for ours, theirs in zip(found, self.mask_differences(ones), strict=True):
            self.assertAllClose(ours, theirs, rtol=1e-4, atol=1e-5)
        absolute = scores.snip(self.request("snip"), None)
        for ours, theirs in zip(absolute, found, strict=True):
            self.assertAllClose(ours, np.abs(theirs), rtol=1e-6)

    def test_at_a_mask_pruned_entries_have_a_derivative_too(self):
        draw = np.random.default_rng(4)
        mask = [
            draw.integers(0, 2, part.shape).astype(np.float32) for part in self.theta
        ]
        self.program.set_point(self.theta, mask)
        found = self.sums()
        for ours, theirs in zip(found, self.mask_differences(mask), strict=True):
            self.assertAllClose(ours, theirs, rtol=1e-4, atol=1e-5)

    def test_grasp_is_theta_times_hessian_times_gradient(self):
        temperature = 5.0
        inputs, labels = self.inputs[:99], self.labels[:99]  # 33 of each class
        variables = [tf.Variable(part.astype(np.float64)) for part in self.theta]
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                loss = loss64(variables, inputs, labels, temperature)
            gradient = inner.gradient(loss, variables)
            flat = tf.concat([tf.reshape(part, [-1]) for part in gradient], 0)
        rows = outer.jacobian(flat, variables, experimental_use_pfor=False)
        hessian = np.concatenate(
            [row.numpy().reshape(flat.shape[0], -1) for row in rows], axis=1
        )
        self.assertAllClose(hessian, hessian.T)
        theta = np.concatenate([np.ravel(part) for part in self.theta])
        truth = theta * (hessian @ flat.numpy())
        arguments = {"temperature": temperature, "per_class": 33}
        found = scores.grasp(self.request("grasp", arguments=arguments), None)
        found = np.concatenate([np.ravel(part) for part in found])
        self.assertAllClose(found, truth / np.abs(truth).max(), rtol=1e-3, atol=1e-5)

    def test_bits_do_not_depend_on_how_many_batches_run_at_once(self):
        one, three = (GradientProgram(self.network, threads=n) for n in (1, 3))
        for program in (one, three):
            program.set_point(self.theta)
        for left, right in zip(
            one.loss_gradient(self.inputs, self.labels),
            three.loss_gradient(self.inputs, self.labels),
            strict=True,
        ):
            self.assertAllEqual(left, right)

    def test_one_trace_serves_all_points_and_masks(self):
        for seed in range(3):
            theta = point(self.network, seed)
            for examples in (0, 30):
                request = self.request("snip", theta, examples=examples)
                scores.snip(request, None)
                request.loss_gradient(masks=data.ones_like(theta))
        self.assertEqual(request.program.traces, processors())


class SynFlowTest(tf.test.TestCase, parameterized.TestCase):
    def flow(self, network, values, masks=()):
        asked = "synflow", 0.5, Pruning(), {}
        request = MaskRequest(network, values, None, *asked)
        return scores.synflow(request, 0, list(masks))

    def test_case_by_hand(self):
        network = models.build("mlp", (2,), 1, widths=(2,))
        values = [
            np.array([[1.0, -2.0], [3.0, 0.5]], np.float32),
            np.zeros(2, np.float32),
            np.array([[-2.0], [4.0]], np.float32),
            np.zeros(1, np.float32),
        ]
        found = self.flow(network, values)
        # Both hidden units get |w| 1 + |w| 1: 4 and 2.5; paths are products.
        self.assertAllClose(found[0], [[2.0, 8.0], [6.0, 2.0]])
        self.assertAllClose(found[2], [[8.0], [10.0]])
        mask = data.ones_like(values)
        mask[0][1, 0] = 0
        found = self.flow(network, values, mask)
        self.assertAllClose(found[0], [[2.0, 8.0], [0.0, 2.0]])
        self.assertAllClose(found[2], [[2.0], [10.0]])

    def test_channels_conserve_the_flow_through_pooling(self):
        network = models.build("simple_cnn", (16, 16, 1), 10)
        conv1, bias1, conv2, bias2, dense, _ = self.flow(network, point(network))
        axes = (0, 1, 2)
        self.assertAllClose(conv1.sum(axes) + bias1, conv2.sum((0, 1, 3)), rtol=1e-4)
        self.assertAllClose(conv2.sum(axes) + bias2, dense.sum(1), rtol=1e-4)

    def test_layer_sums_are_equal_without_biases(self):
        network = models.build("resnet8", (8, 8, 3), 10)
        sums = [s.sum() for s in self.flow(network, models.initial_point(network, 0))]
        # First convolution and dense layer: every path passes through each once.
        self.assertAllClose(sums[0], sums[-2], rtol=1e-4)

    def test_tokens_have_no_flow(self):
        network = models.build("tiny_transformer", (4,), 5, width=8, blocks=1)
        with self.assertRaisesRegex(UserError, "int32 tokens"):
            self.flow(network, models.initial_point(network, 0))

    def test_overflow_is_an_error(self):
        network = models.build("mlp", (2,), 1, widths=(2, 2, 2))
        values = [np.full(v.shape, 1e30, np.float32) for v in network.weights]
        with self.assertRaisesRegex(UserError, "overflow"):
            self.flow(network, values)


class OtherLayersTest(tf.test.TestCase, parameterized.TestCase):
    def test_layers_that_draw_at_random_do_not_make_scores_random(self):
        inputs = keras.Input((4,))
        x = keras.layers.Dropout(0.5)(keras.layers.Dense(8)(inputs))
        network = keras.Model(inputs, keras.layers.Dense(3)(x))
        program = GradientProgram(network)
        train = data.gaussian((4,), 20, 3).train
        first = program.loss_gradient(train.inputs, train.labels)
        second = program.loss_gradient(train.inputs, train.labels)
        self.assertAllEqual(first[0], second[0])

    @parameterized.parameters(
        (None, (100, 100)),
        (28, (28,) * 7 + (4,)),
        (48, (96, 96, 8)),
    )
    def test_batch_normalization_reads_whole_ghost_batches(self, size, sizes):
        network = models.build("mlp_batch_norm", (4,), 3, ghost_batch_size=size)
        train = data.gaussian((4,), 200, 3).train
        found = GradientProgram(network).loss_gradient(train.inputs, train.labels)
        truth = np.zeros(found[0].shape)
        for end, length in zip(np.cumsum(sizes), sizes, strict=True):
            rows = slice(end - length, end)
            with tf.GradientTape() as tape:
                logits = network(train.inputs[rows], training=True)
                loss = objectives.build().mean_loss(train.labels[rows], logits, {})
            truth += tape.gradient(loss, network.trainable_variables[0])
        self.assertAllClose(found[0], truth, rtol=1e-3, atol=1e-5)

    def test_sequences_and_embeddings_have_scores(self):
        network = successors()
        theta = models.initial_point(network, 0)
        draw = np.random.default_rng(0)
        tokens = draw.integers(0, 5, (20, 4)).astype(np.int32)
        dataset = data.TrainingOnly(data.TrainingExamples(tokens, tokens), 5)
        asked = "snip", 0.5, Pruning(), {}
        found = scores.snip(MaskRequest(network, theta, dataset, *asked), None)
        self.assertEqual([f.shape for f in found], [t.shape for t in theta])
        self.assertGreater(found[0].max(), 0)
