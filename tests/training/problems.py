"""Small programs that the tests of training share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf import data, models, optim
from dps_tf._keras import keras
from dps_tf.core import TrialState, examples_at
from dps_tf.data import Dataset, Examples
from dps_tf.models.layers import GhostBatchNormalization
from dps_tf.training import DeviceData, Program, Task
from dps_tf.training import strategy as strategies
from dps_tf.training.evaluation import Evaluation

POINTS = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.05, "momentum": 0.8},
    "nesterov": {"learning_rate": 0.05, "momentum": 0.8},
    "adam": {"learning_rate": 0.01, "epsilon": 1e-7},
}
STOCK = tuple(POINTS)
"""Optimizers that Keras has as well."""
LINEAR = {"decay_steps": 30, "end_learning_rate_factor": 0.1}

BLOBS = data.load("synthetic", examples=300)
DIGITS = data.load("digits")


def one_device() -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("/device:CPU:0")


def mirrored(replicas: int) -> tf.distribute.Strategy:
    devices = tuple(f"/device:CPU:{i}" for i in range(replicas))
    return strategies.build("mirrored", devices=devices)


def point(optimizer: str, schedule: str = "constant") -> dict[str, float]:
    own = POINTS.get(optimizer, {"learning_rate": 0.01})
    return {**own, **(LINEAR if schedule == "linear" else {})}


def images(count: int = 48, side: int = 8, channels: int = 3) -> Dataset:
    """Returns ten images under noise; a quarter of what there is for validation."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((count, side, side, channels), np.float32)
    labels = generator.integers(0, 10, count).astype(np.int32)
    inputs += generator.standard_normal((10, *inputs.shape[1:]), np.float32)[labels]
    held = count // 4
    return Dataset(
        "images",
        Examples(inputs[held:], labels[held:]),
        Examples(inputs[:held], labels[:held]),
        10,
        "",
        "none",
    )


def sequences(count: int = 48, length: int = 6, vocabulary: int = 5) -> Dataset:
    """Returns token sequences in which each token is followed by its successor."""
    generator = np.random.default_rng(0)
    begin = generator.integers(0, vocabulary, (count, 1))
    tokens = (begin + np.arange(length + 1)) % vocabulary
    inputs, labels = tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)
    held = count // 4
    return Dataset(
        "sequences",
        Examples(inputs[held:], labels[held:]),
        Examples(inputs[:held], labels[:held]),
        vocabulary,
        "",
        "none",
    )


@dataclass(frozen=True, eq=False)
class Problem:
    """What a test trains; `program()` compiles it."""

    dataset: Dataset = BLOBS
    network: str = "mlp"
    optimizer: str = "sgd"
    schedule: str = "constant"
    batch_size: int = 16
    smoothing: bool = False
    arguments: Mapping[str, Any] | None = None

    @property
    def task(self) -> Task:
        return Task(
            functools.partial(
                models.build,
                self.network,
                self.dataset.input_shape,
                self.dataset.classes,
                **(self.arguments or {}),
            ),
            functools.partial(optim.build, self.optimizer, self.schedule),
            self.dataset,
            ("label_smoothing",) if self.smoothing else (),
        )

    @property
    def point(self) -> dict[str, float]:
        smoothing = {"label_smoothing": 0.1} if self.smoothing else {}
        return {**point(self.optimizer, self.schedule), **smoothing}

    def program(
        self, strategy: tf.distribute.Strategy | None = None, **arguments: Any
    ) -> Program:
        strategy = strategy or one_device()
        held = DeviceData(self.dataset, strategy)
        return Program(self.task, held, self.batch_size, **arguments)

    def order(self, first_step: int, steps: int, seed: int = 5) -> np.ndarray:
        examples = len(self.dataset.train)
        return examples_at(first_step, steps, seed, examples, self.batch_size)

    def begin(self, program: Program, seed: int = 3, **changes: float) -> None:
        """Loads a trial before its first step."""
        initial = models.initial_point(program.network, seed)
        program.load(program.fresh_state(initial), {**self.point, **changes})

    def curve(
        self, program: Program, steps: int = 50, interval: int = 5, seed: int = 5
    ) -> tuple[list[float], list[Evaluation]]:
        """Trains from where the program stands; losses and evaluations."""
        losses, evaluations = [], []
        for step in range(0, steps, interval):
            rows = self.order(step, interval, seed)
            advance = program.advance(rows, evaluates=True)
            losses.append(advance.loss)
            evaluations.append(advance.evaluation)
        return losses, evaluations


def successors() -> keras.Model:
    """Returns a network that knows of each token the one before it alone."""
    inputs = keras.Input([None], dtype="int32")
    near = keras.layers.Embedding(5, 8)(inputs)
    return keras.Model(inputs, keras.layers.Dense(5)(near))


class Tokens(Problem):
    """Sequences, and a network that is built in less time than a transformer."""

    @property
    def task(self) -> Task:
        return dataclasses.replace(super().task, network=successors)


def convolution() -> keras.Model:
    """Returns a network whose pools and ghost batches XLA and replicas treat apart."""
    inputs = keras.Input([8, 8, 3])
    hidden = keras.layers.Conv2D(4, 3, use_bias=False)(inputs)
    hidden = keras.layers.MaxPooling2D(2)(hidden)
    hidden = keras.layers.ReLU()(GhostBatchNormalization(4)(hidden))
    return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(hidden)))


class Convolution(Problem):
    """Images, and a network with every layer that matters, that compiles soon."""

    @property
    def task(self) -> Task:
        return dataclasses.replace(super().task, network=convolution)


@functools.cache
def shared(problem: Problem, replicas: int = 0, **arguments: Any) -> Program:
    """Returns a program that trials of several tests share.

    On one device, or on replicas of a mirrored strategy.
    """
    return problem.program(mirrored(replicas) if replicas else None, **arguments)


PROBLEMS = {
    "mlp": Problem(optimizer="nesterov", schedule="linear", smoothing=True),
    "images": Convolution(images(), optimizer="adam"),
    "sequences": Tokens(sequences(), optimizer="momentum"),
}
"""One problem of each kind of data, with the layers that depend on their batch."""


def trained_network(program: Program) -> keras.Model:
    """Returns the network of a program with the weights of the loaded trial."""
    program.network.set_weights([np.asarray(weight) for weight in program.weights()])
    return program.network


def error_of(evaluation: Evaluation) -> float:
    """Returns the fraction of wrong answers, a quotient of counts."""
    return evaluation.metrics["validation/classification_error"]


def same_bits(one: TrialState, other: TrialState) -> bool:
    """Whether two states agree in every bit, NaNs included."""
    return one.step == other.step and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(
            map(np.asarray, one.arrays), map(np.asarray, other.arrays), strict=True
        )
    )
