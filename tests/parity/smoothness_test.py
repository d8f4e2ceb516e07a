"""Local smoothness after training, for reference numbers of every network."""

from __future__ import annotations

import functools

import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.data import Examples
from dps_tf.probing import ExampleGradients, local_smoothness
from tests.parity import golden
from tests.parity.replay import Replay

# One file of each network: of the optimizer only the last update counts here.
FILES = list({path.stem.rpartition("_")[0]: path for path in golden.paths()}.items())

# What a different order of float32 sums may do, says the files' own description.
RELATIVE = 5e-3


class SmoothnessTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*FILES)
    def test_smoothness_along_the_update_after_training(self, path):
        truth = golden.read(path)
        replay = Replay(truth)
        replay.train(int(truth.config["steps"]))
        before = replay.model.get_weights()
        replay.train(1)
        after = replay.model.get_weights()
        build = functools.partial(
            models.build, truth.network, truth.inputs.shape[1:], truth.classes
        )
        gradients = ExampleGradients(build, Examples(truth.inputs, truth.labels))
        masks = truth.tensors("mask")

        def gradient(point):
            return gradients.at(gradients.with_trainable(before, point), masks).values

        found = local_smoothness(
            gradient, gradients.trainable(before), gradients.trainable(after)
        )
        self.assertAllClose(found, float(truth.arrays["lipschitz"]), RELATIVE, 0)
