"""Second moments of one coordinate under SGD, momentum and weight averaging.

With x = lr p h and n = (lr p)^2 h / B, one step is a linear map of the second moments
plus n. Source: Zhang et al. 2019, published code (its equations 21 and 38).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]


def sgd_moment(x: Floats, n: Floats, steps: Floats) -> Floats:
    """Returns E[theta^2] after k steps of SGD from 1, in closed form.

    b^k + n (1 - b^k) / (1 - b) with b = (1 - x)^2; arguments broadcast.
    """
    with np.errstate(divide="ignore"):
        log_b = 2 * np.log(np.abs(1 - x))
    # At x = 1 one step forgets everything: log b is then minus infinity.
    power = np.where(steps == 0, 1.0, np.exp(log_b * np.maximum(steps, 1)))
    rest = x * (2 - x)
    # x = 2 is the edge of stability: each step then adds the noise once.
    flat = np.abs(rest) < 1e-14
    total = np.where(flat, steps, (1 - power) / np.where(flat, 1.0, rest))
    return np.asarray(power + n * total, np.float64)


def start(optimizer: str, momentum: float) -> Floats:
    """Returns (E[theta^2], E[w^2], E[theta w], 1) before the first step.

    w is the velocity under `momentum`, and under `ema` the sum that is averaged, which
    starts at theta / (1 - g).
    """
    if optimizer == "momentum":
        return np.array([1.0, 0.0, 0.0, 1.0])
    return np.array([1.0, (1 - momentum) ** -2, 1 / (1 - momentum), 1.0])


def one_step(optimizer: str, x: Floats, n: Floats, momentum: float) -> Floats:
    """Returns the map of one step on the state of `start`, [..., 4, 4]."""
    rows = _momentum_rows if optimizer == "momentum" else _average_rows
    matrix = np.zeros((*x.shape, 4, 4))
    matrix[..., :3, :3] = rows(x, momentum)
    matrix[..., :3, 3] = n[..., None]
    matrix[..., 3, 3] = 1.0
    return matrix


def powers(matrix: Floats, largest: int) -> list[Floats]:
    """Returns the maps of 1, 2, 4, ... steps, as many as `largest` has bits."""
    found = [matrix]
    for _ in range(1, max(largest, 1).bit_length()):
        found.append(found[-1] @ found[-1])
    return found


def _momentum_rows(x: Floats, m: float) -> Floats:
    """Returns the map of v <- m v - x theta + noise, theta <- theta + v."""
    ones = np.ones_like(x)
    rows = [
        [(1 - x) ** 2, m**2 * ones, 2 * (1 - x) * m],
        [x**2, m**2 * ones, -2 * x * m],
        [-x * (1 - x), m**2 * ones, (1 - 2 * x) * m],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _average_rows(x: Floats, g: float) -> Floats:
    """Returns the map of theta <- (1 - x) theta + noise, w <- g w + theta."""
    zeros = np.zeros_like(x)
    rows = [
        [(1 - x) ** 2, zeros, zeros],
        [(1 - x) ** 2, g**2 * np.ones_like(x), 2 * g * (1 - x)],
        [(1 - x) ** 2, zeros, g * (1 - x)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
