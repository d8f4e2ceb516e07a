"""Is what is kept on disk computed once, and is what is damaged noticed?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.core import Pruning
from dps_tf.sparsity import MaskRequest, ScoreCache, masks_for
from tests.sparsity import data


class CachedTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.network = models.build("mlp", (4,), 3)
        self.dataset = data.gaussian((4,), 60, 3)
        self.directory = self.get_temp_dir()
        self.problems = []
        self.cache = self.open()

    def open(self):
        cache = ScoreCache(self.directory, report=self.problems.append)
        get, self.computed = cache.get, []

        def noted(key, compute):
            return get(key, lambda: self.computed.append(key) or compute())

        cache.get = noted
        return cache

    def masks(self, method="snip", sparsity=0.5, seed=0, cache=None, **pruning):
        initial = models.initial_point(self.network, seed)
        key = {"network": "mlp", "initial_seed": seed}
        asked = method, sparsity, Pruning(**pruning), key
        request = MaskRequest(self.network, initial, self.dataset, *asked)
        return masks_for(request, cache or self.cache)

    def test_one_shot_scores_are_computed_once_for_all_sparsities_and_sets(self):
        for sparsity in (0.5, 0.7, 0.9):
            for prunable_set in ("kernels", "kernels_and_biases"):
                self.masks(sparsity=sparsity, prunable=prunable_set)
                self.masks(sparsity=sparsity, prunable=prunable_set, scope="layer")
        self.assertLen(self.computed, 1)

    def test_iterative_masks_are_computed_once_per_sparsity(self):
        for _ in range(2):
            for sparsity in (0.5, 0.9):
                self.masks("force", sparsity)
        self.assertLen(self.computed, 2)

    @parameterized.parameters({"seed": 1}, {"method": "magnitude"}, {"examples": 30})
    def test_other_scores_have_another_key(self, **change):
        self.masks()
        self.masks(**change)
        self.assertLen(self.computed, 2)

    def test_arguments_and_data_are_part_of_the_key(self):
        self.masks("grasp")
        self.masks("grasp", arguments={"temperature": 1.0})
        self.dataset = data.gaussian((4,), 60, 3, seed=1)
        self.masks("grasp")
        self.assertLen(self.computed, 3)

    @parameterized.parameters("cut", "flip", "empty")
    def test_damaged_scores_are_set_aside_and_computed_anew(self, damage):
        before = self.masks()
        (path,) = list(self.paths("*.npz"))
        content = path.read_bytes()
        changed = {
            "cut": content[:-20],
            "flip": content[:300] + bytes([content[300] ^ 1]) + content[301:],
            "empty": b"",
        }
        path.write_bytes(changed[damage])
        cache = self.open()
        after = self.masks(cache=cache)
        for one, other in zip(before.masks, after.masks, strict=True):
            self.assertAllEqual(one, other)
        self.assertLen(self.computed, 1)
        self.assertLen(list(self.paths("*.damaged-1")), 1)
        self.assertIn("set aside", self.problems[0])
        self.assertEqual(path.read_bytes(), content)
        self.masks(cache=self.open())
        self.assertEmpty(self.computed)

    def test_scores_of_another_key_in_the_place_of_these_are_not_used(self):
        key, other = {"a": 1}, {"a": 2}
        self.cache.get(key, lambda: [np.zeros(3)])
        (path,) = list(self.paths("*.npz"))
        path.rename(self.cache.path(other))
        found = self.cache.get(other, lambda: [np.ones(3)])
        self.assertAllEqual(found[0], np.ones(3))
        self.assertIn("another key", self.problems[0])

    def test_a_failing_computation_leaves_nothing_behind(self):
        with self.assertRaises(ZeroDivisionError):
            self.cache.get({"a": 1}, lambda: [np.ones(1 // 0)])
        self.assertEmpty(list(self.paths("*")))

    def paths(self, pattern):
        return Path(self.directory).glob(pattern)
