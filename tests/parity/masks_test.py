"""Score sums and masks of every file of reference numbers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.core import Pruning
from dps_tf.data import Dataset, Examples
from dps_tf.sparsity import MaskRequest, masks_for
from dps_tf.sparsity.score_gradients import program_of
from dps_tf.sparsity.selection import select
from tests.parity import golden

FILES = [(path.stem, path) for path in golden.paths()]


def intersection_over_union(left, right) -> float:
    pairs = list(zip(left, right, strict=True))
    both = sum(np.count_nonzero((a > 0) & (b > 0)) for a, b in pairs)
    either = sum(np.count_nonzero((a > 0) | (b > 0)) for a, b in pairs)
    return both / either


class MasksTest(tf.test.TestCase, parameterized.TestCase):
    def network(self, truth):
        network = models.build(truth.network, truth.inputs.shape[1:], truth.classes)
        shapes = [tuple(v.shape) for v in network.trainable_variables]
        self.assertEqual(shapes, [part.shape for part in truth.tensors("init")])
        return network

    @parameterized.named_parameters(*FILES)
    def test_score_sums_are_those_of_the_reference(self, path):
        truth = golden.read(path)
        program = program_of(self.network(truth))
        theta = truth.tensors("init")
        program.set_point(theta)
        gradients = program.loss_gradient(truth.inputs, truth.labels)
        sums = [t * g for t, g in zip(theta, gradients, strict=True)]
        for name, ours, theirs in zip(
            truth.names, sums, truth.tensors("score_sum"), strict=True
        ):
            scale = np.abs(theirs).max()
            self.assertAllClose(ours, theirs, rtol=0, atol=1e-4 * scale, msg=name)
            if name.startswith("b"):
                self.assertAllEqual(ours, np.zeros_like(ours))

    @parameterized.named_parameters(*FILES)
    def test_masks_are_those_of_the_reference(self, path):
        truth = golden.read(path)
        train = Examples(truth.inputs, truth.labels)
        dataset = Dataset("golden", train, train, truth.classes, path.stem, "golden")
        initial, expected = truth.tensors("init"), truth.tensors("mask")
        pruning = Pruning(prunable="kernels_and_biases")
        asked = "snip", truth.sparsity, pruning, {"initial_seed": 0}
        request = MaskRequest(self.network(truth), initial, dataset, *asked)
        found = masks_for(request)
        self.assertGreaterEqual(intersection_over_union(found.masks, expected), 0.9995)
        self.assertEqual(
            sum(np.count_nonzero(m) for m in found.masks),
            sum(np.count_nonzero(m) for m in expected),
        )
        masked = [v * m for v, m in zip(initial, found.masks, strict=True)]
        zeros = sum(np.count_nonzero(v == 0) for v in masked)
        sparsity = zeros / sum(v.size for v in masked)
        self.assertAllClose(sparsity, float(truth.arrays["sparsity"]), atol=1e-12)
        if truth.sparsity > 0:
            self.assertAllClose(found.realised_sparsity, sparsity, atol=1e-12)

    @parameterized.named_parameters(*FILES)
    def test_selection_from_the_reference_scores_is_exact(self, path):
        truth = golden.read(path)
        # Ties: the reference ranks all kernels before all biases.
        order = sorted(truth.names, key=lambda name: name[0] != "w")
        scores = [np.abs(truth.arrays[f"score_sum/{name}"]) for name in order]
        for name, ours in zip(order, select(scores, truth.sparsity), strict=True):
            self.assertAllEqual(ours, truth.arrays[f"mask/{name}"])
