"""Examples by index, gathered on the host ahead of their use.

The order of examples is a function of seed and step, so a stream has no state: it
begins wherever it is asked to, and what it yields depends on the indices alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.data.dataset import Examples
from dps_tf.training.placed_data import Values

PIECE_BYTES = 1 << 23
"""Examples of a piece take at most this, unless one step alone takes more."""
_GATHERS = 2  # pieces at a time, in threads of their own
_AHEAD = 2  # pieces that wait for their use


class ExampleStream:
    """Sends the examples of consecutive steps to the replicas of this process.

    A tf.data pipeline gathers them from the host's arrays, which may be mapped from a
    file, while the step before is computed. Besides the piece in use, at most
    `_GATHERS + _AHEAD` pieces are in memory.

    With several processes each gathers what its own replicas read, and nothing else.

    Attributes:
        signature: types of (inputs, labels), [steps, share, ...], and of `valid` if
            that was asked for.
        most_steps: of a piece; a power of two.
    """

    def __init__(
        self,
        examples: Examples,
        strategy: tf.distribute.Strategy,
        share: int,
        *,
        most_steps: int | None = None,
        with_valid: bool = False,
    ):
        """Gathers nothing yet.

        Args:
            examples: to be read.
            strategy: whose replicas read them.
            share: examples of a step that each replica gets.
            most_steps: of a piece; None goes by PIECE_BYTES.
            with_valid: whether to yield bool [steps, share] too, False for padding.
        """
        self._examples = examples
        self._strategy = strategy
        self._share = share
        self._with_valid = with_valid
        self._replicas = local_replicas(strategy)
        self._types = self._value_types()
        self.signature = _distributed_types(strategy, self._types)
        self.most_steps = most_steps or self._steps_of(PIECE_BYTES)
        rows = tf.TensorSpec([None, len(self._replicas), share], tf.int32)
        # Traced once: a pipeline that is built anew for each slice costs as much again.
        self._open = tf.function(
            self._pipeline,
            input_signature=[rows, tf.TensorSpec([], tf.int64)],
            autograph=False,
        )

    def __call__(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields (steps, values) of pieces that follow each other.

        Args:
            indices: int32 [steps, replicas * share]; replica r reads the r-th share of
                each row. -1 stands for padding.
        """
        rows = shares(indices, self._strategy.num_replicas_in_sync, self._replicas)
        if not len(rows):
            return
        for values in self._open(rows, np.int64(self.most_steps)):
            yield len(values[0]), self._placed(values)

    def _value_types(self) -> list[tf.TensorSpec]:
        """Returns the types of what one replica gets."""
        types = [
            tf.TensorSpec([None, self._share, *array.shape[1:]], array.dtype)
            for array in (self._examples.inputs, self._examples.labels)
        ]
        if self._with_valid:
            types.append(tf.TensorSpec([None, self._share], tf.bool))
        return types

    def _steps_of(self, limit: int) -> int:
        """Returns the largest power of two of steps within a number of bytes, or 1."""
        step = len(self._replicas) * sum(
            int(np.prod(spec.shape[1:])) * spec.dtype.size for spec in self._types
        )
        return 1 << max(0, (limit // step).bit_length() - 1)

    def _pipeline(self, rows: tf.Tensor, most_steps: tf.Tensor) -> tf.data.Dataset:
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        # Gathering waits for Python, and must not hold a thread that computes steps.
        options.threading.private_threadpool_size = _GATHERS
        pieces = tf.data.Dataset.from_tensor_slices(rows).batch(most_steps)
        pieces = pieces.map(self._gathered, num_parallel_calls=_GATHERS)
        return pieces.prefetch(_AHEAD).with_options(options)

    def _gathered(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the values of a piece, replica by replica."""
        types = self._types * len(self._replicas)
        found = tf.numpy_function(self._gather, [rows], [spec.dtype for spec in types])
        for value, spec in zip(found, types, strict=True):
            value.set_shape(spec.shape)
        return tuple(found)

    def _gather(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the values of a piece; `rows`: int32 [steps, replicas, share]."""
        found = []
        for replica in range(rows.shape[1]):
            asked = rows[:, replica]
            there = np.maximum(asked, 0)
            found += [self._examples.inputs[there], self._examples.labels[there]]
            if self._with_valid:
                found.append(asked >= 0)
        return found

    def _placed(self, values: Sequence[tf.Tensor]) -> Values:
        """Returns the values of a piece on the devices of their replicas."""
        width = len(self._types)
        devices = self._strategy.extended.worker_devices
        copies = []
        for place, value in enumerate(values):
            with tf.device(devices[place // width]):
                copies.append(tf.identity(value))
        if len(devices) == 1:
            return tuple(copies)

        def of_replica(context: Any, kind: int) -> tf.Tensor:
            replica = self._replicas.index(context.replica_id_in_sync_group)
            return copies[replica * width + kind]

        distribute = self._strategy.experimental_distribute_values_from_function
        return tuple(
            distribute(lambda context, kind=kind: of_replica(context, kind))
            for kind in range(width)
        )


def shares(indices: np.ndarray, replicas: int, mine: Sequence[int]) -> np.ndarray:
    """Returns what some of the replicas read of each step.

    Replica r of n reads the r-th n-th of a global batch, on whatever host it is.

    Args:
        indices: int32 [steps, batch_size].
        replicas: their number over all hosts.
        mine: the numbers of those asked for.

    Returns:
        int32 [steps, len(mine), batch_size / replicas].
    """
    split = indices.astype(np.int32, copy=False).reshape(
        len(indices), replicas, indices.shape[1] // replicas
    )
    return split[:, list(mine)]


def local_replicas(strategy: tf.distribute.Strategy) -> tuple[int, ...]:
    """Returns the numbers of the replicas that this process feeds, in their order."""
    found: list[int] = []

    def note(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        found.append(int(context.replica_id_in_sync_group))
        return tf.constant(0)

    strategy.experimental_distribute_values_from_function(note)
    return tuple(found)


def _distributed_types(
    strategy: tf.distribute.Strategy, types: Sequence[tf.TensorSpec]
) -> list[Any]:
    """Returns the types of values of which each local replica has its own."""
    if len(strategy.extended.worker_devices) == 1:
        return list(types)

    def nothing(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.zeros(spec.shape[1:], spec.dtype) for spec in types)

    # Never read: TensorFlow makes such types for its own data sets only.
    dataset = tf.data.Dataset.range(1).map(nothing).batch(1)
    return list(
        strategy.distribute_datasets_from_function(lambda _: dataset).element_spec
    )
