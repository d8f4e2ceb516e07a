"""Exact metrics over a whole split, in large padded and masked batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.data.dataset import Examples
from dps_tf.objectives import Metric, Objective

BATCH_SIZE = 500  # Examples; fits the cache of a core for small images.
GOAL_BATCH_SIZE = 200  # Smaller, so that an evaluation can stop early.


@dataclass(frozen=True)
class Evaluation:
    """What a network is worth on the validation split.

    Attributes:
        metrics: columns `split/metric`; NaN where a bound knows nothing of them.
        loss_sum: of the positions that were looked at, without penalties.
        is_bound: evaluation stopped once the goal was out of reach: metrics that are
            decided by the count of the goal's are bounds, the others NaN.
    """

    metrics: Mapping[str, float]
    loss_sum: float
    is_bound: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether the loss of everything that was looked at is finite."""
        return math.isfinite(self.loss_sum)


def padded_batches(
    examples: Examples, batch_size: int, shards: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (inputs, labels, valid), each [batches, batch_size, ...].

    The last batches are filled with copies of the first example whose `valid` is
    False; the number of batches is a multiple of `shards`.
    """
    count = len(examples.labels)
    batch_size = min(batch_size, count)
    batches = -(-count // batch_size)
    batches = -(-batches // shards) * shards
    index = np.arange(batches * batch_size)
    valid = index < count
    index = np.where(valid, index, 0)

    def shaped(array: np.ndarray) -> np.ndarray:
        return array[index].reshape(batches, batch_size, *array.shape[1:])

    return (
        shaped(examples.inputs),
        shaped(examples.labels),
        valid.reshape(batches, batch_size),
    )


def outputs_of(model: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    """Returns what an evaluation sees of the network, float32 [batch, ...]."""
    return tf.cast(model(inputs, training=False), tf.float32)


def batch_sums(
    model: keras.Model,
    objective: Objective,
    inputs: tf.Tensor,
    labels: tf.Tensor,
    valid: tf.Tensor,
) -> dict[str, Any]:
    """Returns the sums of a batch; see `Objective.sums`."""
    return objective.sums(labels, outputs_of(model, inputs), valid)


def batch_against(
    model: keras.Model,
    objective: Objective,
    metric: Metric,
    inputs: tf.Tensor,
    labels: tf.Tensor,
    valid: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (against the goal per example int64 [batch], loss sum float64 []).

    Positions of sequences are summed over; invalid examples count nothing.
    """
    outputs = outputs_of(model, inputs)
    weights = objective.valid_weights(labels, valid)
    assert metric.counts_against is not None
    against = tf.logical_and(metric.counts_against(labels, outputs), weights > 0)
    each = tf.reduce_sum(
        tf.cast(against, tf.int64), axis=list(range(1, labels.shape.rank))
    )
    return each, objective.loss_sum(labels, outputs, weights)
