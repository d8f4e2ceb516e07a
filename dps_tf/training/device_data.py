"""Data sets that lie on the devices, and the interface of all placed data sets."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from dps_tf.core import VALIDATION
from dps_tf.data import Dataset, Examples

BATCH_SIZE = 500
"""Examples per evaluation batch: so many small images fit the cache of a core."""
BATCH_TOKENS = 32_000
"""Most tokens per evaluation batch: each has a logit for every word."""

Values = tuple[Any, ...]
"""Tensors, or one tensor for each replica of this process."""

Part = tuple[tf.Tensor, int]
"""(k, n): the k-th of n equal parts of a replica's examples."""


class TrainBatches(abc.ABC):
    """The training batches of one size, for the loop over steps of a slice.

    Batches come in pieces of several steps. The compiled loop is called once per piece.

    Attributes:
        signature: types of the values of a piece.
        held: values that lie on the devices already, passed with every piece.
        most_steps: steps of every piece but the last; None if a slice is one piece.
    """

    signature: list[Any]
    held: Values = ()
    most_steps: int | None = None

    @abc.abstractmethod
    def pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields (steps, values) of consecutive pieces.

        Args:
            indices: int32 [steps, batch_size], positions in the training split.
        """

    @abc.abstractmethod
    def batch(
        self, step: tf.Tensor, *arrays: tf.Tensor, part: Part | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the (inputs, labels) of a replica for one step; called in its graph.

        Args:
            step: number of the step inside the piece.
            arrays: the replica's values of the piece, then its values of `held`.
            part: the part of the replica's examples to return; None returns all.
        """


@dataclass(frozen=True)
class PlacedSplit:
    """A split for evaluation that holds every example once, in a fixed order.

    Attributes:
        labels: labels of all examples, on the host.
        signature: types of the values of a piece.
        pieces: returns (inputs, labels, valid), [batches, batch, ...], of each replica.
            Replicas take turns in the order of the split; all pieces together hold
            each example once. Examples that are not `valid` pad the last batches.
    """

    labels: np.ndarray
    signature: list[Any]
    pieces: Callable[[], Iterable[Values]]


class PlacedData(abc.ABC):
    """Training examples, and splits for evaluation, for the devices of a strategy.

    Every placement gives the same examples in the same order, so a trial on one device
    has the same bits with each. Programs of one strategy share one placed data set.

    Attributes:
        placement: `device` or `stream`.
        strategy: strategy of the replicas that read the data.
        train_count: number of training examples.
    """

    placement: ClassVar[str]

    def __init__(self, dataset: Dataset, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.train_count = len(dataset.train)
        self._dataset = dataset
        self._replicas = int(strategy.num_replicas_in_sync)
        self._splits: dict[str, PlacedSplit] = {}

    @abc.abstractmethod
    def train_batches(self, batch_size: int, lanes: int = 1) -> TrainBatches:
        """Returns the training batches of a global batch size, 0 for any size."""

    def split(self, name: str) -> PlacedSplit:
        """Returns a split by name, always the same object; see `Dataset.evaluated`."""
        if name not in self._splits:
            self._splits[name] = self._placed_split(self._dataset.evaluated(name))
        return self._splits[name]

    @abc.abstractmethod
    def _placed_split(self, examples: Examples) -> PlacedSplit:
        """Returns the examples of a split, placed for evaluation."""


class DeviceData(PlacedData):
    """Training examples and splits for evaluation on every device of a strategy.

    A data set is held once, however many trials run side by side. Every device holds
    the whole training split, and its own share of the batches of the other splits.

    Attributes:
        train: (inputs, labels) of the training split, as stored.
    """

    placement = "device"

    def __init__(self, dataset: Dataset, strategy: tf.distribute.Strategy):
        super().__init__(dataset, strategy)
        self.train = self._whole(dataset.step_examples)

    def train_batches(self, batch_size: int, lanes: int = 1) -> ResidentBatches:
        """Returns the training batches of a size, 0 for any, one for each lane."""
        return ResidentBatches(self.train, batch_size, self._replicas, lanes)

    @functools.cached_property
    def validation(self) -> Values:
        """(inputs, labels) of the whole validation split, on every device."""
        return self._whole(self._dataset.evaluated(VALIDATION))

    def _placed_split(self, examples: Examples) -> PlacedSplit:
        size = evaluation_batch_size(examples)
        arrays = padded_batches(examples, size, self._replicas)
        # Each of n replicas evaluates every n-th batch.
        batches = tuple(self._on_replicas(array, self._replicas) for array in arrays)
        types = [tf.type_spec_from_value(value) for value in batches]
        return PlacedSplit(examples.labels, types, lambda: [batches])

    def _whole(self, examples: Examples) -> Values:
        """Returns (inputs, labels), each with one tensor per device."""
        arrays = (examples.inputs, examples.labels)
        return tuple(self._on_replicas(array, 1) for array in arrays)

    def _on_replicas(self, array: np.ndarray, parts: int) -> Any:
        """Returns one tensor per device of this process, with every `parts`-th row."""
        devices = self.strategy.extended.worker_devices

        def copy(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
            # Replicas are numbered over all hosts, and all have as many devices.
            replica = context.replica_id_in_sync_group
            own = array[replica::parts] if parts > 1 else np.asarray(array)
            with tf.device(devices[replica % len(devices)]):
                return tf.constant(own)

        return self.strategy.experimental_distribute_values_from_function(copy)


def evaluation_batch_size(examples: Examples) -> int:
    """Returns the examples per evaluation batch, which are fewer for long sequences."""
    inputs = examples.inputs
    if inputs.dtype.kind != "i":
        return BATCH_SIZE
    return max(1, min(BATCH_SIZE, BATCH_TOKENS // int(np.prod(inputs.shape[1:]))))


def padded_batches(
    examples: Examples, batch_size: int, shards: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (inputs, labels, valid), each [batches, batch_size, ...].

    The last batches are padded with copies of the first example, and `valid` is False
    for the padding. The number of batches is a multiple of `shards`.
    """
    batch_size = min(batch_size, len(examples))
    rows = padded_rows(np.arange(len(examples)), batch_size * shards)
    rows = rows.reshape(-1, batch_size)
    places = np.maximum(rows, 0)
    return examples.inputs[places], examples.labels[places], rows >= 0


def padded_rows(rows: np.ndarray, length: int) -> np.ndarray:
    """Returns `rows` cut into rows of `length`, int32, the last padded with -1.

    >>> padded_rows(np.arange(3), 2)
    array([[ 0,  1],
           [ 2, -1]], dtype=int32)
    """
    missing = -len(rows) % length
    padded = np.pad(rows.astype(np.int32), (0, missing), constant_values=-1)
    return padded.reshape(-1, length)


class ResidentBatches(TrainBatches):
    """Training batches that are gathered on the device from indices, step by step.

    A piece is int32 [steps, batch_size] indices, and a slice is one piece. With several
    lanes, indices and examples have a dimension of lanes before the batch.
    """

    def __init__(self, train: Values, batch_size: int, replicas: int, lanes: int = 1):
        sides = [*([lanes] if lanes > 1 else []), batch_size or None]
        self.signature = [tf.TensorSpec([None, *sides], tf.int32)]
        self.held = train
        self._replicas = replicas

    def pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields all the steps at once."""
        yield len(indices), (indices,)

    def batch(
        self, step: tf.Tensor, *arrays: tf.Tensor, part: Part | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Gathers the examples of a step."""
        indices, inputs, labels = arrays
        row = indices[step]
        if self._replicas > 1:
            context = tf.distribute.get_replica_context()
            shares = tf.reshape(row, [self._replicas, -1])
            row = shares[context.replica_id_in_sync_group]
        row = part_of(row, part)
        return tf.gather(inputs, row), tf.gather(labels, row)


def part_of(examples: tf.Tensor, part: Part | None) -> tf.Tensor:
    """Returns a part of some examples; with `part` None, all of them."""
    if part is None:
        return examples
    turn, parts = part
    return tf.reshape(examples, [parts, -1, *examples.shape[1:]])[turn]
