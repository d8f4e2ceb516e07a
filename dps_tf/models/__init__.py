"""Keras networks by name: which network does a workload train?

Every builder takes `(input_shape, classes, **arguments)` and returns a functional
tf_keras model whose output is logits, so that losses and goals know one form only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dps_tf._keras import keras
from dps_tf.core.errors import UserError, near_matches
from dps_tf.models import image_networks, language_networks, networks
from dps_tf.models.initial_point import initial_point
from dps_tf.models.precision import in_precision

__all__ = ["build", "in_precision", "initial_point", "names", "register"]

Builder = Callable[..., keras.Model]

_BUILDERS: dict[str, Builder] = {
    "simple_cnn": networks.simple_cnn,
    "resnet8": networks.resnet8,
    "mlp": networks.mlp,
    "mlp_batch_norm": networks.mlp_batch_norm,
    "tiny_transformer": networks.tiny_transformer,
    "shallue2019_simple_cnn": image_networks.shallue2019_simple_cnn,
    "vgg11": image_networks.vgg11,
    "resnet50": image_networks.resnet50,
    "vit": image_networks.vit,
    "transformer": language_networks.transformer,
    "lstm": language_networks.lstm,
    "gpt": language_networks.gpt,
}


def names() -> tuple[str, ...]:
    """Returns the names that `build` knows, in alphabetical order."""
    return tuple(sorted(_BUILDERS))


def register(name: str, builder: Builder) -> None:
    """Makes `build(name, ...)` call `builder(input_shape, classes, **arguments)`.

    Side effect: changes the registry of this process. Registering the same builder
    again changes nothing; another builder under a taken name is refused.
    """
    if _BUILDERS.setdefault(name, builder) is not builder:
        raise UserError(f"a model named {name!r} is registered already")


def build(
    name: str, input_shape: Sequence[int], classes: int, **arguments: Any
) -> keras.Model:
    """Returns a new model: [batch, *input_shape] -> logits [batch, ..., classes].

    `arguments`: those of the builder beyond the first two, for example `widths`.
    Raises UserError for an unknown name or argument.
    """
    if name not in _BUILDERS:
        raise UserError(f"no model is named {name!r}: {near_matches(name, _BUILDERS)}")
    builder = _BUILDERS[name]
    parameters = inspect.signature(builder).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for argument in arguments:
        if argument not in parameters and not open_ended:
            allowed = near_matches(argument, list(parameters)[2:])
            raise UserError(f"model {name!r} takes no argument {argument!r}: {allowed}")
    return builder(tuple(input_shape), classes, **arguments)
