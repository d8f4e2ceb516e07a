"""Counts over the validation split: exact ones, and those that stop at the goal."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, objectives
from dps_tf.core import Goal, UserError
from dps_tf.data import Dataset, Examples
from dps_tf.training import Program, device_data, evaluation
from dps_tf.training.evaluation import Evaluation
from tests.training import problems
from tests.training.problems import Problem

ERROR = "validation/classification_error"
HELD = problems.BLOBS.validation  # 75 examples, four classes


def batches_of(exact: int = 500, goal: int = 9):
    """Makes programs that are built inside evaluate in such batches."""
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(device_data, "BATCH_SIZE", exact))
    stack.enter_context(mock.patch.object(evaluation, "GOAL_BATCH_SIZE", goal))
    return stack


def naive(program: Program, held: Examples) -> tuple[int, float]:
    """One label after the other, in NumPy and float64."""
    logits = (
        problems.trained_network(program)
        .predict(held.inputs, verbose=0)
        .astype(np.float64)
    )
    wrong, loss = 0, 0.0
    for row, label in zip(
        logits.reshape(-1, logits.shape[-1]), held.labels.reshape(-1), strict=True
    ):
        best = 0
        for k, value in enumerate(row):
            best = k if value > row[best] else best
        wrong += int(best != label or np.isnan(row).any())
        loss += np.log(np.sum(np.exp(row - row.max()))) - (row[label] - row.max())
    return wrong, loss


def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Cross-entropy of each example, float64 [examples]."""
    logits = logits.astype(np.float64)
    normal = np.log(np.sum(np.exp(logits), -1))
    return normal - logits[np.arange(len(labels)), labels]


def wrong_of(found: Evaluation) -> int:
    """Wrong answers among the 75 labels of HELD."""
    return round(found.metrics[ERROR] * len(HELD))


def with_validation(dataset: Dataset, inputs: np.ndarray, labels: np.ndarray):
    return dataclasses.replace(dataset, validation=Examples(inputs, labels))


def exactly_of(program: Program) -> Evaluation:
    """Returns the exact evaluation of a program with a goal."""
    return program._evaluators["validation"]._exact(program.weights(), [])[0]


class ExactTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, problem: Problem, program: Program) -> Evaluation:
        problem.begin(program)
        program.advance(problem.order(0, 3))
        found = program.evaluate()
        wrong, loss = naive(program, problem.dataset.validation)
        count = problem.dataset.validation.labels.size
        self.assertEqual(found.metrics[ERROR], wrong / count)
        self.assertAllClose(found.loss_sum, loss, rtol=1e-6)
        self.assertEqual(
            found.metrics["validation/cross_entropy"], found.loss_sum / count
        )
        self.assertFalse(found.is_bound)
        self.assertGreater(wrong, 0)
        return found

    def test_naive_loop_of_several_batches(self):
        with batches_of(exact=32):
            self.check(Problem(), Problem().program())

    def test_sequences_count_positions(self):
        problem = problems.Tokens(problems.sequences(), optimizer="adam")
        with batches_of(exact=5):
            self.check(problem, problem.program())

    def test_replicas_share_batches_even_where_some_get_only_padding(self):
        with batches_of(exact=64):
            self.check(Problem(), Problem().program(problems.mirrored(2)))

    def test_batches_that_are_padded_keep_every_example_once(self):
        for size, shards in itertools.product((1, 7, 32, 100), (1, 2, 4)):
            inputs, labels, valid = device_data.padded_batches(HELD, size, shards)
            self.assertEqual(len(inputs) % shards, 0)
            self.assertAllEqual(inputs[valid], HELD.inputs)
            self.assertAllEqual(labels[valid], HELD.labels)


class BatchSizeTest(parameterized.TestCase):
    @parameterized.parameters((8, 500), (64, 500), (256, 125), (40_000, 1))
    def test_fewer_of_long_sequences_are_evaluated_at_once(self, length, expected):
        tokens = Examples(np.zeros([2, length], np.int32), np.zeros([2], np.int32))
        self.assertEqual(device_data.evaluation_batch_size(tokens), expected)
        numbers = Examples(np.zeros([2, length], np.float32), tokens.labels)
        self.assertEqual(device_data.evaluation_batch_size(numbers), 500)


NO_LAYER = Problem(arguments={"widths": ()})


class OddLogitsTest(tf.test.TestCase):
    def constant_network(self, biases: list[float]) -> Program:
        """One dense layer of zeros: every example has the biases for logits."""
        problem = NO_LAYER
        program = problems.shared(problem, goal=Goal(ERROR, 0.5))
        zero = [np.zeros([8, 4], np.float32), np.array(biases, np.float32)]
        program.load(program.fresh_state(zero), problem.point)
        return program

    def test_first_of_equal_logits_is_the_guess(self):
        found = exactly_of(self.constant_network([0.0, 1.0, 1.0, 0.0]))
        self.assertEqual(wrong_of(found), int(np.sum(HELD.labels != 1)))
        self.assertTrue(found.is_finite)

    def test_not_a_number_is_wrong_for_all_and_not_finite(self):
        program = self.constant_network([0.0, math.nan, 1.0, 0.0])
        exact = exactly_of(program)
        self.assertEqual((wrong_of(exact), exact.is_finite), (75, False))
        bound = program.evaluate()
        self.assertTrue(bound.is_bound)
        self.assertFalse(bound.is_finite)

    def test_one_broken_example_is_one_wrong_answer(self):
        inputs = HELD.inputs.copy()
        inputs[0, 3] = math.nan  # the first, of which padding is made
        dataset = with_validation(problems.BLOBS, inputs, HELD.labels)
        with batches_of(exact=32):
            program = Problem(dataset, arguments={"widths": ()}).program()
        kernel, bias = models.initial_point(program.network, 3)
        program.load(program.fresh_state([kernel, bias]), Problem().point)
        found = program.evaluate()
        right = np.argmax(np.nan_to_num(inputs @ kernel, nan=-9.0), -1) == HELD.labels
        self.assertEqual(wrong_of(found), int(np.sum(~right[1:])) + 1)
        self.assertFalse(found.is_finite)


SOFTMAX = objectives.build()
COLUMNS = (ERROR, "validation/cross_entropy", "validation/accuracy")


def most_against(goal: Goal, count: int) -> int | None:
    return SOFTMAX.bounded_metric(goal).most_against(goal, count)


class MetricsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (Goal(ERROR, 0.02), 6000, 120),
        (Goal(ERROR, 0.02, inclusive=False), 6000, 119),
        (Goal(ERROR, 0.02001), 6000, 120),
        (Goal(ERROR, 0.0), 6000, 0),
        (Goal(ERROR, 0.0, inclusive=False), 6000, None),
        (Goal(ERROR, 1.0), 75, 75),
        (Goal("validation/accuracy", 0.98, "maximize"), 6000, 120),
        (Goal("validation/accuracy", 0.98, "maximize", inclusive=False), 6000, 119),
        (Goal("validation/accuracy", 1.0, "maximize", inclusive=False), 6000, None),
        (Goal("validation/accuracy", 0.9, "maximize"), 297, 29),
    )
    def test_wrong_answers_that_a_goal_allows(self, goal, count, expected):
        self.assertEqual(most_against(goal, count), expected)

    @parameterized.parameters(*range(1, 40, 3))
    def test_allowed_count_meets_the_goal_and_one_more_does_not(self, count):
        for threshold, inclusive in itertools.product(
            np.linspace(0.01, 0.99, 23), (True, False)
        ):
            goal = Goal(ERROR, float(threshold), inclusive=inclusive)
            allowed = most_against(goal, count)
            if allowed is not None:
                self.assertTrue(goal.reaches(allowed / count))
            following = 0 if allowed is None else allowed + 1
            self.assertFalse(goal.reaches(following / count))


BLOBS = Problem(optimizer="momentum")
DIGITS = Problem(problems.DIGITS, optimizer="nesterov", batch_size=32)


@functools.cache
def exactly(
    problem: Problem, steps: int, interval: int, seed: int = 3
) -> list[Evaluation]:
    """The exact evaluations of a trial, made once for all goals."""
    program = problem.program()
    problem.begin(program, seed=seed)
    return problem.curve(program, steps, interval, seed=seed)[1]


class GoalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (Goal(ERROR, 0.16), 5),
        (Goal("validation/accuracy", 0.84, "maximize"), 74),
        (Goal(ERROR, 0.0, inclusive=False), 5),
    )
    def test_bound_is_never_above_the_count_and_marked_exactly_then(self, goal, size):
        with batches_of(goal=size):
            early = BLOBS.program(goal=goal)
        allowed = most_against(goal, 75)
        allowed = -1 if allowed is None else allowed
        BLOBS.begin(early)
        for truth, found in zip(
            exactly(BLOBS, 30, 2), BLOBS.curve(early, 30, 2, seed=3)[1], strict=True
        ):
            self.assertEqual(found.is_bound, wrong_of(truth) > allowed)
            self.assertLessEqual(wrong_of(found), wrong_of(truth))
            if found.is_bound:
                self.assertGreater(wrong_of(found), allowed)
            else:
                self.assertEqual(found, truth)

    def test_nothing_is_stopped_where_the_split_is_one_batch(self):
        with batches_of(goal=75):
            program = BLOBS.program(goal=Goal(ERROR, 0.16))
        BLOBS.begin(program)
        found = BLOBS.curve(program, 30, 2, seed=3)[1]
        self.assertEqual(found, exactly(BLOBS, 30, 2))

    def test_steps_to_result_of_real_digits_are_those_of_exact_evaluation(self):
        goal = Goal(ERROR, 0.05)
        with batches_of(goal=25):
            program = DIGITS.program(goal=goal)
        for trial in range(2):
            DIGITS.begin(program, seed=trial)
            early = DIGITS.curve(program, 80, 4, seed=trial)[1]
            steps = [
                [goal.reaches(at.metrics[ERROR]) for at in evaluations].index(True)
                for evaluations in (exactly(DIGITS, 80, 4, trial), early)
            ]
            self.assertEqual(*steps)

    def test_looks_first_at_what_was_wrong_the_last_time(self):
        problem = Problem()
        with batches_of(goal=10):
            program = problem.program(goal=Goal(ERROR, 0.12))  # nine of 75
        problem.begin(program)
        first = program.evaluate()
        known = program.read().arrays[-1]
        is_wrong = known >= 32
        self.assertEqual(is_wrong.sum(), wrong_of(first))
        self.assertGreaterEqual(np.argmax(np.cumsum(is_wrong) == wrong_of(first)), 10)
        # What was wrong fills the first batch, and no other is needed.
        rows = np.argsort(-known, kind="stable")[:10]
        looked_at = Examples(HELD.inputs[rows], HELD.labels[rows])
        second = program.evaluate()
        wrong, loss = naive(program, looked_at)
        self.assertEqual(wrong_of(second), wrong)
        self.assertAllClose(second.loss_sum, loss, rtol=1e-6)

    def test_padding_leaves_no_trace_where_nearly_all_are_wrong(self):
        problem = Problem()
        labels = (HELD.labels + 1) % 4
        dataset = with_validation(problems.BLOBS, HELD.inputs, labels)
        problem = Problem(dataset)
        with batches_of(goal=10):
            program = problem.program(goal=Goal(ERROR, 0.99))
        problem.begin(program)
        _, evaluations = problem.curve(program, 30, 30)
        logits = problems.trained_network(program).predict(HELD.inputs, verbose=0)
        wrong = np.argmax(logits, -1) != labels
        self.assertEqual(wrong_of(evaluations[-1]), int(wrong.sum()))
        octaves = np.log2(np.clip(losses(logits, labels), 2.0**-12, 15.9))
        expected = np.floor(4 * (octaves + 4)) + 64 * wrong
        for _ in range(3):
            program.evaluate()
            self.assertAllEqual(program.read().arrays[-1], expected)

    def test_what_was_nearly_wrong_comes_before_what_was_not_looked_at(self):
        problem = Problem()
        with batches_of(goal=10):
            program = problem.program(goal=Goal(ERROR, 0.0))
        problem.begin(program)
        program.evaluate()  # Ends with the first batch that holds a wrong answer.
        ranks = program.read().arrays[-1]
        self.assertGreater(np.count_nonzero(ranks), 0)
        self.assertEqual(np.count_nonzero(ranks) % 10, 0)
        self.assertFalse(np.any(ranks[np.count_nonzero(ranks) :]))
        logits = problems.trained_network(program).predict(HELD.inputs, verbose=0)
        close = losses(logits, HELD.labels) > 1 / 8
        looked = ranks != 0
        self.assertAllGreater(ranks[looked & close], 0)

    def test_sequences(self):
        problem = problems.Tokens(problems.sequences(), optimizer="adam")
        goal = Goal("validation/accuracy", 0.9, "maximize")
        with batches_of(goal=5):
            exact, early = problem.program(), problem.program(goal=goal)
        problem.begin(exact)
        problem.begin(early)
        reached = []
        for program in (exact, early):
            is_reached = [
                goal.reaches(at.metrics["validation/accuracy"])
                for at in problem.curve(program, 60, 5)[1]
            ]
            reached.append(is_reached.index(True))
        self.assertEqual(*reached)

    def test_goal_on_cross_entropy_is_refused(self):
        goal = Goal("validation/cross_entropy", 0.5)
        with self.assertRaisesRegex(
            UserError, "cross_entropy early: use evaluation_mode = 'exa"
        ):
            Problem().program(goal=goal)
