"""Training of every file of reference numbers, masked and from its initial tensors.

Score sums and masks are compared in masks_test.py; whatever else a file holds of the
point after training starts from `Replay` as well.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.parity import golden
from tests.parity.replay import Replay

FILES = [(path.stem, path) for path in golden.paths()]

# What a different order of float32 sums may do, says the files' own description.
RELATIVE = 1e-4


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    def assert_tensors(self, truth, group, ours):
        for name, mine, theirs in zip(
            truth.names, ours, truth.tensors(group), strict=True
        ):
            scale = float(np.abs(theirs).max())
            self.assertAllClose(
                mine, theirs, RELATIVE, RELATIVE * scale, msg=f"{group}/{name}"
            )

    @parameterized.named_parameters(*FILES)
    def test_masked_network_before_training(self, path):
        truth = golden.read(path)
        masked = [
            value * mask
            for value, mask in zip(
                truth.tensors("init"), truth.tensors("mask"), strict=True
            )
        ]
        zeros = sum(np.count_nonzero(value == 0) for value in masked)
        sparsity = zeros / sum(value.size for value in masked)
        self.assertAllClose(sparsity, float(truth.arrays["sparsity"]), atol=1e-12)
        if truth.evaluation is None:
            self.skipTest("the file does not hold its evaluation examples")
        replay = Replay(truth)
        self.assert_evaluation(truth, "eval0", replay)
        inputs, labels = map(tf.constant, truth.evaluation)
        _, gradients = replay.loss_and_gradients(inputs, labels)
        self.assert_tensors(truth, "grad0", gradients)

    @parameterized.named_parameters(*FILES)
    def test_losses_and_final_tensors(self, path):
        truth = golden.read(path)
        replay = Replay(truth)
        found = replay.train(int(truth.config["steps"]))
        self.assertAllClose(found, truth.arrays["train/losses"], RELATIVE)
        self.assert_tensors(truth, "final", replay.unmasked())
        if truth.evaluation is not None:
            self.assert_evaluation(truth, "eval1", replay)

    def assert_evaluation(self, truth, group, replay):
        loss, accuracy = replay.evaluate(*truth.evaluation)
        self.assertAllClose(loss, truth.arrays[f"{group}/loss"], RELATIVE)
        self.assertAllClose(accuracy, truth.arrays[f"{group}/accuracy"], RELATIVE)
