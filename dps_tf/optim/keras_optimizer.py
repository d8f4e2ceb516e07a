"""The optimizers of the package for programs of Keras, such as `fit`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from dps_tf import optim
from dps_tf._keras import keras
from dps_tf.core import REQUIRED


@keras.utils.register_keras_serializable(package="dps_tf")
class TensorOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer that updates by `dps_tf.optim.Optimizer`.

    Its metaparameters are float32 variables. `set_metaparameters` sets a point before
    the first step, until which what has no default is NaN. A point may be changed
    between any two steps without a new trace. Works in `fit`, in own loops and inside
    `strategy.run`; create it under the strategy's scope. Gradients of embeddings are
    made dense, so every row of the accumulators decays at every step.

    Args:
        optimizer: one of OPTIMIZERS.
        schedule: one of SCHEDULES.
        metaparameters: names of the options in use; see `optim.build`.
        step_budget: number of steps that lengths given as shares are multiplied by.
        delay: number of updates by which gradients are late.
        name: name of the Keras optimizer, by default `optimizer`.

    Attributes:
        rule: the `Optimizer` that updates.
        metaparameters: the float32 scalars that the rule reads, by name.
        slots: the accumulators, in the order of `Optimizer.flat`.
    """

    def __init__(
        self,
        optimizer: str,
        schedule: str = "constant",
        metaparameters: Iterable[str] = (),
        step_budget: int | None = None,
        delay: int = 0,
        name: str | None = None,
    ):
        super().__init__(name or optimizer, weight_decay=None, jit_compile=False)
        self._arguments = {
            "schedule": schedule,
            "metaparameters": list(metaparameters),
            "step_budget": step_budget,
            "delay": delay,
        }
        arguments: Any = self._arguments
        self.rule = optim.build(optimizer, **arguments)
        with tf.init_scope():
            self.metaparameters = {
                name: tf.Variable(
                    math.nan if read.default is REQUIRED else read.default,
                    trainable=False,
                    name=name,
                    dtype=tf.float32,
                )
                for name, read in self.rule.reads.items()
            }
        self.slots: list[tf.Variable] = []
        self._places: dict[Any, int] = {}

    @property
    def learning_rate(self) -> tf.Variable:
        """The metaparameter `learning_rate`, before any schedule."""
        return self.metaparameters["learning_rate"]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.metaparameters["learning_rate"].assign(value)

    def set_metaparameters(self, point: Mapping[str, float]) -> None:
        """Assigns a point; see `Optimizer.values` for what is refused."""
        for name, value in self.rule.values(point).items():
            self.metaparameters[name].assign(value)

    def build(self, var_list: list[tf.Variable]) -> None:
        """Creates the slots of every variable, filled with zeros."""
        if self._places:
            return
        self._places = {variable.ref(): i for i, variable in enumerate(var_list)}
        super().build(var_list)
        for name, slots in self.rule.init(var_list).items():
            for variable, slot in zip(var_list, slots, strict=True):
                if slot is not None:
                    self.slots.append(
                        self.add_variable_from_reference(
                            variable, name, initial_value=slot
                        )
                    )
        self._named = self.rule.named(self.slots, var_list)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Variable]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> tf.Variable:
        """Makes one update of variables and slots; see Keras for the arguments."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        is_whole = not kwargs.get("experimental_aggregate_gradients", True)
        if not (is_whole or skip_gradients_aggregation):
            pairs = self.aggregate_gradients(pairs)
        gradients, variables = zip(*pairs, strict=True)
        places = [self._places[variable.ref()] for variable in variables]
        slots = {n: [own[i] for i in places] for n, own in self._named.items()}
        read = {
            n: [None if v is None else tf.convert_to_tensor(v) for v in own]
            for n, own in slots.items()
        }
        weights, updated = self.rule.update(
            gradients,
            read,
            [tf.convert_to_tensor(variable) for variable in variables],
            {n: tf.convert_to_tensor(v) for n, v in self.metaparameters.items()},
            tf.convert_to_tensor(self.iterations),
        )
        changed = [*variables, *self.rule.flat(slots)]
        values = [*weights, *self.rule.flat(updated)]
        # Replicas have equal values, and each assigns its own.
        tf.__internal__.distribute.interim.maybe_merge_call(
            lambda strategy, *given: self._assign(strategy, changed, given),
            tf.distribute.get_strategy(),
            *values,
        )
        return self.iterations

    def _assign(self, strategy: Any, variables: Any, values: Any) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable, lambda v, x: v.assign(x), args=(value,), group=False
            )
        self.iterations.assign_add(1)

    def averaged_weights(self) -> list[tf.Tensor]:
        """Returns the weights to evaluate with, of an optimizer that averages them."""
        point = {n: tf.convert_to_tensor(v) for n, v in self.metaparameters.items()}
        step = tf.convert_to_tensor(self.iterations)
        return self.rule.evaluated(self._named, [], point, step)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; metaparameters are variables."""
        return {"optimizer": self.rule.name, **self._arguments, "name": self.name}
