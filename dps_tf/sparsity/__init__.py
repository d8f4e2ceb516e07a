"""Sparsity: scores of parameters, the masks made of them, and how both are kept."""

from __future__ import annotations

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
from dps_tf.sparsity.iterative import Iterative
from dps_tf.sparsity.methods import (
    SPARSITY_METHODS,
    OneShot,
    SparsityMethod,
    check_pruning,
    check_reachable,
    masks_for,
    register_sparsity_method,
)
from dps_tf.sparsity.prunable import (
    MaskSet,
    counts_of,
    entries_outside,
    masked,
    roles,
    trainable_positions,
)
from dps_tf.sparsity.pruning_schedule import Scheduled
from dps_tf.sparsity.request import (
    BalancedExamples,
    ExampleReader,
    ExampleWindows,
    MaskRequest,
    ScoreCache,
)
from dps_tf.sparsity.selection import (
    SELECTIONS,
    Candidates,
    kept_count,
    register_selection,
)
from dps_tf.sparsity.sparse_model import load_sparse, save_sparse

__all__ = [
    "SELECTIONS",
    "SPARSITY_METHODS",
    "BalancedExamples",
    "Candidates",
    "ExampleReader",
    "ExampleWindows",
    "Iterative",
    "MaskRequest",
    "MaskSet",
    "OneShot",
    "Scheduled",
    "ScoreCache",
    "SparsityMethod",
    "check_pruning",
    "check_reachable",
    "counts_of",
    "load_sparse",
    "masks_for",
    "register_selection",
    "register_sparsity_method",
    "save_sparse",
]
