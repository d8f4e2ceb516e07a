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
from dps_tf.core.registry import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    REQUIRED,
    Argument,
    Reads,
    Registry,
    resolve,
)
from dps_tf.optim.schedules import SCHEDULES

LEARNING_RATE: Reads = {"learning_rate": Argument(range=NOT_NEGATIVE)}


class TensorOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer whose metaparameters are float32 variables.

    A point is set by `set_metaparameters` before the first step and may be changed
    between any two steps without a new trace. Works in `fit`, in own loops and inside
    `strategy.run`; create it under the strategy's scope. Gradients of embeddings are
    made dense, so every row of the accumulators decays at every step.
    """

    # Metaparameters beyond `learning_rate` and those of the schedule.
    READS: ClassVar[Reads] = {}
    SLOTS: ClassVar[tuple[str, ...]] = ()
    # Whether an entry depends on its own gradients alone, so that one that is zero and
    # has none stays zero. Counts for the very class that says it: see `keeps_zeros`.
    ELEMENTWISE: ClassVar[bool] = False

    def __init__(self, schedule: str = "constant", name: str | None = None):
        """What has no default is NaN until set; `schedule`: a name in `SCHEDULES`."""
        super().__init__(
            name or type(self).__name__, weight_decay=None, jit_compile=False
        )
        self._reads = {**LEARNING_RATE, **SCHEDULES[schedule].reads, **self.READS}
        self.schedule = schedule
        with tf.init_scope():
            self._metaparameters = {
                name: tf.Variable(
                    math.nan if read.default is REQUIRED else read.default,
                    trainable=False,
                    name=name,
                    dtype=tf.float32,
                )
                for name, read in self._reads.items()
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

    @property
    def keeps_zeros(self) -> bool:
        """Whether entries that are pruned stay exactly zero without being masked again.

        Read off the class itself: one that is derived from it may update otherwise.
        """
        return bool(vars(type(self)).get("ELEMENTWISE", False))

    def set_metaparameters(self, point: Mapping[str, float]) -> None:
        """Assigns `point`; names with a default may be left out and get that default.

        Raises UserError for names that nothing here reads, for missing ones, and for
        values without meaning; then nothing has been assigned.
        """
        owner = f"optimizer {self.name!r} with the {self.schedule} schedule"
        for name, value in resolve(owner, self._reads, point).items():
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


@keras.utils.register_keras_serializable(package="dps_tf")
class GradientDescent(TensorOptimizer):
    """w = w - rate g."""

    ELEMENTWISE: ClassVar[bool] = True

    def _apply(self, var: Any, slots: list[Any], rate: Any, grad: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=var, alpha=rate, delta=grad)


@keras.utils.register_keras_serializable(package="dps_tf")
class Momentum(TensorOptimizer):
    """v = m v + g; w = w - rate v, with the rate of the current step."""

    READS: ClassVar[Reads] = {"momentum": Argument(0.9, FRACTION)}  # Lee et al. 2021
    SLOTS = ("momentums",)
    ELEMENTWISE: ClassVar[bool] = True
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

    ELEMENTWISE: ClassVar[bool] = True
    NESTEROV = True


@keras.utils.register_keras_serializable(package="dps_tf")
class Adam(TensorOptimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w = w - a m / (sqrt(v) + e).

    a = rate sqrt(1 - b2^t) / (1 - b1^t), t = 1 at the first update; e is `epsilon`.
    Defaults of Kingma and Ba 2015; Keras has epsilon 1e-7.
    """

    READS: ClassVar[Reads] = {
        "beta_1": Argument(0.9, FRACTION),
        "beta_2": Argument(0.999, FRACTION),
        "epsilon": Argument(1e-8, POSITIVE),
    }
    SLOTS = ("momentums", "velocities")
    ELEMENTWISE: ClassVar[bool] = True

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


OPTIMIZERS: Registry[type[TensorOptimizer]] = Registry("optimizer")


def register(name: str, optimizer: type[TensorOptimizer]) -> None:
    """Makes `build(name, schedule)` return an instance of a class.

    Side effect: changes the registry of this process. Registering the same class again
    changes nothing; another one under a taken name is refused.
    """
    OPTIMIZERS.register(name, optimizer, optimizer.READS)


register("sgd", GradientDescent)
register("momentum", Momentum)
register("nesterov", Nesterov)
register("adam", Adam)


def reads(name: str, schedule: str = "constant") -> Reads:
    """Returns the metaparameters of an optimizer under a schedule; see `build`."""
    return {**LEARNING_RATE, **SCHEDULES[schedule].reads, **OPTIMIZERS[name].READS}


def build(name: str, schedule: str = "constant") -> TensorOptimizer:
    """Returns a new optimizer; its metaparameters are to be set before training.

    Raises UserError for names that are not in OPTIMIZERS and SCHEDULES.
    """
    return OPTIMIZERS[name](schedule, name=name)
