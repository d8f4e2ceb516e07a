"""A data set that stays with the host, for sets that do not fit the devices.

The order of examples is a function of seed and step, so a stream of them has no state:
it begins wherever it is asked to, and what it yields depends on the indices alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.data.dataset import Dataset, Examples
from dps_tf.training import evaluation
from dps_tf.training.placed_data import Part, Values, part_of

PIECE_BYTES = 1 << 23
"""Examples of a piece take at most this, unless one step alone takes more."""
PIECES = 4
"""Least number of pieces of a slice: training waits for the first of them."""
AHEAD = 2
"""Pieces that wait for their use."""
_MOST_GATHERS = 8


class _Waited(threading.local):
    seconds = 0.0


_WAITED = _Waited()


def data_wait() -> float:
    """Returns the seconds for which this thread has waited for streamed data so far.

    Training and evaluation both count. On an accelerator, which goes on with one part
    of an evaluation while the host waits for the next, this is an upper bound.
    """
    return _WAITED.seconds


class StreamedSplit:
    """A split for evaluation that is sent to the devices, some batches at a time.

    Attributes:
        labels: of all examples, on the host.
    """

    def __init__(self, examples: Examples, strategy: tf.distribute.Strategy):
        self.labels = examples.labels
        self._examples = examples
        self._strategy = strategy
        self._replicas = int(strategy.num_replicas_in_sync)
        batch_size = min(evaluation.BATCH_SIZE, len(examples))
        self._stream = self._streamed(batch_size)
        rows = np.arange(len(examples), dtype=np.int32)
        # Replicas take turns: the batches of a row are theirs in order.
        self._rows = padded_rows(rows, batch_size * self._replicas)

    @property
    def signature(self) -> list[Any]:
        """The types of (inputs, labels, valid)."""
        return self._stream.signature

    def pieces(self) -> Iterator[Values]:
        """Yields the split, some batches at a time."""
        for _, values in self._stream(self._rows):
            yield values

    def shared(self, batch_size: int) -> ExampleStream:
        """Returns a stream that shares out each batch over the replicas.

        Args:
            batch_size: at least this; as much more as gives each replica as many.
        """
        return self._streamed(-(-batch_size // self._replicas), most_steps=1)

    def _streamed(self, share: int, most_steps: int | None = None) -> ExampleStream:
        return ExampleStream(
            self._examples,
            self._strategy,
            share,
            most_steps=most_steps,
            with_valid=True,
        )


class StreamedData:
    """Training examples and splits that are sent to the devices as they are used.

    The host's arrays may be mapped from files, so that a set may be larger than the
    memory of the host too. Programs of one strategy share it, each with streams of its
    own.

    Attributes:
        strategy: whose replicas read the data.
        placement: `stream`.
        train_count: training examples.
        labels_per_example: 1, or the length of a sequence.
    """

    placement = "stream"

    def __init__(self, dataset: Dataset, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.train_count = len(dataset.train)
        self.labels_per_example = int(np.prod(dataset.train.labels.shape[1:]))
        self._dataset = dataset
        self._replicas = int(strategy.num_replicas_in_sync)
        self._splits: dict[str, StreamedSplit] = {}

    def train_batches(self, batch_size: int) -> StreamedBatches:
        """Returns the training batches of a global batch size."""
        share = batch_size // self._replicas
        stream = ExampleStream(self._dataset.step_examples, self.strategy, share)
        return StreamedBatches(stream)

    def split(self, name: str) -> StreamedSplit:
        """Returns a split, the same one every time."""
        if name not in self._splits:
            examples = self._dataset.evaluated(name)
            self._splits[name] = StreamedSplit(examples, self.strategy)
        return self._splits[name]


class StreamedBatches:
    """Training batches that a stream gathers, several steps at a time.

    Attributes:
        signature: of a piece: (inputs, labels), [steps, share, ...] of each replica.
        held: nothing.
        most_steps: of a piece.
    """

    held: Values = ()

    def __init__(self, stream: ExampleStream):
        self._stream = stream
        self.signature = stream.signature
        self.most_steps = stream.most_steps

    def pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields the steps in pieces, each gathered while the one before is used."""
        return self._stream(indices)

    def batch(
        self, step: tf.Tensor, *arrays: tf.Tensor, part: Part | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a replica's (inputs, labels) of a step, in its graph."""
        inputs, labels = arrays
        return part_of(inputs[step], part), part_of(labels[step], part)


def padded_rows(rows: np.ndarray, length: int) -> np.ndarray:
    """Returns int32 [rows of `length`], the last filled up with -1.

    >>> padded_rows(np.arange(3), 2)
    array([[ 0,  1],
           [ 2, -1]], dtype=int32)
    """
    missing = -len(rows) % length
    padded = np.pad(rows.astype(np.int32), (0, missing), constant_values=-1)
    return padded.reshape(-1, length)


class ExampleStream:
    """Sends the examples of consecutive steps to the replicas of this process.

    A tf.data pipeline gathers them from the host's arrays, which may be mapped from a
    file, while the step before is computed. Besides the piece in use, at most
    `gathers() + AHEAD` pieces are in memory.

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
            most_steps: of a piece; None goes by PIECE_BYTES, and cuts what is asked for
                into PIECES at least.
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
        self._cuts = most_steps is None
        rows = tf.TensorSpec([None, len(self._replicas), share], tf.int32)
        # Traced once: a pipeline that is built anew for each slice costs as much again.
        self._open = tf.function(
            self._pipeline,
            input_signature=[rows, tf.TensorSpec([], tf.int64)],
            autograph=False,
        )

    def __call__(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields (steps, values) of pieces that follow each other; see `data_wait`.

        Args:
            indices: int32 [steps, replicas * share]; replica r reads the r-th share of
                each row. -1 stands for padding.
        """
        pieces = self._pieces(indices)
        while True:
            begun = time.perf_counter()
            piece = next(pieces, None)
            _WAITED.seconds += time.perf_counter() - begun
            if piece is None:
                return
            yield piece

    def _pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        rows = shares(indices, self._strategy.num_replicas_in_sync, self._replicas)
        if not len(rows):
            return
        steps = self.most_steps
        if self._cuts:
            # Powers of two, so that XLA, which compiles for every length, meets few.
            steps = min(steps, 1 << max(0, (len(rows) // PIECES).bit_length() - 1))
        for values in self._open(rows, np.int64(steps)):
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
        options.threading.private_threadpool_size = gathers()
        pieces = tf.data.Dataset.from_tensor_slices(rows).batch(most_steps)
        pieces = pieces.map(self._gathered, num_parallel_calls=gathers())
        return pieces.prefetch(AHEAD).with_options(options)

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


def gathers() -> int:
    """Returns how many pieces are gathered and decoded at a time, each by a thread.

    Decoders that leave Python's lock (those of images and of compressed data, and what
    NumPy does) run in parallel; one per processor keeps a machine busy that trains on
    an accelerator, and costs next to nothing where gathering is cheap.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(2, min(processors, _MOST_GATHERS))


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
