"""Exact metrics over a whole split, in large padded and masked batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core.goal import Goal
from dps_tf.data.dataset import Examples
from dps_tf.objectives.losses import softmax_cross_entropy, wrong

BATCH_SIZE = 500  # Examples; fits the cache of a core for small images.
GOAL_BATCH_SIZE = 200  # Smaller, so that an evaluation can stop early.
METRICS = (
    "validation/classification_error",
    "validation/cross_entropy",
    "validation/accuracy",
)


@dataclass(frozen=True)
class Evaluation:
    """Counts over the validation split.

    Attributes:
        wrong: positions whose largest logit is not the label's.
        count: positions looked at in the whole split (labels, not examples).
        cross_entropy_sum: sum over the positions that were looked at.
        is_bound: evaluation stopped once the goal was out of reach: `wrong` is a
            lower bound and the sum covers only what was looked at.
    """

    wrong: int
    count: int
    cross_entropy_sum: float
    is_bound: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether the cross-entropy of everything that was looked at is finite."""
        return math.isfinite(self.cross_entropy_sum)

    @property
    def metrics(self) -> dict[str, float]:
        """Metric columns; the error is wrong / count in float64."""
        nan = float("nan")
        bound = self.is_bound
        return {
            "validation/classification_error": self.wrong / self.count,
            "validation/cross_entropy": (
                nan if bound else self.cross_entropy_sum / self.count
            ),
            "validation/accuracy": (self.count - self.wrong) / self.count,
        }


def most_wrong_allowed(goal: Goal, count: int) -> int | None:
    """Returns the largest wrong count that meets the goal; None if there is no such.

    Raises ValueError for a goal on a metric that is not decided by a wrong count.
    """
    if goal.metric == "validation/classification_error":
        met = [goal.reaches(k / count) for k in range(count + 1)]
    elif goal.metric == "validation/accuracy":
        met = [goal.reaches((count - k) / count) for k in range(count + 1)]
    else:
        raise ValueError(goal.metric)
    return max((k for k in range(count + 1) if met[k]), default=None)


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


def batch_counts(
    model: keras.Model, inputs: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (wrong per example int64 [batch], cross-entropy sum float64 []).

    Positions of sequences are summed over; invalid examples count nothing.
    """
    logits = tf.cast(model(inputs, training=False), tf.float32)
    valid = tf.reshape(valid, [-1] + [1] * (labels.shape.rank - 1))
    is_wrong = tf.logical_and(wrong(labels, logits), valid)
    loss = softmax_cross_entropy(labels, logits)
    loss = tf.where(valid, loss, tf.zeros_like(loss))
    axes = list(range(1, labels.shape.rank))
    return (
        tf.reduce_sum(tf.cast(is_wrong, tf.int64), axis=axes),
        tf.reduce_sum(tf.cast(loss, tf.float64)),
    )
