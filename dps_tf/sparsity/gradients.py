"""The compiled passes behind the scores: gradients summed over batches of examples.

One traced program serves all initial points and masks of a network: they are assigned
to its variables. Sums run in float64 and in the order of the batches, so that their
bits do not depend on how many batches are computed at a time.
"""

from __future__ import annotations

import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core.errors import UserError
from dps_tf.models.randomness import draws_at_random

BATCH = 100
"""Examples whose mean loss is one term of a sum. Source: Lee et al. 2021, code."""
Progress = Callable[[int, int], None]
"""Called with (done, total)."""
_MOST_THREADS = 8
_NUMBERS = itertools.count()


class GradientProgram:
    """Derivatives of a network at points that are assigned to it.

    The network is scratch: its weights are overwritten. Layers that behave differently
    in training do so here (batch normalization uses the statistics of the batch, as in
    the published code of GraSP and FORCE), unless one of them draws at random: then
    all are in evaluation mode, so that scores can be repeated.

    Attributes:
        lock: to be held from `set_point` to the last pass at that point.
        traces: how often a pass was traced.
    """

    def __init__(self, network: keras.Model, threads: int | None = None):
        """`network`: outside any strategy; `threads`: batches at a time."""
        self.lock = threading.RLock()
        self.traces = 0
        self._network = network
        self._variables = network.trainable_variables
        self._training = not draws_at_random(network)
        inputs = network.inputs[0]
        self._dtype = inputs.dtype.as_numpy_dtype
        self._signature = [
            tf.TensorSpec([None, *inputs.shape[1:]], inputs.dtype),
            tf.TensorSpec([None, *network.outputs[0].shape[1:-1]], tf.int32),
            tf.TensorSpec([], tf.float32),
        ]
        self._threads = threads or _available()

    def set_point(
        self, values: Sequence[np.ndarray], masks: Sequence[np.ndarray] | None = None
    ) -> None:
        """Assigns `values` (order of `network.weights`), trainable ones times masks."""
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
        """Returns the sum over batches of 100 of the gradient of their mean loss.

        Float64, one array per trainable variable. Batches are consecutive; the last
        may be smaller. Logits are divided by `temperature`.
        """
        return self._sum(self._gradients, (inputs, labels, temperature, []), progress)

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
        arguments = (inputs, labels, temperature, cast)
        return self._sum(self._products, arguments, progress)

    def output_gradient(self) -> list[np.ndarray]:
        """Returns d R / d theta, R = sum of the outputs on one input of ones.

        In evaluation mode, so that batch normalization is linear. UserError if the
        network takes token numbers, for which ones have no meaning.
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
        passes: Sequence[Any],
        arguments: tuple[np.ndarray, np.ndarray, float, Sequence[np.ndarray]],
        progress: Progress | None,
    ) -> list[np.ndarray]:
        inputs, labels, temperature, vector = arguments
        scale = tf.constant(temperature, tf.float32)
        constants = [tf.constant(part) for part in vector]
        idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for one in passes:
            idle.put(one)

        def of_batch(start: int) -> list[np.ndarray]:
            batch = slice(start, start + BATCH)
            one = idle.get()
            try:
                gradients = one(
                    np.asarray(inputs[batch], self._dtype),
                    np.asarray(labels[batch], np.int32),
                    scale,
                    *constants,
                )
            finally:
                idle.put(one)
            return [g.numpy() for g in gradients]

        starts = range(0, len(inputs), BATCH)
        total = [np.zeros(v.shape, np.float64) for v in self._variables]
        with ThreadPoolExecutor(len(passes)) as pool:
            for done, gradients in enumerate(pool.map(of_batch, starts), start=1):
                for part, gradient in zip(total, gradients, strict=True):
                    part += gradient
                if progress is not None:
                    progress(done, len(starts))
        return total

    @functools.cached_property
    def _gradients(self) -> list[Any]:
        return [self._trace(self._gradient, []) for _ in range(self._threads)]

    @functools.cached_property
    def _products(self) -> list[Any]:
        vector = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables]
        return [self._trace(self._product, vector) for _ in range(self._threads)]

    @functools.cached_property
    def _output_gradient(self) -> Any:
        return tf.function(self._flow, input_signature=[], autograph=False)

    def _trace(self, function: Callable[..., Any], more: list[Any]) -> Any:
        """Returns one compiled pass; each runs in one thread at a time.

        TensorFlow's graph optimizer turns AddN into temporary variables whose names
        all functions that run at once share, so each pass has a scope of its own.
        """
        scope = f"scores_{next(_NUMBERS)}"

        def scoped(*arguments: tf.Tensor) -> list[tf.Tensor]:
            self.traces += 1
            with tf.name_scope(scope):
                return function(*arguments)

        signature = [*self._signature, *more]
        compiled = tf.function(scoped, input_signature=signature, autograph=False)
        return compiled.get_concrete_function()

    def _loss(self, inputs: Any, labels: Any, temperature: Any) -> tf.Tensor:
        logits = self._network(inputs, training=self._training)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels, tf.cast(logits, tf.float32) / temperature
        )
        return tf.reduce_mean(each)

    def _gradient(self, inputs: Any, labels: Any, temperature: Any) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = self._loss(inputs, labels, temperature)
        return self._dense(tape, loss)

    def _product(self, inputs: Any, labels: Any, temperature: Any, *vector: Any) -> Any:
        with tf.GradientTape() as tape:
            gradient = self._gradient(inputs, labels, temperature)
            along = tf.add_n(
                [tf.reduce_sum(g * v) for g, v in zip(gradient, vector, strict=True)]
            )
        return self._dense(tape, along)

    def _flow(self) -> list[tf.Tensor]:
        spec = self._signature[0]
        with tf.GradientTape() as tape:
            outputs = self._network(tf.ones([1, *spec.shape[1:]], spec.dtype), False)
            total = tf.reduce_sum(outputs)
        return self._dense(tape, total)

    def _dense(self, tape: tf.GradientTape, value: tf.Tensor) -> list[tf.Tensor]:
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(value, self._variables, unconnected_gradients=zero)
        return [tf.convert_to_tensor(gradient) for gradient in gradients]


@functools.lru_cache(maxsize=4)
def program_of(network: keras.Model) -> GradientProgram:
    """Returns the program of a network, the same one for the last few networks."""
    return GradientProgram(network)


def _available() -> int:
    if tf.config.list_physical_devices("GPU"):
        return 1
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, _MOST_THREADS)
