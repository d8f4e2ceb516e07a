"""Keras `fit` with the callback gives the numbers of the compiled slice."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf import models, optim
from dps_tf._keras import keras
from dps_tf.core import Goal
from dps_tf.training import StepsToResult
from dps_tf.training import strategy as strategies
from dps_tf.training.evaluation import Evaluation
from tests.training import problems
from tests.training.problems import Convolution, Problem

STEPS = 50
NEVER = Goal("validation/classification_error", 0.0, inclusive=False)


def packaged(problem: Problem) -> optim.TensorOptimizer:
    optimizer = optim.TensorOptimizer(problem.optimizer, problem.schedule)
    optimizer.set_metaparameters(problem.point)
    return optimizer


def fitted(
    problem: Problem, optimizer, epochs: int = 5, strategy=None
) -> StepsToResult:
    """Trains by `fit` on the batches of the problem's order; evaluates every step.

    `optimizer`: one, or a function that makes it under the strategy's scope.
    """
    with (strategy or problems.one_device()).scope():
        model = problem.task.network()
        model.set_weights(models.initial_point(model, 3))
        model.compile(
            optimizer() if strategy else optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    train, held = problem.dataset.train, problem.dataset.validation
    rows = problem.order(0, STEPS)
    batches = tf.data.Dataset.from_tensor_slices(
        (train.inputs[rows], train.labels[rows])
    )
    callback = StepsToResult(held.inputs, held.labels, NEVER, 1)
    model.fit(
        batches,
        epochs=epochs,
        steps_per_epoch=STEPS // epochs,
        callbacks=[callback],
        verbose=0,
    )
    return callback


@functools.cache
def digits(name: str, schedule: str = "constant") -> Problem:
    return Problem(problems.DIGITS, optimizer=name, schedule=schedule, batch_size=32)


@functools.cache
def sliced(problem: Problem) -> tuple[list[float], list[Evaluation]]:
    """The curve of the slice, trained once however many are compared with it."""
    program = problem.program()
    problem.begin(program)
    return problem.curve(program, STEPS, 1)


class FitTest(tf.test.TestCase, parameterized.TestCase):
    def assert_curve_of_slice(self, problem: Problem, callback: StepsToResult) -> None:
        losses, evaluations = sliced(problem)
        curve = callback.curve
        self.assertEqual([row["step"] for row in curve], list(range(1, STEPS + 1)))
        self.assertAllClose(
            [row["train/loss"] for row in curve], losses, rtol=0, atol=1e-5
        )
        for name, tolerance in (
            ("validation/classification_error", 0),
            ("validation/accuracy", 0),
            ("validation/cross_entropy", 1e-5),
        ):
            self.assertAllClose(
                [row[name] for row in curve],
                [evaluation.metrics[name] for evaluation in evaluations],
                rtol=tolerance,
                atol=0,
                msg=name,
            )
        self.assertLess(losses[-1], losses[0])

    @parameterized.parameters(("digits", "nesterov", 5), ("images", "muon", STEPS))
    def test_package_optimizer_on_a_schedule(self, data, name, epochs):
        """However many epochs Keras makes of the steps."""
        problem = digits(name, "linear")
        if data == "images":
            problem = Convolution(problems.images(), "", name, "linear")
        found = fitted(problem, packaged(problem), epochs=epochs)
        self.assert_curve_of_slice(problem, found)

    def test_stock_optimizer_at_constant_rate(self):
        problem = digits("adam")
        stock = keras.optimizers.Adam(**problems.POINTS["adam"])
        self.assert_curve_of_slice(problem, fitted(problem, stock))

    @pytest.mark.multi_device
    def test_fit_under_a_mirrored_strategy(self):
        strategy = strategies.build("mirrored", devices=("CPU:0", "CPU:1"))
        problem = digits("momentum", "linear")
        callback = fitted(
            problem, lambda: packaged(problem), epochs=1, strategy=strategy
        )
        self.assert_curve_of_slice(problem, callback)
