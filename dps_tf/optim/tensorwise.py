"""Optimizers whose update of a variable depends on all of its elements.

A variable of rank two or more is taken as the matrix [all but its last dimension, last
dimension]: a kernel of a convolution as [height * width * inputs, outputs].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import FRACTION, NOT_NEGATIVE, POSITIVE, Argument, Range, Reads
from dps_tf.optim.base import TensorOptimizer
from dps_tf.optim.elementwise import ADAM_READS, adam_direction

_serializable = keras.utils.register_keras_serializable(package="dps_tf")
Slots = Mapping[str, Any]

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


@_serializable
class LARS(TensorOptimizer):
    """v = m v + rate q (g + weight_decay w); w = w - v.

    q = trust_coefficient |w| / (|g| + weight_decay |w|), 1 where a norm is 0. Biases
    and scales (rank below two) have q = 1 and do not decay, as is usual since Goyal et
    al. 2017. The rate is inside of v, as published. Source: You et al. 2017 (Large
    batch training of convolutional networks), algorithm 1, with its defaults.
    """

    READS: ClassVar[Reads] = {
        "momentum": Argument(0.9, FRACTION),
        "weight_decay": Argument(5e-4, NOT_NEGATIVE),
        "trust_coefficient": Argument(1e-3, POSITIVE),
    }
    SLOTS = ("momentums",)
    DECAYS_WEIGHTS = True

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        if matrix_shape(variable) is not None:
            decay = self.value("weight_decay")
            weights, length = tf.norm(variable), tf.norm(gradient)
            both = tf.logical_and(weights > 0.0, length > 0.0)
            trust = self.value("trust_coefficient") * _trust(
                weights, length + decay * weights
            )
            rate *= tf.where(both, trust, 1.0)
            gradient += decay * variable
        velocity = slots["momentums"]
        velocity.assign(self.value("momentum") * velocity + rate * gradient)
        variable.assign_sub(velocity)


@_serializable
class LAMB(TensorOptimizer):
    """w = w - rate (|w| / |u|) u; u = m' / (sqrt(v') + e) + weight_decay w.

    m' and v' are those of Adam with bias correction; the ratio is 1 where a norm is 0.
    Biases and scales (rank below two) have ratio 1 and do not decay. Source: You et al.
    2020 (Large batch optimization for deep learning), algorithm 2, with phi(x) = x and
    the defaults of its published code.
    """

    READS: ClassVar[Reads] = {
        **ADAM_READS,
        "epsilon": Argument(1e-6, POSITIVE),
        "weight_decay": Argument(0.01, NOT_NEGATIVE),
    }
    SLOTS = ("momentums", "velocities")
    DECAYS_WEIGHTS = True

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        updates = tf.cast(self.iterations + 1, tf.float32)
        direction = adam_direction(self, slots, gradient, updates)
        if matrix_shape(variable) is not None:
            direction += self.value("weight_decay") * variable
            rate *= _trust(tf.norm(variable), tf.norm(direction))
        variable.assign_sub(rate * direction)


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


@_serializable
class Muon(TensorOptimizer):
    """Matrices: w = w - rate 0.2 sqrt(max(rows, columns)) O(g + m v); v = m v + g.

    O is `orthogonalized`; the factor gives the update the root mean square of Adam's,
    so that one rate and one weight decay serve all variables. Variables of rank below
    two and embeddings are updated by AdamW. The last layer is a matrix like others;
    Jordan et al. leave it to AdamW. Source: Jordan et al. 2024; Liu et al. 2025 (Muon
    is scalable for LLM training), section 2.2.
    """

    READS: ClassVar[Reads] = {
        "momentum": Argument(0.95, FRACTION),
        **ADAM_READS,
        "weight_decay": Argument(0.01, NOT_NEGATIVE),
    }
    SLOTS = ("momentums", "velocities")

    def slot_shape(self, slot: str, variable: tf.Variable) -> list[int] | None:
        """Returns the shape of the variable; matrices have no second moment."""
        if slot == "velocities" and self._is_matrix(variable):
            return None
        return list(variable.shape)

    def _is_matrix(self, variable: tf.Variable) -> bool:
        return matrix_shape(variable) is not None and "embedding" not in variable.name

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class; the base has decayed the variable."""
        if "velocities" in slots:
            updates = tf.cast(self.iterations + 1, tf.float32)
            variable.assign_sub(rate * adam_direction(self, slots, gradient, updates))
            return
        shape = matrix_shape(variable)
        assert shape is not None
        momentum, velocity = self.value("momentum"), slots["momentums"]
        velocity.assign(momentum * velocity + gradient)
        ahead = tf.reshape(gradient + momentum * velocity, shape)
        factor = 0.2 * math.sqrt(max(shape))
        update = tf.reshape(orthogonalized(ahead), variable.shape)
        variable.assign_sub(rate * factor * update)


@_serializable
class SOAP(TensorOptimizer):
    """Adam in the eigenbasis of Shampoo's preconditioners.

    For a gradient G of a matrix: L = b2 L + (1 - b2) G G^T, R = b2 R + (1 - b2) G^T G;
    QL and QR are their eigenvectors, by one power iteration and a QR decomposition at
    every `precondition_every`-th update. M = b1 M + (1 - b1) G is rotated,
    QL^T M QR, divided as Adam does by the root of the second moment of QL^T G QR, and
    rotated back. A side above LARGEST_SIDE is not rotated, nor are variables of rank
    below two. The first update makes the bases and changes no weight, as in the
    published code. Source: Vyas et al. 2024, algorithms 3 and 4, with the betas of its
    section 5.
    """

    READS: ClassVar[Reads] = {
        "beta_1": Argument(0.95, FRACTION),
        "beta_2": Argument(0.95, FRACTION),
        "epsilon": Argument(1e-8, POSITIVE),
        "precondition_every": Argument(10.0, Range(1, whole=True)),
    }
    SLOTS = ("momentums", "velocities", "left", "right", "left_basis", "right_basis")

    def slot_shape(self, slot: str, variable: tf.Variable) -> list[int] | None:
        """Returns [side, side] for what belongs to a side that is rotated."""
        if slot in ("momentums", "velocities"):
            return list(variable.shape)
        shape = matrix_shape(variable)
        side = 0 if shape is None else shape[slot.startswith("right")]
        return [side, side] if 0 < side <= LARGEST_SIDE else None

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        shape = matrix_shape(variable) or (1, math.prod(variable.shape))
        matrix = tf.reshape(gradient, shape)
        beta1, beta2 = self.value("beta_1"), self.value("beta_2")
        # The first update leaves zeros; Adam counts from the second.
        is_first = tf.equal(self.iterations, 0)
        updates = tf.cast(tf.maximum(self.iterations, 1), tf.float32)
        first, second = slots["momentums"], slots["velocities"]
        seen = tf.where(is_first, 0.0, 1.0)
        rotated = self._rotated(matrix, slots)
        mean = beta1 * first + (1.0 - beta1) * gradient
        square = tf.square(tf.reshape(rotated, variable.shape))
        square = beta2 * second + (1.0 - beta2) * square
        first.assign(seen * mean)
        second.assign(seen * square)
        mean = self._rotated(tf.reshape(mean, shape), slots)
        root = tf.sqrt(tf.reshape(square, shape) / (1.0 - tf.pow(beta2, updates)))
        direction = mean / (1.0 - tf.pow(beta1, updates))
        direction = self._rotated(
            direction / (root + self.value("epsilon")), slots, back=True
        )
        variable.assign_sub(seen * rate * tf.reshape(direction, variable.shape))
        self._follow(slots, "left", matrix)
        self._follow(slots, "right", tf.transpose(matrix))

    def _rotated(
        self, matrix: tf.Tensor, slots: Slots, back: bool = False
    ) -> tf.Tensor:
        """Returns QL^T M QR, or QL M QR^T; sides without a basis stay."""
        if "left_basis" in slots:
            basis = slots["left_basis"]
            matrix = tf.matmul(basis, matrix, transpose_a=not back)
        if "right_basis" in slots:
            basis = slots["right_basis"]
            matrix = tf.matmul(matrix, basis, transpose_b=back)
        return matrix

    def _follow(self, slots: Slots, side: str, matrix: tf.Tensor) -> None:
        """Brings the preconditioner of a matrix's rows, and its basis, up to date."""
        if side not in slots:
            return
        beta2, moment = self.value("beta_2"), slots[side]
        gram = tf.matmul(matrix, matrix, transpose_b=True)
        moment.assign(beta2 * moment + (1.0 - beta2) * gram)
        basis = slots[f"{side}_basis"]
        now, before = tf.convert_to_tensor(moment), tf.convert_to_tensor(basis)
        every = tf.cast(self.value("precondition_every"), tf.int64)

        def iterated() -> tf.Tensor:
            is_due = tf.equal(self.iterations % every, 0)
            return tf.cond(
                is_due, lambda: tf.linalg.qr(tf.matmul(now, before))[0], lambda: before
            )

        basis.assign(
            tf.cond(
                tf.equal(self.iterations, 0),
                lambda: tf.reverse(tf.linalg.eigh(now)[1], [1]),
                iterated,
            )
        )
