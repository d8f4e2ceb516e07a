"""A sparsity method: LAMP, layer-adaptive magnitudes (J. Lee et al. 2021, eq. 6)."""

from __future__ import annotations

import numpy as np

from dps_tf import register_sparsity_method
from dps_tf.sparsity import OneShot


def lamp(request, progress):
    """Returns w^2 over the sum of the squares in its layer that are not smaller."""
    scores = []
    for weights in request.theta:
        squares = np.square(weights, dtype=np.float64).ravel()
        order = np.argsort(squares)
        not_smaller = np.cumsum(squares[order][::-1])[::-1]
        score = np.empty_like(squares)
        score[order] = squares[order] / np.maximum(not_smaller, 1e-30)
        scores.append(score.reshape(weights.shape))
    return scores


register_sparsity_method("lamp", OneShot(lamp))
