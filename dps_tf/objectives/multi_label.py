"""Several classes at once: sigmoid cross-entropy and average precision.

Source of the metric: Shallue et al. 2019 (Open Images): all pairs of example and class
are ranked together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core.errors import UserError
from dps_tf.objectives.metric import Metric, Sums, mean_loss
from dps_tf.objectives.objective import INDICATORS, Metaparameters, Objective


def sigmoid_cross_entropy(thresholds: int = 0) -> Objective:
    """Returns the objective of labels 0 or 1 for each class: int32 [n, classes].

    A label below 0 is unknown: it counts nothing, in the loss as in the metrics.
    Metrics: `cross_entropy` (nats, mean over examples and classes, as Keras's
    BinaryCrossentropy), `average_precision` (class-agnostic: all pairs of example and
    class ranked together) and `macro_average_precision` (mean of the average precisions
    of those classes that have a positive label). Goals on the latter are maximized.

    Args:
        thresholds: 0 is exact: the area under the curve of precision over recall by
            steps, one at each different score, as scikit-learn's
            `average_precision_score`. N > 1 counts at N thresholds of the probability,
            evenly spaced on [0, 1], and interpolates as Davis and Goadrich 2006, as
            `keras.metrics.AUC(N, "PR", "interpolation")`; Shallue et al. used 200. The
            exact one keeps the scores of all validation examples.
    """
    whole = isinstance(thresholds, int) and not isinstance(thresholds, bool)
    if not whole or thresholds < 0 or thresholds == 1:
        raise UserError(
            f"thresholds is {thresholds!r}; it must be a whole number, 0 for the exact "
            "average precision or at least 2."
        )
    metrics = _interpolated(thresholds) if thresholds else _exact()
    return Objective(
        _loss,
        (mean_loss("cross_entropy"), *metrics),
        labels=INDICATORS,
        weights=lambda labels: tf.cast(labels >= 0, tf.float32),
        link="sigmoid",
    )


def _loss(
    labels: tf.Tensor, logits: tf.Tensor, metaparameters: Metaparameters
) -> tf.Tensor:
    del metaparameters
    truth = tf.cast(tf.maximum(labels, 0), logits.dtype)
    return tf.nn.sigmoid_cross_entropy_with_logits(truth, logits)


def _exact() -> tuple[Metric, Metric]:
    def rows(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
        known = tf.where(weights > 0, labels, -tf.ones_like(labels))
        return {"scores": outputs, "labels": tf.cast(known, tf.int8)}

    def over_pairs(found: Mapping[str, Any]) -> float:
        return exact_average_precision(found["labels"], found["scores"])

    def over_classes(found: Mapping[str, Any]) -> float:
        columns = zip(found["labels"].T, found["scores"].T, strict=True)
        return _mean([exact_average_precision(*column) for column in columns])

    return (
        Metric("average_precision", over_pairs, rows, keeps_examples=True),
        Metric("macro_average_precision", over_classes, rows, keeps_examples=True),
    )


def exact_average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the average precision of a ranking; NaN without a positive label.

    Args:
        labels: 1 or 0; below 0 is left out. Any shape.
        scores: larger means more likely 1; of the same shape. NaN gives NaN.
    """
    from sklearn.metrics import average_precision_score  # takes a second to import

    known = labels >= 0
    truth, ranked = labels[known], scores[known]
    if not truth.any() or np.isnan(ranked).any():
        return float("nan")
    return float(average_precision_score(truth, ranked))


def _mean(values: list[float]) -> float:
    defined = [value for value in values if value == value]
    return sum(defined) / len(defined) if defined else float("nan")


def _interpolated(thresholds: int) -> tuple[Metric, Metric]:
    def histogram(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
        """Counts scores between thresholds, int64 [thresholds, classes].

        In the bin i lie the probabilities above the threshold i up to the next.
        """
        scaled = tf.math.ceil(tf.sigmoid(outputs) * (thresholds - 1))
        bins = tf.clip_by_value(tf.cast(scaled, tf.int32) - 1, 0, thresholds - 1)
        classes = outputs.shape[-1]
        cells = tf.reshape(bins * classes + tf.range(classes), [-1])

        def counted(condition: tf.Tensor) -> tf.Tensor:
            ones = tf.cast(tf.reshape(condition, [-1]), tf.int64)
            cellwise = tf.math.unsorted_segment_sum(ones, cells, thresholds * classes)
            return tf.reshape(cellwise, [thresholds, classes])

        known = weights > 0
        return {
            "positives": counted(tf.logical_and(known, labels > 0)),
            "negatives": counted(tf.logical_and(known, labels == 0)),
        }

    def over_pairs(found: Mapping[str, Any]) -> float:
        positives, negatives = found["positives"], found["negatives"]
        return interpolated_average_precision(positives.sum(1), negatives.sum(1))

    def over_classes(found: Mapping[str, Any]) -> float:
        columns = zip(found["positives"].T, found["negatives"].T, strict=True)
        return _mean([interpolated_average_precision(*column) for column in columns])

    return (
        Metric("average_precision", over_pairs, histogram),
        Metric("macro_average_precision", over_classes, histogram),
    )


def interpolated_average_precision(
    positives: np.ndarray, negatives: np.ndarray
) -> float:
    """Returns the area under precision over recall, NaN without a positive label.

    Between two thresholds the true positives are taken to grow in proportion to all
    predicted ones. Source: Davis and Goadrich 2006; Keras's AUC, `interpolation`.

    Args:
        positives: whole numbers, labels of 1 with scores in each bin, in ascending
            order of scores.
        negatives: likewise labels of 0.
    """
    if not positives.sum():
        return float("nan")
    true = np.cumsum(positives[::-1])[::-1].astype(np.float64)
    every = true + np.cumsum(negatives[::-1])[::-1]
    more_true, more = true[:-1] - true[1:], np.maximum(every[:-1] - every[1:], 0)
    slope = np.divide(more_true, more, out=np.zeros_like(more), where=more > 0)
    intercept = true[1:] - slope * every[1:]
    both = (every[:-1] > 0) & (every[1:] > 0)
    ratio = np.divide(every[:-1], every[1:], out=np.ones_like(more), where=both)
    return float(np.sum(slope * (more_true + intercept * np.log(ratio))) / true[0])
