"""Programs of other objectives: steps and metrics by hand, on one device and on two."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from sklearn.metrics import average_precision_score

from dps_tf import models, objectives, optim
from dps_tf._keras import keras
from dps_tf.core import Goal, UserError
from dps_tf.data import Dataset, Examples
from dps_tf.training import DeviceData, Program, StreamedData, Task
from dps_tf.training.evaluation import Evaluation
from tests.training import problems

POINT = {"learning_rate": 0.1, "l2_penalty": 0.2}
BATCH = 8


def dataset_of(labels: np.ndarray, features: int = 5) -> Dataset:
    """Noise with the given labels, of which a half is for validation."""
    count = len(labels)
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(count, features)).astype(np.float32)
    train, held = slice(count // 2, None), slice(count // 2)
    parts = (Examples(inputs[part], labels[part]) for part in (train, held))
    return Dataset("noise", *parts, labels.shape[-1], "", "none")


def dense(outputs: tuple[int, ...], regularizer: Any = None) -> keras.Model:
    inputs = keras.Input([5])
    hidden = keras.layers.Dense(4, "tanh", kernel_regularizer=regularizer)(inputs)
    flat = keras.layers.Dense(int(np.prod(outputs)))(hidden)
    return keras.Model(inputs, keras.layers.Reshape(outputs)(flat))


def padded_tokens() -> np.ndarray:
    """Labels of 3 of 6 classes' sequences, of which the second halves are padding."""
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 6, (42, 3)).astype(np.int32)
    # Uneven, so that no replica has as many tokens as another.
    labels[draw.random(42) < 0.5, 1:] = -1
    labels[10] = -1
    return labels


TASKS = {
    "token_cross_entropy": (padded_tokens(), (3, 6), {}),
    "sigmoid_cross_entropy": (
        (np.random.default_rng(2).random((42, 4)) < 0.4).astype(np.int32),
        (4,),
        {},
    ),
    "squared_error": (
        np.random.default_rng(3).normal(size=(42, 2)).astype(np.float32),
        (2,),
        {},
    ),
}


def task_of(name: str, **changes: Any) -> Task:
    labels, outputs, arguments = TASKS[name]
    task = Task(
        functools.partial(dense, outputs),
        functools.partial(optim.build, "sgd"),
        dataset_of(labels),
        objective=objectives.build(name, arguments),
    )
    return dataclasses.replace(task, **changes)


def regularized(name: str) -> Task:
    network = functools.partial(dense, TASKS[name][1], keras.regularizers.L2(0.05))
    return task_of(name, network=network, loss_metaparameters=("l2_penalty",))


def program_of(
    task: Task, strategy: Any = None, placed: Any = DeviceData, **arguments: Any
) -> Program:
    data = placed(task.dataset, strategy or problems.one_device())
    return Program(task, data, BATCH, **arguments)


@functools.cache
def on_one_device(name: str) -> Program:
    """Returns a program that several tests share."""
    return program_of(regularized(name))


def trained(program: Program, steps: int = 6) -> tuple[float, Evaluation]:
    """Returns the last loss, and what the network is worth then."""
    program.load(program.fresh_state(models.initial_point(program.network, 3)), POINT)
    rows = np.arange(steps * BATCH).reshape(steps, BATCH) % 21
    return program.advance(rows.astype(np.int32)).loss, program.evaluate()


class StepTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*TASKS)
    def test_update_is_the_gradient_of_the_mean_over_what_counts(self, name):
        task, program = regularized(name), on_one_device(name)
        loss, _ = trained(program, 1)
        model = task.network()
        model.set_weights(models.initial_point(model, 3))
        train = task.dataset.train
        with tf.GradientTape() as tape:
            outputs = model(train.inputs[:BATCH])
            labels = train.labels[:BATCH]
            counts = labels >= 0 if name != "squared_error" else labels == labels
            each = {
                "token_cross_entropy": keras.losses.sparse_categorical_crossentropy,
                "sigmoid_cross_entropy": keras.backend.binary_crossentropy,
                "squared_error": lambda y, x, from_logits: (x - y) ** 2,
            }[name](
                labels[counts].astype(np.float32), outputs[counts], from_logits=True
            )
            truth = tf.reduce_mean(each) + sum(model.losses)
            for kernel in (model.weights[0], model.weights[2]):
                truth += 0.1 * tf.reduce_sum(kernel**2)
        self.assertAllClose(loss, truth, rtol=1e-5)
        gradients = tape.gradient(truth, model.trainable_variables)
        for found, variable, gradient in zip(
            program.read().arrays, model.weights, gradients, strict=False
        ):
            self.assertAllClose(found, variable - 0.1 * gradient, rtol=1e-5, atol=1e-6)

    @parameterized.parameters(
        ("token_cross_entropy", DeviceData),
        ("token_cross_entropy", StreamedData),
        ("sigmoid_cross_entropy", StreamedData),
    )
    def test_two_devices_are_one_and_see_every_example_once(self, name, placed):
        """No replica has as many tokens as another, and batches of 8 leave padding."""
        task = regularized(name)
        loss, alone = trained(on_one_device(name))
        with mock.patch("dps_tf.training.device_data.BATCH_SIZE", 8):
            program = program_of(task, problems.mirrored(2), placed)
        other_loss, shared = trained(program)
        self.assertAllClose(loss, other_loss, rtol=1e-5)
        self.assertEqual(list(alone.metrics), list(shared.metrics))
        self.assertAllClose(
            list(alone.metrics.values()), list(shared.metrics.values()), rtol=1e-4
        )
        if name == "token_cross_entropy":
            return
        held = task.dataset.validation
        logits = problems.trained_network(program).predict(held.inputs, verbose=0)
        for metric, average in (("average", "micro"), ("macro_average", "macro")):
            self.assertAllClose(
                shared.metrics[f"validation/{metric}_precision"],
                average_precision_score(held.labels, logits, average=average),
                rtol=1e-9,
            )


class EvaluationTest(tf.test.TestCase):
    def test_bound_knows_how_many_tokens_there_are(self):
        task = regularized("token_cross_entropy")
        error = "validation/classification_error"
        _, exact = trained(on_one_device("token_cross_entropy"))
        counted = int(np.sum(task.dataset.validation.labels >= 0))
        missed = Goal(error, exact.metrics[error] - 0.5 / counted)
        with mock.patch("dps_tf.training.evaluation.GOAL_BATCH_SIZE", 4):
            _, bound = trained(program_of(task, goal=missed))
            met = Goal(error, exact.metrics[error])
            _, reached = trained(program_of(task, goal=met))
        self.assertTrue(bound.is_bound)
        self.assertBetween(bound.metrics[error], missed.threshold, exact.metrics[error])
        self.assertNotEqual(bound.metrics[error], missed.threshold)
        self.assertEqual(reached, exact)


class RefusalTest(tf.test.TestCase):
    def test_labels_of_another_kind(self):
        labels = np.linspace(0, 1, 42, dtype=np.float32)[:, None]
        softmax = objectives.build()
        task = task_of("squared_error", dataset=dataset_of(labels), objective=softmax)
        with self.assertRaisesRegex(UserError, "'noise' are float32.*one whole number"):
            program_of(task)
