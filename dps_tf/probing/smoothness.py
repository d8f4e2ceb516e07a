"""How quickly does the gradient change along an update: the local smoothness of a loss.

Source: Lee et al. 2021, published code (its `lipschitz`). Their theory has c1 of the
law K* = c1 / B + c2 proportional to L.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

GAMMAS = tuple(i / 10 for i in range(1, 10))
"""Fractions of an update at which the gradient is compared."""

Tensors = Sequence[np.ndarray]


def local_smoothness(
    gradient: Callable[[Tensors], Tensors],
    before: Tensors,
    after: Tensors,
    at_before: Tensors | None = None,
) -> float:
    """Returns max over g of |grad(w + g d) - grad(w)| / |g d|, g in GAMMAS.

    w = before, d = after - before; norms are over all variables together, in float64.
    With gradients through a mask, pruned coordinates add nothing to either norm. NaN
    where the update is zero or a gradient is not finite.

    >>> steep = lambda point: [np.array([1.0, 3.0]) * point[0]]
    >>> round(local_smoothness(steep, [np.zeros(2)], [np.array([0.0, 0.1])]), 9)
    3.0

    Args:
        gradient: of the loss over a stated set of examples, at a point.
        before: w, one array per trained variable; points have their types.
        after: w after one update.
        at_before: the gradient at w, if it is known already.
    """
    step = [_wide(b) - _wide(a) for a, b in zip(before, after, strict=True)]
    length = _norm(step)
    if not 0 < length < np.inf:
        return float("nan")
    base = gradient(before) if at_before is None else at_before
    ratios = []
    for gamma in GAMMAS:
        point = [
            (_wide(w) + gamma * d).astype(w.dtype)
            for w, d in zip(before, step, strict=True)
        ]
        moved = gradient(point)
        change = [_wide(b) - _wide(a) for a, b in zip(base, moved, strict=True)]
        ratios.append(_norm(change) / (gamma * length))
    return float(np.max(ratios))


def _wide(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64)


def _norm(parts: Tensors) -> float:
    """Returns the Euclidean norm over all arrays together."""
    return float(np.sqrt(sum(np.vdot(part, part) for part in parts)))
