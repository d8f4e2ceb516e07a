"""The prunable variables of a network, and the masks over them, layer by layer.

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
    found = {id(variable): i for i, variable in enumerate(network.weights)}
    return tuple(found[id(variable)] for variable in network.trainable_variables)


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
    for position, mask in zip(trainable_positions(network), masks, strict=True):
        result[position] *= mask.astype(result[position].dtype)
    return result


@dataclass(frozen=True)
class MaskSet:
    """The masks of a trial and what they amount to.

    Attributes:
        masks: float32 0/1, one per trainable variable.
        realised_sparsity: zero fraction of the prunable parameters.
        layers: one row per prunable variable: `name` (`layer/variable`), `role`
            (`kernel` or `bias`), `parameters`, `kept`, `emptied`. A layer is emptied
            when its kernel is; rows of biases are never `emptied`, see `kept`.
        examples: training examples the scores were computed on (per round).
    """

    masks: list[np.ndarray]
    realised_sparsity: float
    layers: list[dict[str, Any]]
    examples: int = 0


def describe(
    masks: Sequence[np.ndarray],
    known: Sequence[VariableRole],
    prunable: str,
    examples: int = 0,
) -> MaskSet:
    """Returns the masks with their sparsity, counted over the prunable set.

    Args:
        masks: one per trainable variable.
        known: their roles, as `roles` gives them.
        prunable: `kernels` or `kernels_and_biases`.
        examples: training examples behind the masks.
    """
    wanted = prunable_roles(prunable)
    rows: list[dict[str, Any]] = []
    for mask, role in zip(masks, known, strict=True):
        if role.role in wanted:
            kept = int(np.count_nonzero(mask))
            rows.append(
                {
                    "name": role.name,
                    "role": role.role,
                    "parameters": int(mask.size),
                    "kept": kept,
                    "emptied": role.role == KERNEL and kept == 0,
                }
            )
    parameters = sum(row["parameters"] for row in rows)
    kept = sum(row["kept"] for row in rows)
    realised = 1 - kept / parameters if parameters else 0.0
    return MaskSet(list(masks), realised, rows, examples)
