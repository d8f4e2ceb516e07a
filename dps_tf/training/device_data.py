"""A data set on the devices that train on it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.data.dataset import Dataset
from dps_tf.training import evaluation


class DeviceData:
    """Training and validation examples on every device of a strategy.

    Programs of one device share it, so a data set is held once however many trials run
    side by side.

    Attributes:
        strategy: whose devices hold the data.
        train: (inputs, labels) of the training split.
        validation: (inputs, labels, valid), [batches, batch, ...] each.
        flat: (inputs, labels) of the validation split.
        train_count: training examples.
        validation_count: validation examples.
        labels_per_example: 1, or the length of a sequence.
    """

    def __init__(self, dataset: Dataset, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.train_count = len(dataset.train.labels)
        self.validation_count = len(dataset.validation.labels)
        self.labels_per_example = int(np.prod(dataset.train.labels.shape[1:]))
        self.train = self._place(dataset.train.inputs, dataset.train.labels)
        self.validation = self._place(
            *evaluation.padded_batches(
                dataset.validation,
                evaluation.BATCH_SIZE,
                shards=strategy.num_replicas_in_sync,
            )
        )
        held = dataset.validation
        self.flat = self._place(held.inputs, held.labels)

    def _place(self, *arrays: np.ndarray) -> tuple[Any, ...]:
        """Returns each array as one tensor per device."""
        devices = self.strategy.extended.worker_devices

        def copy(
            context: tf.distribute.experimental.ValueContext, array: np.ndarray
        ) -> tf.Tensor:
            # Replicas are numbered over all hosts, each of which has as many devices.
            device = context.replica_id_in_sync_group % len(devices)
            with tf.device(devices[device]):
                return tf.constant(array)

        return tuple(
            self.strategy.experimental_distribute_values_from_function(
                functools.partial(copy, array=array)
            )
            for array in arrays
        )
