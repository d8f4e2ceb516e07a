"""The law K* = c1/B + c2, fitted to steps-to-result against batch size.

c1 (examples) rules where batches are small and twice the batch is half the steps; c2
(steps) is the plateau; at the critical batch size c1/c2 a study needs twice the steps
of the plateau. Unweighted in log K*, as the scatter of a minimum over trials is a
share of it; each K* lies somewhere in its bracket.

Source: the form is that of Lee et al. 2021 and of McCandlish et al. 2018 (c2 = S_min,
c1 = E_min).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

from dps_tf.analysis.law.fitted import Estimate, LawFit, tails
from dps_tf.analysis.law.likelihood import (
    Curve,
    flat_curve,
    law_curve,
    law_start,
    maximize,
    no_plateau_curve,
)
from dps_tf.analysis.law.observations import Observations
from dps_tf.analysis.law.posterior import posterior
from dps_tf.analysis.tables import Floats
from dps_tf.core.errors import UserError, near_matches

LOSSES = ("gaussian", "soft_l1")
LEVEL = 0.95
SOFT_L1_SCALE = 0.1
"""In natural log K*, 0.14 octaves: residuals well beyond it count linearly."""
MINIMUM_POINTS = 3
"""Two parameters and a residual scale."""
_NEAR = 3.0
"""Octaves. Where the posterior is negligible that far below its middle, it has lost 10
nats, 2 of them to its flat weights; no level of confidence in use needs the other 8."""


def fit_law(
    observations: Observations, loss: str = "gaussian", level: float = LEVEL
) -> LawFit:
    """Returns the law fitted to one curve.

    With `gaussian`, estimates are those of least squares where every K* is exact, and
    else the posterior means of log c1 and log c2; intervals hold equal tails of the
    posterior. With `soft_l1`, least squares of the middles with that loss (scale
    SOFT_L1_SCALE), and t intervals from its sandwich covariance, which know nothing of
    brackets: for tables with outliers and without an evaluation grid.

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
    exact = bool(observations.is_exact.all())
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
    return np.asarray(np.log2(observations.middle) - curve, np.float64)


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
    n = len(observations)
    threshold = n * np.log1p(f_distribution.ppf(level, 1, n - 2) / (n - 2))
    return bool(2 * (full.log_likelihood - simple.log_likelihood) >= threshold)


def _fit_soft_l1(observations: Observations, start: Floats, level: float) -> LawFit:
    log2_batch = np.log2(observations.batch_size)
    target = np.log2(observations.middle)

    def residual(p: Floats) -> Floats:
        return np.asarray(np.log(2) * (law_curve(p, log2_batch)[0] - target))

    found = least_squares(
        residual,
        start,
        loss="soft_l1",
        f_scale=SOFT_L1_SCALE,
        **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12),
    )
    r = residual(found.x)
    jacobian = np.log(2) * law_curve(found.x, log2_batch)[1]
    covariance = _sandwich(r, jacobian)
    freedom = len(observations) - 2
    quantile = float(t_distribution.ppf((1 + level) / 2, freedom))
    directions = (np.array([1.0, 0]), np.array([0, 1.0]), np.array([1.0, -1]))
    estimates = []
    for direction in directions:
        center = float(direction @ found.x)
        half = quantile * float(np.sqrt(direction @ covariance @ direction))
        ends = np.exp2(np.array([center - half, center + half]))
        estimates.append(_estimate(center, ends, True, True))
    residuals = _residuals(observations, float(found.x[0]), float(found.x[1]))
    return LawFit(
        c1=estimates[0],
        c2=estimates[1],
        critical_batch_size=estimates[2],
        level=level,
        loss="soft_l1",
        scale=float(np.sqrt(np.sum(residuals**2) / freedom)),
        residuals=residuals,
        observations=observations,
        plateau_resolved=_is_refused(observations, no_plateau_curve, start, level),
        slope_resolved=_is_refused(observations, flat_curve, start, level),
    )


def _sandwich(residual: Floats, jacobian: Floats) -> Floats:
    """Returns the covariance of an M-estimate of the soft-L1 loss (Huber 1981)."""
    z = (residual / SOFT_L1_SCALE) ** 2
    psi = residual / np.sqrt(1 + z)
    slope = float(np.mean((1 + z) ** -1.5))
    spread = float(np.sum(psi**2) / (len(residual) - jacobian.shape[1]))
    return np.asarray(
        spread / slope**2 * np.linalg.pinv(jacobian.T @ jacobian), np.float64
    )
