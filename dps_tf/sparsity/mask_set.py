"""The masks of a trial and what they amount to, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.sparsity.prunable import KERNEL, VariableRole, prunable_roles


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
        known: their roles, as `prunable.roles` gives them.
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
