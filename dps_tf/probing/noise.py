"""Gradient noise scales: in Euclidean geometry, and in the geometry of an optimizer.

A noise scale is the batch size at which the noise of a gradient is as large as the
gradient G of the expected loss. Sigma is the covariance of the gradient of one example:
the covariance of means of batches times their size. An optimizer that measures updates
in another geometry than Euclid's has a noise scale of its own: `of_optimizer` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dps_tf.core import UserError
from dps_tf.optim import Optimizer, Rule, elementwise, tensorwise
from dps_tf.optim.tensorwise import matrix_shape
from dps_tf.probing.gradients import MeanGradient

OPTIMIZER_NOISE = (
    "optimizer_gradient_square",
    "optimizer_noise_trace",
    "optimizer_noise_scale",
)
"""Denominator, numerator and ratio of `of_optimizer`; one value each per update."""

Tensors = Sequence[np.ndarray]
Slots = Mapping[str, Sequence[Any]]

_ROUNDING = 1e-6
"""Of the greatest: a root of v' below it is rounding of float32."""
_SIDES = ("left", "right")
_EUCLIDEAN = (
    elementwise.SGD,
    elementwise.MOMENTUM,
    elementwise.NESTEROV,
    elementwise.SCHEDULE_FREE,
)
_ADAMS = (
    elementwise.ADAM,
    elementwise.ADAMW,
    elementwise.SCHEDULE_FREE_ADAMW,
    tensorwise.LAMB,
    tensorwise.SOAP,
)


@dataclass(frozen=True)
class NoiseEstimate:
    """Square norm and noise of the gradient, estimated from batches.

    Attributes:
        gradient_square: estimate of |G|^2, or of the square of another norm; one
            without bias may come out negative.
        noise_trace: estimate of tr(Sigma), or of what takes its place in another
            norm, in units of `gradient_square` per example.
    """

    gradient_square: float
    noise_trace: float

    @property
    def scale(self) -> float:
        """The ratio tr(Sigma) / |G|^2 in examples; NaN unless `gradient_square` > 0.

        A ratio of two unbiased estimates is biased: average the estimates over updates,
        never their ratios.
        """
        if not self.gradient_square > 0:
            return float("nan")
        return self.noise_trace / self.gradient_square


def estimate(
    small: int, small_square: float, big: int, big_square: float
) -> NoiseEstimate:
    """Returns the unbiased estimate from the gradients of two batch sizes.

    >>> estimate(1, 5.0, 4, 2.0)
    NoiseEstimate(gradient_square=1.0, noise_trace=4.0)

    Both values are NaN if the sizes are equal, because one size cannot separate them.
    `small` and `big`: examples of the batches; `small_square` and `big_square`: square
    norms of their gradients, or means of several.
    """
    if small == big:
        return NoiseEstimate(float("nan"), float("nan"))
    return NoiseEstimate(
        gradient_square=(big * big_square - small * small_square) / (big - small),
        noise_trace=(small_square - big_square) / (1 / small - 1 / big),
    )


def euclidean(mean: MeanGradient) -> NoiseEstimate:
    """Returns |G|^2 and tr(Sigma), without bias, over all variables together.

    The gradient of B examples has E|G_B|^2 = |G|^2 + tr(Sigma) / B. Source: McCandlish
    et al. 2018 (arXiv 1812.06162), appendix A.1.
    """
    return estimate(mean.batch_size, mean.batch_square, mean.examples, mean.square)


def preconditioned(
    mean: MeanGradient, batches: Iterable[Tensors], root: Callable[[Tensors], Tensors]
) -> NoiseEstimate:
    """Returns G^T P G and tr(P Sigma), without bias for a P that is given.

    This is the Euclidean pair in the coordinates in which an optimizer that moves along
    P g follows the gradient. McCandlish et al. 2018 leave preconditioning out of their
    scale and name that as a limit of it; this form is our own.

    Args:
        mean: the gradient over all examples.
        batches: means of the gradient over full batches of `mean.batch_size`.
        root: returns S g, for P = S^T S.
    """
    squares = [_square(root(batch)) for batch in batches]
    of_mean = _square(root(mean.values))
    return estimate(mean.batch_size, float(np.mean(squares)), mean.examples, of_mean)


def sign(mean: MeanGradient, batches: Iterable[Tensors]) -> NoiseEstimate:
    """Returns |G|_1^2 and |sigma|_1^2, in the dual norm of sign descent.

    sigma is the standard deviation of each coordinate of the gradient of one example;
    sums are over all variables. Source: Naganuma et al. 2026 (arXiv 2602.03001).

    Both are biased. Noise adds to |G|_1, so that the ratio levels off near pi / 2 times
    `mean.examples` where the gradient is all noise. Sigma from n batches is low by a
    share of about 1 / (4 n).
    """
    variances = _covariances(mean, batches, np.square)
    trace = sum(np.sqrt(np.maximum(v, 0.0)).sum() for v in variances)
    norm = sum(np.abs(part).sum() for part in mean.values)
    return NoiseEstimate(float(norm**2), float(trace**2))


def spectral(mean: MeanGradient, batches: Iterable[Tensors]) -> NoiseEstimate:
    """Returns (sum |G|_*)^2 and (sum tr C^(1/2))^2, in the dual norm of Muon.

    For each matrix, |G|_* is the nuclear norm and C is E[(g - G)(g - G)^T] of one
    example, on the smaller side; sums are over the variables, all of them matrices.
    Source: Naganuma et al. 2026 (arXiv 2602.03001) with their published code, which
    takes the smaller side, adds before it squares and leaves vectors out.

    Both are biased as in `sign`; the ratio levels off at 1 to pi / 2 times
    `mean.examples`.
    """
    roots = [np.linalg.eigvalsh(c) for c in _covariances(mean, batches, _gram)]
    trace = sum(np.sqrt(np.maximum(values, 0.0)).sum() for values in roots)
    norm = sum(np.linalg.norm(_matrix(part), "nuc") for part in mean.values)
    return NoiseEstimate(float(norm**2), float(trace**2))


def of_optimizer(  # noqa: PLR0913 - an update, and the gradients at it
    optimizer: Optimizer,
    point: Mapping[str, float],
    step: int,
    before: Slots,
    after: Slots,
    mean: MeanGradient,
    batches: Iterable[Tensors],
) -> NoiseEstimate:
    """Returns the noise in the geometry of an optimizer's update from a step.

    It is `euclidean` for SGD and its momenta, `preconditioned` for Adam and its kin,
    `sign` for Lion, and `spectral` for Muon, over the matrices that Muon
    orthogonalizes: vectors and embeddings, which it leaves to AdamW, are left out.

    `point`: as of `Optimizer.values`; `before` and `after`: slots around the update;
    `mean` and `batches`: taken before it. UserError if there is none for the optimizer,
    or workers have own slots.
    """
    kind = optimizer.rule
    if kind in _EUCLIDEAN:
        return euclidean(mean)
    if kind in _ADAMS and optimizer.workers == 1:
        root = adam_root(optimizer.rule, point, step, before, after)
        return preconditioned(mean, batches, root)
    if kind is elementwise.LION:
        return sign(mean, batches)
    if kind is tensorwise.MUON:
        kept = [i for i, slot in enumerate(after["velocities"]) if slot is None]
        matrices = replace(mean, values=tuple(mean.values[i] for i in kept))
        return spectral(matrices, ([batch[i] for i in kept] for batch in batches))
    raise UserError(
        f"optimizer {optimizer.name!r}, with {optimizer.workers} workers, has no noise "
        "scale of its own: leave --optimizer_noise out."
    )


def adam_root(
    rule: Rule, point: Mapping[str, float], step: int, before: Slots, after: Slots
) -> Callable[[Tensors], Tensors]:
    """Returns S of an update of Adam or its kin, for `preconditioned`.

    P is diagonal, 1 / (sqrt(v') + epsilon), with the v' that the update divided by,
    bias corrected; for SOAP, P is diagonal in the bases of the update. P is 0 where v'
    is 0, or rounding beside the greatest v' of its variable: no gradient has come there
    yet. The rate and LAMB's trust ratio, a factor of each matrix, are left out.
    """
    # The first update of SOAP leaves v' at zero.
    updates = max(step, 1) if rule is tensorwise.SOAP else step + 1
    correction = 1 - point["beta_2"] ** updates
    roots = []
    for velocity in after["velocities"]:
        deviation = np.sqrt(np.asarray(velocity, np.float64) / correction)
        scaled = 1 / (deviation + point["epsilon"])
        is_seen = deviation > _ROUNDING * deviation.max()
        roots.append(np.sqrt(np.where(is_seen, scaled, 0.0)))
    bases = [before.get(f"{side}_basis", [None] * len(roots)) for side in _SIDES]

    def root(gradient: Tensors) -> Tensors:
        rotated = map(_rotated, gradient, *bases)
        return [r * g.reshape(r.shape) for r, g in zip(roots, rotated, strict=True)]

    return root


def _rotated(part: np.ndarray, left: Any, right: Any) -> np.ndarray:
    """Returns QL^T g QR; a basis that is None changes nothing."""
    part = part if left is None else left.T @ _matrix(part)
    return part if right is None else _matrix(part) @ right


def _covariances(
    mean: MeanGradient,
    batches: Iterable[Tensors],
    square: Callable[[np.ndarray], np.ndarray],
) -> list[np.ndarray]:
    """Returns E[square(g - G)] of one example for each variable, without bias."""
    sums: list[Any] = [(0.0, 0.0) for _ in mean.values]
    count = 0
    for batch in batches:
        parts = zip(sums, batch, strict=True)
        sums = [(one + g, two + square(g)) for (one, two), g in parts]
        count += 1
    factor = mean.batch_size / (count - 1)
    return [factor * (two - count * square(one / count)) for one, two in sums]


def _gram(part: np.ndarray) -> np.ndarray:
    """Returns M M^T or M^T M of a variable as a matrix, the smaller one."""
    matrix = _matrix(part)
    rows, columns = matrix.shape
    return matrix @ matrix.T if rows <= columns else matrix.T @ matrix


def _matrix(part: np.ndarray) -> np.ndarray:
    return part.reshape(matrix_shape(part))


def _square(parts: Tensors) -> float:
    return float(sum(np.vdot(part, part) for part in parts))
