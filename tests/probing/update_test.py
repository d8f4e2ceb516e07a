from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from dps_tf import models
from dps_tf.data import load
from dps_tf.probing import (
    QUANTITIES,
    ExampleGradients,
    estimate,
    local_smoothness,
    measure_update,
)


class MeasureUpdateTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        data = load("synthetic", examples=80, classes=3, shape=(4,), noise=0.5)
        build = functools.partial(models.build, "mlp", (4,), 3, widths=(5,))
        self.gradients = ExampleGradients(build, data.train, batch_size=10, threads=1)
        model = build()
        draw = np.random.default_rng(0)
        self.masks = [
            draw.integers(0, 2, v.shape).astype(np.float32)
            for v in model.trainable_variables
        ]
        self.before = [
            w * m
            for w, m in zip(models.initial_point(model, 1), self.masks, strict=True)
        ]

    def step(self, rate):
        found = self.gradients.at(self.before, self.masks, {"label_smoothing": 0.1})
        moved = [
            (w - rate * g).astype(w.dtype)
            for w, g in zip(self.before, found.values, strict=True)
        ]
        return found, moved

    def test_values_are_those_of_smoothness_and_noise_at_the_same_gradients(self):
        at, after = self.step(0.5)
        found = measure_update(
            self.gradients, self.before, after, self.masks, {"label_smoothing": 0.1}
        )
        self.assertEqual(tuple(found), QUANTITIES)
        noise = estimate(10, at.batch_square, 60, at.square)
        self.assertEqual(found["gradient_square"], noise.gradient_square)
        self.assertEqual(found["noise_trace"], noise.noise_trace)
        self.assertEqual(found["noise_scale"], noise.scale)
        smoothness = local_smoothness(
            lambda point: (
                self.gradients.at(point, self.masks, {"label_smoothing": 0.1}).values
            ),
            self.before,
            after,
        )
        self.assertEqual(found["smoothness"], smoothness)

    def test_smoothness_of_a_tiny_step_is_the_curvature_along_it(self):
        """The gradient's change by central differences, in float64 by NumPy."""
        at, after = self.step(1e-2)
        found = measure_update(
            self.gradients, self.before, after, self.masks, {"label_smoothing": 0.1}
        )
        length = np.sqrt(at.square)
        ends = []
        for sign in (1, -1):
            moved = [
                (w + sign * 1e-2 * g / length).astype(w.dtype)
                for w, g in zip(self.before, at.values, strict=True)
            ]
            ends.append(
                self.gradients.at(moved, self.masks, {"label_smoothing": 0.1}).values
            )
        change = sum(np.sum((a - b) ** 2) for a, b in zip(*ends, strict=True))
        self.assertAllClose(found["smoothness"], np.sqrt(change) / 2e-2, rtol=0.1)
