"""Trials in bfloat16: what stays float32, and how near their curves are."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.core import Pruning
from dps_tf.sparsity import prunable, tfmot
from dps_tf.training import DeviceData, Program
from tests.training import problems
from tests.training.problems import PROBLEMS, Problem, same_bits, shared


def mixed(problem: Problem, strategy=None, gradual=None, **arguments) -> Program:
    task = dataclasses.replace(
        problem.task,
        network=lambda: models.in_precision(problem.task.network(), "mixed_bfloat16"),
        gradual=gradual,
    )
    data = DeviceData(problem.dataset, strategy or problems.one_device())
    return Program(task, data, problem.batch_size, **arguments)


def gradually(network):
    pruning = Pruning(arguments={"begin_step": 2, "end_step": -1, "frequency": 4})
    return tfmot.with_schedule(network, "tfmot_constant", 0.5, pruning, 100)


def pruned(problem: Problem, program: Program) -> list[np.ndarray]:
    """Loads a trial before its first step, half of it pruned; returns the masks."""
    draw, initial = (
        np.random.default_rng(0).random,
        models.initial_point(program.network, 3),
    )
    masks = [np.float32(draw(value.shape) < 0.5) for value in initial]
    initial = [value * mask for value, mask in zip(initial, masks, strict=True)]
    program.load(program.fresh_state(initial), problem.point, masks)
    return masks


@functools.cache
def mixed_of(name: str) -> Program:
    """Returns the program of a problem that several tests share."""
    return mixed(PROBLEMS[name])


class PrecisionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*PROBLEMS)
    def test_whatever_is_kept_is_float32(self, name):
        program = mixed_of(name)
        PROBLEMS[name].begin(program)
        kept = program.read().arrays
        self.assertEqual({v.dtype for v in kept}, {np.dtype("float32")})
        loss = program.advance(PROBLEMS[name].order(0, 2)).loss
        # Of 24 bits: a bfloat16 would come back from its own type unchanged.
        self.assertNotEqual(loss, float(tf.cast(tf.constant(loss), tf.bfloat16)))

    @parameterized.parameters(*PROBLEMS)
    def test_losses_stay_near_those_of_float32(self, name):
        problem = PROBLEMS[name]
        curves = []
        for program in (shared(problem), mixed_of(name)):
            problem.begin(program)
            curves.append(problem.curve(program, 40, 5)[0])
        self.assertAllClose(*curves, rtol=0.05, atol=0.02)
        self.assertNotEqual(*curves)
        self.assertLess(curves[1][-1], curves[1][0])

    def test_pruned_entries_stay_zero(self):
        problem = PROBLEMS["mlp"]
        program = mixed_of("mlp")
        masks = pruned(problem, program)
        program.advance(problem.order(0, 10))
        for value, mask in zip(program.read().arrays, masks, strict=False):
            self.assertAllEqual(value[mask == 0], 0 * mask[mask == 0])
            if value.ndim > 1:
                self.assertTrue(value[mask == 1].all())

    def test_a_resumed_trial_is_the_same_to_the_bit(self):
        problem = PROBLEMS["images"]
        program, other = mixed_of("images"), mixed(problem)
        problem.begin(program)
        problem.curve(program, 20, 10)
        at_once = program.read()
        problem.begin(program)
        problem.curve(program, 10, 10)
        other.load(program.read(), problem.point)
        other.advance(problem.order(10, 10))
        self.assertTrue(same_bits(at_once, other.read()))

    def test_tfmot_prunes_in_bfloat16_however_often_it_is_evaluated(self):
        problem = Problem(network="mlp_batch_norm", optimizer="momentum")
        program = mixed(problem, gradual=gradually)
        states = []
        for interval in (40, 1):
            problem.begin(program)
            for step in range(0, 40, interval):
                program.advance(problem.order(step, interval))
                program.evaluate()
                states.append(program.read())
                problem.begin(program, seed=9)
                program.load(states[-1], problem.point)
        self.assertTrue(same_bits(states[0], states[-1]))
        program.load(states[0], problem.point)
        program.check_sparsity_reached(40)
        count = len(program.network.weights)
        masks = program.gradual.all_masks(
            program.network.weights, states[0].arrays[-len(program.gradual.places) :]
        )
        values = prunable.masked(program.network, states[0].arrays[:count], masks)
        for own, plain in zip(program.weights(), values, strict=True):
            self.assertEqual(own.dtype, tf.float32)
            self.assertAllEqual(own, plain)  # masks do not round

    def test_under_xla_as_for_a_tpu(self):
        problem = PROBLEMS["mlp"]
        curves = []
        for program in (mixed_of("mlp"), mixed(problem, jit_compile=True)):
            problem.begin(program)
            curves.append(problem.curve(program, 20, 10)[0])
            self.assertEqual(program.traces, 1)
        self.assertAllClose(*curves, rtol=0.02)

    @pytest.mark.multi_device
    def test_mirrored(self):
        problem = PROBLEMS["mlp"]
        curves = []
        for strategy in (problems.one_device(), problems.mirrored(2)):
            program = mixed(problem, strategy, gradually)
            problem.begin(program)
            curves.append(problem.curve(program, 20, 10)[0])
        # Gradients are rounded to 8 bits before replicas add them up.
        self.assertAllClose(*curves, rtol=0.02)
