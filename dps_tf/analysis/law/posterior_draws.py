"""Draws from the posterior of several curves that have one residual scale."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dps_tf.analysis.law.likelihood import SCALE_CEILING, SCALE_FLOOR
from dps_tf.analysis.law.observations import Observations
from dps_tf.analysis.law.posterior import Posterior, posterior
from dps_tf.analysis.tables import Codes, Floats

_DRAWS = 20_000  # The ends of a 95 % interval then move by 1 % of its width.


def joint_draws(
    curves: Mapping[str, Observations], starts: Mapping[str, Floats], scale: float
) -> dict[str, Floats]:
    """Returns draws of (log2 c1, log2 c2) per curve with one common scale, [d, 2].

    The same tables give the same draws.

    Args:
        curves: by name.
        starts: (log2 c1, log2 c2) of least squares, by name.
        scale: residual scale of all curves together, in octaves.
    """
    freedom = sum(len(curve) - 2 for curve in curves.values())
    spread = 6 / np.sqrt(2 * freedom)
    exact = all(curve.is_exact.all() for curve in curves.values())
    # Brackets may be compatible with any smaller scale, exact values are not.
    low = max(scale * np.exp(-spread), SCALE_FLOOR) if exact else SCALE_FLOOR
    high = min(max(scale, 2 * SCALE_FLOOR) * np.exp(spread), SCALE_CEILING)
    ends = (float(np.log(low)), float(np.log(high)))
    grids = {
        name: posterior(curve, starts[name], log_scales=ends)
        for name, curve in curves.items()
    }
    # Given the scale, curves are independent: its weight is a product over them.
    log_weight = np.sum([_log_evidence(grid) for grid in grids.values()], axis=0)
    weight = np.exp(log_weight - log_weight.max())
    rng = np.random.default_rng(0)  # The same tables give the same numbers.
    chosen = rng.choice(len(weight), _DRAWS, p=weight / weight.sum())
    return {name: _draw(grid, chosen, rng) for name, grid in grids.items()}


def _log_evidence(grid: Posterior) -> Floats:
    top = grid.log_weight.max()
    total = np.exp(grid.log_weight - top).sum(axis=(1, 2))
    return np.asarray(np.log(np.maximum(total, 1e-300)) + top, np.float64)


def _draw(grid: Posterior, scales: Codes, rng: np.random.Generator) -> Floats:
    """Returns draws of (log2 c1, log2 c2) given the position of each one's scale."""
    drawn = np.empty((len(scales), 2))
    cells = np.array(
        [grid.log2_c1[1] - grid.log2_c1[0], grid.log2_c2[1] - grid.log2_c2[0]]
    )
    for s in np.unique(scales):
        mine = np.flatnonzero(scales == s)
        weight = np.exp(grid.log_weight[s] - grid.log_weight[s].max()).ravel()
        place = rng.choice(len(weight), len(mine), p=weight / weight.sum())
        first, second = np.divmod(place, len(grid.log2_c2))
        drawn[mine, 0] = grid.log2_c1[first]
        drawn[mine, 1] = grid.log2_c2[second]
    spread = rng.uniform(-0.5, 0.5, drawn.shape) * cells
    return np.asarray(drawn + spread, np.float64)
