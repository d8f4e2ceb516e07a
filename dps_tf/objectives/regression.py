"""Numbers to be predicted: squared error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.objectives.metric import Metric, Sums, mean_loss
from dps_tf.objectives.objective import NUMBERS, Metaparameters, Objective


def squared_error() -> Objective:
    """Returns the objective of numbers: float32 [n, ..., outputs], NaN where unknown.

    The loss is the square of the error, not half of it. Metrics: `mean_squared_error`
    over all known labels, and `r_squared`: 1 - (sum of squared errors) / (sum of
    squared deviations from the mean label), the mean over the outputs of the last axis,
    as scikit-learn's `r2_score`; an output whose labels are all equal has none and is
    left out. Goals on the latter are maximized.
    """
    return Objective(
        _loss,
        (mean_loss("mean_squared_error"), Metric("r_squared", _r_squared, _moments)),
        labels=NUMBERS,
        weights=lambda labels: tf.cast(tf.logical_not(_unknown(labels)), tf.float32),
    )


def _unknown(labels: tf.Tensor) -> tf.Tensor:
    return tf.math.is_nan(labels)


def _loss(
    labels: tf.Tensor, outputs: tf.Tensor, metaparameters: Metaparameters
) -> tf.Tensor:
    del metaparameters
    known = tf.where(_unknown(labels), tf.zeros_like(labels), labels)
    return tf.math.squared_difference(outputs, known)


def _moments(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
    """Returns sums for each output, float64 [outputs]."""
    counts = weights > 0
    axes = list(range(labels.shape.rank - 1))

    def total(values: tf.Tensor) -> tf.Tensor:
        there = tf.where(counts, values, tf.zeros_like(values))
        return tf.reduce_sum(tf.cast(there, tf.float64), axis=axes)

    exact = tf.cast(labels, tf.float64)
    return {
        "count": total(tf.ones_like(labels)),
        "labels": total(exact),
        "squares": total(exact * exact),
        "errors": total(tf.math.squared_difference(outputs, labels)),
    }


def _r_squared(sums: Mapping[str, Any]) -> float:
    count = np.maximum(sums["count"], 1)
    deviations = sums["squares"] - sums["labels"] ** 2 / count
    # Rounding leaves something of equal labels that are far from 0.
    varies = deviations > 1e-12 * sums["squares"]
    if not varies.any():
        return float("nan")
    return float(np.mean(1 - sums["errors"][varies] / deviations[varies]))
