"""The prunable variables of a network, and the masks over them, layer by layer.

A kernel is a trainable variable of rank 2 or more: kernels of dense, convolutional,
depthwise and recurrent layers, embeddings. A bias is one whose name ends in `bias`, of
any rank. The scales and shifts of normalization layers (`gamma`, `beta`) are neither
and are never pruned: a removed scale would remove a whole channel at the price of one
parameter.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf._keras import keras
from dps_tf.core import check_known

KERNEL, BIAS, OTHER = "kernel", "bias", "other"
PRUNABLE_SETS: dict[str, frozenset[str]] = {
    "kernels": frozenset({KERNEL}),
    "kernels_and_biases": frozenset({KERNEL, BIAS}),
}
_NEVER = ("gamma", "beta")


@dataclass(frozen=True)
class VariableRole:
    """The role of a trainable variable in pruning."""

    name: str  # `layer/variable`, for example `conv1/kernel`; no other has the same
    layer: str  # name of the layer that owns the variable; see `roles`
    role: str  # `kernel`, `bias` or `other`

    def is_in(self, prunable: str) -> bool:
        """Returns whether it belongs to a prunable set; UserError if there is none."""
        check_known("prunable", prunable, PRUNABLE_SETS)
        return self.role in PRUNABLE_SETS[prunable]


def roles(network: keras.Model) -> tuple[VariableRole, ...]:
    """Returns one role per variable, in the order of `network.trainable_variables`.

    A layer inside of others goes by its own name, or by all names from the outermost
    where another layer has the same, such as `attention2/query`. Further variables of
    equal names are numbered: `layer/kernel_2`.
    """
    paths = {
        id(variable): path
        for path, layer in _layers(network)
        for variable in layer._trainable_weights
    }
    ends = Counter(path[-1] for path in set(paths.values()))
    layers = {
        key: "/".join(path) if ends[path[-1]] > 1 else path[-1]
        for key, path in paths.items()
    }
    found, seen = [], Counter[str]()
    for variable in network.trainable_variables:
        role = _role(variable, layers.get(id(variable)))
        seen[role.name] += 1
        number = f"_{seen[role.name]}" if seen[role.name] > 1 else ""
        found.append(dataclasses.replace(role, name=role.name + number))
    return tuple(found)


def _layers(
    layer: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (names from the outermost layer on, layer) of all layers inside of one."""
    for part in layer._flatten_layers(recursive=False, include_self=False):
        own = (*path, part.name)
        yield own, part
        yield from _layers(part, own)


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
    places = {id(variable): i for i, variable in enumerate(network.weights)}
    return tuple(places[id(variable)] for variable in network.trainable_variables)


def masked(
    network: keras.Model, values: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns `values`, with trainable variables multiplied by their masks.

    `values` are in the order of `network.weights`, the 0/1 masks in the order of
    `network.trainable_variables`; the network itself is not changed.
    """
    result = [np.array(value) for value in values]
    for position, mask in zip(trainable_positions(network), masks, strict=True):
        result[position] *= mask.astype(result[position].dtype)
    return result


def entries_outside(
    network: keras.Model, values: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (place, the entries that are not zero although their mask is zero).

    One pair for each trainable variable with such entries; `place` is its position
    among the trainable variables. `values` and `masks` are ordered as for `masked`.
    """
    pairs = zip(trainable_positions(network), masks, strict=True)
    for place, (position, mask) in enumerate(pairs):
        outside = values[position][np.asarray(mask) == 0]
        if outside.any():
            yield place, outside[outside != 0]


@dataclass(frozen=True)
class MaskSet:
    """The masks of a trial and the sparsity of each layer; dense by default.

    Attributes:
        masks: bool, one per trainable variable, False at pruned entries; None where
            nothing is masked, as in a network that is pruned while it trains.
        realised_sparsity: zero fraction of the prunable parameters.
        layers: one row per prunable variable: `name` (`layer/variable`), `role`
            (`kernel` or `bias`), `parameters`, `kept`, `emptied`. A layer is emptied
            when its kernel is; rows of biases are never `emptied`, see `kept`.
        examples: number of training examples that scores read (per round).
    """

    masks: Sequence[np.ndarray] | None = None
    realised_sparsity: float = 0.0
    layers: Sequence[Mapping[str, Any]] = ()
    examples: int = 0


def describe(
    masks: Sequence[np.ndarray],
    variables: Sequence[VariableRole],
    prunable: str,
    examples: int = 0,
) -> MaskSet:
    """Returns masks with their sparsity, counted over a prunable set; see `MaskSet`.

    `variables`: the role of each trainable variable, as `roles` returns it.
    """
    counts = [(int(mask.size), int(np.count_nonzero(mask))) for mask in masks]
    counted = counts_of(counts, variables, prunable)
    held = [np.asarray(mask, bool) for mask in masks]
    return dataclasses.replace(counted, masks=held, examples=examples)


def counts_of(
    counts: Sequence[tuple[int, int]], variables: Sequence[VariableRole], prunable: str
) -> MaskSet:
    """Returns a set without masks from (parameters, kept ones) of each variable.

    `variables` and `prunable` are as in `describe`.
    """
    rows: list[dict[str, Any]] = [
        {
            "name": role.name,
            "role": role.role,
            "parameters": parameters,
            "kept": kept,
            "emptied": role.role == KERNEL and kept == 0,
        }
        for (parameters, kept), role in zip(counts, variables, strict=True)
        if role.is_in(prunable)
    ]
    parameters = sum(row["parameters"] for row in rows)
    kept = sum(row["kept"] for row in rows)
    realised = 1 - kept / parameters if parameters else 0.0
    return MaskSet(None, realised, rows)
