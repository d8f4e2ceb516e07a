"""The initial point of a training: the weights with which a network begins.

The initial point is a pure function of the network's form and a seed: every variable is
drawn from a seed of its own, so that it depends neither on the others, nor on the
process, nor on networks that were built before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError, derive_seed

# Attributes of stock layers whose initializer is not called `<attribute>_initializer`.
_STOCK_NAMES = {
    "recurrent_kernel": "recurrent_initializer",
    "depthwise_kernel": "depthwise_initializer",
    "pointwise_kernel": "pointwise_initializer",
}

_NOTED = "_dps_tf_initializer"
"""Attribute of a variable: the initializer that Keras made it with."""


def noting_initializers() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which each variable that a layer adds keeps its initializer.

    Networks are built in it, so that `add_weight("scale", [2])` of a user's own layer
    is initialized as Keras does: by the initializer that it was given, or by Keras's
    default.
    """

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variable = next_creator(**kwargs)
        value = kwargs.get("initial_value")
        # What `add_weight` hands over: the initializer with the shape it is called for.
        if isinstance(value, functools.partial):
            setattr(variable, _NOTED, value.func)
        return variable

    return tf.variable_creator_scope(create)


def initial_point(model: keras.Model, seed: int) -> list[np.ndarray]:
    """Returns one array per variable, in the order of `model.weights`.

    Each is drawn on the CPU from the initializer of its own layer, made anew with a
    seed derived from (`seed`, position in `model.weights`); the model is not changed.
    The initializer is the layer's attribute `<variable>_initializer` or, of a network
    that `models.build` made, the one that `add_weight` was called with. UserError for a
    variable that has neither, or whose initializer does not give the same values twice.
    """
    found = _initializers(model)
    point = []
    for position, variable in enumerate(model.weights):
        initializer = found.get(id(variable), getattr(variable, _NOTED, None))
        if initializer is None:
            raise UserError(
                f"variable {variable.name!r} of model {model.name!r} has no "
                "initializer: make it by `self.add_weight(...)` inside of the function "
                "that builds the network, so that every trial can draw its own values"
            )
        # 31 bits: stateless random operations take the seed as an int32.
        own_seed = derive_seed(seed, position, "initial_point") % 2**31
        point.append(_draw(initializer, own_seed, variable))
    return point


def _initializers(model: keras.Model) -> dict[int, keras.initializers.Initializer]:
    """Returns the initializers of all layers, indexed by the id of their variable."""
    found = {}
    for layer in model._flatten_layers():
        for attribute, value in list(vars(layer).items()):
            if not isinstance(value, tf.Variable):
                continue
            name = f"{attribute.lstrip('_')}_initializer"
            initializer = getattr(layer, _STOCK_NAMES.get(attribute, name), None)
            if initializer is not None:
                found[id(value)] = keras.initializers.get(initializer)
    return found


def _draw(
    initializer: keras.initializers.Initializer, seed: int, variable: tf.Variable
) -> np.ndarray:
    config: dict[str, Any] = getattr(initializer, "get_config", dict)()
    takes_seed = "seed" in config
    if takes_seed:
        initializer = type(initializer).from_config({**config, "seed": seed})
    with tf.device("CPU:0"):  # accelerators have other generators
        value = np.asarray(initializer(variable.shape, variable.dtype))
        # An initializer without a seed is either constant or not reproducible.
        again = value if takes_seed else initializer(variable.shape, variable.dtype)
    if not np.array_equal(value, again):
        raise UserError(
            f"the initializer of variable {variable.name!r} draws at random but has no "
            "`seed` in its get_config(): give it one, so that trials can be repeated"
        )
    return value
