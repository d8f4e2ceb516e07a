"""Which variables of a network may be pruned, and what are they called?

A kernel is a trainable variable of rank 2 or more: kernels of dense, convolutional,
depthwise and recurrent layers, embeddings. A bias is one whose name ends in `bias`, of
any rank. The scales and shifts of normalization layers (`gamma`, `beta`) are neither
and are never pruned: a removed scale would remove a whole channel at the price of one
parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf._keras import keras
from dps_tf.core.errors import UserError, near_matches

KERNEL, BIAS, OTHER = "kernel", "bias", "other"
PRUNABLE_SETS: dict[str, frozenset[str]] = {
    "kernels": frozenset({KERNEL}),
    "kernels_and_biases": frozenset({KERNEL, BIAS}),
}
_NEVER = ("gamma", "beta")


@dataclass(frozen=True)
class VariableRole:
    """What a trainable variable is to pruning.

    Attributes:
        name: `layer/variable`, for example `conv1/kernel`.
        layer: name of the layer that owns it.
        role: `kernel`, `bias` or `other`.
    """

    name: str
    layer: str
    role: str

    def is_in(self, prunable: str) -> bool:
        """Returns whether the variable belongs to the prunable set of that name."""
        return self.role in prunable_roles(prunable)


def prunable_roles(prunable: str) -> frozenset[str]:
    """Returns the roles of a prunable set; UserError for an unknown name."""
    if prunable not in PRUNABLE_SETS:
        raise UserError(
            f"prunable {prunable!r} is unknown: {near_matches(prunable, PRUNABLE_SETS)}"
        )
    return PRUNABLE_SETS[prunable]


def roles(network: keras.Model) -> tuple[VariableRole, ...]:
    """Returns one role per variable, in the order of `network.trainable_variables`."""
    owners = {
        id(variable): layer.name
        for layer in network._flatten_layers(include_self=False)
        for variable in layer._trainable_weights
    }
    return tuple(_role(v, owners.get(id(v))) for v in network.trainable_variables)


def _role(variable: Any, layer: str | None) -> VariableRole:
    path, _, last = variable.name.removesuffix(":0").rpartition("/")
    layer = path if layer is None else layer
    if last.endswith("bias"):
        role = BIAS
    elif len(variable.shape) >= 2 and last not in _NEVER:
        role = KERNEL
    else:
        role = OTHER
    return VariableRole(f"{layer}/{last}", layer, role)


def trainable_positions(network: keras.Model) -> tuple[int, ...]:
    """Returns where each trainable variable stands in `network.weights`."""
    places = {id(variable): place for place, variable in enumerate(network.weights)}
    return tuple(places[id(variable)] for variable in network.trainable_variables)


def masked(
    network: keras.Model, values: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns `values` with the trainable ones multiplied by their masks.

    Args:
        network: gives the order only; it is not changed.
        values: one per variable, in the order of `network.weights`.
        masks: 0/1, one per variable, in the order of `network.trainable_variables`.
    """
    result = [np.array(value) for value in values]
    for place, mask in zip(trainable_positions(network), masks, strict=True):
        result[place] *= mask.astype(result[place].dtype)
    return result
