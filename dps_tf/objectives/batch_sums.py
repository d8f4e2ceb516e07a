"""Sums of tensors over batches of examples: pruning scores and probes are made of them.

The sums of a function have the same bits however many threads compute its batches.
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

    Sums run in float64 and in the order of the batches. The function takes tensors of
    the `signature` and returns tensors, of the same shapes for all batches. `name`
    begins the name scope of its operations. It is part of the bits, and so of caches:
    TensorFlow's graph optimizer orders some additions by it. `threads`: batches
    computed at a time.

    Attributes:
        traces: how often the function was traced; at most the number of threads.
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
        self._threads = threads or _available()

    def __call__(
        self,
        arguments: Callable[[int], Sequence[Any]],
        starts: Sequence[int],
        progress: Progress | None = None,
    ) -> list[np.ndarray]:
        """Returns the sum over batches of each tensor of the function, float64.

        `arguments` returns those of the function for the batch at each of `starts`, in
        the threads that compute; `progress` is called with (batches done, batches).
        """
        compiled = self._compiled
        idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for one in compiled:
            idle.put(one)

        def of_batch(start: int) -> list[np.ndarray]:
            one = idle.get()
            try:
                found = one(*arguments(start))
            finally:
                idle.put(one)
            return [part.numpy() for part in found]

        total: list[np.ndarray] = []
        with ThreadPoolExecutor(len(compiled)) as pool:
            for done, found in enumerate(pool.map(of_batch, starts), start=1):
                total = total or [np.zeros(part.shape, np.float64) for part in found]
                for into, part in zip(total, found, strict=True):
                    into += part
                if progress is not None:
                    progress(done, len(starts))
        return total

    @functools.cached_property
    def _compiled(self) -> list[Any]:
        """The compiled function, once per thread; each runs in one at a time.

        TensorFlow's graph optimizer turns AddN into temporary variables whose names
        all functions that run at once share, so each has a name scope of its own.
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
    """Returns d value / d variable as dense tensors, zeros where nothing connects."""
    zero = tf.UnconnectedGradients.ZERO
    gradients = tape.gradient(value, variables, unconnected_gradients=zero)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _available() -> int:
    """Returns how many batches at a time keep the machine busy."""
    if tf.config.list_physical_devices("GPU"):
        return 1
    return min(processors(), _MOST_THREADS)
