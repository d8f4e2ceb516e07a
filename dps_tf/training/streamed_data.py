"""A data set that stays with the host, for sets that do not fit the devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.data.dataset import Dataset, Examples
from dps_tf.training import evaluation
from dps_tf.training.example_stream import ExampleStream
from dps_tf.training.placed_data import Values


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

    def batch(self, step: tf.Tensor, *arrays: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a replica's (inputs, labels) of a step, in its graph."""
        inputs, labels = arrays
        return inputs[step], labels[step]


def padded_rows(rows: np.ndarray, length: int) -> np.ndarray:
    """Returns int32 [rows of `length`], the last filled up with -1.

    >>> padded_rows(np.arange(3), 2)
    array([[ 0,  1],
           [ 2, -1]], dtype=int32)
    """
    missing = -len(rows) % length
    padded = np.pad(rows.astype(np.int32), (0, missing), constant_values=-1)
    return padded.reshape(-1, length)
