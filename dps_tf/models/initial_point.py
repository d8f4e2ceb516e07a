"""The initial point of a trial: the weights of a network before the first step.

The initial point is a pure function of the network's form and a seed. Every variable is
drawn from its own seed, so it depends neither on other variables, nor on the process,
nor on networks that were built before.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError, derive_seed

# Initializers of stock layers that are not called `<attribute>_initializer`.
_STOCK_NAMES = {
    "recurrent_kernel": "recurrent_initializer",
    "depthwise_kernel": "depthwise_initializer",
    "pointwise_kernel": "pointwise_initializer",
}

_CONSTANTS = keras.initializers.Zeros, keras.initializers.Ones

_NOTED = "_dps_tf_initializer"
"""Name of the attribute that holds a variable's initializer."""
_BEGAN = "_dps_tf_began"
"""Name of the attribute that holds a checksum of a variable's first values."""


def noting_initializers() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which new variables of layers remember their initializers.

    Networks are built in this context. So a variable of `add_weight("scale", [2])` in a
    user's layer is drawn as by Keras: from the initializer of that call, or from
    Keras's default.
    """

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variable = next_creator(**kwargs)
        value = kwargs.get("initial_value")
        # `add_weight` passes a partial of the initializer with the shape.
        if isinstance(value, functools.partial):
            setattr(variable, _NOTED, value.func)
        if tf.executing_eagerly():
            setattr(variable, _BEGAN, _checksum(variable))
        return variable

    return tf.variable_creator_scope(create)


def _checksum(variable: tf.Variable) -> int:
    return zlib.crc32(np.asarray(tf.convert_to_tensor(variable)).tobytes())


def check_drawn(name: str, model: keras.Model) -> None:
    """Raises UserError if values were set in a network, as trials draw their own."""
    for layer in model._flatten_layers():
        # These variables are made in a graph, and `set_weights` changes what they did.
        if getattr(layer, "is_adapted", False) and layer.weights:
            raise UserError(
                f"layer {layer.name!r} ({type(layer).__name__}) of network {name!r} "
                "holds what `adapt` computes of data, and every trial makes its "
                "network anew: give the layer these values as arguments, or change the "
                "examples by the data set's `preprocess`."
            )
    for variable in model.weights:
        began = getattr(variable, _BEGAN, None)
        if began is not None and began != _checksum(variable):
            raise UserError(
                f"network {name!r} sets the values of {variable.name!r}, and each "
                "trial draws its own: give an initializer that returns them, as "
                "keras.initializers.Constant does."
            )


def initial_point(model: keras.Model, seed: int) -> list[np.ndarray]:
    """Returns one array per variable, in the order of `model.weights`.

    Each array is drawn on the CPU from a copy of the variable's initializer, with a
    seed derived from (`seed`, position in `model.weights`); the model is not changed.
    The initializer is the layer's attribute `<variable>_initializer` or, in a network
    of `models.build`, the one passed to `add_weight`.

    Raises:
        UserError: a variable has no such initializer, or one that draws without a seed.
    """
    initializers = _initializers(model)
    point = []
    for position, variable in enumerate(model.weights):
        noted = getattr(variable, _NOTED, None)
        initializer = initializers.get(id(variable), noted)
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
    """Returns the initializers of all layers by the id of their variables."""
    initializers = {}
    for layer in model._flatten_layers():
        for attribute, value in list(vars(layer).items()):
            if not isinstance(value, tf.Variable):
                continue
            name = f"{attribute.lstrip('_')}_initializer"
            initializer = getattr(layer, _STOCK_NAMES.get(attribute, name), None)
            if initializer is not None:
                initializers[id(value)] = keras.initializers.get(initializer)
    return initializers


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
        is_sure = takes_seed or type(initializer) in _CONSTANTS
        again = value if is_sure else initializer(variable.shape, variable.dtype)
    if not np.array_equal(value, again):
        raise UserError(
            f"the initializer of variable {variable.name!r} draws at random but has no "
            "`seed` in its get_config(): give it one, so that trials can be repeated"
        )
    return value
