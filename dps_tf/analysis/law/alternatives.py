"""Whether c1/B + c2 is the right form: the law against two alternatives, by AICc.

No plateau, K* = c1/B, is what remains if no batch is large enough; the power law,
K* = c/B^a + d, is what remains if the small-batch end is not inverse. AICc trades the
likelihood for the number of parameters; differences below about two decide nothing.

Where the power law has the lower AICc, c1/c2 of the law alone says more than is known:
`critical_batch_sizes` gives it under both forms, and averaged over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from dps_tf.analysis.law.fit import Estimate, LawFit, tails
from dps_tf.analysis.law.likelihood import (
    SCALE_CEILING,
    SCALE_FLOOR,
    Maximum,
    Observations,
    law_curve,
    law_start,
    least_squares_start,
    log_likelihood,
    maximize,
    no_plateau_curve,
    power_curve,
)
from dps_tf.analysis.law.posterior import atom_quantiles, log_prior_of_c2
from dps_tf.analysis.tables import Floats

THREE_PARAMETERS_FROM = 8
"""Observations below which AICc of three parameters is not quoted: its correction,
that counts the scale as a fourth, then outweighs what it corrects."""
_FORMS = {
    "law": ("c1 / B + c2", ("c1", "c2"), law_curve),
    "no_plateau": ("c1 / B", ("c1",), no_plateau_curve),
    "power_law": ("c / B^a + d", ("c", "a", "d"), power_curve),
}
"""Formula, parameters (known by their log2, but for the power a) and curve."""
_DRAWS = 1500
_FREEDOM = 5  # Of the t distribution that draws of the power law are proposed from.


@dataclass(frozen=True)
class Alternative:
    """One form, fitted by maximal likelihood.

    Attributes:
        name: `law`, `no_plateau` or `power_law`.
        formula: in the names of `parameters`.
        parameters: of the curve; c1 and c in examples (to the power a), c2 and d in
            steps.
        log_likelihood: of log2 K*, natural logarithm.
        rms: of the residuals at the middles of the brackets, in octaves.
        aicc: None where it is not quoted.
        reason: why not; empty otherwise.
    """

    name: str
    formula: str
    parameters: dict[str, float]
    log_likelihood: float
    rms: float
    aicc: float | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Returns the alternative as JSON."""
        return {
            "name": self.name,
            "formula": self.formula,
            "parameters": self.parameters,
            "log_likelihood": self.log_likelihood,
            "rms_residual_octaves": self.rms,
            "aicc": self.aicc,
            "reason": self.reason,
        }


def aicc(log_likelihood: float, parameters: int, observations: int) -> float | None:
    """Returns Akaike's criterion with the correction for few observations.

    The residual scale counts as a parameter. None where the correction is not defined.
    Source: Hurvich and Tsai 1989.
    """
    left = observations - parameters - 1
    if left <= 0:
        return None
    penalty = 2 * parameters + 2 * parameters * (parameters + 1) / left
    return -2 * log_likelihood + penalty


def compare(observations: Observations) -> list[Alternative]:
    """Returns the law, no plateau and the power law, fitted to one curve.

    It has steps-to-result at three or more batch sizes.
    """
    start = law_start(observations)
    log2_batch = np.log2(observations.batch_size)
    mean = np.mean((np.log2(observations.middle) + log2_batch)[~observations.is_bound])
    law = maximize(observations, law_curve, start)
    simple = maximize(observations, no_plateau_curve, np.array([mean]))
    power = _power_law(observations, law.parameters)
    return [
        _alternative("law", law, observations),
        _alternative("no_plateau", simple, observations),
        _alternative("power_law", power, observations),
    ]


def _power_law(observations: Observations, law: Floats) -> Maximum:
    """Returns the best of several starts; the law itself is one (a = 1)."""
    starts = [np.array([law[0], 1.0, law[1]])]
    located = observations.located()
    first = float(np.log2(located.middle[0]))
    b = float(np.log2(located.batch_size[0]))
    starts += [np.array([first + a * b, a, law[1]]) for a in (0.5, 0.8, 1.5)]
    found = []
    for start in starts:
        squares = least_squares_start(observations, power_curve, start)
        for candidate in (start, squares):
            found.append(maximize(observations, power_curve, candidate))
    return max(found, key=lambda maximum: maximum.log_likelihood)


def _alternative(
    name: str, maximum: Maximum, observations: Observations
) -> Alternative:
    formula, names, curve = _FORMS[name]
    steps = curve(maximum.parameters, np.log2(observations.batch_size))[0]
    residual = np.log2(observations.middle) - steps
    n, size = len(observations.located()), len(maximum.parameters)
    reason = ""
    value = aicc(maximum.log_likelihood, size + 1, n)
    if size >= 3 and n < THREE_PARAMETERS_FROM:
        value = None
        reason = f"not quoted for three parameters below {THREE_PARAMETERS_FROM} points"
    elif value is None:
        reason = f"not defined for {size} parameters and a scale at {n} points"
    return Alternative(
        name=name,
        formula=formula,
        parameters={
            name: float(p if name == "a" else np.exp2(p))
            for name, p in zip(names, maximum.parameters, strict=True)
        },
        log_likelihood=maximum.log_likelihood,
        rms=float(np.sqrt(np.mean(residual[~observations.is_bound] ** 2))),
        aicc=value,
        reason=reason,
    )


@dataclass(frozen=True)
class CriticalBatchSizes:
    """The batch size at which both terms of a form are equal, under two forms.

    Attributes:
        law: c1/c2 of c1/B + c2.
        power_law: (c/d)^(1/a) of c/B^a + d.
        averaged: over both, weighted by `law_weight`; `value` is the median.
        law_weight: Akaike weight of the law against the power law, in [0, 1].
    """

    law: Estimate
    power_law: Estimate
    averaged: Estimate
    law_weight: float

    def to_json(self) -> dict[str, Any]:
        """Returns all as JSON."""
        return {
            name: x.to_json() if isinstance(x, Estimate) else x
            for name, x in vars(self).items()
        }


def prefers_power_law(forms: Sequence[Alternative]) -> bool:
    """Returns whether AICc of the power law is quoted and lower than the law's."""
    aiccs = {form.name: form.aicc for form in forms}
    law, power = aiccs["law"], aiccs["power_law"]
    return law is not None and power is not None and power < law


def critical_batch_sizes(
    fit: LawFit, forms: Sequence[Alternative]
) -> CriticalBatchSizes | None:
    """Returns critical batch sizes where the power law is preferred, else None.

    Preferred: see `prefers_power_law`. Intervals have equal tails. The power law's are
    of its posterior with log c and a flat, and the prior of c2 for d, sampled by
    importance resampling about its mode. Averaging: Burnham and Anderson 2002, section
    4. `fit` is of the loss gaussian, `forms` of `compare` for the same observations.
    """
    named = {form.name: form for form in forms}
    law, power = named["law"].aicc, named["power_law"].aicc
    if law is None or power is None or fit.posterior is None:
        return None
    if not prefers_power_law(forms):
        return None
    weight = float(1 / (1 + np.exp((law - power) / 2)))
    constants, _ = fit.posterior.draws
    of_law = constants[:, 0] - constants[:, 1]
    of_power, weights = _power_law_draws(fit.observations, named["power_law"])
    parts = (
        np.full(len(of_law), weight / len(of_law)),
        (1 - weight) * weights / weights.sum(),
    )
    return CriticalBatchSizes(
        law=fit.critical_batch_size,
        power_law=_quantiles(of_power, weights, fit.level),
        averaged=_quantiles(
            np.concatenate([of_law, of_power]), np.concatenate(parts), fit.level
        ),
        law_weight=weight,
    )


def _quantiles(log2_values: Floats, weights: Floats, level: float) -> Estimate:
    levels = [0.5, *tails(level)]
    found = np.exp2(np.minimum(atom_quantiles(log2_values, weights, levels), 1000.0))
    return Estimate(*(float(x) for x in found))


def _power_law_draws(
    observations: Observations, form: Alternative
) -> tuple[Floats, Floats]:
    """Returns draws of log2 of the critical batch size, and their weights."""
    log2_batch = np.log2(observations.batch_size)
    ends = np.log(SCALE_FLOOR), np.log(SCALE_CEILING)

    def log_posterior(p: Floats) -> float:
        if p[1] <= 0 or not ends[0] <= p[3] <= ends[1]:
            return -np.inf
        curve = power_curve(p[:3], log2_batch)[0]
        value = log_likelihood(observations, curve, float(np.exp(p[3])))[0]
        return value + float(log_prior_of_c2(p[2:3], observations)[0])

    c, a, d = (form.parameters[name] for name in "cad")
    scale = np.clip(form.rms, 2 * SCALE_FLOOR, SCALE_CEILING / 2)
    start = np.array([np.log2(c), a, max(np.log2(d), -60.0), np.log(scale)])
    found = minimize(lambda p: -log_posterior(p), start, method="Nelder-Mead")
    spread = np.linalg.cholesky(_covariance(log_posterior, found.x))
    rng = np.random.default_rng(0)  # The same tables give the same numbers.
    z = rng.standard_normal((_DRAWS, 4))
    stretch = np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, (_DRAWS, 1)))
    draws = found.x + (z * stretch) @ spread.T
    square = ((z * stretch) ** 2).sum(axis=1)
    proposed = -(_FREEDOM + 4) / 2 * np.log1p(square / _FREEDOM)
    log_weight = np.array([log_posterior(p) for p in draws]) - proposed
    weights = np.exp(log_weight - log_weight.max())
    with np.errstate(divide="ignore", over="ignore"):
        critical = (draws[:, 0] - draws[:, 2]) / np.maximum(draws[:, 1], 1e-6)
    return np.asarray(critical, np.float64), np.asarray(weights, np.float64)


def _covariance(function: Callable[[Floats], float], at: Floats) -> Floats:
    """Returns the inverse of minus the second derivative, kept within wide bounds."""
    size, step = len(at), 0.02
    shifts = step * np.eye(size)
    second = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            plus, minus = shifts[i] + shifts[j], shifts[i] - shifts[j]
            second[i, j] = (
                function(at + plus)
                - function(at + minus)
                - function(at - minus)
                + function(at - plus)
            ) / (4 * step**2)
    values, vectors = np.linalg.eigh(-np.nan_to_num(second, posinf=0.0, neginf=0.0))
    inverse = 1 / np.clip(values, 1 / 9.0, 1e8)  # At most 3 octaves, or powers of B.
    return np.asarray(vectors @ np.diag(2 * inverse) @ vectors.T, np.float64)
