"""The law K* = c1/B + c2, fitted to steps-to-result against batch size.

c1 (examples) rules where batches are small and twice the batch is half the steps; c2
(steps) is the plateau; at the critical batch size c1/c2 a study needs twice the steps
of the plateau. Unweighted in log K*, as the scatter of a minimum over trials is a
share of it; each K* lies somewhere in its bracket.

Source: the form is that of Lee et al. 2021 and of McCandlish et al. 2018 (c2 = S_min,
c1 = E_min).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

from dps_tf.analysis.law.likelihood import (
    Curve,
    Observations,
    flat_curve,
    law_curve,
    law_start,
    maximize,
    no_plateau_curve,
    soft_l1_squares,
)
from dps_tf.analysis.law.posterior import PRIOR, Posterior, posterior
from dps_tf.analysis.tables import Floats
from dps_tf.core import UserError, near_matches

LOSSES = ("gaussian", "soft_l1")
LEVEL = 0.95
MINIMUM_POINTS = 3
"""Two parameters and a residual scale."""
FEW_POINTS = 5
"""Batch sizes below which the prior decides how far intervals reach."""
_NEAR = 3.0
"""Octaves. Where the posterior is negligible that far below its middle, it has lost 10
nats, 2 of them to its flat weights; no level of confidence in use needs the other 8."""


def tails(level: float) -> tuple[float, float]:
    """Returns the quantiles at the ends of an interval with equal tails."""
    return (1 - level) / 2, (1 + level) / 2


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its interval; 0 and infinity are open ends."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """Returns value, low and high; None stands for infinity."""
        return {name: x if np.isfinite(x) else None for name, x in vars(self).items()}


@dataclass(frozen=True)
class LawFit:
    """K* = c1/B + c2 with what the data say of it.

    Intervals know the scatter of each K* about the law, and no factor that all K* of
    the curve share (trials of one number have the same seeds at every batch size): it
    moves c1 and c2 together, and leaves c1/c2.

    Attributes:
        c1: examples.
        c2: steps.
        critical_batch_size: c1/c2, examples per step.
        level: nominal coverage of the intervals.
        loss: one of LOSSES.
        scale: residual scale in octaves: the median of its posterior, or the rms of
            the residuals on n - 2 degrees of freedom for soft_l1.
        residuals: log2(K* / fit) per observation, at the middle of its bracket, [n];
            NaN for a bound.
        observations: what was fitted, in the order of the batch sizes.
        plateau_resolved: whether the data refuse c2 = 0 at this level; where they do
            not, c2 is open towards 0 and c1/c2 towards infinity.
        slope_resolved: whether the data refuse c1 = 0; likewise for c1.
        posterior: of the gaussian loss, for bands and comparisons.
    """

    c1: Estimate
    c2: Estimate
    critical_batch_size: Estimate
    level: float
    loss: str
    scale: float
    residuals: Floats
    observations: Observations
    plateau_resolved: bool
    slope_resolved: bool
    posterior: Posterior | None = field(default=None, repr=False, compare=False)

    @property
    def is_short(self) -> bool:
        """Whether there are so few batch sizes that the prior decides the intervals."""
        return self.observations.batch_sizes < FEW_POINTS

    @property
    def prior(self) -> str:
        """What the intervals assume of c1, c2 and the scale beforehand."""
        if self.posterior is None:
            return "none: t intervals of least squares with the loss soft_l1"
        return PRIOR

    @property
    def rms(self) -> float:
        """The root mean square residual, in octaves."""
        return float(np.sqrt(np.nanmean(self.residuals**2)))

    def steps(self, batch_size: Floats) -> Floats:
        """Returns c1/B + c2 of the estimates, in steps."""
        return self.c1.value / np.asarray(batch_size, np.float64) + self.c2.value

    def band(self, batch_size: Floats) -> tuple[Floats, Floats]:
        """Returns the ends of the curve's interval at each batch size, in steps.

        Of the law itself, not of a further K*. NaN for soft_l1, which has none.
        """
        return self._ends(batch_size, Posterior.quantiles_steps)

    def prediction(self, batch_size: Floats) -> tuple[Floats, Floats]:
        """Returns the ends of the interval of K* of a further study, in steps.

        Wider than `band` by the scatter of K* about the law; the rounding of K* to its
        evaluations is left out. NaN for soft_l1, which has none.
        """
        return self._ends(batch_size, Posterior.quantiles_prediction)

    def _ends(
        self,
        batch_size: Floats,
        quantiles: Callable[[Posterior, float, Sequence[float]], Floats],
    ) -> tuple[Floats, Floats]:
        sizes = np.atleast_1d(np.asarray(batch_size, np.float64))
        if self.posterior is None:
            return np.full(len(sizes), np.nan), np.full(len(sizes), np.nan)
        grid, levels = self.posterior, tails(self.level)
        low, high = np.transpose([quantiles(grid, float(b), levels) for b in sizes])
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Returns the fit without its data; None stands for infinity."""
        return {
            "law": "steps_to_result = c1 / batch_size + c2",
            "c1": self.c1.to_json(),
            "c2": self.c2.to_json(),
            "critical_batch_size": self.critical_batch_size.to_json(),
            "level": self.level,
            "loss": self.loss,
            "prior": self.prior,
            "points": len(self.observations),
            "residual_scale_octaves": self.scale,
            "rms_residual_octaves": self.rms,
            "residuals_octaves": [
                None if np.isnan(r) else float(r) for r in self.residuals
            ],
            "plateau_resolved": self.plateau_resolved,
            "slope_resolved": self.slope_resolved,
        }


def fit_law(
    observations: Observations, loss: str = "gaussian", level: float = LEVEL
) -> LawFit:
    """Returns the law fitted to one curve.

    With `gaussian`, estimates are those of least squares where every K* is exact, and
    else the posterior means of log c1 and log c2; intervals hold equal tails of the
    posterior. With `soft_l1`, least squares of the middles with that loss
    (`likelihood.SOFT_L1_SCALE`), and t intervals from its sandwich covariance, which
    know nothing of brackets: for tables with outliers and without an evaluation grid.
    Where it resolves no plateau or no slope, its ends are those of `gaussian`.

    Args:
        observations: steps-to-result at three or more batch sizes.
        loss: one of LOSSES.
        level: nominal coverage of the intervals.

    Raises:
        UserError: fewer than three batch sizes, or an unknown loss.
    """
    _check(observations, loss, level)
    start = law_start(observations)
    if loss == "soft_l1":
        return _fit_soft_l1(observations, start, level)
    found = posterior(observations, start)
    exact = bool(observations.is_exact.all() and not observations.noise.any())
    means = found.means
    c1, c2 = (float(x) for x in (start if exact else means))
    # The grid covers all that is not negligible: an end near the middle is enough.
    plateau = found.log2_c2[0] > means[1] - _NEAR or _is_refused(
        observations, no_plateau_curve, start, level
    )
    slope = found.log2_c1[0] > means[0] - _NEAR or _is_refused(
        observations, flat_curve, start, level
    )
    levels = tails(level)
    return LawFit(
        c1=_estimate(c1, found.quantiles_c1(levels), slope, True),
        c2=_estimate(c2, found.quantiles_c2(levels), plateau, True),
        critical_batch_size=_estimate(
            c1 - c2, found.quantiles_critical(levels), slope, plateau
        ),
        level=level,
        loss=loss,
        scale=found.scale,
        residuals=_residuals(observations, c1, c2),
        observations=observations,
        plateau_resolved=bool(plateau),
        slope_resolved=bool(slope),
        posterior=found,
    )


def _check(observations: Observations, loss: str, level: float) -> None:
    if observations.batch_sizes < MINIMUM_POINTS:
        raise UserError(
            f"the fit of c1/B + c2 needs at least {MINIMUM_POINTS} batch sizes with a "
            f"steps-to-result; there are {observations.batch_sizes}."
        )
    if loss not in LOSSES:
        raise UserError(f"loss {loss!r} is unknown: {near_matches(loss, LOSSES)}.")
    if not 0 < level < 1:
        raise UserError(f"level is {level!r}; it must lie between 0 and 1.")


def _estimate(log2: float, ends: Floats, has_low: bool, has_high: bool) -> Estimate:
    low = float(ends[0]) if has_low else 0.0
    high = float(ends[1]) if has_high else float("inf")
    value = float(np.exp2(log2))
    # Where K* are exact the estimate is not read off the grid of the interval.
    return Estimate(value, min(low, value), max(high, value))


def _residuals(observations: Observations, c1: float, c2: float) -> Floats:
    curve = law_curve(np.array([c1, c2]), np.log2(observations.batch_size))[0]
    residuals = np.log2(observations.middle) - curve
    return np.where(observations.is_bound, np.nan, residuals)


def _is_refused(
    observations: Observations, curve: Curve, law: Floats, level: float
) -> bool:
    """Returns whether a one-parameter curve is refused in favour of the law.

    By the ratio of the maximal likelihoods, W = 2 (l1 - l0), which is n ln(1 + F/(n-2))
    for exact K*: its threshold is that of F on (1, n - 2) degrees of freedom.
    """
    log2_batch = np.log2(observations.batch_size)
    offset = curve(np.zeros(1), log2_batch)[0]
    start = np.array([np.mean(np.log2(observations.middle) - offset)])
    simple = maximize(observations, curve, start)
    full = maximize(observations, law_curve, law)
    n = len(observations.located())
    threshold = n * np.log1p(f_distribution.ppf(level, 1, n - 2) / (n - 2))
    return bool(2 * (full.log_likelihood - simple.log_likelihood) >= threshold)


def _fit_soft_l1(observations: Observations, start: Floats, level: float) -> LawFit:
    located = observations.located()
    best, covariance = soft_l1_squares(located, start)
    freedom = len(located) - 2
    quantile = float(t_distribution.ppf((1 + level) / 2, freedom))
    plateau = _is_refused(observations, no_plateau_curve, start, level)
    slope = _is_refused(observations, flat_curve, start, level)
    # Where the curve does not depend on c1 or c2, a covariance says nothing of it.
    other = None if plateau and slope else posterior(observations, start)

    def estimate(
        direction: Sequence[float], name: str, low: bool, high: bool
    ) -> Estimate:
        center = float(np.dot(direction, best))
        if other is not None:
            ends = getattr(other, f"quantiles_{name}")(tails(level))
            return _estimate(center, ends, low, high)
        half = quantile * float(np.sqrt(direction @ covariance @ direction))
        ends = np.exp2(np.array([center - half, center + half]))
        return _estimate(center, ends, low, high)

    residuals = _residuals(observations, float(best[0]), float(best[1]))
    return LawFit(
        c1=estimate((1, 0), "c1", slope, True),
        c2=estimate((0, 1), "c2", plateau, True),
        critical_batch_size=estimate((1, -1), "critical", slope, plateau),
        level=level,
        loss="soft_l1",
        scale=float(np.sqrt(np.nansum(residuals**2) / freedom)),
        residuals=residuals,
        observations=observations,
        plateau_resolved=plateau,
        slope_resolved=slope,
    )
