"""One class for each position: softmax cross-entropy, over examples or over tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.registry import FRACTION, Argument
from dps_tf.objectives.metric import Metric, Sums, fractions, mean_loss
from dps_tf.objectives.objective import Metaparameters, Objective

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

    q is the smoothed label, for label_smoothing a and C classes. `szegedy2016` spreads
    a evenly over all classes: 1 - a + a / C on the label and a / C elsewhere (Szegedy
    et al. 2016, section 7; Keras). `shallue2019` spreads it over the others: 1 - a and
    a / (C - 1), which is the first with a C / (C - 1). Both are plain at 0.

    Args:
        labels: int32 [...], in [0, classes).
        logits: float32 [..., classes].
        label_smoothing: a in [0, 1); a tensor does not retrace.
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
    """Returns bool [...]: whether the largest logit is not that of the label.

    The first of several equal logits counts; a NaN logit is wrong.
    """
    guess = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    broken = tf.reduce_any(tf.math.is_nan(logits), axis=-1)
    return tf.logical_or(tf.not_equal(guess, labels), broken)


def _not_among_top(k: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    def not_among_top(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns bool [...]: whether k classes come before the label.

        Of equal logits the first comes first; a NaN logit is wrong.
        """
        classes = logits.shape[-1]
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
    """Returns the objective of one class per example, or per position of a sequence.

    Metrics: `classification_error` (top-1), `cross_entropy` (nats, not smoothed),
    `accuracy`, and `top_K_error` for each of `top`. Every position counts.

    Args:
        smoothing: convention of the metaparameter `label_smoothing`, of SMOOTHINGS.
        top: numbers K >= 2 of guesses among which the label has to be, such as (5,).
    """
    if smoothing not in SMOOTHINGS:
        known = near_matches(str(smoothing), SMOOTHINGS)
        raise UserError(f"no convention of smoothing is named {smoothing!r}: {known}.")
    for k in top:
        if isinstance(k, bool) or not isinstance(k, int) or k < 2:
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

    Labels below 0 are padding and count nothing: all means are over the other tokens,
    of all examples and devices together. Metrics: `cross_entropy` (nats per token),
    `perplexity` (its exponential), `classification_error`, `accuracy`, and where the
    data set says how many bytes of text its tokens stand for, `bits_per_byte`: the
    bits of all tokens over their bytes, the same whatever the tokens are.

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
        each = tf.gather(tf.constant(lengths, tf.int64), tf.maximum(labels, 0))
        there = tf.where(weights > 0, each, tf.zeros_like(each))
        return {"bytes": tf.reduce_sum(there)}

    def value(found: Mapping[str, Any]) -> float:
        return found["loss"] / math.log(2) / int(found["bytes"])

    return Metric("bits_per_byte", value, sums)
