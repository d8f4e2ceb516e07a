"""Gradient noise scales: that of Euclidean geometry, and that of an optimizer.

A noise scale is how noisy the gradient of one example is beside the gradient G of the
expected loss: the noise is of the size of the gradient in batches of that many
examples. Sigma is the covariance of the gradient of one example: the covariance of
means of batches times their size. An optimizer that measures updates in another
geometry than Euclid's has a noise scale of its own, each a function here; `of_update`
chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dps_tf.core import UserError
from dps_tf.optim import TensorOptimizer, elementwise, tensorwise
from dps_tf.optim.tensorwise import matrix_shape
from dps_tf.probing.gradients import MeanGradient

OPTIMIZER_NOISE = (
    "optimizer_gradient_square",
    "optimizer_noise_trace",
    "optimizer_noise_scale",
)
"""Denominator, numerator and ratio of `of_update`; average the parts over updates."""

Tensors = Sequence[np.ndarray]
Slots = Mapping[str, np.ndarray]

_EUCLIDEAN = (
    elementwise.GradientDescent,
    elementwise.Momentum,
    elementwise.Nesterov,
    elementwise.ScheduleFree,
)
_ADAMS = (
    elementwise.Adam,
    elementwise.AdamW,
    elementwise.ScheduleFreeAdamW,
    tensorwise.LAMB,
    tensorwise.SOAP,
)


@dataclass(frozen=True)
class Update:
    """One update of a trial, as the noise in the geometry of its optimizer reads it.

    Attributes:
        step: number of updates made before it.
        weights: the trainable variables before it.
        before: the slots of each of them by name, before it.
        after: those after it.
    """

    step: int
    weights: Sequence[np.ndarray]
    before: Sequence[Slots]
    after: Sequence[Slots]


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

    Both are biased: noise adds to |G|_1, so that the ratio levels off near pi / 2 times
    `mean.examples` where the gradient is all noise, and sigma from n batches is low by
    a share of about 1 / (4 n).
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

    Both are biased as those of `sign` are; the ratio levels off at 1 to pi / 2 times
    `mean.examples`.
    """
    roots = [np.linalg.eigvalsh(c) for c in _covariances(mean, batches, _gram)]
    trace = sum(np.sqrt(np.maximum(values, 0.0)).sum() for values in roots)
    norm = sum(np.linalg.norm(_matrix(part), "nuc") for part in mean.values)
    return NoiseEstimate(float(norm**2), float(trace**2))


def of_update(
    optimizer: TensorOptimizer,
    update: Update,
    mean: MeanGradient,
    batches: Iterable[Tensors],
) -> NoiseEstimate:
    """Returns the noise in the geometry of an optimizer at one of its updates.

    It is `euclidean` for SGD and its momenta, `preconditioned` for Adam and its kin,
    `sign` for Lion, and `spectral` for Muon, over the matrices that Muon
    orthogonalizes: vectors and embeddings, which it leaves to AdamW, are left out.

    Args:
        optimizer: the optimizer with the metaparameters of the trial.
        update: the update at which `mean` and `batches` were taken.
        mean: see `preconditioned`.
        batches: see `preconditioned`.

    Raises:
        UserError: the geometry of the optimizer is not here, or workers have slots of
            their own.
    """
    kind = type(optimizer)
    if kind in _EUCLIDEAN:
        return euclidean(mean)
    if optimizer.workers > 1:
        raise UserError(
            f"workers is {optimizer.workers}, and each worker has slots of its own: "
            "leave --optimizer_noise out."
        )
    if kind in _ADAMS:
        return preconditioned(mean, batches, adam_root(optimizer, update))
    if kind is elementwise.Lion:
        return sign(mean, batches)
    if kind is tensorwise.Muon:
        kept = [i for i, slots in enumerate(update.after) if "velocities" not in slots]
        matrices = replace(mean, values=tuple(mean.values[i] for i in kept))
        return spectral(matrices, ([batch[i] for i in kept] for batch in batches))
    raise UserError(
        f"optimizer {optimizer.name!r} has no noise scale of its own: leave "
        "--optimizer_noise out."
    )


def adam_root(
    optimizer: TensorOptimizer, update: Update
) -> Callable[[Tensors], list[np.ndarray]]:
    """Returns S of an update of Adam or its kin, for `preconditioned`.

    P is diagonal, 1 / (sqrt(v') + epsilon), with the v' that the update divided by,
    bias corrected; 0 where v' is 0, because no gradient has come there yet. That of
    SOAP is diagonal in the bases of the update. That of LAMB has its trust ratio in it,
    a factor of each matrix. What multiplies P as a whole, such as the rate, is not.
    """
    value = {name: float(v) for name, v in optimizer.metaparameters.items()}
    is_soap = isinstance(optimizer, tensorwise.SOAP)
    updates = max(update.step, 1) if is_soap else update.step + 1
    roots = []
    for weights, slots in zip(update.weights, update.after, strict=True):
        square = _wide(slots["velocities"]) / (1 - value["beta_2"] ** updates)
        scaled = 1 / (np.sqrt(square) + value["epsilon"])
        if isinstance(optimizer, tensorwise.LAMB) and np.ndim(weights) >= 2:
            mean = _wide(slots["momentums"]) / (1 - value["beta_1"] ** updates)
            direction = scaled * mean + value["weight_decay"] * weights
            lengths = np.linalg.norm(weights), np.linalg.norm(direction)
            scaled *= lengths[0] / lengths[1] if min(lengths) > 0 else 1.0
        roots.append(np.sqrt(np.where(square > 0, scaled, 0.0)))

    def root(gradient: Tensors) -> list[np.ndarray]:
        rotated = map(_rotated, gradient, update.before)
        return [
            r * part.reshape(r.shape) for r, part in zip(roots, rotated, strict=True)
        ]

    return root


def _rotated(part: np.ndarray, slots: Slots) -> np.ndarray:
    """Returns QL^T g QR, with the bases that a variable has."""
    if "left_basis" in slots:
        part = slots["left_basis"].T @ _matrix(part)
    if "right_basis" in slots:
        part = _matrix(part) @ slots["right_basis"]
    return part


def _covariances(
    mean: MeanGradient,
    batches: Iterable[Tensors],
    square: Callable[[np.ndarray], np.ndarray],
) -> list[np.ndarray]:
    """Returns E[square(g - G)] of one example for each variable, without bias."""
    first: list[Any] = [0.0] * len(mean.values)
    second, count = first, 0
    for batch in batches:
        first = [total + part for total, part in zip(first, batch, strict=True)]
        second = [
            total + square(part) for total, part in zip(second, batch, strict=True)
        ]
        count += 1
    factor = mean.batch_size / (count - 1)
    return [
        factor * (two - count * square(one / count))
        for one, two in zip(first, second, strict=True)
    ]


def _gram(part: np.ndarray) -> np.ndarray:
    """Returns M M^T or M^T M of a variable as a matrix, the smaller one."""
    matrix = _matrix(part)
    rows, columns = matrix.shape
    return matrix @ matrix.T if rows <= columns else matrix.T @ matrix


def _matrix(part: np.ndarray) -> np.ndarray:
    return part.reshape(matrix_shape(part))


def _square(parts: Tensors) -> float:
    return float(sum(np.vdot(part, part) for part in parts))


def _wide(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64)
