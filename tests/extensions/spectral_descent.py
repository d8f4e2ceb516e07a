"""An optimizer with matrix updates: steepest descent in the spectral norm."""

from __future__ import annotations

import tensorflow as tf

from dps_tf import register_optimizer
from dps_tf.core import FRACTION, Argument
from dps_tf.optim import Rule


def spectral_descent(gradient, slots, weight, point, step):
    """m = b m + (1 - b) g; w = w - rate U V^T of a matrix m = U S V^T, else rate m."""
    beta = point["beta"]
    momentum = beta * slots["momentums"] + (1.0 - beta) * gradient
    direction = momentum
    if len(weight.shape) == 2:
        _, left, right = tf.linalg.svd(momentum)
        direction = tf.matmul(left, right, transpose_b=True)
    return weight - point["rate"] * direction, {"momentums": momentum}


RULE = Rule(spectral_descent, {"beta": Argument(0.9, FRACTION)}, ("momentums",))
register_optimizer(
    "spectral_descent",
    RULE,
    space={"learning_rate": ("log", 1e-3, 1.0), "beta": ("reverse_log", 0.5, 0.99)},
)
