"""Curvature against explicit Hessians, finite differences and a closed form."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.data import Examples, load
from dps_tf.objectives import build
from dps_tf.probing import (
    CURVATURE,
    QUANTITIES,
    ExampleGradients,
    curvature,
    measure_update,
)

RATE = 0.25


def flat(parts):
    return np.concatenate([np.ravel(part) for part in parts])


def loss_and_gradient(parameters, inputs, labels, smoothing):
    """Of a perceptron with one hidden layer of 5, by NumPy in float64."""
    kernel1, bias1 = parameters[:20].reshape(4, 5), parameters[20:25]
    kernel2, bias2 = parameters[25:40].reshape(5, 3), parameters[40:]
    before = inputs @ kernel1 + bias1
    hidden = np.maximum(before, 0.0)
    logits = hidden @ kernel2 + bias2
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    targets = (1 - smoothing) * np.eye(3)[labels] + smoothing / 3
    back = (np.exp(log_p) - targets) / len(inputs)
    back1 = (back @ kernel2.T) * (before > 0)
    gradient = [inputs.T @ back1, back1.sum(0), hidden.T @ back, back.sum(0)]
    return -(targets * log_p).sum(1).mean(), flat(gradient)


def explicit_hessian(parameters, inputs, labels, smoothing, step=1e-6):
    """Returns (loss, gradient, Hessian) by central differences of the gradient."""
    rows = []
    for direction in np.eye(parameters.size):
        ends = [
            loss_and_gradient(parameters + s * direction, inputs, labels, smoothing)[1]
            for s in (step, -step)
        ]
        rows.append((ends[0] - ends[1]) / (2 * step))
    loss, gradient = loss_and_gradient(parameters, inputs, labels, smoothing)
    return loss, gradient, np.array(rows)


class ExplicitHessianTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        data = load("synthetic", examples=80, classes=3, shape=(4,), noise=0.5)
        self.examples = data.train
        self.build = functools.partial(models.build, "mlp", (4,), 3, widths=(5,))
        self.model = self.build()
        self.weights = models.initial_point(self.model, 1)
        draw = np.random.default_rng(0)
        self.masks = [
            np.float32(draw.random(v.shape) < 0.7)
            for v in self.model.trainable_variables
        ]
        self.gradients = ExampleGradients(
            self.build, data.train, batch_size=25, threads=1
        )
        self.vector = [draw.normal(size=v.shape) for v in self.weights]

    def truth(self, masks=None):
        """Returns (loss, gradient, Hessian), of the kept coordinates."""
        kept = np.ones(flat(self.weights).size) if masks is None else flat(masks)
        weights = [
            w * (1 if masks is None else masks[i]) for i, w in enumerate(self.weights)
        ]
        loss, gradient, hessian = explicit_hessian(
            flat(weights).astype(np.float64),
            self.examples.inputs.astype(np.float64),
            self.examples.labels,
            0.1,
        )
        return weights, loss, gradient * kept, hessian * np.outer(kept, kept)

    @parameterized.parameters(False, True)
    def test_product_is_that_of_the_explicit_hessian(self, is_pruned):
        masks = self.masks if is_pruned else None
        weights, loss, _, hessian = self.truth(masks)
        found, product = self.gradients.hessian_product(
            weights, self.vector, masks, {"label_smoothing": 0.1}
        )
        self.assertAllClose(found, loss, rtol=1e-5)
        truth = hessian @ flat(self.vector)
        self.assertAllClose(flat(product), truth, rtol=1e-3, atol=1e-5)

    @parameterized.parameters(False, True)
    def test_measured_curvature_is_that_of_the_explicit_hessian(self, is_pruned):
        masks = self.masks if is_pruned else None
        weights, loss, gradient, hessian = self.truth(masks)
        point = {"label_smoothing": 0.1}
        found = self.gradients.at(weights, masks, point).values
        after = [
            (w - RATE * g).astype(w.dtype) for w, g in zip(weights, found, strict=True)
        ]
        measured = measure_update(self.gradients, weights, after, masks, point, RATE)
        self.assertEqual(tuple(measured), QUANTITIES + CURVATURE)
        self.assertAllClose(measured["loss"], loss, rtol=1e-5)
        along = np.linalg.norm(hessian @ gradient) / np.linalg.norm(gradient)
        self.assertAllClose(measured["gradient_curvature"], along, rtol=1e-3)
        largest = np.linalg.eigvalsh(hessian)[-1]
        self.assertAllClose(measured["largest_eigenvalue"], largest, rtol=1e-2)
        self.assertLessEqual(measured["largest_eigenvalue"], largest * (1 + 1e-4))
        self.assertEqual(
            measured["rate_times_eigenvalue"], RATE * measured["largest_eigenvalue"]
        )

    def test_what_was_measured_before_is_the_same_with_and_without_curvature(self):
        after = [(w * 0.99).astype(w.dtype) for w in self.weights]
        plain = measure_update(self.gradients, self.weights, after)
        more = measure_update(self.gradients, self.weights, after, rate=RATE)
        self.assertEqual(plain, {name: more[name] for name in QUANTITIES})


class ClosedFormTest(tf.test.TestCase, parameterized.TestCase):
    def test_least_squares_has_the_hessian_of_its_inputs(self):
        """f = mean (x w + b - y)^2: H = 2 mean (x, 1)(x, 1)^T."""
        draw = np.random.default_rng(3)
        inputs = draw.normal(size=(60, 3)).astype(np.float32) * [1.0, 2.0, 0.5]
        labels = draw.normal(size=(60, 1)).astype(np.float32)
        network = functools.partial(models.build, "mlp", (3,), 1, widths=())
        gradients = ExampleGradients(
            network,
            Examples(inputs.astype(np.float32), labels),
            build("squared_error"),
            batch_size=20,
            threads=1,
        )
        weights = models.initial_point(network(), 0)
        wide = np.concatenate([inputs, np.ones((60, 1))], axis=1)
        hessian = 2 * wide.T @ wide / 60
        vector = [draw.normal(size=v.shape) for v in weights]
        loss, product = gradients.hessian_product(weights, vector)
        self.assertAllClose(flat(product), hessian @ flat(vector), rtol=1e-4)
        residual = wide @ flat(weights) - labels[:, 0]
        self.assertAllClose(loss, np.mean(residual**2), rtol=1e-5)
        along, largest = curvature(
            lambda v: gradients.hessian_product(weights, v)[1],
            gradients.at(weights).values,
        )
        gradient = 2 * wide.T @ residual / 60
        expected = np.linalg.norm(hessian @ gradient) / np.linalg.norm(gradient)
        self.assertAllClose(along, expected, rtol=1e-3)
        self.assertAllClose(largest, np.linalg.eigvalsh(hessian)[-1], rtol=1e-4)

    @parameterized.parameters(1, 3, 10)
    def test_eigenvalue_is_the_largest_on_the_krylov_space(self, products):
        draw = np.random.default_rng(products)
        root = draw.normal(size=(40, 40))
        hessian, start = root + root.T, draw.normal(size=40)
        calls = []

        def product(vector):
            calls.append(1)
            return [hessian @ vector[0]]

        along, found = curvature(product, [start], products)
        self.assertLen(calls, products)
        space = [start]
        for _ in range(products - 1):
            space.append(hessian @ space[-1] / np.linalg.norm(space[-1]))
        basis, _ = np.linalg.qr(np.stack(space, axis=1))
        expected = np.linalg.eigvalsh(basis.T @ hessian @ basis)[-1]
        self.assertAllClose(found, expected, rtol=1e-6)
        self.assertAllClose(
            along, np.linalg.norm(hessian @ start) / np.linalg.norm(start)
        )

    def test_few_products_suffice_where_eigenvalues_are_few(self):
        hessian = np.diag([5.0, 5.0, 1.0, 1.0])
        _, found = curvature(lambda v: [hessian @ v[0]], [np.ones(4)])
        self.assertAllClose(found, 5.0)

    @parameterized.parameters(0.0, np.nan, np.inf)
    def test_without_a_gradient_there_is_no_curvature(self, value):
        found = curvature(lambda v: v, [np.full(3, value)])
        self.assertTrue(np.isnan(found).all())
