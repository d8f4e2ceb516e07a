"""What a fit is given, and its likelihood: steps-to-result that lie in brackets.

log2 K* is normal about a model's curve with one residual scale (in octaves) for all
batch sizes: unweighted in log K*. A K* that was found at an evaluation contributes the
probability of its bracket and not the density at its end, so that neither half an
evaluation interval of bias nor a false precision enters where K* is a few intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import least_squares, minimize
from scipy.special import log_ndtr

from dps_tf.analysis.tables import Bools, Floats, require
from dps_tf.core import UserError

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
class Observations:
    """Steps-to-result of one curve, in the order of the batch sizes.

    Attributes:
        batch_size: [n] examples per step, positive.
        low: [n] K* lies above it; NaN where K* is exact, 0 where it is only known not
            to be more than `high`.
        high: [n] K* lies at or below it, positive; infinity where K* is only known to
            be more than `low`.
        noise: [n] octaves, standard deviation of log2 K* that is known beforehand, for
            example from repeats; 0 where nothing is. It adds to the residual scale of
            the fit, in squares, so that noisy cells weigh less.
    """

    batch_size: Floats
    low: Floats
    high: Floats
    noise: Floats

    @classmethod
    def of(
        cls,
        batch_size: ArrayLike,
        steps_to_result: ArrayLike,
        bracket_low: ArrayLike | None = None,
        noise: ArrayLike | None = None,
    ) -> Observations:
        """Returns checked observations; each argument is an attribute of the class.

        K* are the values of `high`. By default no bracket and no noise is known.

        Raises:
            UserError: a value that is not positive, or not finite without a bracket, a
                bracket that does not lie below its K*, or different lengths.
        """
        b = _checked("batch_size", batch_size)
        high = np.asarray(steps_to_result, np.float64)
        low, spread = np.full(len(high), np.nan), np.zeros(len(high))
        if bracket_low is not None:
            low = np.asarray(bracket_low, np.float64)
        if noise is not None:
            spread = np.nan_to_num(np.asarray(noise, np.float64), nan=0.0)
        if not len(b) == len(high) == len(low) == len(spread):
            raise UserError(
                f"batch_size, steps_to_result, bracket_low and noise have {len(b)}, "
                f"{len(high)}, {len(low)} and {len(spread)} values: give one of each "
                "per batch size."
            )
        _checked("steps_to_result", np.where(np.isinf(high) & (low > 0), 1.0, high))
        wrong = (low >= high) | (low < 0)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise UserError(
                f"bracket_low is {low[i]:g} at batch size {b[i]:g}; it must be at "
                f"least 0 and below steps_to_result, {high[i]:g}."
            )
        if (spread < 0).any() or not np.isfinite(spread).all():
            raise UserError(
                f"noise is {spread[int(np.argmin(spread))]:g}; it must be a number of "
                "octaves of at least 0."
            )
        order = np.argsort(b, kind="stable")
        return cls(b[order], low[order], high[order], spread[order])

    @classmethod
    def from_results(cls, results: pd.DataFrame) -> Observations:
        """Returns the observations of one curve of a results table.

        What is only known as a bound enters as one: a cell that nobody is known to
        have solved, by the steps that were followed; a K* whose best metaparameters
        lie at an end of their range, from above, since a wider range may give less.
        Cells with a K* of 0 and those in which every trial diverged are left out. A
        column `noise` (octaves), as of `repeats.with_noise`, makes noisy cells weigh
        less. Rows differ in batch size (and seed) only.
        """
        require(results, ["steps_to_result", "bracket_low", "steps_bound"], "results")
        steps = _floats(results, "steps_to_result")
        low = _floats(results, "bracket_low")
        if "at_boundary" in results.columns:
            # A column of empty cells is read as numbers.
            ends = [pd.notna(text) and text != "" for text in results["at_boundary"]]
            low = np.where(np.array(ends, bool) & ~np.isnan(steps), 0.0, low)
        bounded = (results["steps_bound"] != "").to_numpy(bool)
        beyond = _followed(results)
        is_beyond = np.isnan(steps) & bounded & (beyond > 0)
        used = (steps > 0) | is_beyond
        return cls.of(
            results["batch_size"].to_numpy(np.float64)[used],
            np.where(is_beyond, np.inf, steps)[used],
            np.where(is_beyond, beyond, low)[used],
            _floats(results, "noise")[used] if "noise" in results.columns else None,
        )

    def located(self) -> Observations:
        """Returns those that are bounded on both sides, or exact."""
        kept = ~self.is_bound
        return Observations(
            self.batch_size[kept], self.low[kept], self.high[kept], self.noise[kept]
        )

    def __len__(self) -> int:
        return len(self.batch_size)

    @property
    def is_exact(self) -> Bools:
        """Which steps-to-result have no bracket, [n]."""
        return np.isnan(self.low)

    @property
    def middle(self) -> Floats:
        """The middle of each bracket; K* itself if exact; or the bound; [n]."""
        half = np.where(self.is_exact, self.high, (self.low + self.high) / 2)
        return np.where(np.isinf(self.high), self.low, half)

    @property
    def is_bound(self) -> Bools:
        """Which steps-to-result are bounded on one side only, [n]."""
        return np.asarray(np.isinf(self.high) | (self.low == 0), np.bool_)

    @property
    def batch_sizes(self) -> int:
        """The number of distinct batch sizes with more than a bound."""
        return len(np.unique(self.batch_size[~self.is_bound]))


def _checked(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        raise UserError(
            f"{name} is {array[int(np.argmax(wrong))]:g} in row "
            f"{int(np.argmax(wrong)) + 1}; it must be a positive number."
        )
    return array


def _floats(results: pd.DataFrame, name: str) -> Floats:
    values = results[name].astype("Float64").to_numpy(np.float64, na_value=np.nan)
    return np.asarray(values, np.float64)


def _followed(results: pd.DataFrame) -> Floats:
    """Returns the evaluation up to which no trial of a cell had met the goal, [n].

    NaN where the table does not say.
    """
    columns = ["steps_low", "step_budget", "evaluation_interval"]
    if not set(columns) <= set(results.columns):
        return np.full(len(results), np.nan)
    low, budget, interval = (_floats(results, name) for name in columns)
    interval = np.maximum(interval, 1)
    last = np.floor(budget / interval) * interval
    return np.where(np.isnan(low), last, low - interval)


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

    `log2_steps` is the log2 K* of a model, [n]; the residual scale is in octaves.
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
    """Returns the parameters of least squares in log K* at the brackets' middles."""
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

    `start` are parameters near it, for example those of least squares.
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

    None of the observations is a bound; `start` lies near the least.
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
