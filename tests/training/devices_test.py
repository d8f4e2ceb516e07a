"""The same trial on one device, on several, and compiled by XLA as for a TPU."""

from __future__ import annotations

import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models
from dps_tf.core import Goal, UserError
from dps_tf.models.layers import GhostBatchNormalization
from dps_tf.training import Program
from tests.training import problems
from tests.training.problems import PROBLEMS, Problem, error_of, same_bits, shared


def masked(problem: Problem, program: Program) -> list[np.ndarray]:
    """Loads a trial before its first step, half of it pruned; returns its masks."""
    generator = np.random.default_rng(0)
    initial = models.initial_point(program.network, 3)
    trainable = {id(v): i for i, v in enumerate(program.network.trainable_variables)}
    masks: list = [None] * len(trainable)
    for k, variable in enumerate(program.network.weights):
        if id(variable) in trainable:
            mask = np.float32(generator.random(variable.shape) < 0.5)
            masks[trainable[id(variable)]] = mask
            initial[k] = initial[k] * mask
    program.load(program.fresh_state(initial), problem.point, masks)
    return masks


@functools.cache
def on_one_device(problem: Problem, **arguments):
    """Losses, evaluations and last state, trained once for all strategies."""
    program = shared(problem, **arguments)
    masked(problem, program)
    return *problem.curve(program, 48, 8), program.read()


class CurveTestCase(tf.test.TestCase, parameterized.TestCase):
    def assert_same_curve(self, problem: Problem, program: Program, **arguments):
        losses, evaluations, state = on_one_device(problem, **arguments)
        masked(problem, program)
        other_losses, others = problem.curve(program, 48, 8)
        self.assertAllClose(losses, other_losses, rtol=0, atol=1e-5)
        for found, other in zip(evaluations, others, strict=True):
            self.assertEqual(error_of(found), error_of(other))
            self.assertEqual(found.is_bound, other.is_bound)
            self.assertAllClose(found.loss_sum, other.loss_sum, rtol=1e-5)
        self.assertEqual(program.traces, 1)
        for array, other in zip(state.arrays, program.read().arrays, strict=True):
            if array.dtype == np.float32:  # ranks of losses round
                self.assertAllClose(array, other, rtol=1e-3, atol=1e-4)
                self.assertAllEqual(array == 0, other == 0)


@pytest.mark.multi_device
class DevicesTest(CurveTestCase):
    @parameterized.parameters(("mlp", 2), ("images", 4), ("sequences", 2))
    def test_data_split_over_replicas(self, name, replicas):
        self.assert_same_curve(PROBLEMS[name], shared(PROBLEMS[name], replicas))

    def test_one_replica_is_one_device_to_the_bit(self):
        problem = PROBLEMS["mlp"]
        program = problem.program(problems.mirrored(1))
        masked(problem, program)
        problem.curve(program, 48, 8)
        self.assertTrue(same_bits(program.read(), on_one_device(problem)[-1]))

    def test_bits_of_replicas_do_not_depend_on_slices_or_turns(self):
        problem, program = PROBLEMS["images"], shared(PROBLEMS["images"], 4)
        states = []
        for length in (24, 6):
            masked(problem, program)
            for step in range(0, 24, length):
                state = program.read()
                problem.begin(program, seed=9)
                program.advance(problem.order(0, 3))
                masks = masked(problem, program)
                program.load(state, problem.point, masks)
                program.advance(problem.order(step, length))
            states.append(program.read())
        self.assertTrue(same_bits(*states))

    def test_trial_moves_between_one_device_and_several(self):
        problem = PROBLEMS["images"]
        one, four = shared(problem), shared(problem, 4)
        problem.begin(one)
        losses, _ = problem.curve(one, 20, 10)
        problem.begin(four)
        four.advance(problem.order(0, 10))
        one.load(four.read(), problem.point)
        self.assertAllClose(one.advance(problem.order(10, 10)).loss, losses[1], 1e-5)

    def test_evaluation_that_stops_at_the_goal(self):
        """With XLA around the gradients of each replica."""
        problem = PROBLEMS["images"]
        goal = Goal("validation/classification_error", 0.7)
        program = problem.program(problems.mirrored(2), goal=goal, jit_compile=True)
        self.assert_same_curve(problem, program, goal=goal)
        bounds = {each.is_bound for each in on_one_device(problem, goal=goal)[1]}
        self.assertEqual(bounds, {False, True})

    def test_step_of_divergence(self):
        problem = PROBLEMS["mlp"]
        found = []
        for program in (shared(problem), shared(problem, 2)):
            problem.begin(program, learning_rate=1e12)
            advance = program.advance(problem.order(0, 500))
            self.assertTrue(advance.diverged)
            found.append(advance.steps)
        self.assertEqual(*found)

    @parameterized.parameters((2, 7), (4, 6), (4, 2))
    def test_batch_that_replicas_cannot_share_is_refused(self, replicas, batch_size):
        message = (
            f"batch size {batch_size} cannot be split over {replicas} replicas: use a "
            "multiple of it, fewer devices, or the strategy one_device."
        )
        with self.assertRaisesRegex(UserError, f"^{message}$"):
            Problem(batch_size=batch_size).program(problems.mirrored(replicas))


@pytest.mark.multi_device
class GhostBatchesTest(tf.test.TestCase, parameterized.TestCase):
    """Statistics must not depend on how many replicas share a batch."""

    def problem(self, ghost: int | None, batch_size: int = 16) -> Problem:
        return Problem(
            network="mlp_batch_norm",
            arguments={"widths": (4,), "ghost_batch_size": ghost},
            batch_size=batch_size,
        )

    @parameterized.parameters((4, 64, 32, True), (2, 48, 16, False), (2, 8, 8, False))
    def test_batch_whose_shares_ghosts_do_not_divide(
        self, replicas, batch_size, ghost, jit_compile
    ):
        message = (
            f"normalization is given {batch_size // replicas} examples on each of "
            f"{replicas} replicas, not a multiple of ghost_batch_size {ghost}: use "
            "fewer replicas or a larger batch size, so that each has a multiple, or a "
            "smaller ghost_batch_size."
        )
        with self.assertRaisesRegex(UserError, f"^{message}$"):
            self.problem(ghost, batch_size).program(
                problems.mirrored(replicas), jit_compile=jit_compile
            )

    def test_batch_below_a_ghost_is_one_on_one_replica(self):
        found = []
        for ghost, strategy in (
            (None, problems.one_device()),
            (100, problems.mirrored(1)),
        ):
            problem = self.problem(ghost)
            program = problem.program(strategy)
            problem.begin(program)
            problem.curve(program, 10, 10)
            found.append(program.read())
        self.assertTrue(same_bits(*found))

    def test_share_of_a_size_that_is_known_only_when_it_comes(self):
        strategy = problems.mirrored(2)
        with strategy.scope():
            layer = GhostBatchNormalization(4)
            layer.build(tf.TensorShape([None, 3]))

        @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
        def train(inputs):
            return strategy.run(lambda: layer(inputs, training=True))

        inputs = tf.random.stateless_normal([8, 3], [1, 2])
        alone = GhostBatchNormalization(4)(inputs, training=True)
        self.assertAllClose(train(inputs).values[1], alone)
        message = "each of 2 replicas, not a multiple of ghost_batch_size 4: use fewer"
        for few in (2, 6):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
                train(inputs[:few])

    def test_outside_of_replicas_a_batch_is_whole(self):
        with problems.mirrored(2).scope():
            layer = GhostBatchNormalization(100)
            outputs = layer(tf.constant([[1.0], [3.0]]), training=True)
        self.assertAllClose(outputs, [[-1.0], [1.0]], atol=1e-3)


class XlaTest(CurveTestCase):
    """The whole slice under XLA: loop, gather, masks, update; what a TPU does."""

    def test_whole_slice_under_xla(self):
        problem = PROBLEMS["mlp"]
        self.assert_same_curve(problem, shared(problem, jit_compile=True))

    def test_slices_of_all_lengths_share_few_shapes_and_all_bits(self):
        problem = PROBLEMS["mlp"]
        program, states = shared(problem, jit_compile=True), []
        with mock.patch.object(program, "_run", wraps=program._run) as run:
            for lengths in ((7,), (1, 6), (5, 1, 1)):
                masked(problem, program)
                step = 0
                for length in lengths:
                    rows = problem.order(step, length)
                    self.assertEqual(program.advance(rows).steps, length)
                    step += length
                states.append(program.read())
        self.assertTrue(all(same_bits(states[0], state) for state in states))
        shapes = {call.args[-1].shape for call in run.call_args_list}
        self.assertEqual(shapes, {(n, 16) for n in (1, 8)})
