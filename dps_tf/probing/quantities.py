"""The quantities measured at one update of a trial: smoothness, noise and curvature.

Local smoothness L is how quickly the gradient changes along an update. Source: Lee et
al. 2021, published code (its `lipschitz`). In their theory, c1 of the law
K* = c1 / B + c2 is proportional to L.

The noise scale tr(Sigma) / |G|^2 is how noisy a gradient is; `noise.py` has this noise
scale and the noise scales of optimizers.

Curvature is measured on the Hessian H of the loss before the update: |H g| / |g| along
the gradient g, and the largest eigenvalue of H. The eigenvalue is also given times the
learning rate. If this product is near 2, the rate and not the network decides how sharp
the loss is (Cohen et al. 2021, arXiv 2103.00065).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dps_tf.probing.gradients import ExampleGradients
from dps_tf.probing.noise import euclidean

QUANTITIES = ("smoothness", "gradient_square", "noise_trace", "noise_scale")
"""See `local_smoothness` and `euclidean`; one value each per update."""
CURVATURE = (
    "loss",
    "gradient_curvature",
    "largest_eigenvalue",
    "rate_times_eigenvalue",
)
"""Mean loss, |H g| / |g|, the largest eigenvalue of H, and the rate times it."""
PRODUCTS = 10
"""Most products of the Hessian and a vector that an eigenvalue is computed from."""
GAMMAS = tuple(i / 10 for i in range(1, 10))
"""Fractions of an update at which the gradient is compared."""

Tensors = Sequence[np.ndarray]


def measure_update(
    gradients: ExampleGradients,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    masks: Sequence[np.ndarray] | None = None,
    point: Mapping[str, float] | None = None,
    rate: float | None = None,
) -> dict[str, float]:
    """Returns QUANTITIES of an update by name, and with `rate` also CURVATURE.

    Smoothness is computed from gradients over all examples, noise from these and from
    the gradients of batches. QUANTITIES cost ten gradients over all examples, CURVATURE
    as much as some thirty more.

    Args:
        gradients: gradients over the chosen examples.
        before: weights of the network before the update.
        after: weights of the network after the update.
        masks: see `ExampleGradients.at`.
        point: see `ExampleGradients.at`.
        rate: learning rate of the update; None measures no curvature.
    """
    base = gradients.at(before, masks, point)

    def gradient(place: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        moved = gradients.with_trainable(before, place)
        return gradients.at(moved, masks, point).values

    noise = euclidean(base)
    smoothness = local_smoothness(
        gradient, gradients.trainable(before), gradients.trainable(after), base.values
    )
    numbers = (smoothness, noise.gradient_square, noise.noise_trace, noise.scale)
    measured = dict(zip(QUANTITIES, numbers, strict=True))
    if rate is None:
        return measured
    losses = []

    def product(vector: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        loss, values = gradients.hessian_product(before, vector, masks, point)
        losses.append(loss)
        return values

    along, largest = curvature(product, base.values)
    values = (losses[0] if losses else float("nan"), along, largest, rate * largest)
    return measured | dict(zip(CURVATURE, values, strict=True))


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
        gradient: returns the gradient of the loss at given weights.
        before: w, one array per trained variable.
        after: w after one update.
        at_before: the gradient at w; None computes it.
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


def curvature(
    product: Callable[[Tensors], Tensors], gradient: Tensors, products: int = PRODUCTS
) -> tuple[float, float]:
    """Returns (|H g| / |g|, largest eigenvalue of H), NaN without a finite gradient.

    The eigenvalue is the largest of H on the span of g, H g, ..., H^(n - 1) g, by the
    Lanczos method with full reorthogonalization. It is never above the largest of H,
    and never below the estimate of n steps of power iteration from g.

    >>> curvature(lambda v: [np.array([1.0, 4.0]) * v[0]], [np.array([3.0, 4.0])], 2)
    (3.2557641192199416, 4.0)

    Args:
        product: returns H times a vector; both have one array per variable.
        gradient: g, one array per variable.
        products: n, the most calls of `product`.
    """
    shapes = [np.shape(part) for part in gradient]
    vector = np.concatenate([_wide(part).ravel() for part in gradient])
    length = float(np.linalg.norm(vector))
    if not 0 < length < np.inf:
        return float("nan"), float("nan")
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    basis, rows, along = [vector / length], [], float("nan")
    for turn in range(min(products, vector.size)):
        parts = [
            part.reshape(shape)
            for part, shape in zip(np.split(basis[-1], ends), shapes, strict=True)
        ]
        image = np.concatenate([_wide(part).ravel() for part in product(parts)])
        if turn == 0:
            along = float(np.linalg.norm(image))
        if not np.isfinite(image).all():
            return along, float("nan")
        rows.append([float(np.dot(axis, image)) for axis in basis])
        rest = image
        for _ in range(2):  # a single pass is not enough in floating point
            for axis in basis:
                rest = rest - np.dot(axis, rest) * axis
        remaining = float(np.linalg.norm(rest))
        if remaining <= 1e-6 * max(along, float(np.linalg.norm(image))):
            break
        basis.append(rest / remaining)
    size = len(rows)
    projected = np.zeros((size, size))
    for column, values in enumerate(rows):
        projected[: len(values), column] = projected[column, : len(values)] = values
    return along, float(np.linalg.eigvalsh(projected)[-1])


def _wide(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64)


def _norm(parts: Tensors) -> float:
    """Returns the Euclidean norm over all arrays together."""
    return float(np.sqrt(sum(np.vdot(part, part) for part in parts)))
