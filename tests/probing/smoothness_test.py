from __future__ import annotations

import numpy as np
from absl.testing import parameterized

from dps_tf.probing import local_smoothness


class LocalSmoothnessTest(parameterized.TestCase):
    def test_quadratic_gives_the_curvature_along_the_update(self):
        draw = np.random.default_rng(0)
        root = draw.normal(size=(5, 5))
        hessian = root @ root.T
        before, update = draw.normal(size=5), draw.normal(size=5)
        found = local_smoothness(
            lambda point: [hessian @ point[0]], [before], [before + update]
        )
        expected = np.linalg.norm(hessian @ update) / np.linalg.norm(update)
        self.assertAlmostEqual(found / expected, 1.0, places=12)

    @parameterized.parameters((1.0, 2.0, 0.9), (2.0, 1.0, 0.1))
    def test_greatest_of_all_fractions_counts(self, before, after, gamma):
        found = local_smoothness(
            lambda point: [point[0] ** 3], [np.array([before])], [np.array([after])]
        )
        moved = before + gamma * (after - before)
        change = abs((moved**3 - before**3) / (moved - before))
        self.assertAlmostEqual(found, change, places=12)

    def test_several_variables_count_as_one_vector(self):
        def gradient(point):
            return [2.0 * point[0], 10.0 * point[1]]

        before = [np.zeros(2), np.zeros(1)]
        after = [np.array([3.0, 0.0]), np.array([4.0])]
        expected = np.hypot(2 * 3.0, 10 * 4.0) / 5.0
        found = local_smoothness(gradient, before, after, gradient(before))
        self.assertAlmostEqual(found, expected, places=12)

    @parameterized.parameters(0.0, np.inf, np.nan)
    def test_update_without_a_finite_length_has_no_smoothness(self, update):
        found = local_smoothness(
            lambda point: point, [np.ones(3)], [np.ones(3) + update]
        )
        self.assertTrue(np.isnan(found))

    def test_gradient_that_is_not_finite_gives_none(self):
        found = local_smoothness(
            lambda point: [point[0] * np.nan], [np.zeros(3)], [np.ones(3)]
        )
        self.assertTrue(np.isnan(found))
