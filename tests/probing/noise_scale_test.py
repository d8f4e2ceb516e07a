from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.data import Examples
from dps_tf.probing import ExampleGradients, NoiseEstimate, estimate


def estimate_of(gradients: np.ndarray, small: int) -> NoiseEstimate:
    """Returns the estimate from gradients [examples, dimensions] of single examples."""
    batches = gradients.reshape(-1, small, gradients.shape[1]).mean(axis=1)
    small_square = float((batches**2).sum(axis=1).mean())
    big_square = float((gradients.mean(axis=0) ** 2).sum())
    return estimate(small, small_square, len(gradients), big_square)


def average(estimates: list[NoiseEstimate]) -> NoiseEstimate:
    """Returns the means of numerator and denominator, each for itself."""
    return NoiseEstimate(
        gradient_square=float(np.mean([e.gradient_square for e in estimates])),
        noise_trace=float(np.mean([e.noise_trace for e in estimates])),
    )


class NoiseScaleTest(parameterized.TestCase):
    def assert_unbiased(self, estimates, gradient_square, noise_trace):
        """Asserts that means lie within four standard errors of the truth."""
        for name, truth in (
            ("gradient_square", gradient_square),
            ("noise_trace", noise_trace),
        ):
            values = np.array([getattr(found, name) for found in estimates])
            error = values.std(ddof=1) / np.sqrt(len(values))
            self.assertLess(error, 0.05 * abs(truth))  # tight enough to tell
            self.assertLess(abs(values.mean() - truth), 4 * error, name)

    @parameterized.parameters((1, 12), (3, 12), (6, 12), (2, 40))
    def test_known_gaussian_noise_is_estimated_without_bias(self, small, examples):
        draw = np.random.default_rng(small)
        mean, deviations = np.array([1.0, -0.5, 0.2]), np.array([1.0, 2.0, 0.5])
        estimates = [
            estimate_of(mean + deviations * draw.normal(size=(examples, 3)), small)
            for _ in range(4000)
        ]
        self.assert_unbiased(estimates, (mean**2).sum(), (deviations**2).sum())

    def test_linear_regression_is_estimated_without_bias(self):
        draw = np.random.default_rng(0)
        dimensions, noise = 4, 0.5
        away = np.array([0.6, -0.3, 0.2, 0.1])  # from the best weights
        estimates = []
        for _ in range(4000):
            inputs = draw.normal(size=(20, dimensions))
            residual = inputs @ away - noise * draw.normal(size=20)
            estimates.append(estimate_of(inputs * residual[:, None], 5))
        square = float(away @ away)
        # Isserlis: E|x (x a - e)|^2 = (d + 2) |a|^2 + d s^2, and G = a.
        trace = (dimensions + 1) * square + dimensions * noise**2
        self.assert_unbiased(estimates, square, trace)

    def test_average_of_parts_has_less_bias_than_average_of_ratios(self):
        draw = np.random.default_rng(1)
        mean = np.full(10, 0.5)  # |G|^2 = 2.5, tr Sigma = 10
        estimates = [
            estimate_of(mean + draw.normal(size=(40, 10)), 4) for _ in range(2000)
        ]
        self.assertAlmostEqual(average(estimates).scale, 4.0, delta=0.1)
        ratios = np.mean([found.scale for found in estimates])
        self.assertGreater(ratios, average(estimates).scale)

    def test_gradient_that_is_all_noise_has_no_scale(self):
        for square in (0.0, -1.0, np.nan):
            self.assertTrue(np.isnan(NoiseEstimate(square, 2.0).scale))
        self.assertEqual(NoiseEstimate(0.5, 2.0).scale, 4.0)

    def test_one_batch_size_tells_nothing(self):
        found = estimate(8, 2.0, 8, 2.0)
        self.assertTrue(np.isnan(found.gradient_square))
        self.assertTrue(np.isnan(found.noise_trace))
        self.assertTrue(np.isnan(found.scale))

    def test_estimate_inverts_the_two_equations(self):
        square, trace = 0.3, 7.0
        found = estimate(10, square + trace / 10, 500, square + trace / 500)
        self.assertAlmostEqual(found.gradient_square, square)
        self.assertAlmostEqual(found.noise_trace, trace)
        self.assertAlmostEqual(found.scale, trace / square)


class MeasuredNoiseTest(tf.test.TestCase):
    def test_softmax_at_zero_weights_agrees_with_its_closed_form(self):
        """Gradient of an example: (x, 1) times (1 / C - [k is the label])."""
        classes, dimensions, deviation = 4, 6, 2.0
        center = np.array([0.5, -0.5, 1.0, 0.0, 0.25, -0.25])
        draw = np.random.default_rng(0)
        build = functools.partial(
            models.build, "mlp", (dimensions,), classes, widths=()
        )
        weights = [np.zeros(v.shape, np.float32) for v in build().weights]
        inputs = center + deviation * draw.normal(size=(3600, dimensions))
        examples = Examples(inputs.astype(np.float32), np.zeros(3600, np.int32))
        at = ExampleGradients(build, examples, batch_size=10, threads=1).at(weights)
        found = estimate(at.batch_size, at.batch_square, at.examples, at.square)
        share = 1 - 1 / classes
        square = share * (center @ center + 1)
        self.assertAllClose(found.gradient_square, square, rtol=0.05)
        self.assertAllClose(
            found.noise_trace, share * dimensions * deviation**2, rtol=0.05
        )
