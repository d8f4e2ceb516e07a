"""Sparsity: scores of parameters, the masks made of them, and how both are kept."""

from __future__ import annotations

import dps_tf._keras  # noqa: F401 - imports TensorFlow without its start-up lines
import dps_tf.sparsity.scores  # noqa: F401 - registers the shipped methods
from dps_tf.sparsity.methods import (
    Iterative,
    OneShot,
    SparsityMethod,
    check_pruning,
    masks_for,
    register_sparsity_method,
)
from dps_tf.sparsity.prunable import (
    MaskSet,
    entries_outside,
    masked,
    roles,
    trainable_positions,
)
from dps_tf.sparsity.pruner import (
    Pruner,
    check,
    check_data,
    gradual_of,
    own_code,
    prunes_while_training,
)
from dps_tf.sparsity.pruning_schedule import Scheduled
from dps_tf.sparsity.request import (
    SPARSITY_METHODS,
    BalancedExamples,
    ExampleReader,
    ExampleWindows,
    MaskRequest,
    ScoreCache,
)
from dps_tf.sparsity.selection import (
    SELECTIONS,
    Candidates,
    register_selection,
)
from dps_tf.sparsity.sparse_model import save_sparse
