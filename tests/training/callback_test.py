"""The callback in somebody's own Keras program: when it stops and what it says."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
import tf_keras
from absl.testing import parameterized

import dps_tf
from dps_tf.core import Goal, UserError
from tests.training import problems

ERROR = "validation/classification_error"
NEVER = Goal(ERROR, 0.0, inclusive=False)
TRAIN, HELD = problems.BLOBS.train, problems.BLOBS.validation


def new_model(**compiling) -> tf_keras.Model:
    """A model as people write it: nothing of this package in it."""
    tf_keras.utils.set_random_seed(1)
    layers = [tf_keras.layers.Dense(8, "relu"), tf_keras.layers.Dense(4)]
    model = tf_keras.Sequential(layers)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf_keras.optimizers.SGD(0.1)
    model.compile(optimizer, loss, metrics=["accuracy"], **compiling)
    model.build([None, 8])
    return model


@functools.cache
def compiled() -> tuple[tf_keras.Model, list[np.ndarray]]:
    model = new_model()
    return model, model.get_weights()


def stock_model(learning_rate: float = 0.1) -> tf_keras.Model:
    """The one model of these tests, as it was before its first step."""
    model, weights = compiled()
    model.set_weights(weights)
    model.optimizer.learning_rate = learning_rate
    model.optimizer.iterations.assign(0)
    return model


def losses_of_single_steps(model: tf_keras.Model) -> Iterator[float]:
    """Trains on the batches of `fit`, one after the other."""
    for step in itertools.count():
        part = slice(15 * (step % 15), 15 * (step % 15) + 15)
        loss, _ = model.train_on_batch(
            TRAIN.inputs[part], TRAIN.labels[part], reset_metrics=True
        )
        yield loss


def callback(goal: Goal = NEVER, interval: int = 4, **arguments):
    return dps_tf.StepsToResult(HELD.inputs, HELD.labels, goal, interval, **arguments)


def fit(model: tf_keras.Model, *callbacks, epochs: int = 1):
    """15 steps an epoch, in file order."""
    return model.fit(
        TRAIN.inputs,
        TRAIN.labels,
        15,
        shuffle=False,
        epochs=epochs,
        callbacks=list(callbacks),
        verbose=0,
    )


def wrong_by_keras(model: tf_keras.Model) -> int:
    guesses = np.argmax(model(HELD.inputs), axis=-1)
    return int(np.sum(guesses != HELD.labels))


class StockProgramTest(tf.test.TestCase):
    def test_errors_are_those_of_predict_and_losses_those_of_single_steps(self):
        watcher = callback(interval=1)
        fit(stock_model(), watcher, epochs=2)
        model = stock_model()
        losses = losses_of_single_steps(model)
        for step, (row, loss) in enumerate(zip(watcher.curve, losses, strict=False)):
            self.assertEqual(row["step"], step + 1)
            self.assertEqual(row[ERROR], wrong_by_keras(model) / len(HELD))
            self.assertAllClose(row["train/loss"], loss, rtol=0, atol=1e-5)
        self.assertLen(watcher.curve, 30)

    def test_steps_count_on_over_epochs_and_fits(self):
        once, twice = callback(interval=7), callback(interval=7)
        fit(stock_model(), once, epochs=4)
        model = stock_model()
        fit(model, twice)
        fit(model, twice, epochs=3)
        steps = [row["step"] for row in once.curve]
        self.assertEqual(steps, [7, 14, 21, 28, 35, 42, 49, 56])
        self.assertEqual(once.curve, twice.curve)

    def test_keras_reports_what_it_reports_without_the_callback(self):
        alone = fit(stock_model(), epochs=2).history
        watched = fit(stock_model(), callback(interval=1), epochs=2).history
        self.assertEqual(alone, watched)

    def test_size_of_evaluation_batches_is_no_part_of_the_result(self):
        model = stock_model()
        fit(model)
        for size in (1, 7, 75, 500):
            watcher = callback(evaluation_batch_size=size)
            watcher.set_model(model)
            found = watcher.evaluate()
            self.assertEqual(found.metrics[ERROR], wrong_by_keras(model) / len(HELD))

    def test_several_fits_trace_the_evaluation_once(self):
        model, watcher = stock_model(), callback()
        fit(model, watcher)
        counts = watcher._sums
        fit(model, watcher)
        self.assertIs(watcher._sums, counts)
        self.assertEqual(counts.experimental_get_tracing_count(), 1)


class GoalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("error", ERROR, "minimize"),
        ("accuracy", "validation/accuracy", "maximize"),
        ("cross_entropy", "validation/cross_entropy", "minimize"),
    )
    def test_stops_at_the_first_evaluation_that_meets_the_goal(self, metric, direction):
        whole = callback()
        fit(stock_model(), whole, epochs=3)
        # The first value that is better than the first three.
        values = [row[metric] for row in whole.curve]
        sign = 1 if direction == "minimize" else -1
        best_before = min(sign * value for value in values[:3])
        index = next(i for i, v in enumerate(values) if sign * v < best_before)
        goal = Goal(metric, values[index], direction)
        watcher = callback(goal)
        fit(stock_model(), watcher, epochs=3)
        self.assertEqual(watcher.outcome, "complete")
        self.assertEqual(watcher.steps_to_result, 4 * (index + 1))
        self.assertEqual(watcher.bracket, (4 * index, 4 * (index + 1)))
        self.assertEqual(watcher.curve, whole.curve[: index + 1])
        strict = callback(Goal(metric, values[index], direction, inclusive=False))
        fit(stock_model(), strict, epochs=3)
        self.assertNotEqual(strict.steps_to_result, watcher.steps_to_result)

    def test_first_bracket_begins_at_zero(self):
        watcher = callback(Goal(ERROR, 1.0), interval=5)
        fit(stock_model(), watcher)
        self.assertEqual((watcher.steps_to_result, watcher.bracket), (5, (0, 5)))

    def test_goal_stays_met_when_training_goes_on(self):
        watcher, model = callback(Goal(ERROR, 1.0), interval=5), stock_model()
        fit(model, watcher)
        fit(model, watcher)
        self.assertEqual([row["step"] for row in watcher.curve], [5, 10])
        self.assertEqual((watcher.outcome, watcher.bracket), ("complete", (0, 5)))

    def test_step_budget_ends_training_at_its_step(self):
        model, watcher = stock_model(), callback(interval=4, step_budget=18)
        fit(model, watcher, epochs=5)
        self.assertEqual(int(model.optimizer.iterations), 18)
        self.assertEqual([row["step"] for row in watcher.curve], [4, 8, 12, 16])
        self.assertEqual((watcher.outcome, watcher.bracket), ("incomplete", None))

    def test_goal_met_on_the_last_step_of_the_budget_counts(self):
        watcher = callback(Goal(ERROR, 1.0), interval=8, step_budget=8)
        fit(stock_model(), watcher)
        self.assertEqual(watcher.outcome, "complete")

    def test_sequences_count_positions(self):
        dataset = problems.sequences()
        held, model = dataset.validation, problems.successors()
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.Adam(0.03), loss)
        goal = Goal("validation/accuracy", 0.9, "maximize")
        watcher = dps_tf.StepsToResult(held.inputs, held.labels, goal, 5)
        model.fit(
            dataset.train.inputs,
            dataset.train.labels,
            12,
            epochs=20,
            callbacks=[watcher],
            verbose=0,
        )
        self.assertEqual(watcher.outcome, "complete")
        guesses = np.argmax(model.predict(held.inputs, verbose=0), axis=-1)
        self.assertEqual(
            watcher.curve[-1]["validation/accuracy"],
            np.sum(guesses == held.labels) / held.labels.size,
        )


class DivergenceTest(tf.test.TestCase, parameterized.TestCase):
    def first_loss_not_finite(self, rate: float) -> int:
        for step, loss in enumerate(losses_of_single_steps(stock_model(rate)), 1):
            if not math.isfinite(loss):
                return step
        raise AssertionError

    @parameterized.parameters(1, 5, 1000)
    def test_step_is_that_of_the_first_loss_that_is_not_finite(self, interval):
        rate = 1e12
        expected = self.first_loss_not_finite(rate)
        self.assertGreater(expected, 1)
        model, watcher = stock_model(rate), callback(interval=interval)
        fit(model, watcher, epochs=4)
        self.assertEqual(watcher.outcome, "infeasible")
        self.assertLessEqual(watcher.diverged_step, expected)
        if interval == 1000:
            self.assertEqual(watcher.diverged_step, expected)
        self.assertEqual(int(model.optimizer.iterations), watcher.diverged_step)
        self.assertIsNone(watcher.bracket)

    def test_evaluation_that_is_not_finite_is_a_divergence_too(self):
        watcher, model = callback(interval=1), stock_model()
        fit(model, watcher)
        model.layers[-1].bias.assign([math.inf] * 4)
        watcher._evaluate(0.5)
        self.assertEqual(watcher.outcome, "infeasible")


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"goal": Goal("validation/f1", 0.5)}, "validation/f1.* is none of"),
        ({"inputs": HELD.inputs[:3]}, "3 inputs and 75 labels"),
        ({"inputs": HELD.inputs[:0], "labels": HELD.labels[:0]}, "at least one"),
        ({"interval": 0}, "interval is 0; it must be a whole number"),
    )
    def test_what_makes_no_sense(self, changes: Mapping, message: str):
        arguments = {
            "inputs": HELD.inputs,
            "labels": HELD.labels,
            "goal": NEVER,
            "interval": 4,
            **changes,
        }
        with self.assertRaisesRegex(UserError, message):
            dps_tf.StepsToResult(**arguments)

    def test_several_steps_at_once(self):
        with self.assertRaisesRegex(UserError, "steps_per_execution=5: use 1"):
            fit(new_model(steps_per_execution=5), callback())
