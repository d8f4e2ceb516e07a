"""An optimizer with matrix updates: steepest descent in the spectral norm."""

from __future__ import annotations

from typing import ClassVar

import tensorflow as tf
import tf_keras as keras

from dps_tf import register_optimizer
from dps_tf.core import FRACTION, Argument, Reads
from dps_tf.optim import TensorOptimizer


@keras.utils.register_keras_serializable(package="spectral_descent")
class SpectralDescent(TensorOptimizer):
    """m = b m + (1 - b) g; w = w - rate U V^T of a matrix m = U S V^T, else rate m."""

    READS: ClassVar[Reads] = {"beta": Argument(0.9, FRACTION)}
    SLOTS = ("momentums",)

    def update(self, variable, slots, rate, gradient):
        """See the class."""
        beta, momentum = self.value("beta"), slots["momentums"]
        momentum.assign(beta * momentum + (1.0 - beta) * gradient)
        direction = tf.convert_to_tensor(momentum)
        if len(variable.shape) == 2:
            _, left, right = tf.linalg.svd(direction)
            direction = tf.matmul(left, right, transpose_b=True)
        variable.assign_sub(rate * direction)


register_optimizer(
    "spectral_descent",
    SpectralDescent,
    space={"learning_rate": ("log", 1e-3, 1.0), "beta": ("reverse_log", 0.5, 0.99)},
)
