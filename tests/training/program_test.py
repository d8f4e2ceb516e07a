"""One program serves all trials: traces, bits, masks, divergence, states."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, optim, training
from dps_tf._keras import keras
from dps_tf.core import Goal, TrialState, UserError
from dps_tf.data import Chain, FirstTokens
from dps_tf.training import DeviceData, Program, Task, evaluation
from dps_tf.training import program as programs
from tests.training import problems
from tests.training.problems import Problem, Tokens, one_device, same_bits

DECAYING = Problem(optimizer="nesterov", schedule="linear", smoothing=True)


def random_masks(program: Program, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [
        np.float32(generator.random(v.shape) < 0.4)
        for v in program.network.trainable_variables
    ]


def through_file(state: TrialState) -> TrialState:
    """Returns a state that has been written and read without pickle."""
    file = io.BytesIO()
    np.savez(file, *state.arrays, allow_pickle=False)
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        read = tuple(arrays[name] for name in arrays.files)
        return TrialState(state.step, read, state.layout)


class TraceTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        None, Goal("validation/classification_error", 0.3, inclusive=False)
    )
    def test_one_trace_serves_all_trials(self, goal):
        with mock.patch.object(
            evaluation, "outputs_of", wraps=evaluation.outputs_of
        ) as counted:
            program = DECAYING.program(goal=goal)
            DECAYING.begin(program)
            program.advance(DECAYING.order(0, 1))
            # Once by an evaluation that stops early, once by an exact one.
            program.evaluate()
            DECAYING.curve(program, 30, 30)
            traces = counted.call_count
            for trial, (rate, smoothing, momentum, steps) in enumerate(
                itertools.product((0.01, 0.3), (0.0, 0.1), (0.0, 0.9), (1, 2, 7, 33))
            ):
                initial = models.initial_point(program.network, trial)
                masks = random_masks(program, trial) if trial % 2 else None
                point = {
                    "learning_rate": rate,
                    "momentum": momentum,
                    "decay_steps": 10 + trial,
                    "end_learning_rate_factor": 0.1,
                    "label_smoothing": smoothing,
                }
                program.load(program.fresh_state(initial), point, masks)
                program.advance(DECAYING.order(0, steps, trial))
                program.evaluate()
                program.read()
        self.assertEqual(program.traces, 1)
        self.assertEqual(counted.call_count, traces)
        self.assertEqual(traces, 1 if goal is None else 2)

    @parameterized.parameters(
        (True, lambda: simple_cnn()[1]), (False, lambda: plain("adam")[1])
    )
    def test_a_step_with_maxima_over_windows_is_called(self, is_called, make):
        program = make()
        # Within the loop, oneDNN might leave the gradient of a maximum to Eigen.
        found = [
            function.attr["_noinline"].b
            for function in program._run.graph.as_graph_def().library.function
            if any("Softmax" in node.op for node in function.node_def)
            and any("MatMul" in node.op for node in function.node_def)
            and any("grad" in node.name for node in function.node_def)
        ]
        self.assertEqual(found, [is_called])

    def test_no_steps_at_all_change_nothing(self):
        problem, program = plain("adam")
        problem.begin(program)
        before = program.read()
        self.assertEqual(program.advance(problem.order(0, 0)).steps, 0)
        self.assertTrue(same_bits(before, program.read()))


class BitsTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = DECAYING.program()
        DECAYING.begin(cls.program)
        DECAYING.curve(cls.program, 60, 60)
        cls.straight = cls.program.read()

    def assert_same(self, program: Program) -> None:
        self.assertTrue(same_bits(program.read(), self.straight))

    @parameterized.parameters(1, 12)
    def test_length_of_slices(self, length):
        DECAYING.begin(self.program)
        DECAYING.curve(self.program, 60, length)
        self.assert_same(self.program)

    def test_other_trials_in_between_and_another_program(self):
        other = DECAYING.program()
        DECAYING.begin(self.program)
        state = self.program.read()
        point = DECAYING.point
        for turn, step in enumerate(range(0, 60, 10)):
            program = (self.program, other)[turn % 2]
            program.load(
                program.fresh_state(models.initial_point(program.network, 9)),
                {**point, "learning_rate": 0.7},
                random_masks(program),
            )
            program.advance(DECAYING.order(0, 7, seed=1))
            program.evaluate()
            program.load(through_file(state), point)
            program.advance(DECAYING.order(step, 10))
            state = program.read()
        self.assertTrue(same_bits(state, self.straight))

    @parameterized.parameters((programs._HELD, "CPU:1"), (0, "CPU:0"))
    def test_states_that_do_not_fit_lie_on_the_host_and_go_on(self, most, place):
        DECAYING.begin(self.program)
        for step in range(0, 60, 20):
            state = self.program.read()
            with tf.device("/device:CPU:1"), mock.patch.object(programs, "_HELD", most):
                self.program.load(state, DECAYING.point)
                state = self.program.state
            tensors, _ = state.arrays.held
            self.assertEndsWith(tensors[0].device, place)
            self.program.load(state, DECAYING.point)
            self.program.advance(DECAYING.order(step, 20))
        self.assert_same(self.program)

    def test_state_that_was_read_is_a_copy(self):
        DECAYING.begin(self.program)
        before = self.program.read()
        kept = through_file(before)
        DECAYING.curve(self.program, 10, 10)
        self.assertTrue(same_bits(before, kept))
        self.assertFalse(same_bits(before, self.program.read()))

    @parameterized.parameters(
        *problems.STOCK, "lamb", "muon", "soap", "schedule_free_adamw"
    )
    def test_resumed_by_optimizers_of_every_kind_of_slot(self, name):
        problem, program = plain(name)
        problem.begin(program)
        problem.curve(program, 20, 20)
        halfway = through_file(program.read())
        slots = program.optimizer.init(program.network.trainable_variables)
        self.assertLen(halfway.arrays, 4 + len(program.optimizer.flat(slots)))
        program.advance(problem.order(20, 20))
        whole = program.read()
        problem.begin(program, seed=9)
        program.advance(problem.order(0, 7))
        program.load(halfway, problem.point)
        program.advance(problem.order(20, 20))
        self.assertTrue(same_bits(program.read(), whole))

    def test_ranks_of_a_goal_evaluation_is_part_of_the_state(self):
        goal = Goal("validation/classification_error", 0.01)
        first, second = (DECAYING.program(goal=goal) for _ in range(2))
        DECAYING.begin(first)
        DECAYING.curve(first, 20, 10)
        state = first.read()
        self.assertEqual(state.arrays[-1].dtype, np.int8)
        self.assertGreater(state.arrays[-1].sum(), 0)
        second.load(through_file(state), DECAYING.point)
        for program in (first, second):
            DECAYING.curve(program, 20, 10)
        self.assertTrue(same_bits(first.read(), second.read()))


@functools.cache
def plain(optimizer: str) -> tuple[Problem, Program]:
    """Returns a problem and its program, which trials of several tests share."""
    problem = Problem(optimizer=optimizer)
    return problem, problem.program()


@functools.cache
def simple_cnn() -> tuple[Problem, Program]:
    problem = Problem(problems.images(8, 28, 1), "simple_cnn", "adam", batch_size=2)
    return problem, problem.program()


class MaskTest(tf.test.TestCase, parameterized.TestCase):
    def masked(self, program: Program, problem: Problem, masks, steps: int = 20):
        """Trains with masks from a masked initial point; returns the state."""
        initial = models.initial_point(program.network, 3)
        pruned = [v * m for v, m in zip(initial, masks, strict=True)]
        program.load(program.fresh_state(pruned), problem.point, masks)
        program.advance(problem.order(0, steps))
        return program.read()

    @parameterized.parameters(
        *problems.STOCK, "lamb", "muon", "soap", "schedule_free_adamw"
    )
    def test_pruned_entries_stay_exactly_zero_and_others_move(self, name):
        problem, program = plain(name)
        masks = random_masks(program)
        state = self.masked(program, problem, masks)
        # The slots of the others are not all of the shape of a variable.
        arrays = state.arrays[: None if name in problems.STOCK else len(masks)]
        for array, mask in zip(arrays, itertools.cycle(masks)):
            self.assertAllEqual(array[mask == 0], np.zeros(np.sum(mask == 0)))
        for array, mask, begin in zip(
            state.arrays, masks, models.initial_point(program.network, 3), strict=False
        ):
            moved = array[mask == 1] != begin[mask == 1]
            self.assertGreater(moved.mean(), 0.5)

    @parameterized.parameters(*problems.STOCK, "muon")
    def test_mask_of_ones_equals_dense_to_the_bit(self, name):
        problem, program = plain(name)
        ones = [
            np.ones(v.shape, np.float32) for v in program.network.trainable_variables
        ]
        state = self.masked(program, problem, ones)
        problem.begin(program)
        program.advance(problem.order(0, 20))
        self.assertTrue(same_bits(state, program.read()))

    def test_gradients_are_those_of_the_masked_network(self):
        """Weight times mask in the forward pass gives the same weights and slots."""
        problem, program = plain("momentum")
        masks = random_masks(program)
        state = self.masked(program, problem, masks, 12)
        weights = [tf.Variable(v) for v in models.initial_point(program.network, 3)]
        optimizer = optim.TensorOptimizer("momentum")
        optimizer.set_metaparameters(problem.point)
        train = problem.dataset.train
        for row in problem.order(0, 12):
            with tf.GradientTape() as tape:
                kernel1, bias1, kernel2, bias2 = (
                    w * m for w, m in zip(weights, masks, strict=True)
                )
                hidden = tf.nn.relu(train.inputs[row] @ kernel1 + bias1)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    train.labels[row], hidden @ kernel2 + bias2
                )
                loss = tf.reduce_mean(losses)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
        for array, weight, mask in zip(state.arrays[:4], weights, masks, strict=True):
            self.assertAllClose(array, weight * mask, rtol=1e-5, atol=1e-6)


class DivergenceTest(tf.test.TestCase, parameterized.TestCase):
    RATE = 1e12

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.problem, cls.program = plain("momentum")
        cls.problem.begin(cls.program)
        cls.program.advance(cls.problem.order(0, 10))
        cls.sound = cls.program.read()
        cls.problem.begin(cls.program, learning_rate=cls.RATE)
        for step in itertools.count():
            advance = cls.program.advance(cls.problem.order(step, 1))
            if advance.diverged:
                cls.diverged_step = step + 1
                break

    @parameterized.parameters(2, 3, 10, 500)
    def test_step_does_not_depend_on_slices(self, length):
        self.assertGreater(self.diverged_step, 1)
        self.problem.begin(self.program, learning_rate=self.RATE)
        step, diverged = 0, False
        while not diverged:
            advance = self.program.advance(self.problem.order(step, length))
            step, diverged = step + advance.steps, advance.diverged
        self.assertEqual(step, self.diverged_step)
        self.assertEqual(self.program.read().step, self.diverged_step)
        self.assertFalse(np.isfinite(advance.loss))

    def test_next_trial_is_untouched(self):
        self.problem.begin(self.program)
        self.program.advance(self.problem.order(0, 10))
        self.assertTrue(same_bits(self.sound, self.program.read()))

    def test_pruned_entries_of_a_diverging_trial_are_no_excuse(self):
        """NaN times zero is NaN: the loss says so, and the trial is over anyway."""
        masks = random_masks(self.program)
        initial = models.initial_point(self.program.network, 3)
        point = {"learning_rate": self.RATE, "momentum": 0.8}
        self.program.load(self.program.fresh_state(initial), point, masks)
        self.assertTrue(self.program.advance(self.problem.order(0, 500)).diverged)


class SequenceTest(tf.test.TestCase, parameterized.TestCase):
    def test_loss_is_the_mean_over_positions(self):
        problem = Tokens(problems.sequences(), batch_size=6)
        program = problem.program()
        problem.begin(program)
        rows = problem.order(0, 1)
        train = problem.dataset.train
        logits = problems.trained_network(program)(train.inputs[rows[0]])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        expected = float(loss(train.labels[rows[0]], logits))
        self.assertAllClose(program.advance(rows).loss, expected, rtol=1e-6)

    @parameterized.parameters("DeviceData", "StreamedData")
    def test_training_reads_the_first_tokens_and_evaluation_all(self, placement):
        whole = problems.sequences()
        dataset = dataclasses.replace(
            whole, transform=Chain((FirstTokens(4),)), stored_train=whole.train
        )
        problem = Tokens(dataset, batch_size=6)
        held = getattr(training, placement)(dataset, one_device())
        program = Program(problem.task, held, 6)
        problem.begin(program)
        rows = problem.order(0, 1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        held_out, network = dataset.validation, problems.trained_network(program)
        expected = float(loss(held_out.labels, network(held_out.inputs)))
        found = program.evaluate().metrics["validation/cross_entropy"]
        self.assertAllClose(found, expected, rtol=1e-6)
        inputs, labels = dataset.train.inputs[rows[0]], dataset.train.labels[rows[0]]
        expected = float(loss(labels[:, :4], network(inputs[:, :4])))
        self.assertAllClose(program.advance(rows).loss, expected, rtol=1e-6)


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
    def test_batch_of_another_size(self):
        problem, program = plain("sgd")
        problem.begin(program)
        with self.assertRaisesRegex(UserError, "32 examples.*batch size 16"):
            program.advance(Problem(batch_size=32).order(0, 2))

    def test_metaparameter_that_nothing_reads(self):
        problem, program = plain("sgd")
        with self.assertRaisesRegex(UserError, "reads nothing named 'momentum'"):
            problem.begin(program, momentum=0.9)

    def test_state_of_another_network_or_optimizer(self):
        problem, program = plain("momentum")
        wider = Problem(optimizer="momentum", arguments={"widths": (65,)}).program()
        for other, is_named_alike in ((wider, True), (plain("nesterov")[1], False)):
            problem.begin(other)
            state = other.read()
            self.assertEqual(state.layout == program.layout, is_named_alike)
            # Each of the two comparisons refuses one of them, and not the other.
            shapes = [array.shape for array in state.arrays]
            own = [shape for shape, _ in program._packing.forms]
            self.assertEqual(shapes == own, not is_named_alike)
            with self.assertRaisesRegex(UserError, "not one of this program"):
                program.load(state, problem.point)

    def test_layer_whose_rate_of_dropout_is_zero_is_welcome(self):
        def network() -> keras.Model:
            inputs = keras.Input([8])
            dropped = keras.layers.Dropout(0.0)(inputs)
            steps = keras.layers.Reshape([4, 2])(dropped)
            return keras.Model(inputs, keras.layers.SimpleRNN(4)(steps))

        task = Task(network, lambda: optim.build("sgd"), problems.BLOBS)
        Program(task, DeviceData(problems.BLOBS, problems.one_device()), 16)


class MemoryTest(tf.test.TestCase):
    def test_states_of_a_hundred_simple_cnn_trials_take_less_than_200_megabytes(self):
        problem, program = simple_cnn()
        self.assertEqual(program.network.count_params(), 62_346)
        problem.begin(program)
        size = sum(array.nbytes for array in program.read().arrays)
        self.assertLess(100 * size, 200e6)
