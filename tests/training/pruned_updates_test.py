"""Pruned weights are zero after every update, also of whole matrices."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, optim
from dps_tf._keras import keras
from dps_tf.core import Job, UserError
from dps_tf.sparsity import MaskSet
from dps_tf.training import DeviceData, Program, TrainingRunner
from tests.training import problems
from tests.training.problems import Problem

RATE = 0.05
PROBLEM = Problem(arguments={"widths": (6, 5)})


def mix(size: int) -> np.ndarray:
    """Returns a matrix by which entries of a row move each other."""
    draw = np.random.default_rng(size)
    return draw.normal(size=(size, size)).astype(np.float32)


def mixing(gradient, slots, weight, point, step):
    """w = w - rate g M: an entry moves by the gradients of its row."""
    if gradient.shape.rank == 2:
        gradient = gradient @ tf.constant(mix(gradient.shape[-1]))
    return weight - point["rate"] * gradient, slots


def built(**claims) -> functools.partial:
    return functools.partial(optim.Optimizer, optim.Rule(mixing, **claims), name="mix")


def program_of(optimizer, **parts) -> Program:
    task = dataclasses.replace(PROBLEM.task, optimizer=optimizer, **parts)
    held = DeviceData(task.dataset, problems.one_device())
    return Program(task, held, PROBLEM.batch_size)


def masks_of(program: Program) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [
        np.float32(draw.random(v.shape) < 0.7)
        for v in program.network.trainable_variables
    ]


def begin(program: Program) -> list[np.ndarray]:
    """Loads a pruned trial before its first step; returns its masks."""
    masks = masks_of(program)
    initial = models.initial_point(program.network, 3)
    pruned = [v * m for v, m in zip(initial, masks, strict=True)]
    program.load(program.fresh_state(pruned), {"learning_rate": RATE}, masks)
    return masks


class MatrixUpdateTest(tf.test.TestCase):
    def test_pruned_entries_are_zero_and_the_others_are_those_of_numpy(self):
        program = program_of(built())
        masks = begin(program)
        truth = [np.array(v) for v in program.read().arrays]
        network, train = PROBLEM.task.network(), PROBLEM.dataset.train
        for batch in PROBLEM.order(0, 6):
            network.set_weights(truth)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(
                        train.labels[batch], network(train.inputs[batch])
                    )
                )
            gradients = tape.gradient(loss, network.trainable_variables)
            for i, mask in enumerate(masks):
                step = gradients[i].numpy() * mask
                if mask.ndim == 2:
                    step = step @ mix(mask.shape[-1])
                truth[i] = mask * (truth[i] - RATE * step)
        program.advance(PROBLEM.order(0, 6))
        for found, expected, mask in zip(
            program.read().arrays, truth, masks, strict=True
        ):
            self.assertAllClose(found, expected, rtol=1e-4, atol=1e-6)
            self.assertAllEqual(found[mask == 0], np.zeros(np.sum(mask == 0)))


class RealisedSparsityTest(tf.test.TestCase):
    def turn(self, optimizer, **parts):
        program = program_of(optimizer, **parts)
        masks = tuple(masks_of(program))
        runner = TrainingRunner(
            [program], 0, prune=lambda trial, initial: MaskSet(masks, 0.3)
        )
        job = Job(trial=2, point={"learning_rate": RATE}, until=4, state=None)
        return runner.run(0, [job], lambda: False)[0]

    def test_network_that_is_not_as_sparse_as_its_masks_is_no_result(self):
        found = self.turn(built())
        self.assertEqual((found.step, found.diverged_step), (4, None))
        with self.assertRaisesRegex(UserError, "trial 2 has .* not zero after 4 steps"):
            self.turn(built(elementwise=True))


def hiding() -> keras.Model:
    """Returns a network whose outputs are finite, as behind a compiled ReLU."""
    network = PROBLEM.task.network()
    outputs = keras.layers.BatchNormalization()(network.output)
    hide = keras.layers.Lambda(tf.math.multiply_no_nan, arguments={"y": 0.0})
    return keras.Model(network.inputs, hide(outputs))


class HiddenWeightsTest(tf.test.TestCase, parameterized.TestCase):
    """A weight that is not finite is a divergence, whatever the loss shows."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = program_of(functools.partial(optim.build, "sgd"), network=hiding)
        cls.runner = TrainingRunner([cls.program], 0)

    def turn(self, poison=None):
        values = models.initial_point(self.program.network, 3)
        if poison is not None:
            place, value = poison
            values[place] = np.array(values[place])
            values[place].flat[-1] = value
        state = self.program.fresh_state(values)
        job = Job(trial=2, point={"learning_rate": RATE}, until=3, state=state)
        return self.runner.run(0, [job], lambda: False)[0]

    def test_finite_weights_are_evaluated(self):
        found = self.turn()
        self.assertIsNone(found.diverged_step)
        self.assertTrue(np.isfinite(list(found.metrics.values())).all())

    @parameterized.parameters(np.nan, -np.inf)
    def test_any_weight_that_is_not_finite_is_a_divergence(self, value):
        count = len(self.program.network.weights)
        self.assertEqual(count, 10)  # three layers, four of the normalization
        for place in range(count):
            found = self.turn((place, value))
            self.assertEqual((found.diverged_step, found.metrics), (3, None), place)
