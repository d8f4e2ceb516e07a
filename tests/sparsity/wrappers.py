"""Networks inside tfmot's own wrappers, the truth that `sparsity.tfmot` equals."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.sparsity import prunable as prunables
from dps_tf.sparsity.tfmot import tfmot


class Wrapped:
    """A copy of a network in wrappers, to be called once per update after `before`.

    It is called with `training=True` inside a `tf.function`.
    """

    def __init__(self, model: keras.Model, schedule: Any, prunable: str = "kernels"):
        self._wrappers: list[Any] = []
        self._schedule = schedule
        roles = zip(model.trainable_variables, prunables.roles(model), strict=True)
        self._wanted = {id(v) for v, role in roles if role.is_in(prunable)}
        self.model = keras.models.clone_model(model, clone_function=self._copied)
        copies = _matched(model, self.model)
        self.weights = [copies[id(variable)] for variable in model.weights]
        for own, plain in zip(self.weights, model.weights, strict=True):
            own.assign(plain)

    def _copied(self, layer: Any) -> Any:
        if isinstance(layer, keras.Model):
            return keras.models.clone_model(layer, clone_function=self._copied)
        copy = layer.__class__.from_config(layer.get_config())
        places = [
            place
            for place, variable in enumerate(layer.trainable_weights)
            if id(variable) in self._wanted
        ]
        if not places:
            return copy
        # Replaces tfmot's registry, which lists the kernels of some layers only.
        copy.get_prunable_weights = lambda: [copy.trainable_weights[i] for i in places]
        wrapper = tfmot.prune_low_magnitude(copy, pruning_schedule=self._schedule)
        self._wrappers.append(wrapper)
        return wrapper

    def before(self, step: tf.Tensor) -> None:
        """Tells the wrappers that `step` updates have been made."""
        for wrapper in self._wrappers:
            wrapper.pruning_step.assign(tf.cast(step, tf.int64))

    @property
    def pruned(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """(weight, mask) of all prunable variables."""
        return [(w, m) for one in self._wrappers for w, m, _ in one.pruning_vars]


def _matched(plain: keras.Model, wrapped: keras.Model) -> dict[int, tf.Variable]:
    """Returns the variables of `wrapped`, by the id of those they are copies of."""
    copies = {}
    for layer, copy in zip(plain.layers, wrapped.layers, strict=True):
        if isinstance(layer, keras.Model):
            copies.update(_matched(layer, copy))
            continue
        inner = copy.layer if hasattr(copy, "pruning_vars") else copy
        for variable, own in zip(layer.weights, inner.weights, strict=True):
            copies[id(variable)] = own
    return copies
