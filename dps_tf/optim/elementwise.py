"""Optimizers that update every element of a variable by itself.

Invariant of momentum: an update applies the learning rate of its own step to the whole
accumulator (v = m v + g; w = w - rate v), as TensorFlow 1 did. Keras keeps the rate
inside the velocity, which is the same at a constant rate and another optimizer under
decay. The first four update through fused operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import FRACTION, NOT_NEGATIVE, POSITIVE, Argument, Reads
from dps_tf.optim.base import TensorOptimizer

_serializable = keras.utils.register_keras_serializable(package="dps_tf")
Slots = Mapping[str, Any]


@_serializable
class GradientDescent(TensorOptimizer):
    """w = w - rate g."""

    ELEMENTWISE: ClassVar[bool] = True

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient
        )


@_serializable
class Momentum(TensorOptimizer):
    """v = m v + g; w = w - rate v, with the rate of the current step."""

    ELEMENTWISE: ClassVar[bool] = True
    READS: ClassVar[Reads] = {"momentum": Argument(0.9, FRACTION)}  # Lee et al. 2021
    SLOTS = ("momentums",)
    NESTEROV = False

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=slots["momentums"].handle,
            lr=rate,
            grad=gradient,
            momentum=self.value("momentum"),
            use_nesterov=self.NESTEROV,
        )


@_serializable
class Nesterov(Momentum):
    """v = m v + g; w = w - rate (g + m v), with the rate of the current step."""

    ELEMENTWISE: ClassVar[bool] = True
    NESTEROV = True


ADAM_READS: Reads = {
    "beta_1": Argument(0.9, FRACTION),
    "beta_2": Argument(0.999, FRACTION),
    "epsilon": Argument(1e-8, POSITIVE),
}


@_serializable
class Adam(TensorOptimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w = w - a m / (sqrt(v) + e).

    a = rate sqrt(1 - b2^t) / (1 - b1^t), t = 1 at the first update; e is `epsilon`.
    Defaults of Kingma and Ba 2015, in the form of the end of their section 2; Keras has
    epsilon 1e-7.
    """

    ELEMENTWISE: ClassVar[bool] = True
    READS: ClassVar[Reads] = ADAM_READS
    SLOTS = ("momentums", "velocities")

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        update = tf.cast(self.iterations + 1, tf.float32)
        beta1, beta2 = self.value("beta_1"), self.value("beta_2")
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots["momentums"].handle,
            v=slots["velocities"].handle,
            beta1_power=tf.pow(beta1, update),
            beta2_power=tf.pow(beta2, update),
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=self.value("epsilon"),
            grad=gradient,
        )


def adam_direction(
    optimizer: TensorOptimizer, slots: Slots, gradient: tf.Tensor, updates: tf.Tensor
) -> tf.Tensor:
    """Returns m' / (sqrt(v') + e) of Adam, m' and v' with their bias corrected.

    Updates the slots `momentums` and `velocities`; `updates` is 1 at the first update.
    """
    beta1, beta2 = optimizer.value("beta_1"), optimizer.value("beta_2")
    first, second = slots["momentums"], slots["velocities"]
    first.assign(beta1 * first + (1.0 - beta1) * gradient)
    second.assign(beta2 * second + (1.0 - beta2) * tf.square(gradient))
    mean = first / (1.0 - tf.pow(beta1, updates))
    square = second / (1.0 - tf.pow(beta2, updates))
    return mean / (tf.sqrt(square) + optimizer.value("epsilon"))


@_serializable
class AdamW(TensorOptimizer):
    """w = (1 - rate weight_decay) w - rate m' / (sqrt(v') + e); m', v' as of Adam.

    Source: Loshchilov and Hutter 2019, algorithm 2; the default of weight_decay is
    PyTorch's.
    """

    ELEMENTWISE: ClassVar[bool] = True
    READS: ClassVar[Reads] = {
        **ADAM_READS,
        "weight_decay": Argument(0.01, NOT_NEGATIVE),
    }
    SLOTS = ("momentums", "velocities")

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class; the base has decayed the variable."""
        updates = tf.cast(self.iterations + 1, tf.float32)
        variable.assign_sub(rate * adam_direction(self, slots, gradient, updates))


@_serializable
class Lion(TensorOptimizer):
    """w = w - rate sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.

    Source: Chen et al. 2023 (Symbolic discovery of optimization algorithms), program 1,
    with its defaults.
    """

    ELEMENTWISE: ClassVar[bool] = True
    READS: ClassVar[Reads] = {
        "beta_1": Argument(0.9, FRACTION),
        "beta_2": Argument(0.99, FRACTION),
    }
    SLOTS = ("momentums",)

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        beta1, beta2 = self.value("beta_1"), self.value("beta_2")
        momentum = slots["momentums"]
        variable.assign_sub(rate * tf.sign(beta1 * momentum + (1.0 - beta1) * gradient))
        momentum.assign(beta2 * momentum + (1.0 - beta2) * gradient)


@_serializable
class ScheduleFree(TensorOptimizer):
    """z = z - rate (g + weight_decay y); x = (1 - c) x + c z; y = (1 - b) z + b x.

    The variables are y, where gradients are taken; evaluations use x (`averages`).
    c = rate^2 / (sum of rate^2 so far), b is `beta_1`. Meant for a constant rate after
    a warm-up. Source: Defazio et al. 2024 (The road less scheduled), section 3.
    """

    ELEMENTWISE: ClassVar[bool] = True
    READS: ClassVar[Reads] = {"beta_1": Argument(0.9, FRACTION)}
    SLOTS: ClassVar[tuple[str, ...]] = ("iterates", "averages", "weights")
    CARRIES_WEIGHTS: ClassVar[tuple[str, ...]] = ("iterates", "averages")
    DECAYS_WEIGHTS = True

    def slot_shape(self, slot: str, variable: tf.Variable) -> list[int]:
        """Returns [] for the sum of squared rates, else the shape of the variable."""
        return [] if slot == "weights" else list(variable.shape)

    def update(
        self, variable: tf.Variable, slots: Slots, rate: Any, gradient: tf.Tensor
    ) -> None:
        """See the class."""
        iterate, average, total = (slots[name] for name in ScheduleFree.SLOTS)
        is_first = tf.equal(self.iterations, 0)
        z = tf.where(is_first, variable, iterate)
        x = tf.where(is_first, variable, average)
        rate, direction = self._step(slots, rate, gradient)
        if "weight_decay" in self._reads:
            direction += self.value("weight_decay") * variable
        z -= rate * direction
        total.assign_add(tf.square(rate))
        part = tf.math.divide_no_nan(tf.square(rate), total)
        x = (1.0 - part) * x + part * z
        beta = self.value("beta_1")
        iterate.assign(z)
        average.assign(x)
        variable.assign((1.0 - beta) * z + beta * x)

    def _step(
        self, slots: Slots, rate: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (rate, direction) of the step of z."""
        del slots
        return rate, gradient

    def averaged_weights(self) -> list[tf.Tensor]:
        """Returns x of every variable."""
        return [tf.convert_to_tensor(average) for average in self._slots["averages"]]


@_serializable
class ScheduleFreeAdamW(ScheduleFree):
    """Schedule-free, with the direction g / (sqrt(v) + e) and decoupled weight decay.

    v = b2 v + (1 - b2) g^2, and the rate is multiplied by sqrt(1 - b2^t).
    Source: Defazio et al. 2024, algorithm 1.
    """

    ELEMENTWISE: ClassVar[bool] = True
    READS: ClassVar[Reads] = {**ADAM_READS, "weight_decay": Argument(0.0, NOT_NEGATIVE)}
    SLOTS = (*ScheduleFree.SLOTS, "velocities")

    def _step(
        self, slots: Slots, rate: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        beta2, second = self.value("beta_2"), slots["velocities"]
        second.assign(beta2 * second + (1.0 - beta2) * tf.square(gradient))
        updates = tf.cast(self.iterations + 1, tf.float32)
        rate *= tf.sqrt(1.0 - tf.pow(beta2, updates))
        return rate, gradient / (tf.sqrt(second) + self.value("epsilon"))
