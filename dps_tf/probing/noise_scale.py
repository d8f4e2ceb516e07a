"""How noisy is a gradient: the simple noise scale tr(Sigma) / |G|^2.

G is the gradient of the expected loss, Sigma the covariance of the gradient of one
example. The gradient of B examples has E|G_B|^2 = |G|^2 + tr(Sigma) / B, so that two
batch sizes give both unknowns without bias.

Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
