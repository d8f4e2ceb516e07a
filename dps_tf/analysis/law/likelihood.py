"""Likelihood of steps-to-result that are known to lie in brackets.

log2 K* is normal about a model's curve with one residual scale (in octaves) for all
batch sizes: unweighted in log K*. A K* that was found at an evaluation contributes the
probability of its bracket and not the density at its end, so that neither half an
evaluation interval of bias nor a false precision enters where K* is a few intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, minimize
from scipy.special import log_ndtr

from dps_tf.analysis.law.observations import Observations
from dps_tf.analysis.tables import Floats

SCALE_FLOOR = 0.01
"""Octaves: 0.7 %. No repeat of a search for a minimum agrees better than that; the
floor keeps the likelihood bounded where a curve passes through every bracket."""
SCALE_CEILING = 2.0
"""Octaves: a factor of four. Beyond it there is no law to speak of."""

SOFT_L1_SCALE = 0.1
"""In natural log K*, 0.14 octaves: residuals well beyond it count linearly."""

Curve = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""(parameters [p], log2 of batch sizes [n]) -> (log2 steps [n], derivative [n, p])."""


@dataclass(frozen=True)
class Maximum:
    """A maximum of the likelihood.

    Attributes:
        parameters: of the curve, [p].
        scale: residual scale in octaves, within [SCALE_FLOOR, SCALE_CEILING].
        log_likelihood: natural logarithm.
    """

    parameters: Floats
    scale: float
    log_likelihood: float


def law_curve(parameters: Floats, log2_batch: Floats) -> tuple[Floats, Floats]:
    """Returns log2(c1/B + c2) and its derivative, for (log2 c1, log2 c2)."""
    falling = parameters[0] - log2_batch
    steps = np.logaddexp2(falling, parameters[1])
    share = np.exp2(falling - steps)
    return steps, np.stack([share, 1 - share], axis=1)


def no_plateau_curve(parameters: Floats, log2_batch: Floats) -> tuple[Floats, Floats]:
    """Returns log2(c1/B) and its derivative, for (log2 c1,)."""
    return parameters[0] - log2_batch, np.ones((len(log2_batch), 1))


def flat_curve(parameters: Floats, log2_batch: Floats) -> tuple[Floats, Floats]:
    """Returns log2(c2) and its derivative, for (log2 c2,)."""
    ones = np.ones((len(log2_batch), 1))
    return parameters[0] * ones[:, 0], ones


def power_curve(parameters: Floats, log2_batch: Floats) -> tuple[Floats, Floats]:
    """Returns log2(c/B^a + d) and its derivative, for (log2 c, a, log2 d)."""
    falling = parameters[0] - parameters[1] * log2_batch
    steps = np.logaddexp2(falling, parameters[2])
    share = np.exp2(falling - steps)
    return steps, np.stack([share, -share * log2_batch, 1 - share], axis=1)


def log_likelihood(
    observations: Observations, log2_steps: Floats, scale: float
) -> tuple[float, Floats, float]:
    """Returns the log-likelihood, and its derivatives by log2_steps [n] and ln(scale).

    Args:
        observations: n steps-to-result.
        log2_steps: the model's log2 K*, [n].
        scale: residual scale in octaves.
    """
    exact = observations.is_exact
    total = np.hypot(scale, observations.noise)
    # By ln(scale), of ln(total).
    share = (scale / total) ** 2
    value, slope, by_scale = 0.0, np.zeros(len(observations)), 0.0
    upper = (np.log2(observations.high) - log2_steps) / total
    if exact.any():
        z, width = upper[exact], total[exact]
        value += float(np.sum(-0.5 * z**2 - np.log(width * np.sqrt(2 * np.pi))))
        slope[exact] = z / width
        by_scale += float(np.sum((z**2 - 1) * share[exact]))
    if not exact.all():
        inside = ~exact
        width, above = total[inside], upper[inside]
        with np.errstate(divide="ignore"):
            lower = (np.log2(observations.low[inside]) - log2_steps[inside]) / width
        logp, by_lower, by_upper = _log_interval(lower, above)
        value += float(np.sum(logp))
        slope[inside] = -(by_lower + by_upper) / width
        # An end at infinity has no derivative.
        ends = by_lower * _finite(lower) + by_upper * _finite(above)
        by_scale -= float(np.sum(ends * share[inside]))
    return value, slope, by_scale


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, 0.0)


def _log_interval(lower: Floats, upper: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns log(Phi(upper) - Phi(lower)) and its derivatives by both ends."""
    # Taken in the left tail, where the difference keeps its precision.
    flip = lower + upper > 0
    a, b = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    log_b = log_ndtr(b)
    value = log_b + np.log1p(-np.exp(np.minimum(log_ndtr(a) - log_b, -1e-16)))
    by_lower = -np.exp(_log_density(lower) - value)
    by_upper = np.exp(_log_density(upper) - value)
    return value, by_lower, by_upper


def _log_density(z: Floats) -> Floats:
    return np.asarray(-0.5 * z**2 - 0.5 * np.log(2 * np.pi), np.float64)


def least_squares_start(
    observations: Observations, curve: Curve, start: Floats
) -> Floats:
    """Returns the parameters of least squares in log K* at the brackets' middles.

    Bounds are left out.
    """
    observations = observations.located()
    log2_batch = np.log2(observations.batch_size)
    target = np.log2(observations.middle)
    found = least_squares(
        lambda p: curve(p, log2_batch)[0] - target,
        start,
        jac=lambda p: curve(p, log2_batch)[1],
        xtol=1e-14,
        ftol=1e-14,
        gtol=1e-14,
    )
    return np.asarray(found.x, np.float64)


def maximize(observations: Observations, curve: Curve, start: Floats) -> Maximum:
    """Returns the maximum of the likelihood over a curve's parameters and the scale.

    Args:
        observations: n steps-to-result.
        curve: the model.
        start: its parameters near the maximum, for example those of least squares.
    """
    log2_batch = np.log2(observations.batch_size)

    def negative(values: Floats) -> tuple[float, Floats]:
        steps, derivative = curve(values[:-1], log2_batch)
        scale = float(np.exp(values[-1]))
        value, slope, by_scale = log_likelihood(observations, steps, scale)
        return -value, -np.append(slope @ derivative, by_scale)

    residual = curve(start, log2_batch)[0] - np.log2(observations.middle)
    rms = float(np.sqrt(np.mean(residual[~observations.is_bound] ** 2)))
    ends = (np.log(SCALE_FLOOR), np.log(SCALE_CEILING))
    first = float(np.clip(np.log(max(rms, SCALE_FLOOR)), *ends))
    found = minimize(
        negative,
        np.append(start, first),
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None)] * len(start) + [ends],
        options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-9},
    )
    return Maximum(
        parameters=np.asarray(found.x[:-1], np.float64),
        scale=float(np.exp(found.x[-1])),
        log_likelihood=-float(found.fun),
    )


def law_start(observations: Observations) -> Floats:
    """Returns (log2 c1, log2 c2) of least squares, the better of two starts."""
    observations = observations.located()
    log2_steps = np.log2(observations.middle)
    log2_batch = np.log2(observations.batch_size)
    # The plateau cannot be told from none below this; it keeps the search bounded.
    lowest = float(log2_steps.min()) - 20
    first = float((log2_steps + log2_batch).min())
    best, least = np.zeros(2), np.inf
    for below in (1.0, 6.0):
        start = np.array([first, float(log2_steps.min()) - below])
        found = least_squares_start(observations, law_curve, start)
        found = np.maximum(found, [first - 20, lowest])
        error = float(np.sum((law_curve(found, log2_batch)[0] - log2_steps) ** 2))
        if error < least * (1 - 1e-9):
            best, least = found, error
    return best


def soft_l1_squares(observations: Observations, start: Floats) -> tuple[Floats, Floats]:
    """Returns (log2 c1, log2 c2) of least squares with the loss, and its covariance.

    Args:
        observations: n steps-to-result, none of them a bound.
        start: (log2 c1, log2 c2) near the least.
    """
    log2_batch = np.log2(observations.batch_size)
    target = np.log2(observations.middle)

    def residual(p: Floats) -> Floats:
        return np.asarray(np.log(2) * (law_curve(p, log2_batch)[0] - target))

    tight = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12)
    scale = SOFT_L1_SCALE
    found = least_squares(residual, start, loss="soft_l1", f_scale=scale, **tight)
    jacobian = np.log(2) * law_curve(found.x, log2_batch)[1]
    covariance = _sandwich(residual(found.x), jacobian)
    return np.asarray(found.x, np.float64), covariance


def _sandwich(residual: Floats, jacobian: Floats) -> Floats:
    """Returns the covariance of an M-estimate of the soft-L1 loss (Huber 1981)."""
    z = (residual / SOFT_L1_SCALE) ** 2
    psi = residual / np.sqrt(1 + z)
    slope = float(np.mean((1 + z) ** -1.5))
    spread = float(np.sum(psi**2) / (len(residual) - jacobian.shape[1]))
    return np.asarray(
        spread / slope**2 * np.linalg.pinv(jacobian.T @ jacobian), np.float64
    )
