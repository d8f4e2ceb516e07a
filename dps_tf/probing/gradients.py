"""Derivatives of the training loss over a given set of examples, at any weights.

Smoothness, noise scale and curvature are computed from them. The derivatives use a
separate network, so a measurement does not change the measured trial.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import examples_at
from dps_tf.data import Examples
from dps_tf.models import draws_at_random
from dps_tf.objectives import BatchSums, Objective, build, dense_gradients, penalty
from dps_tf.sparsity import trainable_positions
from dps_tf.sparsity.score_gradients import batch_size as fitting

BATCH_SIZE = 100
"""Examples per batch: the small batch of the noise scale; fits the cache of a core."""
_BATCHES_AT_ONCE = 5  # per call; constant, because it decides the order of the sums


@dataclass(frozen=True)
class MeanGradient:
    """The gradient of the mean loss over the examples at one point, masked.

    Attributes:
        values: float64, one array per trainable variable.
        examples: number of examples.
        batch_size: examples of each batch of `batch_square`.
        batch_square: mean over the full batches of the gradient's square norm.
    """

    values: tuple[np.ndarray, ...]
    examples: int
    batch_size: int
    batch_square: float

    @property
    def square(self) -> float:
        """The square of the gradient's Euclidean norm over all variables."""
        return float(sum(np.vdot(part, part) for part in self.values))


class ExampleGradients:
    """Gradients over a fixed set of examples, at weights passed to each call.

    The loss is the loss of training, with penalties. Batch normalization uses the
    statistics of each batch of `batch_size`. All layers of a network that draws at
    random are in evaluation mode instead, so that a measurement can be repeated.

    Attributes:
        examples: number of examples.
        batch_size: examples per batch; the last batch may be smaller.
    """

    def __init__(
        self,
        network: Callable[[], keras.Model],
        examples: Examples,
        objective: Objective | None = None,
        *,
        metaparameters: Sequence[str] = (),
        batch_size: int = BATCH_SIZE,
        threads: int | None = None,
    ):
        """Builds the network; tracing waits for the first gradient.

        Args:
            network: returns a new model; the weights of the model are overwritten.
            examples: the examples, read in one order that is drawn from a fixed seed,
                so that batches are random even if the examples are sorted.
            objective: the objective of the loss; None is softmax cross-entropy.
            metaparameters: further names that points may hold, such as the L2 penalty,
                besides what the loss of the objective reads.
            batch_size: examples per batch; reduced to half of the examples if larger,
                so that there are two batches, and to what fits ghost batches.
            threads: batches computed at a time; by default one per processor. No part
                of the result.
        """
        self.examples = len(examples)
        self._order = examples_at(0, 1, 0, self.examples, self.examples)[0]
        self._inputs, self._labels = examples.inputs, examples.labels
        self._objective = objective or build()
        reads = [*self._objective.metaparameters, *metaparameters]
        self._names = tuple(dict.fromkeys(reads))
        # The loss of an example is divided by the average weight of all its positions.
        self._weight = self._objective.total_weight(self._labels) / self.examples
        self._model = network()
        self._variables = self._model.trainable_variables
        self._training = not draws_at_random(self._model)
        most = max(1, min(batch_size, self.examples // 2))
        self.batch_size = fitting(self._model, self.examples, most)
        self._masks = [
            tf.Variable(tf.ones_like(v), trainable=False) for v in self._variables
        ]
        self._lock = threading.Lock()
        inputs, labels = self._inputs, self._labels
        self._signature = [
            tf.TensorSpec([None, *inputs.shape[1:]], inputs.dtype),
            tf.TensorSpec([None, *labels.shape[1:]], labels.dtype),
            *(tf.TensorSpec([], tf.float32) for _ in self._names),
        ]
        self._sums = BatchSums(
            self._part, self._signature, name="example_gradients", threads=threads
        )
        vector = [tf.TensorSpec(v.shape, tf.float32) for v in self._variables]
        self._products = BatchSums(
            self._product, [*self._signature, *vector], name="hessian", threads=threads
        )

    @property
    def traces(self) -> int:
        """The number of times the gradient was traced; at most one per thread."""
        return self._sums.traces

    def at(
        self,
        weights: Sequence[np.ndarray],
        masks: Sequence[np.ndarray] | None = None,
        point: Mapping[str, float] | None = None,
    ) -> MeanGradient:
        """Returns the gradient at some weights.

        Args:
            weights: arrays in the order of the model's weights.
            masks: 0/1, one per trainable variable; None for a dense network.
            point: metaparameters of the loss, by name; the others have their defaults.
        """
        with self._lock:
            self._set(weights, masks)
            return self._sum(self._values(point))

    def batches(
        self,
        weights: Sequence[np.ndarray],
        masks: Sequence[np.ndarray] | None = None,
        point: Mapping[str, float] | None = None,
    ) -> Iterator[list[np.ndarray]]:
        """Yields the gradient of the mean loss over each full batch; see `at`.

        `MeanGradient.batch_square` is over the same batches. No other method may be
        called before the last batch.
        """
        values, size = self._values(point), self.batch_size

        def of_batch(start: int) -> list[tf.Tensor]:
            return self._arguments(self._order[start : start + size], values)

        with self._lock:
            self._set(weights, masks)
            for start in range(0, self.examples - size + 1, size):
                yield [part / size for part in self._of_one(of_batch, [start])]

    @functools.cached_property
    def _of_one(self) -> BatchSums:
        def gradient(
            inputs: tf.Tensor, labels: tf.Tensor, *point: tf.Tensor
        ) -> list[tf.Tensor]:
            return self._gradient(inputs, labels, point)

        return BatchSums(gradient, self._signature, name="batch_gradient", threads=1)

    def hessian_product(
        self,
        weights: Sequence[np.ndarray],
        vector: Sequence[np.ndarray],
        masks: Sequence[np.ndarray] | None = None,
        point: Mapping[str, float] | None = None,
    ) -> tuple[float, list[np.ndarray]]:
        """Returns (mean loss, float64 product of its Hessian and a vector); see `at`.

        With masks, the product is taken over the kept coordinates, and is zero at all
        others. `vector`: one array per trainable variable.
        """
        kept = vector
        if masks is not None:
            kept = [v * m for v, m in zip(vector, masks, strict=True)]
        along = [tf.constant(part, tf.float32) for part in kept]
        values = self._values(point)

        def of_batch(start: int) -> list[tf.Tensor]:
            batch = self._order[start : start + self.batch_size]
            return [*self._arguments(batch, values), *along]

        with self._lock:
            self._set(weights, masks)
            starts = range(0, self.examples, self.batch_size)
            loss, *sums = self._products(of_batch, starts)
        return float(loss) / self.examples, [part / self.examples for part in sums]

    def _set(
        self, weights: Sequence[np.ndarray], masks: Sequence[np.ndarray] | None
    ) -> None:
        for variable, value in zip(self._model.weights, weights, strict=True):
            variable.assign(value)
        for i, variable in enumerate(self._masks):
            mask = True if masks is None else masks[i]
            variable.assign(tf.ones_like(variable) * np.float32(mask))

    def _values(self, point: Mapping[str, float] | None) -> list[np.float32]:
        """Returns the metaparameters of the loss, in the order of their names."""
        defaults = {name: self._objective.reads[name].default for name in self._names}
        values = {**defaults, **(point or {})}
        return [np.float32(values[name]) for name in self._names]

    def _arguments(
        self, rows: np.ndarray, values: Sequence[np.float32]
    ) -> list[tf.Tensor]:
        return [
            tf.constant(v) for v in (self._inputs[rows], self._labels[rows], *values)
        ]

    def trainable(self, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the trained weights of the model."""
        return [weights[place] for place in trainable_positions(self._model)]

    def with_trainable(
        self, weights: Sequence[np.ndarray], values: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Returns a copy of `weights` with the trained ones replaced by `values`."""
        moved = list(weights)
        for place, value in zip(trainable_positions(self._model), values, strict=True):
            moved[place] = value
        return moved

    def _sum(self, values: Sequence[np.float32]) -> MeanGradient:
        stride = _BATCHES_AT_ONCE * self.batch_size

        def of_part(start: int) -> list[tf.Tensor]:
            return self._arguments(self._order[start : start + stride], values)

        squares, *total = self._sums(of_part, range(0, self.examples, stride))
        return MeanGradient(
            values=tuple(part / self.examples for part in total),
            examples=self.examples,
            batch_size=self.batch_size,
            batch_square=float(squares) / (self.examples // self.batch_size),
        )

    def _part(
        self, inputs: tf.Tensor, labels: tf.Tensor, *point: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns [sum of the full batches' square norms, *sums over examples]."""
        count, size = tf.shape(labels)[0], self.batch_size

        def body(start: tf.Tensor, squares: tf.Tensor, *sums: tf.Tensor) -> Any:
            batch = slice(start, start + size)
            gradients = self._gradient(inputs[batch], labels[batch], point)
            square = tf.add_n([tf.reduce_sum(g * g) for g in gradients]) / size**2
            is_full = start + size <= count
            squares += tf.where(is_full, square, tf.zeros_like(square))
            return (
                start + size,
                squares,
                *(s + g for s, g in zip(sums, gradients, strict=True)),
            )

        zeros = [tf.zeros(v.shape, tf.float64) for v in self._variables]
        _, *totals = tf.while_loop(
            lambda start, *_: start < count,
            body,
            (tf.constant(0), tf.constant(0.0, tf.float64), *zeros),
            parallel_iterations=1,
        )
        return list(totals)

    def _gradient(
        self, inputs: tf.Tensor, labels: tf.Tensor, point: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the masked gradient of the sum of the batch's losses, float64."""
        with tf.GradientTape() as tape:
            loss = self._loss(inputs, labels, point)
        gradients = dense_gradients(tape, loss, self._variables)
        return [
            tf.cast(g * m, tf.float64)
            for g, m in zip(gradients, self._masks, strict=True)
        ]

    def _loss(
        self, inputs: tf.Tensor, labels: tf.Tensor, point: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Returns the sum of the batch's losses, float32."""
        values = dict(zip(self._names, point, strict=True))
        outputs = tf.cast(self._model(inputs, training=self._training), tf.float32)
        loss = self._objective.batch_loss(labels, outputs, values, self._weight)
        added = penalty(self._model, values)
        if added is not None:
            loss += tf.cast(tf.shape(labels)[0], tf.float32) * added
        return loss

    def _product(
        self, inputs: tf.Tensor, labels: tf.Tensor, *more: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns [sum of the batch's losses, *its Hessian times a vector]."""
        point, vector = more[: len(self._names)], more[len(self._names) :]
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = self._loss(inputs, labels, point)
            gradients = dense_gradients(inner, loss, self._variables)
            along = tf.add_n(
                [tf.reduce_sum(g * v) for g, v in zip(gradients, vector, strict=True)]
            )
        products = dense_gradients(outer, along, self._variables)
        masked = [p * m for p, m in zip(products, self._masks, strict=True)]
        return [loss, *masked]
