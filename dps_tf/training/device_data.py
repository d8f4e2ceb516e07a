"""A data set on the devices that train on it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.data.dataset import Dataset, Examples
from dps_tf.training import evaluation
from dps_tf.training.placed_data import Part, Values, part_of


class ResidentSplit:
    """A split for evaluation on every device, of which each counts its batches.

    Attributes:
        labels: of all examples, on the host.
    """

    def __init__(self, examples: Examples, strategy: tf.distribute.Strategy):
        self.labels = examples.labels
        self._examples = examples
        self._strategy = strategy
        replicas = int(strategy.num_replicas_in_sync)
        batches = evaluation.padded_batches(
            examples, evaluation.BATCH_SIZE, shards=replicas
        )

        def turns(array: np.ndarray, replica: int) -> np.ndarray:
            """Returns every n-th of the batches."""
            return array[replica::replicas]

        self._batches = tuple(
            _on_replicas(strategy, functools.partial(turns, array)) for array in batches
        )

    @functools.cached_property
    def whole(self) -> Values:
        """(inputs, labels) of all examples, on every device."""
        return _placed(self._strategy, self._examples.inputs, self._examples.labels)

    @property
    def signature(self) -> list[Any]:
        """The types of (inputs, labels, valid)."""
        return [tf.type_spec_from_value(value) for value in self._batches]

    def pieces(self) -> Iterator[Values]:
        """Yields the whole split, in batches."""
        yield self._batches


class DeviceData:
    """Training examples and splits for evaluation on every device of a strategy.

    Programs of one device share it, so a data set is held once however many trials run
    side by side. Every device holds the whole training split, and of the batches of
    other splits those that it counts.

    Attributes:
        strategy: whose devices hold the data.
        placement: `device`.
        train: (inputs, labels) of the training split, as stored.
        train_count: training examples.
        labels_per_example: 1, or the length of a sequence.
    """

    placement = "device"

    def __init__(self, dataset: Dataset, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.train_count = len(dataset.train)
        self.labels_per_example = int(np.prod(dataset.train.labels.shape[1:]))
        self._dataset = dataset
        self._replicas = int(strategy.num_replicas_in_sync)
        stored = dataset.step_examples
        self.train = _placed(strategy, stored.inputs, stored.labels)
        self._splits: dict[str, ResidentSplit] = {}

    def train_batches(self, batch_size: int) -> ResidentBatches:
        """Returns the training batches of a global batch size."""
        return ResidentBatches(self.train, batch_size, self._replicas)

    def split(self, name: str) -> ResidentSplit:
        """Returns a split, which is put on the devices once."""
        if name not in self._splits:
            examples = self._dataset.evaluated(name)
            self._splits[name] = ResidentSplit(examples, self.strategy)
        return self._splits[name]


def _placed(strategy: tf.distribute.Strategy, *arrays: np.ndarray) -> Values:
    """Returns each array as one tensor per device."""

    def whole(array: np.ndarray, replica: int) -> np.ndarray:
        del replica
        return np.asarray(array)

    return tuple(_on_replicas(strategy, functools.partial(whole, a)) for a in arrays)


def _on_replicas(
    strategy: tf.distribute.Strategy, array_of: Callable[[int], np.ndarray]
) -> Any:
    """Returns one tensor per device of this process."""
    devices = strategy.extended.worker_devices

    def copy(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
        # Replicas are numbered over all hosts, each of which has as many devices.
        replica = context.replica_id_in_sync_group
        with tf.device(devices[replica % len(devices)]):
            return tf.constant(array_of(replica))

    return strategy.experimental_distribute_values_from_function(copy)


class ResidentBatches:
    """Training batches whose examples are gathered on the device, step by step.

    Attributes:
        signature: of a piece: int32 [steps, batch_size].
        held: (inputs, labels) of the training split.
        most_steps: None, as a slice is one piece.
    """

    most_steps = None

    def __init__(self, train: Values, batch_size: int, replicas: int):
        self.signature = [tf.TensorSpec([None, batch_size], tf.int32)]
        self.held = train
        self._replicas = replicas

    def pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields all the steps at once."""
        yield len(indices), (indices,)

    def batch(
        self, step: tf.Tensor, *arrays: tf.Tensor, part: Part | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a replica's (inputs, labels) of a step, in its graph."""
        indices, inputs, labels = arrays
        row = indices[step]
        if self._replicas > 1:
            context = tf.distribute.get_replica_context()
            shares = tf.reshape(row, [self._replicas, -1])
            row = shares[context.replica_id_in_sync_group]
        row = part_of(row, part)
        return tf.gather(inputs, row), tf.gather(labels, row)
