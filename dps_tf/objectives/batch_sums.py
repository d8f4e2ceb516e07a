"""Sums of tensors over batches of examples, for pruning scores and measurements.

The sums of a function have the same bits for any number of threads.
"""

from __future__ import annotations

import functools
import itertools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core import processors

Progress = Callable[[int, int], None]
"""Called with (done, total)."""
_MOST_THREADS = 8
_NUMBERS = itertools.count()


class BatchSums:
    """A function of a batch, compiled once per thread and summed over many batches.

    Values are added in float64 and in the order of the batches.

    Args:
        function: takes tensors of the `signature` and returns tensors that have the
            same shapes for all batches.
        signature: types of the function's arguments.
        name: prefix of the name scope of the function's operations. It must not
            change: TensorFlow's graph optimizer orders some additions by it, so the
            bits of sums, also of cached ones, depend on it.
        threads: batches computed at a time; by default one per processor, or one on a
            GPU.

    Attributes:
        traces: number of times the function was traced; at most one per thread.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[tf.Tensor]],
        signature: Sequence[tf.TensorSpec],
        *,
        name: str,
        threads: int | None = None,
    ):
        self.traces = 0
        self._function = function
        self._signature = list(signature)
        self._name = name
        gpus = tf.config.list_physical_devices("GPU")
        self._threads = threads or (1 if gpus else min(processors(), _MOST_THREADS))

    def __call__(
        self,
        arguments: Callable[[int], Sequence[Any]],
        starts: Sequence[int],
        progress: Progress | None = None,
    ) -> list[np.ndarray]:
        """Returns the sum over batches of each tensor of the function, float64.

        `arguments` returns the function's arguments for the batch at one of `starts`,
        in a computing thread; `progress` is called with (batches done, batches).
        """
        compiled = self._compiled
        idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for function in compiled:
            idle.put(function)

        def of_batch(start: int) -> list[np.ndarray]:
            function = idle.get()
            try:
                tensors = function(*arguments(start))
            finally:
                idle.put(function)
            return [tensor.numpy() for tensor in tensors]

        total: list[np.ndarray] = []
        with ThreadPoolExecutor(len(compiled)) as pool:
            for done, parts in enumerate(pool.map(of_batch, starts), start=1):
                total = total or [np.zeros(part.shape, np.float64) for part in parts]
                for into, part in zip(total, parts, strict=True):
                    into += part
                if progress is not None:
                    progress(done, len(starts))
        return total

    @functools.cached_property
    def _compiled(self) -> list[Any]:
        """The compiled functions, one per thread, each for one call at a time.

        TensorFlow's graph optimizer turns AddN into temporary variables. All functions
        that run at once share the names of these, so each has its own name scope.
        """

        def trace() -> Any:
            scope = f"{self._name}_{next(_NUMBERS)}"

            def scoped(*arguments: tf.Tensor) -> list[tf.Tensor]:
                self.traces += 1
                with tf.name_scope(scope):
                    return list(self._function(*arguments))

            compiled = tf.function(
                scoped, input_signature=self._signature, autograph=False
            )
            return compiled.get_concrete_function()

        return [trace() for _ in range(self._threads)]


def dense_gradients(
    tape: tf.GradientTape, value: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Returns d value / d variable as dense tensors, zero if it is unconnected."""
    zero = tf.UnconnectedGradients.ZERO
    gradients = tape.gradient(value, variables, unconnected_gradients=zero)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]
