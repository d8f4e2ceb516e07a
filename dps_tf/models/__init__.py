"""Keras networks by name: which network does a workload train?

Every builder takes `(input_shape, classes, **arguments)` and returns a functional
tf_keras model whose output is logits, so that losses and goals know one form only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dps_tf._keras import keras
from dps_tf.core.registry import Registry, arguments_of
from dps_tf.models import image_networks, language_networks, networks
from dps_tf.models.initial_point import initial_point
from dps_tf.models.precision import in_precision
from dps_tf.models.structure import check_functional, check_logits

__all__ = [
    "NETWORKS",
    "build",
    "check_logits",
    "in_precision",
    "initial_point",
    "register",
]

Builder = Callable[..., keras.Model]

NETWORKS: Registry[Builder] = Registry("network")
"""What `build` knows; a builder reads its arguments behind the first two."""


def register(name: str, builder: Builder) -> None:
    """Makes `build(name, ...)` call `builder(input_shape, classes, **arguments)`.

    The builder returns a functional tf_keras model whose output is logits. Side effect:
    changes the registry of this process. Registering the same builder again changes
    nothing; another builder under a taken name is refused.
    """
    NETWORKS.register(name, builder, arguments_of(builder, 2))


for _builder in (
    networks.simple_cnn,
    networks.resnet8,
    networks.mlp,
    networks.mlp_batch_norm,
    networks.tiny_transformer,
    image_networks.shallue2019_simple_cnn,
    image_networks.vgg11,
    image_networks.resnet50,
    image_networks.vit,
    language_networks.transformer,
    language_networks.lstm,
    language_networks.gpt,
):
    register(_builder.__name__, _builder)


def build(
    name: str, input_shape: Sequence[int], classes: int, **arguments: Any
) -> keras.Model:
    """Returns a new model: [batch, *input_shape] -> logits [batch, ..., classes].

    `arguments`: those of the builder beyond the first two, for example `widths`.
    Raises UserError for an unknown name or argument, and where the builder returns
    something else than a functional model of tf_keras.
    """
    arguments = NETWORKS.resolve(name, arguments)
    model = NETWORKS[name](tuple(input_shape), classes, **arguments)
    check_functional(name, model)
    return model
