"""The built-in objectives: one class, several classes at once, and numbers.

Shallue et al. 2019 (Open Images) compute the average precision of several classes by
ranking all pairs of example and class together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core import FRACTION, Argument, UserError, check_known, is_whole
from dps_tf.objectives.metric import Metric, Sums, fractions, mean_loss
from dps_tf.objectives.objective import INDICATORS, NUMBERS, Metaparameters, Objective

SMOOTHINGS = ("szegedy2016", "shallue2019")
"""Conventions of label smoothing; see `softmax_cross_entropy`."""
_SMOOTHING = "label_smoothing"
_READS = {_SMOOTHING: Argument(0.0, FRACTION)}


def cross_entropy(
    labels: tf.Tensor,
    logits: tf.Tensor,
    label_smoothing: tf.Tensor | float = 0.0,
    convention: str = "szegedy2016",
) -> tf.Tensor:
    """Returns float32 [...]: -sum_k q_k log p_k for each label, in nats.

    q is the smoothed label for C classes and a = label_smoothing. `szegedy2016` spreads
    a evenly over all classes: q is 1 - a + a / C on the label and a / C elsewhere
    (Szegedy et al. 2016, section 7; Keras). `shallue2019` spreads a over the other
    classes: q is 1 - a on the label and a / (C - 1) elsewhere, which equals
    `szegedy2016` with a C / (C - 1). Both are plain cross entropy for a = 0.

    Args:
        labels: int32 [...], in [0, classes).
        logits: float32 [..., classes].
        label_smoothing: a in [0, 1); a graph is not traced again for another tensor.
        convention: one of SMOOTHINGS.
    """
    plain = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if isinstance(label_smoothing, float) and label_smoothing == 0.0:
        return plain
    if convention == "shallue2019":
        classes = logits.shape[-1]
        label_smoothing = label_smoothing * (classes / (classes - 1))
    log_normalizer = tf.reduce_logsumexp(logits, axis=-1)
    uniform = log_normalizer - tf.reduce_mean(logits, axis=-1)
    return plain + label_smoothing * (uniform - plain)


def wrong(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns bool [...]: whether another logit than the label's is the largest.

    The first of equal logits counts as the largest; a NaN logit makes a label wrong.
    """
    guess = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    broken = tf.reduce_any(tf.math.is_nan(logits), axis=-1)
    return tf.logical_or(tf.not_equal(guess, labels), broken)


def _not_among_top(k: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    def not_among_top(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns bool [...]: whether k or more classes rank above the label.

        Equal logits rank in the order of classes; a NaN logit makes a label wrong.
        """
        classes = logits.shape[-1]
        if classes is not None and classes <= k:
            raise UserError(
                f"top holds {k}, and the network has {classes} outputs, so that every "
                f"label is among them: leave top_{k}_error out."
            )
        chosen = tf.maximum(labels, 0)[..., None]  # padding has no logit
        own = tf.gather(logits, chosen, batch_dims=labels.shape.rank)
        before = tf.range(classes) < chosen
        ahead = tf.logical_or(logits > own, tf.logical_and(logits == own, before))
        behind = tf.reduce_sum(tf.cast(ahead, tf.int32), axis=-1) >= k
        broken = tf.reduce_any(tf.math.is_nan(logits), axis=-1)
        return tf.logical_or(behind, broken)

    return not_among_top


def softmax_cross_entropy(
    smoothing: str = "szegedy2016", top: Sequence[int] = ()
) -> Objective:
    """Returns the objective for one class per example, or per position of a sequence.

    Metrics: `classification_error` (top-1), `cross_entropy` (nats, not smoothed),
    `accuracy`, and `top_K_error` for each K of `top`. Every position counts.

    Args:
        smoothing: convention of the metaparameter `label_smoothing`, of SMOOTHINGS.
        top: numbers K >= 2 of the best guesses that must contain the label, such as
            (5,).
    """
    check_known("convention of smoothing", smoothing, SMOOTHINGS)
    for k in top:
        if not is_whole(k, 2):
            raise UserError(
                f"top holds {k!r}; it must hold whole numbers of at least 2, such as "
                "(5,): classification_error is top-1."
            )

    def loss(
        labels: tf.Tensor, logits: tf.Tensor, metaparameters: Metaparameters
    ) -> tf.Tensor:
        amount = metaparameters.get(_SMOOTHING, 0.0)
        return cross_entropy(labels, logits, amount, smoothing)

    error, accuracy = fractions(wrong, "classification_error", "accuracy")
    more = (fractions(_not_among_top(k), f"top_{k}_error")[0] for k in top)
    return Objective(
        loss,
        (error, mean_loss("cross_entropy"), accuracy, *more),
        metaparameters=_READS,
        link="softmax",
    )


def token_cross_entropy(
    smoothing: str = "szegedy2016", token_bytes: Sequence[int] | None = None
) -> Objective:
    """Returns the objective of a language model: the next token of each position.

    Labels below 0 are padding and do not count: all means are over the other tokens of
    all examples and devices together. Metrics: `cross_entropy` (nats per token),
    `perplexity` (the exponential of it), `classification_error`, `accuracy`, and if
    `token_bytes` is given, `bits_per_byte`. That is the bits of all tokens divided by
    their bytes of text, which is comparable between vocabularies.

    Args:
        smoothing: convention of the metaparameter `label_smoothing`, of SMOOTHINGS.
        token_bytes: bytes of each token of the vocabulary; by default the data set's.
    """
    plain = softmax_cross_entropy(smoothing)

    def loss(
        labels: tf.Tensor, logits: tf.Tensor, metaparameters: Metaparameters
    ) -> tf.Tensor:
        return plain.loss(tf.maximum(labels, 0), logits, metaparameters)

    error, nats, accuracy = plain.metrics
    metrics = [nats, Metric("perplexity", _perplexity), error, accuracy]
    if token_bytes is not None:
        metrics.append(_bits_per_byte(token_bytes))
    return Objective(
        loss,
        tuple(metrics),
        metaparameters=_READS,
        weights=lambda labels: tf.cast(labels >= 0, tf.float32),
        link="softmax",
    )


def _perplexity(sums: Mapping[str, Any]) -> float:
    nats = sums["loss"] / sums["weight"]
    return math.exp(nats) if nats < 709 else math.inf


def _bits_per_byte(token_bytes: Sequence[int]) -> Metric:
    lengths = tuple(int(length) for length in token_bytes)

    def sums(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
        del outputs
        of_labels = tf.gather(tf.constant(lengths, tf.int64), tf.maximum(labels, 0))
        counted = tf.where(weights > 0, of_labels, tf.zeros_like(of_labels))
        return {"bytes": tf.reduce_sum(counted)}

    def value(totals: Mapping[str, Any]) -> float:
        return totals["loss"] / math.log(2) / int(totals["bytes"])

    return Metric("bits_per_byte", value, sums)


def sigmoid_cross_entropy(thresholds: int = 0) -> Objective:
    """Returns the objective for labels 0 or 1 for each class: int32 [n, classes].

    Labels below 0 are unknown and count neither in the loss nor in the metrics.
    The metric `cross_entropy` is in nats, the mean over examples and classes, as
    Keras's BinaryCrossentropy. `average_precision` ranks all pairs of example and class
    together, and `macro_average_precision` is the mean over the classes that have a
    positive label. Goals on the last two are maximized.

    Args:
        thresholds: 0 computes exact average precision, as scikit-learn's
            `average_precision_score`: the area under the steps of precision over
            recall, one step at each different score. It keeps the scores of all
            validation examples. N > 1 counts at N thresholds of the probability, evenly
            spaced on [0, 1], and interpolates as in Davis and Goadrich 2006 and in
            `keras.metrics.AUC(N, "PR", "interpolation")`; Shallue et al. used 200.
    """
    if not is_whole(thresholds, 0) or thresholds == 1:
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
        marked = tf.where(weights > 0, labels, -tf.ones_like(labels))
        return {"scores": outputs, "labels": tf.cast(marked, tf.int8)}

    def over_pairs(kept: Mapping[str, Any]) -> float:
        return exact_average_precision(kept["labels"], kept["scores"])

    def over_classes(kept: Mapping[str, Any]) -> float:
        columns = zip(kept["labels"].T, kept["scores"].T, strict=True)
        return _mean([exact_average_precision(*column) for column in columns])

    return (
        Metric("average_precision", over_pairs, rows, keeps_examples=True),
        Metric("macro_average_precision", over_classes, rows, keeps_examples=True),
    )


def exact_average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the average precision of a ranking; NaN without a positive label.

    `labels`: 1 or 0; labels below 0 are left out. `scores`: of the same shape; a larger
    score means that 1 is more likely. A score that is not finite gives NaN.
    """
    from sklearn.metrics import average_precision_score  # takes a second to import

    counts = labels >= 0
    truth, ranked = labels[counts], scores[counts]
    if not (truth.any() and np.isfinite(ranked).all()):
        return float("nan")
    return float(average_precision_score(truth, ranked))


def _mean(values: list[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def _interpolated(thresholds: int) -> tuple[Metric, Metric]:
    def histogram(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
        """Returns counts of scores between thresholds, int64 [thresholds, classes].

        Bin i has the probabilities above threshold i, up to and including the next.
        """
        scaled = tf.math.ceil(tf.sigmoid(outputs) * (thresholds - 1))
        bins = tf.clip_by_value(tf.cast(scaled, tf.int32) - 1, 0, thresholds - 1)
        classes = outputs.shape[-1]
        cells = tf.reshape(bins * classes + tf.range(classes), [-1])

        def counted(condition: tf.Tensor) -> tf.Tensor:
            ones = tf.cast(tf.reshape(condition, [-1]), tf.int64)
            cellwise = tf.math.unsorted_segment_sum(ones, cells, thresholds * classes)
            return tf.reshape(cellwise, [thresholds, classes])

        counts = weights > 0
        return {
            "positives": counted(tf.logical_and(counts, labels > 0)),
            "negatives": counted(tf.logical_and(counts, labels == 0)),
        }

    def over_pairs(bins: Mapping[str, Any]) -> float:
        positives, negatives = bins["positives"], bins["negatives"]
        return interpolated_average_precision(positives.sum(1), negatives.sum(1))

    def over_classes(bins: Mapping[str, Any]) -> float:
        columns = zip(bins["positives"].T, bins["negatives"].T, strict=True)
        return _mean([interpolated_average_precision(*column) for column in columns])

    return (
        Metric("average_precision", over_pairs, histogram),
        Metric("macro_average_precision", over_classes, histogram),
    )


def interpolated_average_precision(
    positives: np.ndarray, negatives: np.ndarray
) -> float:
    """Returns the area under precision over recall, NaN without a positive label.

    Between two thresholds, true positives are assumed to grow in proportion to all
    predicted positives. `positives` and `negatives`: numbers of labels 1 and 0 in each
    bin, in ascending order of scores. Source: Davis and Goadrich 2006; Keras's AUC,
    `interpolation`.
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


def squared_error() -> Objective:
    """Returns the objective for numbers: float32 [n, ..., outputs], NaN if unknown.

    The loss is the square of the error, not half of it. Metrics: `mean_squared_error`
    over all known labels, and `r_squared`, as scikit-learn's `r2_score`: 1 - (sum of
    squared errors) / (sum of squared deviations from the mean label), as the mean over
    the outputs of the last axis. The mean leaves out outputs whose labels differ by
    less than about a millionth of their size, and is NaN without others: subtract the
    mean of such labels. Goals on `r_squared` are maximized.
    """
    return Objective(
        _square,
        (mean_loss("mean_squared_error"), Metric("r_squared", _r_squared, _moments)),
        labels=NUMBERS,
        weights=lambda labels: tf.cast(tf.logical_not(_unknown(labels)), tf.float32),
    )


def _unknown(labels: tf.Tensor) -> tf.Tensor:
    return tf.math.is_nan(labels)


def _square(
    labels: tf.Tensor, outputs: tf.Tensor, metaparameters: Metaparameters
) -> tf.Tensor:
    del metaparameters
    without_nan = tf.where(_unknown(labels), tf.zeros_like(labels), labels)
    return tf.math.squared_difference(outputs, without_nan)


def _moments(labels: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor) -> Sums:
    """Returns the sums for `r_squared` of each output, float64 [outputs]."""
    counts = weights > 0
    axes = list(range(labels.shape.rank - 1))

    def total(values: tf.Tensor) -> tf.Tensor:
        counted = tf.where(counts, values, tf.zeros_like(values))
        return tf.reduce_sum(tf.cast(counted, tf.float64), axis=axes)

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
    # Rounding gives equal labels far from 0 a small deviation.
    varies = deviations > 1e-12 * sums["squares"]
    if not varies.any():
        return float("nan")
    return float(np.mean(1 - sums["errors"][varies] / deviations[varies]))
