"""Evaluations use the averaged weights of an optimizer; training goes on without."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, optim
from dps_tf.training import DeviceData, Program
from tests.training import problems
from tests.training.problems import Problem, same_bits

PROBLEM = Problem(optimizer="momentum")
POINTS = {
    "momentum": {"learning_rate": 0.3, "averaging_decay": 0.8},
    "muon": {"learning_rate": 0.1, "averaging_decay": 0.8},
    "schedule_free_sgd": {"learning_rate": 1.0},
}


@functools.cache
def program_of(name: str) -> Program:
    """Compiled once for all tests, as trials share a program."""
    build = functools.partial(optim.build, name, "constant", POINTS[name])
    task = dataclasses.replace(PROBLEM.task, optimizer=build)
    held = DeviceData(task.dataset, problems.one_device())
    return Program(task, held, PROBLEM.batch_size)


@functools.cache
def plain_program() -> Program:
    return PROBLEM.program()


def begin(program: Program, name: str) -> list[np.ndarray]:
    """Loads a pruned trial before its first step; returns its masks."""
    draw = np.random.default_rng(0)
    masks = [
        np.float32(draw.random(v.shape) < 0.7)
        for v in program.network.trainable_variables
    ]
    initial = models.initial_point(program.network, 3)
    pruned = [v * m for v, m in zip(initial, masks, strict=True)]
    program.load(program.fresh_state(pruned), POINTS[name], masks)
    return masks


class EvaluationTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*POINTS)
    def test_is_that_of_the_averaged_weights_under_the_masks(self, name):
        program = program_of(name)
        masks = begin(program, name)
        program.advance(PROBLEM.order(0, 7))
        before = program.read()
        count = len(program.network.weights)
        averaged = [weight.numpy() for weight in program.weights()]
        slots = program.optimizer.named(
            before.arrays[count:], program.network.trainable_variables
        )
        at = program.optimizer.values(POINTS[name])
        at = {key: tf.constant(value) for key, value in at.items()}
        expected = program.optimizer.evaluated(slots, [], at, tf.constant(7))
        for mine, wanted, mask in zip(averaged, expected, masks, strict=True):
            self.assertAllEqual(mine, wanted * mask)
        found = program.evaluate()
        self.assertTrue(same_bits(before, program.read()))
        plain = plain_program()
        plain.load(plain.fresh_state(averaged), PROBLEM.point)
        self.assertEqual(found, plain.evaluate())
        plain.load(plain.fresh_state(before.arrays[: len(masks)]), PROBLEM.point)
        self.assertNotEqual(found, plain.evaluate())

    @parameterized.parameters(*POINTS)
    def test_evaluations_leave_no_trace_in_training(self, name):
        program = program_of(name)
        begin(program, name)
        program.advance(PROBLEM.order(0, 6))
        straight = program.read()
        begin(program, name)
        for step in range(0, 6, 2):
            program.advance(PROBLEM.order(step, 2))
            program.evaluate()
        self.assertTrue(same_bits(program.read(), straight))
