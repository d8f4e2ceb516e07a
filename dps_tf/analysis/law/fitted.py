"""A fitted law and what the data say of it, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dps_tf.analysis.law.observations import Observations
from dps_tf.analysis.law.posterior import Posterior
from dps_tf.analysis.tables import Floats


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
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: x if np.isfinite(x) else None for name, x in ends.items()}


@dataclass(frozen=True)
class LawFit:
    """K* = c1/B + c2 with what the data say of it.

    Attributes:
        c1: examples.
        c2: steps.
        critical_batch_size: c1/c2, examples per step.
        level: nominal coverage of the intervals.
        loss: one of LOSSES.
        scale: residual scale in octaves: the median of its posterior, or the rms of
            the residuals on n - 2 degrees of freedom for soft_l1.
        residuals: log2(K* / fit) per observation, at the middle of its bracket, [n].
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
    def rms(self) -> float:
        """The root mean square residual, in octaves."""
        return float(np.sqrt(np.mean(self.residuals**2)))

    def steps(self, batch_size: Floats) -> Floats:
        """Returns c1/B + c2 of the estimates, in steps."""
        return self.c1.value / np.asarray(batch_size, np.float64) + self.c2.value

    def band(self, batch_size: Floats) -> tuple[Floats, Floats]:
        """Returns the ends of the curve's interval at each batch size, in steps.

        Of the law itself, not of a further K*. NaN for soft_l1, which has none.
        """
        levels = tails(self.level)
        sizes = np.atleast_1d(np.asarray(batch_size, np.float64))
        if self.posterior is None:
            return np.full(len(sizes), np.nan), np.full(len(sizes), np.nan)
        ends = [self.posterior.quantiles_steps(float(b), levels) for b in sizes]
        return np.array([e[0] for e in ends]), np.array([e[1] for e in ends])

    def to_json(self) -> dict[str, Any]:
        """Returns the fit without its data; None stands for infinity."""
        return {
            "law": "steps_to_result = c1 / batch_size + c2",
            "c1": self.c1.to_json(),
            "c2": self.c2.to_json(),
            "critical_batch_size": self.critical_batch_size.to_json(),
            "level": self.level,
            "loss": self.loss,
            "points": len(self.observations),
            "residual_scale_octaves": self.scale,
            "rms_residual_octaves": self.rms,
            "residuals_octaves": [float(r) for r in self.residuals],
            "plateau_resolved": self.plateau_resolved,
            "slope_resolved": self.slope_resolved,
        }
