"""The gradients that scores are made of, summed over batches of training examples.

One traced program serves all initial points and masks of a network: they are assigned
to its variables.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.models import draws_at_random
from dps_tf.objectives import (
    BatchSums,
    Objective,
    Progress,
    build,
    dense_gradients,
    penalty,
)

BATCH = 100
"""Examples whose mean loss is one term of a sum; fewer where ghost batches need it, see
`batch_size`. Source: Lee et al. 2021, code."""


def batch_size(network: keras.Model, examples: int, most: int = BATCH) -> int:
    """Returns the largest size up to `most` of batches that a network can train on.

    Every batch of that many examples, and the smaller one at the end, is a multiple of
    the network's ghost batches or smaller than they are. A network that draws at random
    is in evaluation mode, where all sizes will do.
    """
    layers = [] if draws_at_random(network) else network._flatten_layers()
    ghosts = {getattr(layer, "ghost_batch_size", None) or 1 for layer in layers}

    def fits(size: int) -> bool:
        return all(size < ghost or size % ghost == 0 for ghost in ghosts)

    sizes = range(most, 1, -1)
    return next((n for n in sizes if fits(n) and fits(examples % n)), 1)


class GradientProgram:
    """Derivatives of a network at points that are assigned to it.

    The network is scratch: its weights are overwritten. Layers that behave differently
    in training do so here: batch normalization uses the statistics of the batch, as in
    the published code of GraSP and FORCE. If one of them draws at random, all are in
    evaluation mode, so that scores can be repeated.

    Attributes:
        lock: held by callers from `set_point` to the last sum at that point.
    """

    def __init__(
        self,
        network: keras.Model,
        objective: Objective | None = None,
        threads: int | None = None,
    ):
        """Makes a program that is traced at its first sum.

        Args:
            network: made outside any strategy.
            objective: gives the loss, with its metaparameters at their defaults; None
                is softmax cross-entropy.
            threads: number of batches at a time.
        """
        self.lock = threading.RLock()
        self._network = network
        self._objective = objective or build()
        self._variables = network.trainable_variables
        self._training = not draws_at_random(network)
        inputs = network.inputs[0]
        self._dtype = inputs.dtype.as_numpy_dtype
        self._signature = [
            tf.TensorSpec([None, *inputs.shape[1:]], inputs.dtype),
            self._objective.label_type(network.outputs[0].shape),
            tf.TensorSpec([], tf.float32),
        ]
        vector = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables]
        self._gradients, self._products = (
            BatchSums(function, signature, name="scores", threads=threads)
            for function, signature in (
                (self._gradient, self._signature),
                (self._product, [*self._signature, *vector]),
            )
        )

    @property
    def traces(self) -> int:
        """The number of times that a gradient or a product was traced."""
        return self._gradients.traces + self._products.traces

    def set_point(
        self, values: Sequence[np.ndarray], masks: Sequence[np.ndarray] | None = None
    ) -> None:
        """Assigns `values`, in the order of `network.weights`, times masks if given.

        `masks`: 0/1, one per trainable variable.
        """
        for variable, value in zip(self._network.weights, values, strict=True):
            variable.assign(value)
        if masks is not None:
            for variable, mask in zip(self._variables, masks, strict=True):
                variable.assign(variable * mask.astype(variable.dtype.as_numpy_dtype))

    def loss_gradient(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        temperature: float = 1.0,
        progress: Progress | None = None,
    ) -> list[np.ndarray]:
        """Returns the sum over batches of BATCH of the gradient of their mean loss.

        Float64, one array per trainable variable. Batches are consecutive; the last
        may be smaller. Logits are divided by `temperature`.
        """
        return self._sum(self._gradients, (inputs, labels), temperature, [], progress)

    def hessian_product(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        vector: Sequence[np.ndarray],
        temperature: float = 1.0,
        progress: Progress | None = None,
    ) -> list[np.ndarray]:
        """Returns the sum over batches of (Hessian of their mean loss) x vector.

        Float64, one array per trainable variable, as is `vector`.
        """
        cast = [
            np.asarray(part, v.dtype.as_numpy_dtype)
            for part, v in zip(vector, self._variables, strict=True)
        ]
        return self._sum(self._products, (inputs, labels), temperature, cast, progress)

    def output_gradient(self) -> list[np.ndarray]:
        """Returns d R / d theta, R = sum of the outputs on one input of ones.

        The network is in evaluation mode, so that batch normalization is linear.
        UserError if the network takes tokens: an input of ones has no meaning there.
        """
        if not self._signature[0].dtype.is_floating:
            raise UserError(
                f"network {self._network.name!r} takes {self._signature[0].dtype.name} "
                "tokens: methods that feed an input of ones need numbers; use another "
                "sparsity method"
            )
        gradients = self._output_gradient()
        return [g.numpy().astype(np.float64) for g in gradients]

    def _sum(
        self,
        sums: BatchSums,
        examples: tuple[np.ndarray, np.ndarray],
        temperature: float,
        vector: Sequence[np.ndarray],
        progress: Progress | None,
    ) -> list[np.ndarray]:
        inputs, labels = examples
        scale = tf.constant(temperature, tf.float32)
        constants = [tf.constant(part) for part in vector]
        size = batch_size(self._network, len(inputs))

        def of_batch(start: int) -> list[Any]:
            batch = slice(start, start + size)
            return [
                np.asarray(inputs[batch], self._dtype),
                np.asarray(labels[batch], self._signature[1].dtype.as_numpy_dtype),
                scale,
                *constants,
            ]

        return sums(of_batch, range(0, len(inputs), size), progress)

    @functools.cached_property
    def _output_gradient(self) -> Any:
        return tf.function(self._flow, input_signature=[], autograph=False)

    def _loss(self, inputs: Any, labels: Any, temperature: Any) -> tf.Tensor:
        logits = self._network(inputs, training=self._training)
        outputs = tf.cast(logits, tf.float32) / temperature
        loss = self._objective.mean_loss(labels, outputs, {})
        added = penalty(self._network, {})
        return loss if added is None else loss + added

    def _gradient(self, inputs: Any, labels: Any, temperature: Any) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = self._loss(inputs, labels, temperature)
        return dense_gradients(tape, loss, self._variables)

    def _product(self, inputs: Any, labels: Any, temperature: Any, *vector: Any) -> Any:
        with tf.GradientTape() as tape:
            gradient = self._gradient(inputs, labels, temperature)
            along = tf.add_n(
                [tf.reduce_sum(g * v) for g, v in zip(gradient, vector, strict=True)]
            )
        return dense_gradients(tape, along, self._variables)

    def _flow(self) -> list[tf.Tensor]:
        spec = self._signature[0]
        with tf.GradientTape() as tape:
            outputs = self._network(tf.ones([1, *spec.shape[1:]], spec.dtype), False)
            total = tf.reduce_sum(outputs)
        return dense_gradients(tape, total, self._variables)


@functools.lru_cache(maxsize=4)
def program_of(
    network: keras.Model, objective: Objective | None = None
) -> GradientProgram:
    """Returns the program of a network, the same one for the last few networks."""
    return GradientProgram(network, objective)
