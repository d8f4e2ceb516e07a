"""Loss and counts of classification, per example or per position of a sequence."""

from __future__ import annotations

import tensorflow as tf


def softmax_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, label_smoothing: tf.Tensor | float = 0.0
) -> tf.Tensor:
    """Returns float32 [...]: -sum_k q_k log p_k for each label.

    q puts 1 - a on the label and spreads a evenly over all classes, for
    label_smoothing a (Szegedy et al. 2016, section 7), so that 0 is plain
    cross-entropy.

    Args:
        labels: int32 [...], in [0, classes).
        logits: float32 [..., classes].
        label_smoothing: a in [0, 1); a tensor does not retrace.
    """
    plain = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if isinstance(label_smoothing, float) and label_smoothing == 0.0:
        return plain
    log_normalizer = tf.reduce_logsumexp(logits, axis=-1)
    uniform = log_normalizer - tf.reduce_mean(logits, axis=-1)
    return plain + label_smoothing * (uniform - plain)


def wrong(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns bool [...]: whether the largest logit is not that of the label.

    The first of several equal logits counts; a NaN logit is wrong.
    """
    guess = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    broken = tf.reduce_any(tf.math.is_nan(logits), axis=-1)
    return tf.logical_or(tf.not_equal(guess, labels), broken)
