"""Keras networks by name, for workloads to train.

Every builder takes `(input_shape, classes, **arguments)` and returns a functional
tf_keras model that outputs logits, so that losses and metrics have one form of input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dps_tf._keras import keras, own_settings
from dps_tf.core import (
    FLOAT32,
    Registry,
    UserError,
    Workload,
    arguments_of,
    own_code,
    remembered,
)
from dps_tf.models import image_networks, language_networks
from dps_tf.models.functional import functional, given, varying_averages
from dps_tf.models.initial_point import check_drawn, initial_point, noting_initializers
from dps_tf.models.randomness import (
    StepDraws,
    check_graph,
    draws_at_random,
    seed_layers,
)
from dps_tf.models.structure import (
    check_functional,
    check_link,
    check_logits,
    check_values,
    code_hash,
    nodes_of,
    structure_hash,
)

Builder = Callable[..., keras.Model]

NETWORKS: Registry[Builder] = Registry("network", 2)
"""The registered networks. The first two arguments of a builder are the shape of an
input and the number of classes; `workload.network_arguments` gives the others."""


def register(name: str, builder: Builder) -> None:
    """Makes `build(name, ...)` call `builder(input_shape, classes, **arguments)`.

    The builder returns a functional tf_keras model that outputs logits. See
    `Registry.register` for errors.

    Example:
        >>> import dps_tf
        >>> def linear(input_shape, classes):
        ...     inputs = keras.Input(input_shape)
        ...     logits = keras.layers.Dense(classes)(keras.layers.Flatten()(inputs))
        ...     return keras.Model(inputs, logits)
        >>> dps_tf.register_network("linear", linear)
    """
    NETWORKS.register(name, builder, arguments_of(builder, 2))


for _builder in (
    image_networks.simple_cnn,
    image_networks.resnet8,
    image_networks.mlp,
    image_networks.mlp_batch_norm,
    image_networks.shallue2019_simple_cnn,
    image_networks.vgg11,
    image_networks.resnet50,
    image_networks.vit,
    language_networks.tiny_transformer,
    language_networks.transformer,
    language_networks.lstm,
    language_networks.gpt,
):
    register(_builder.__name__, _builder)


def build(
    name: str, input_shape: Sequence[int | None], classes: int, **arguments: Any
) -> keras.Model:
    """Returns a new model: [batch, *input_shape] -> logits [batch, ..., classes].

    Args:
        name: name of a registered network.
        input_shape: shape of an input; [None] for sequences of any length, if the
            network takes them.
        classes: number of classes.
        arguments: further arguments of the builder, for example `widths`.

    Raises:
        UserError: the name or an argument is unknown, the builder fails, or it returns
            no functional model of tf_keras.
    """
    resolved = NETWORKS.resolve(name, arguments)
    what = f"network {name!r} with {arguments} for inputs of {tuple(input_shape)}"
    with own_settings(), noting_initializers(), own_code(what, "change one of them"):
        model = NETWORKS[name](tuple(input_shape), classes, **resolved)
    check_functional(name, model, input_shape)
    check_drawn(name, model)
    return model


def build_for(
    workload: Workload, input_shape: Sequence[int | None], classes: int
) -> keras.Model:
    """Returns a new network of a workload in float32; see `build`."""
    arguments = workload.network_arguments
    return build(workload.network, input_shape, classes, **arguments)


def scratch_for(
    workload: Workload, input_shape: Sequence[int | None], classes: int
) -> keras.Model:
    """Returns the network of a workload, the same for all cells; weights are arbitrary.

    So its passes are traced once. The last two networks stay in memory.
    """
    arguments = workload.network_arguments
    return _built(workload.network, arguments, tuple(input_shape), classes)


@remembered(2)
def _built(
    name: str, arguments: Mapping[str, Any], input_shape: Sequence[Any], classes: int
) -> keras.Model:
    return build(name, input_shape, classes, **arguments)


def check_same(
    workload: Workload, input_shape: Sequence[int | None], classes: int
) -> None:
    """Raises UserError if two builds of a network differ, or their initial points."""
    # Replays build from records, which hold JSON.
    recorded = json.loads(json.dumps(dict(workload.network_arguments), sort_keys=True))
    first = build_for(workload, input_shape, classes)
    again = build(workload.network, input_shape, classes, **recorded)
    same = structure_hash(first) == structure_hash(again)
    points = (initial_point(built, 0) for built in (first, again))
    if not (same and all(map(np.array_equal, *points))):
        raise UserError(
            f"network {workload.network!r} differs from build to build, as where NumPy "
            "draws constants, or the order of a dictionary counts, or a tuple, which "
            "no record keeps: its function has to give the same network each time, so "
            "give its generator a fixed seed, draw by an initializer, or take lists."
        )


def in_precision(model: keras.Model, precision: str) -> keras.Model:
    """Returns a network of the same form and names that computes in `precision`.

    With `mixed_bfloat16`, layers compute in bfloat16. Variables, their gradients and
    the output layers are float32, because 8 bits cannot separate large logits. A layer
    with another policy than float32 keeps it. With `float32`, the model itself is
    returned. Keras's global policy is not changed.

    Args:
        model: functional model of layers that `get_config` describes; the values of its
            variables are not copied.
        precision: name of a Keras policy.

    Raises:
        UserError: the copy has other variables than the model.
    """
    if precision == FLOAT32:
        return model
    with own_settings(), noting_initializers():
        copy = _copied(model, precision, keeps_outputs=True)
    if _variables(copy) != _variables(model):
        raise UserError(
            f"network {model.name!r} has other variables when it is copied for "
            f"precision {precision!r}: give its layers a get_config that describes "
            "them, or train it in 'float32'."
        )
    return copy


def _copied(model: keras.Model, precision: str, keeps_outputs: bool) -> keras.Model:
    exits = {id(tensor._keras_history.layer) for tensor in model.outputs}

    def copied(layer: keras.layers.Layer) -> keras.layers.Layer:
        stays = keeps_outputs and id(layer) in exits
        if isinstance(layer, keras.Model):
            return _copied(layer, precision, keeps_outputs=stays)
        config = layer.get_config()
        if not stays and layer.dtype_policy.name == FLOAT32:
            config["dtype"] = precision
            if "cell" in config:
                # The cell of a recurrent layer is a layer with its own policy.
                config["cell"]["config"]["dtype"] = precision
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=copied)


def _variables(model: keras.Model) -> list[tuple[str, tuple[int, ...], str]]:
    """Returns (name, shape, dtype) of all variables, in the order of the weights."""
    return [(v.name, tuple(v.shape), v.dtype.name) for v in model.weights]
