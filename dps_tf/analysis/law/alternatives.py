"""Whether c1/B + c2 is the right form: the law against two alternatives, by AICc.

No plateau, K* = c1/B, is what remains if no batch is large enough; the power law,
K* = c/B^a + d, is what remains if the small-batch end is not inverse. AICc trades the
likelihood for the number of parameters; differences below about two decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.analysis.law.likelihood import (
    Maximum,
    law_curve,
    law_start,
    least_squares_start,
    maximize,
    no_plateau_curve,
    power_curve,
)
from dps_tf.analysis.law.observations import Observations
from dps_tf.analysis.tables import Floats

THREE_PARAMETERS_FROM = 8
"""Observations below which AICc of three parameters is not quoted: its correction,
that counts the scale as a fourth, then outweighs what it corrects."""


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

    Source: Hurvich and Tsai 1989. None where the correction is not defined.

    Args:
        log_likelihood: at its maximum.
        parameters: fitted ones, the residual scale included.
        observations: their number.
    """
    left = observations - parameters - 1
    if left <= 0:
        return None
    penalty = 2 * parameters + 2 * parameters * (parameters + 1) / left
    return -2 * log_likelihood + penalty


def compare(observations: Observations) -> list[Alternative]:
    """Returns the law, no plateau and the power law, fitted to one curve.

    Args:
        observations: steps-to-result at three or more batch sizes.
    """
    start = law_start(observations)
    log2_batch = np.log2(observations.batch_size)
    mean = np.mean(np.log2(observations.middle) + log2_batch)
    law = maximize(observations, law_curve, start)
    simple = maximize(observations, no_plateau_curve, np.array([mean]))
    power = _power_law(observations, law.parameters)
    return [
        _alternative("law", "c1 / B + c2", law, observations),
        _alternative("no_plateau", "c1 / B", simple, observations),
        _alternative("power_law", "c / B^a + d", power, observations),
    ]


def _power_law(observations: Observations, law: Floats) -> Maximum:
    """Returns the best of several starts; the law itself is one (a = 1)."""
    starts = [np.array([law[0], 1.0, law[1]])]
    first = float(np.log2(observations.middle[0]))
    b = float(np.log2(observations.batch_size[0]))
    starts += [np.array([first + a * b, a, law[1]]) for a in (0.5, 0.8, 1.5)]
    found = []
    for start in starts:
        squares = least_squares_start(observations, power_curve, start)
        for candidate in (start, squares):
            found.append(maximize(observations, power_curve, candidate))
    return max(found, key=lambda maximum: maximum.log_likelihood)


def _alternative(
    name: str, formula: str, maximum: Maximum, observations: Observations
) -> Alternative:
    curve = {"law": law_curve, "no_plateau": no_plateau_curve, "power_law": power_curve}
    steps = curve[name](maximum.parameters, np.log2(observations.batch_size))[0]
    residual = np.log2(observations.middle) - steps
    n, size = len(observations), len(maximum.parameters)
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
        parameters=_named(name, maximum.parameters),
        log_likelihood=maximum.log_likelihood,
        rms=float(np.sqrt(np.mean(residual**2))),
        aicc=value,
        reason=reason,
    )


def _named(name: str, p: Floats) -> dict[str, float]:
    if name == "law":
        return {"c1": float(np.exp2(p[0])), "c2": float(np.exp2(p[1]))}
    if name == "no_plateau":
        return {"c1": float(np.exp2(p[0]))}
    return {"c": float(np.exp2(p[0])), "a": float(p[1]), "d": float(np.exp2(p[2]))}
