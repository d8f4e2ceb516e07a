"""What is measured at one update of a trial: smoothness along it, noise before it.

Local smoothness tells how quickly the gradient changes along an update. Source: Lee et
al. 2021, published code (its `lipschitz`). Their theory has c1 of the law
K* = c1 / B + c2 proportional to L.

The noise scale tr(Sigma) / |G|^2 tells how noisy a gradient is: G is the gradient of
the expected loss, Sigma the covariance of the gradient of one example. The gradient of
B examples has E|G_B|^2 = |G|^2 + tr(Sigma) / B, so that two batch sizes give both
unknowns without bias. Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dps_tf.probing.gradients import ExampleGradients

QUANTITIES = ("smoothness", "gradient_square", "noise_trace", "noise_scale")
"""See `local_smoothness` and `NoiseEstimate`; one value each per update."""
GAMMAS = tuple(i / 10 for i in range(1, 10))
"""Fractions of an update at which the gradient is compared."""

Tensors = Sequence[np.ndarray]


def measure_update(
    gradients: ExampleGradients,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    masks: Sequence[np.ndarray] | None = None,
    point: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Returns QUANTITIES at the update from `before` to `after`.

    Both come from the same gradients: smoothness from those over all examples, noise
    from these and those of the batches they are made of. Costs ten of them.

    Args:
        gradients: over the stated examples.
        before: weights of the network before the update.
        after: weights after it.
        masks: one per trainable variable; None for a dense network.
        point: metaparameters of the loss.
    """
    base = gradients.at(before, masks, point)

    def gradient(place: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        moved = gradients.with_trainable(before, place)
        return gradients.at(moved, masks, point).values

    noise = estimate(base.batch_size, base.batch_square, base.examples, base.square)
    smoothness = local_smoothness(
        gradient, gradients.trainable(before), gradients.trainable(after), base.values
    )
    return dict(
        zip(
            QUANTITIES,
            (smoothness, noise.gradient_square, noise.noise_trace, noise.scale),
            strict=True,
        )
    )


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


@dataclass(frozen=True)
class NoiseEstimate:
    """What two batch sizes tell of the gradient.

    Attributes:
        gradient_square: unbiased estimate of |G|^2; may come out negative.
        noise_trace: unbiased estimate of tr(Sigma), in units of |G|^2 per example.
    """

    gradient_square: float
    noise_trace: float

    @property
    def scale(self) -> float:
        """tr(Sigma) / |G|^2 in examples; NaN where |G|^2 is not known to be positive.

        A ratio of two unbiased estimates, so itself biased: `average` the estimates,
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

    Args:
        small: examples of the smaller batch.
        small_square: square norm of its gradient, or the mean of several.
        big: examples of the larger batch.
        big_square: square norm of its gradient, or the mean of several.

    Returns:
        NaN twice where the sizes are equal: one size cannot tell the two apart.
    """
    if small == big:
        return NoiseEstimate(float("nan"), float("nan"))
    return NoiseEstimate(
        gradient_square=(big * big_square - small * small_square) / (big - small),
        noise_trace=(small_square - big_square) / (1 / small - 1 / big),
    )


def average(estimates: Sequence[NoiseEstimate]) -> NoiseEstimate:
    """Returns the means of numerator and denominator, each for itself."""
    return NoiseEstimate(
        gradient_square=float(np.mean([e.gradient_square for e in estimates])),
        noise_trace=float(np.mean([e.noise_trace for e in estimates])),
    )


def _wide(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64)


def _norm(parts: Tensors) -> float:
    """Returns the Euclidean norm over all arrays together."""
    return float(np.sqrt(sum(np.vdot(part, part) for part in parts)))
