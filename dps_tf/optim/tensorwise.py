"""Rules that update a variable by all of its elements together.

A variable of rank two or more is taken as the matrix [all but its last dimension, last
dimension]: a kernel of a convolution as [height * width * inputs, outputs].
"""
# ruff: noqa: D403 - variables of formulas are lower case

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from dps_tf.core import FRACTION, NOT_NEGATIVE, POSITIVE, Argument, Range
from dps_tf.optim.base import Point, Rule, Slots, T, Updated
from dps_tf.optim.elementwise import ADAM_READS, adam_direction

LARGEST_SIDE = 1024
"""Sides of matrices that SOAP preconditions; longer ones cost too much here."""


def matrix_shape(variable: Any) -> tuple[int, int] | None:
    """Returns (rows, columns) of a variable as a matrix, None below rank two."""
    shape = [int(length) for length in variable.shape]
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) >= 2 else None


def _trust(weights: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
    """Returns weights / update of two norms, 1 where either is 0."""
    both = tf.logical_and(weights > 0.0, update > 0.0)
    return tf.where(both, weights / tf.where(both, update, 1.0), 1.0)


def _lars(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """v = m v + rate q (g + weight_decay w); w = w - v.

    q = trust_coefficient |w| / (|g| + weight_decay |w|), 1 where a norm is 0. Biases
    and scales (rank below two) have q = 1 and do not decay, as is usual since Goyal et
    al. 2017. The rate is inside of v, as published. Source: You et al. 2017 (Large
    batch training of convolutional networks), algorithm 1, with its defaults.
    """
    del step
    rate = point["rate"]
    if matrix_shape(weight) is not None:
        decay = point["weight_decay"]
        weights, length = tf.norm(weight), tf.norm(gradient)
        both = tf.logical_and(weights > 0.0, length > 0.0)
        trust = point["trust_coefficient"] * _trust(weights, length + decay * weights)
        rate *= tf.where(both, trust, 1.0)
        gradient += decay * weight
    velocity = point["momentum"] * slots["momentums"] + rate * gradient
    return weight - velocity, {"momentums": velocity}


def _lamb(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """w = w - rate (|w| / |u|) u; u = m' / (sqrt(v') + e) + weight_decay w.

    m' and v' are Adam's, with bias correction; the ratio is 1 where a norm is 0.
    Biases and scales (rank below two) have ratio 1 and do not decay. Source: You et al.
    2020 (Large batch optimization for deep learning), algorithm 2, with phi(x) = x and
    the defaults of its published code.
    """
    rate, updates = point["rate"], tf.cast(step + 1, tf.float32)
    direction, moments = adam_direction(gradient, slots, point, updates)
    if matrix_shape(weight) is not None:
        direction += point["weight_decay"] * weight
        rate *= _trust(tf.norm(weight), tf.norm(direction))
    return weight - rate * direction, moments


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrix: tf.Tensor, rounds: int = 5) -> tf.Tensor:
    """Returns about U V^T for a matrix U S V^T: singular values become nearly 1.

    After five rounds of the quintic Newton-Schulz iteration they are in about
    [0.7, 1.2]. Source: Jordan et al. 2024 (Muon), with their coefficients, but in
    float32 instead of bfloat16.
    """
    rows, columns = matrix.shape
    x = tf.transpose(matrix) if rows > columns else matrix
    x /= tf.norm(x) + 1e-7
    a, b, c = NEWTON_SCHULZ
    for _ in range(rounds):
        gram = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * gram + c * tf.matmul(gram, gram), x)
    return tf.transpose(x) if rows > columns else x


def _shape_of_muon(slot: str, variable: Any) -> list[int] | None:
    """Returns the shape of the variable; matrices have no second moment."""
    is_matrix = matrix_shape(variable) is not None and "embedding" not in variable.name
    if slot == "velocities" and is_matrix:
        return None
    return list(variable.shape)


def _muon(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """Matrices: w = w - rate 0.2 sqrt(max(rows, columns)) O(g + m v); v = m v + g.

    O is `orthogonalized`; the factor gives the update the root mean square of Adam's,
    so that one rate and one weight decay serve all variables. Variables of rank below
    two and embeddings are updated by AdamW. The last layer is a matrix like others;
    Jordan et al. leave it to AdamW. Source: Jordan et al. 2024; Liu et al. 2025 (Muon
    is scalable for LLM training), section 2.2.
    """
    rate = point["rate"]
    if "velocities" in slots:
        updates = tf.cast(step + 1, tf.float32)
        direction, moments = adam_direction(gradient, slots, point, updates)
        return weight - rate * direction, moments
    shape = matrix_shape(weight)
    assert shape is not None
    momentum = point["momentum"]
    velocity = momentum * slots["momentums"] + gradient
    ahead = tf.reshape(gradient + momentum * velocity, shape)
    factor = 0.2 * math.sqrt(max(shape))
    update = tf.reshape(orthogonalized(ahead), weight.shape)
    return weight - rate * factor * update, {"momentums": velocity}


def _shape_of_soap(slot: str, variable: Any) -> list[int] | None:
    """Returns [side, side] for what belongs to a side that is rotated."""
    if slot in ("momentums", "velocities"):
        return list(variable.shape)
    shape = matrix_shape(variable)
    side = 0 if shape is None else shape[slot.startswith("right")]
    return [side, side] if 0 < side <= LARGEST_SIDE else None


def _soap(gradient: T, slots: Slots, weight: T, point: Point, step: T) -> Updated:
    """Adam in the eigenbasis of Shampoo's preconditioners.

    For a gradient G of a matrix, L = b2 L + (1 - b2) G G^T and R = b2 R + (1 - b2) G^T
    G. QL and QR are their eigenvectors, by one power iteration and a QR decomposition
    at every `precondition_every`-th update. M = b1 M + (1 - b1) G is rotated, QL^T M
    QR, divided as Adam does by the root of the second moment of QL^T G QR, and rotated
    back. A side above LARGEST_SIDE is not rotated, nor are variables of rank below two.
    The first update makes the bases and changes no weight, as in the published code.
    Source: Vyas et al. 2024, algorithms 3 and 4, with the betas of its section 5.
    """
    shape = matrix_shape(weight) or (1, math.prod(weight.shape))
    matrix = tf.reshape(gradient, shape)
    beta1, beta2 = point["beta_1"], point["beta_2"]
    # The first update leaves zeros; Adam counts from the second.
    seen = tf.where(tf.equal(step, 0), 0.0, 1.0)
    updates = tf.cast(tf.maximum(step, 1), tf.float32)
    mean = beta1 * slots["momentums"] + (1.0 - beta1) * gradient
    square = tf.square(tf.reshape(_rotated(matrix, slots), weight.shape))
    square = beta2 * slots["velocities"] + (1.0 - beta2) * square
    after = {"momentums": seen * mean, "velocities": seen * square}
    mean = _rotated(tf.reshape(mean, shape), slots)
    root = tf.sqrt(tf.reshape(square, shape) / (1.0 - tf.pow(beta2, updates)))
    direction = mean / (1.0 - tf.pow(beta1, updates))
    direction = _rotated(direction / (root + point["epsilon"]), slots, back=True)
    weight = weight - seen * point["rate"] * tf.reshape(direction, weight.shape)
    for side, rows in (("left", matrix), ("right", tf.transpose(matrix))):
        after |= _followed(slots, side, rows, point, step)
    return weight, after


def _rotated(matrix: T, slots: Slots, back: bool = False) -> T:
    """Returns QL^T M QR, or QL M QR^T; sides without a basis stay."""
    if "left_basis" in slots:
        matrix = tf.matmul(slots["left_basis"], matrix, transpose_a=not back)
    if "right_basis" in slots:
        matrix = tf.matmul(matrix, slots["right_basis"], transpose_b=back)
    return matrix


def _followed(
    slots: Slots, side: str, matrix: T, point: Point, step: T
) -> dict[str, T]:
    """Returns the preconditioner of a matrix's rows, and its basis, brought up to date.

    A side without a preconditioner gives {}.
    """
    if side not in slots:
        return {}
    beta2, before = point["beta_2"], slots[f"{side}_basis"]
    gram = tf.matmul(matrix, matrix, transpose_b=True)
    now = beta2 * slots[side] + (1.0 - beta2) * gram
    every = tf.cast(point["precondition_every"], tf.int64)

    def iterated() -> T:
        return tf.cond(
            tf.equal(step % every, 0),
            lambda: tf.linalg.qr(tf.matmul(now, before))[0],
            lambda: before,
        )

    basis = tf.cond(
        tf.equal(step, 0),
        lambda: tf.reverse(tf.linalg.eigh(now)[1], [1]),
        iterated,
    )
    return {side: now, f"{side}_basis": basis}


_SOAP_BETA = Argument(0.95, FRACTION)

LARS = Rule(
    _lars,
    {
        "momentum": Argument(0.9, FRACTION),
        "weight_decay": Argument(5e-4, NOT_NEGATIVE),
        "trust_coefficient": Argument(1e-3, POSITIVE),
    },
    ("momentums",),
    decays_weights=True,
)
LAMB = Rule(
    _lamb,
    {
        **ADAM_READS,
        "epsilon": Argument(1e-6, POSITIVE),
        "weight_decay": Argument(0.01, NOT_NEGATIVE),
    },
    ("momentums", "velocities"),
    decays_weights=True,
)
MUON = Rule(
    _muon,
    {
        "momentum": Argument(0.95, FRACTION),
        **ADAM_READS,
        "weight_decay": Argument(0.01, NOT_NEGATIVE),
    },
    ("momentums", "velocities"),
    slot_shape=_shape_of_muon,
)
SOAP = Rule(
    _soap,
    {
        "beta_1": _SOAP_BETA,
        "beta_2": _SOAP_BETA,
        "epsilon": Argument(1e-8, POSITIVE),
        "precondition_every": Argument(10.0, Range(1, whole=True)),
    },
    ("momentums", "velocities", "left", "right", "left_basis", "right_basis"),
    slot_shape=_shape_of_soap,
)
