"""A selection that keeps the better entry of each pair of outputs (1:2)."""

from __future__ import annotations

import numpy as np

from dps_tf import register_selection
from dps_tf.core import UserError


def better_of_pairs(candidates, sparsity):
    """Returns masks with one entry of each two along the last axis of a kernel."""
    if sparsity != 0.5:
        raise UserError(f"better_of_pairs prunes one half, not {sparsity}")
    masks = []
    for score in candidates.scores:
        pairs = score.reshape(*score.shape[:-1], -1, 2)
        first = pairs[..., 0] >= pairs[..., 1]
        masks.append(np.stack([first, ~first], axis=-1).reshape(score.shape))
    return masks


register_selection("better_of_pairs", better_of_pairs)
