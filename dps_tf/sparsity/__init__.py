"""Sparsity: scores of parameters, the masks made of them, and how both are kept."""

from __future__ import annotations

from dps_tf.sparsity.cache import ScoreCache
from dps_tf.sparsity.masks import masks_for
from dps_tf.sparsity.methods import method, names
from dps_tf.sparsity.prunable import MaskSet

__all__ = ["MaskSet", "ScoreCache", "masks_for", "method", "names"]
