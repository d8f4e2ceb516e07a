"""Data sets that stay on the host because they do not fit the devices.

The order of examples is a function of seed and step, so a stream of examples has no
state: it can begin at any step, and its values depend on the indices alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core import VALIDATION, processors
from dps_tf.data import Examples
from dps_tf.training.device_data import (
    Part,
    PlacedData,
    PlacedSplit,
    TrainBatches,
    Values,
    evaluation_batch_size,
    padded_rows,
    part_of,
)

PIECE_BYTES = 1 << 23
"""Most bytes that the examples of a piece take, unless a single step takes more."""
PIECES = 4
"""Least number of pieces of a slice, because training waits for the first piece."""
AHEAD = 2
"""Number of pieces that are gathered before they are used."""
_MOST_GATHERS = 8


class _Waited(threading.local):
    seconds = 0.0


_WAITED = _Waited()


def data_wait() -> float:
    """Returns the seconds that this thread has waited for streamed data so far.

    Training and evaluation both count. On an accelerator this is an upper bound: the
    accelerator computes a part of an evaluation while the host waits for the next part.
    """
    return _WAITED.seconds


class StreamedData(PlacedData):
    """Training examples and splits that are sent to the devices as they are used.

    The host's arrays may be mapped from files, so a data set may be larger than the
    memory of the host. Each program has its own streams.
    """

    placement = "stream"

    def train_batches(self, batch_size: int, lanes: int = 1) -> ExampleStream:
        """Returns the training batches of a global batch size."""
        del lanes  # There is one where data are streamed.
        share = batch_size // self._replicas
        return ExampleStream(self._dataset.step_examples, self.strategy, share)

    def shared_validation(self, batch_size: int) -> ExampleStream:
        """Returns a stream that splits each validation batch over the replicas.

        A batch has `batch_size` examples, rounded up to a multiple of the replicas.
        """
        return ExampleStream(
            self._dataset.evaluated(VALIDATION),
            self.strategy,
            -(-batch_size // self._replicas),
            most_steps=1,
            with_valid=True,
        )

    def _placed_split(self, examples: Examples) -> PlacedSplit:
        batch_size = min(evaluation_batch_size(examples), len(examples))
        stream = ExampleStream(examples, self.strategy, batch_size, with_valid=True)
        # A row holds one batch for each replica, in the order of the replicas.
        rows = padded_rows(np.arange(len(examples)), batch_size * self._replicas)
        return PlacedSplit(
            examples.labels,
            stream.signature,
            lambda: (values for _, values in stream.pieces(rows)),
        )


class ExampleStream(TrainBatches):
    """Sends the examples of consecutive steps to the replicas of a strategy.

    A tf.data pipeline gathers examples from the host's arrays while the step before is
    computed. At most `gathers() + AHEAD` pieces wait in memory beside the one in use.

    A piece is (inputs, labels), each [steps, share, ...], and with `with_valid` also
    bool [steps, share].

    Attributes:
        most_steps: largest number of steps of a piece.
        signature: types of the values of a piece, for `tf.function`.
    """

    most_steps: int

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
            examples: the examples that indices refer to.
            strategy: strategy of the replicas that read them.
            share: number of examples of a step that each replica gets.
            most_steps: largest number of steps of a piece. None stands for as many as
                PIECE_BYTES hold, where a slice is also cut into at least PIECES pieces.
            with_valid: whether a piece says which examples are real: False is padding.
        """
        self._examples = examples
        self._strategy = strategy
        self._share = share
        self._with_valid = with_valid
        self._replicas = int(strategy.num_replicas_in_sync)
        self._types = self._value_types()
        self.signature = _distributed_types(strategy, self._types)
        self.most_steps = most_steps or self._steps_of(PIECE_BYTES)
        self._cuts = most_steps is None
        rows = tf.TensorSpec([None, self._replicas, share], tf.int32)
        # Traced once: a pipeline that is built anew for each slice costs as much again.
        self._open = tf.function(
            self._pipeline,
            input_signature=[rows, tf.TensorSpec([], tf.int64)],
            autograph=False,
        )

    def pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields (steps, values) of pieces; one is gathered while another is used.

        Args:
            indices: examples, int32 [steps, replicas * share], -1 for padding. Replica
                r reads the r-th share of each row.
        """
        pieces = self._gathered_pieces(indices)
        while True:
            begun = time.perf_counter()
            piece = next(pieces, None)
            _WAITED.seconds += time.perf_counter() - begun
            if piece is None:
                return
            yield piece

    def batch(
        self, step: tf.Tensor, *arrays: tf.Tensor, part: Part | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the inputs and labels of a step of a piece."""
        inputs, labels = arrays
        return part_of(inputs[step], part), part_of(labels[step], part)

    def _gathered_pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        if not len(indices):
            return
        # Replica r of n reads the r-th n-th of each global batch.
        rows = indices.astype(np.int32, copy=False).reshape(
            len(indices), self._replicas, -1
        )
        steps = self.most_steps
        if self._cuts:
            # Powers of two: XLA compiles anew for each number of steps.
            steps = min(steps, 1 << max(0, (len(rows) // PIECES).bit_length() - 1))
        for values in self._open(rows, np.int64(steps)):
            yield len(values[0]), self._placed(values)

    def _value_types(self) -> list[tf.TensorSpec]:
        """Returns the types of the values that one replica gets."""
        types = [
            tf.TensorSpec([None, self._share, *array.shape[1:]], array.dtype)
            for array in (self._examples.inputs, self._examples.labels)
        ]
        if self._with_valid:
            types.append(tf.TensorSpec([None, self._share], tf.bool))
        return types

    def _steps_of(self, limit: int) -> int:
        """Returns the largest power of two of steps that take at most `limit` bytes."""
        step = self._replicas * sum(
            int(np.prod(spec.shape[1:])) * spec.dtype.size for spec in self._types
        )
        return 1 << max(0, (limit // step).bit_length() - 1)

    def _pipeline(self, rows: tf.Tensor, most_steps: tf.Tensor) -> tf.data.Dataset:
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        # Gathering waits for Python's lock, and must not block threads of the steps.
        options.threading.private_threadpool_size = gathers()
        pieces = tf.data.Dataset.from_tensor_slices(rows).batch(most_steps)
        pieces = pieces.map(self._gathered, num_parallel_calls=gathers())
        return pieces.prefetch(AHEAD).with_options(options)

    def _gathered(self, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the values of a piece, replica by replica."""
        types = self._types * self._replicas
        values = tf.numpy_function(self._gather, [rows], [spec.dtype for spec in types])
        for value, spec in zip(values, types, strict=True):
            value.set_shape(spec.shape)
        return tuple(values)

    def _gather(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the values of a piece; `rows`: int32 [steps, replicas, share]."""
        values = []
        for replica in range(rows.shape[1]):
            asked = rows[:, replica]
            places = np.maximum(asked, 0)
            values += [self._examples.inputs[places], self._examples.labels[places]]
            if self._with_valid:
                values.append(asked >= 0)
        return values

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
            return copies[context.replica_id_in_sync_group * width + kind]

        distribute = self._strategy.experimental_distribute_values_from_function
        return tuple(
            distribute(lambda context, kind=kind: of_replica(context, kind))
            for kind in range(width)
        )


def gathers() -> int:
    """Returns how many threads gather and decode pieces, one piece each.

    Decoders that release Python's lock run in parallel. One thread per processor keeps
    the processors busy while an accelerator trains, and costs little where gathering is
    cheap.
    """
    return max(2, min(processors(), _MOST_GATHERS))


def _distributed_types(
    strategy: tf.distribute.Strategy, types: Sequence[tf.TensorSpec]
) -> list[Any]:
    """Returns the types of values that differ between the replicas of a strategy."""
    if len(strategy.extended.worker_devices) == 1:
        return list(types)

    def nothing(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.zeros(spec.shape[1:], spec.dtype) for spec in types)

    # This data set is never read. TensorFlow makes such types for data sets only.
    dataset = tf.data.Dataset.range(1).map(nothing).batch(1)
    return list(
        strategy.distribute_datasets_from_function(lambda _: dataset).element_spec
    )
