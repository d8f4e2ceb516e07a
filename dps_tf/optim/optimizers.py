"""Optimizers with TensorFlow 1 semantics whose metaparameters are variables.

Invariant: an update applies the learning rate of its own step to the whole momentum
accumulator (v = m v + g; w = w - rate v). Keras keeps the rate inside the velocity,
which is the same at a constant rate and another optimizer under decay. Every executor
updates through the same fused operations, so that their results agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core.errors import UserError, near_matches
from dps_tf.optim.schedules import SCHEDULES

# Values below zero, at or above one, have no meaning for these.
_FRACTIONS = frozenset({"momentum", "beta_1", "beta_2"})
_POSITIVE = frozenset({"decay_steps", "epsilon"})


class TensorOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer whose metaparameters are float32 variables.

    A point is set by `set_metaparameters` before the first step and may be changed
    between any two steps without a new trace. Works in `fit`, in own loops and inside
    `strategy.run`; create it under the strategy's scope. Gradients of embeddings are
    made dense, so every row of the accumulators decays at every step.
    """

    # Values of metaparameters that a point may leave out.
    DEFAULTS: ClassVar[Mapping[str, float]] = {}
    SLOTS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, schedule: str = "constant", name: str | None = None):
        """Metaparameters are NaN until set; `schedule`: a name in `SCHEDULES`."""
        super().__init__(
            name or type(self).__name__, weight_decay=None, jit_compile=False
        )
        if schedule not in SCHEDULES:
            known = near_matches(schedule, SCHEDULES)
            raise UserError(f"no schedule is named {schedule!r}: {known}")
        self.schedule = schedule
        self._required = ("learning_rate", *SCHEDULES[schedule].reads)
        values = {**dict.fromkeys(self._required, math.nan), **self.DEFAULTS}
        with tf.init_scope():
            self._metaparameters = {
                name: tf.Variable(value, False, name=name, dtype=tf.float32)
                for name, value in values.items()
            }
        # Keras looks here for `optimizer.learning_rate`.
        self._learning_rate = self._metaparameters["learning_rate"]

    @property
    def metaparameters(self) -> dict[str, tf.Variable]:
        """The float32 scalars that this optimizer and its schedule read, by name."""
        return dict(self._metaparameters)

    @property
    def slots(self) -> list[tf.Variable]:
        """The accumulators: slot by slot, each in the order of the built variables."""
        return [slot for name in self.SLOTS for slot in getattr(self, f"_{name}", [])]

    def set_metaparameters(self, point: Mapping[str, float]) -> None:
        """Assigns `point`; names with a default may be left out and get that default.

        Raises UserError for names that nothing here reads, for missing ones, and for
        values without meaning; then nothing has been assigned.
        """
        for name in point:
            if name not in self._metaparameters:
                known = near_matches(name, self._metaparameters)
                raise UserError(
                    f"optimizer {self.name!r} with the {self.schedule} schedule reads "
                    f"no metaparameter {name!r}: {known}"
                )
        missing = [name for name in self._required if name not in point]
        if missing:
            raise UserError(
                f"optimizer {self.name!r} with the {self.schedule} schedule needs "
                f"{', '.join(missing)}: got {', '.join(point) or 'nothing'}"
            )
        values = {**self.DEFAULTS, **point}
        for name, value in values.items():
            _check_value(name, value)
        for name, value in values.items():
            self._metaparameters[name].assign(value)

    def current_learning_rate(self) -> tf.Tensor:
        """Returns the rate of the next update, float32 [], from `iterations`."""
        schedule = SCHEDULES[self.schedule]
        return schedule.rate(self._metaparameters, self.iterations)

    def build(self, var_list: list[tf.Variable]) -> None:
        """Creates the accumulators, zero, one of each slot per variable."""
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        for name in self.SLOTS:
            slots = [self.add_variable_from_reference(v, name) for v in var_list]
            setattr(self, f"_{name}", slots)
        self._built = True

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """Updates `variable` and its slots by one fused operation."""
        index = self._index_dict[self._var_key(variable)]
        slots = [getattr(self, f"_{name}")[index].handle for name in self.SLOTS]
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        self._apply(variable.handle, slots, self.current_learning_rate(), gradient)

    def _apply(self, var: Any, slots: list[Any], rate: Any, grad: tf.Tensor) -> None:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; metaparameters are variables."""
        return {"name": self.name, "schedule": self.schedule}


def _check_value(name: str, value: float) -> None:
    allowed = "a finite number >= 0"
    if name in _FRACTIONS:
        allowed = "a number in [0, 1)"
    elif name in _POSITIVE:
        allowed = "a finite number > 0"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if (
        not math.isfinite(number)
        or number < 0
        or (name in _FRACTIONS and number >= 1)
        or (name in _POSITIVE and number == 0)
    ):
        raise UserError(f"metaparameter {name} must be {allowed}, not {value!r}")


@keras.utils.register_keras_serializable(package="dps_tf")
class GradientDescent(TensorOptimizer):
    """w = w - rate g."""

    def _apply(self, var: Any, slots: list[Any], rate: Any, grad: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=rate, delta=grad)


@keras.utils.register_keras_serializable(package="dps_tf")
class Momentum(TensorOptimizer):
    """v = m v + g; w = w - rate v, with the rate of the current step."""

    DEFAULTS: ClassVar[Mapping[str, float]] = {"momentum": 0.9}  # Lee et al. 2021
    SLOTS = ("momentums",)
    NESTEROV = False

    def _apply(self, var: Any, slots: list[Any], rate: Any, grad: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=var,
            accum=slots[0],
            lr=rate,
            grad=grad,
            momentum=tf.convert_to_tensor(self._metaparameters["momentum"]),
            use_nesterov=self.NESTEROV,
        )


@keras.utils.register_keras_serializable(package="dps_tf")
class Nesterov(Momentum):
    """v = m v + g; w = w - rate (g + m v), with the rate of the current step."""

    NESTEROV = True


@keras.utils.register_keras_serializable(package="dps_tf")
class Adam(TensorOptimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w = w - a m / (sqrt(v) + e).

    a = rate sqrt(1 - b2^t) / (1 - b1^t), t = 1 at the first update; e is `epsilon`.
    Defaults of Kingma and Ba 2015; Keras has epsilon 1e-7.
    """

    DEFAULTS: ClassVar[Mapping[str, float]] = {
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-8,
    }
    SLOTS = ("momentums", "velocities")

    def _apply(self, var: Any, slots: list[Any], rate: Any, grad: tf.Tensor) -> None:
        update = tf.cast(self.iterations + 1, tf.float32)
        beta1 = tf.convert_to_tensor(self._metaparameters["beta_1"])
        beta2 = tf.convert_to_tensor(self._metaparameters["beta_2"])
        tf.raw_ops.ResourceApplyAdam(
            var=var,
            m=slots[0],
            v=slots[1],
            beta1_power=tf.pow(beta1, update),
            beta2_power=tf.pow(beta2, update),
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=tf.convert_to_tensor(self._metaparameters["epsilon"]),
            grad=grad,
        )


_OPTIMIZERS: dict[str, type[TensorOptimizer]] = {
    "sgd": GradientDescent,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "adam": Adam,
}


def names() -> tuple[str, ...]:
    """Returns the names that `build` knows."""
    return tuple(_OPTIMIZERS)


def build(name: str, schedule: str = "constant") -> TensorOptimizer:
    """Returns a new optimizer; its metaparameters are to be set before training.

    `name`: "sgd", "momentum", "nesterov" or "adam"; `schedule`: "constant" or "linear".
    Raises UserError for other names.
    """
    if name not in _OPTIMIZERS:
        known = near_matches(name, _OPTIMIZERS)
        raise UserError(f"no optimizer is named {name!r}: {known}")
    return _OPTIMIZERS[name](schedule, name=name)
