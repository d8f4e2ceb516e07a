"""Sparsity: scores, the masks made of them, who carries them, and how they are kept."""

from __future__ import annotations

from dps_tf.sparsity.cache import ScoreCache
from dps_tf.sparsity.mask_set import MaskSet
from dps_tf.sparsity.masks import masks_for
from dps_tf.sparsity.methods import method, names

__all__ = ["MaskSet", "ScoreCache", "masks_for", "method", "names"]
