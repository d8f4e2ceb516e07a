"""The law K* = c1/B + c2, fitted to steps-to-result against batch size.

c1 (examples) rules where batches are small and twice the batch is half the steps; c2
(steps) is the plateau; at the critical batch size c1/c2 a study needs twice the steps
of the plateau. Unweighted in log K*, as the scatter of a minimum over trials is a
share of it; each K* lies somewhere in its bracket. Every number is of one posterior.

Source: the form is that of Lee et al. 2021 and of McCandlish et al. 2018 (c2 = S_min,
c1 = E_min).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dps_tf.analysis.law.distribution import Distribution
from dps_tf.analysis.law.integration import posteriors, support
from dps_tf.analysis.law.likelihood import Observations
from dps_tf.analysis.law.posterior import Posterior
from dps_tf.analysis.law.prior import EXPONENT_PRIOR, PRIOR
from dps_tf.analysis.tables import Floats
from dps_tf.core import UserError

LEVEL = 0.95
MINIMUM_POINTS = 3
"""Two parameters and a residual scale."""
FEW_POINTS = 5
"""Batch sizes below which the prior decides how far intervals reach."""
MISFIT = 0.5
"""Octaves: more than twice the scatter of published K* about their fits."""
_MIDDLE = 0.68
"""Of the exponent. Where that much of it leaves 1 out, c1/c2 with an exponent of 1 is
doubtful: in simulation 0.9 and 1.1 are noticed nine times in ten, and one true law in
five is doubted (statistics.md)."""


def tails(level: float) -> tuple[float, float]:
    """Returns the quantiles at the ends of an interval with equal tails."""
    return (1 - level) / 2, (1 + level) / 2


@dataclass(frozen=True)
class Estimate:
    """A median and the ends of its interval; 0 and infinity are open ends."""

    value: float
    low: float
    high: float

    @classmethod
    def of(
        cls,
        distribution: Distribution,
        level: float = LEVEL,
        has_low: bool = True,
        has_high: bool = True,
    ) -> Estimate:
        """Returns the median with an equal-tailed interval, or with open ends."""
        value, low, high = distribution.quantiles([0.5, *tails(level)])
        return cls(
            float(value),
            float(low) if has_low else 0.0,
            float(high) if has_high else float("inf"),
        )

    @property
    def octaves(self) -> float:
        """The width of the interval in octaves."""
        return float(np.log2(self.high / self.low)) if self.low else float("inf")

    def to_json(self) -> dict[str, float | None]:
        """Returns value, low and high; None stands for infinity."""
        return {
            name: value if np.isfinite(value) else None
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True)
class LawFit:
    """K* = c1/B + c2 with what the data say of it.

    Intervals know the scatter of each K* about the law, and no factor that all K* of
    the curve share, unless it was studied under several seeds: it moves c1 and c2
    together, and leaves c1/c2.

    Attributes:
        c1: examples.
        c2: steps.
        critical_batch_size: c1/c2, examples per step.
        level: nominal coverage of the intervals.
        scale: residual scale in octaves.
        residuals: log2(K* / fit) per observation, at the middle of its bracket, [n];
            NaN for a bound.
        observations: what was fitted, in the order of the batch sizes.
        plateau_resolved: whether the data refuse c2 = 0 at this level (see
            `posterior.support`); where they do not, c2 is open towards 0 and c1/c2
            towards infinity.
        slope_resolved: whether the data refuse c1 = 0; likewise for c1.
        posterior: what all this is read off; see `Posterior.draws`.
    """

    c1: Estimate
    c2: Estimate
    critical_batch_size: Estimate
    level: float
    scale: Estimate
    residuals: Floats
    observations: Observations
    plateau_resolved: bool
    slope_resolved: bool
    posterior: Posterior = field(repr=False, compare=False)

    @property
    def is_short(self) -> bool:
        """Whether there are so few batch sizes that the prior decides the intervals."""
        return self.observations.batch_sizes < FEW_POINTS

    @property
    def rms(self) -> float:
        """The root mean square residual, in octaves."""
        return float(np.sqrt(np.nanmean(self.residuals**2)))

    @cached_property
    def free(self) -> Posterior:
        """The posterior of c1/B^a + c2, where a has EXPONENT_PRIOR."""
        return posteriors([self.observations], free_exponent=True)[0]

    @property
    def exponent(self) -> Estimate:
        """The exponent a of c1/B^a + c2; for the law it is 1."""
        return Estimate.of(self.free.exponent, self.level)

    @property
    def critical_averaged(self) -> Estimate:
        """The critical batch size (c1/c2)^(1/a), averaged over a."""
        resolved = self.slope_resolved, self.plateau_resolved
        return Estimate.of(self.free.critical_batch_size, self.level, *resolved)

    def steps(self, batch_size: Floats) -> Floats:
        """Returns c1/B + c2 of the estimates, in steps."""
        return self.c1.value / np.asarray(batch_size, np.float64) + self.c2.value

    def band(self, batch_sizes: Floats) -> Floats:
        """Returns the ends of the curve's interval at batch sizes, in steps, [2, n].

        Of the law itself, not of a further K*.
        """
        curves = [self.posterior.steps(float(b)) for b in batch_sizes]
        return np.transpose([curve.quantiles(tails(self.level)) for curve in curves])

    def prediction(self, batch_sizes: Floats) -> Floats:
        """Returns the ends of the interval of K* of a further study, in steps, [2, n].

        Wider than `band` by the scatter of K* about the law; the rounding of K* to its
        evaluations is left out.
        """
        draws = self.posterior.draws()
        further = [draws.further(float(b)) for b in batch_sizes]
        return np.quantile(further, tails(self.level), axis=1)

    def to_json(self) -> dict[str, Any]:
        """Returns the fit without its data; None stands for infinity."""
        estimates = ("c1", "c2", "critical_batch_size", "scale", "exponent")
        return {
            "law": "steps_to_result = c1 / batch_size + c2",
            **{
                name: getattr(self, name).to_json()
                for name in (*estimates, "critical_averaged")
            },
            "level": self.level,
            "prior": f"{PRIOR}; {EXPONENT_PRIOR}",
            "points": len(self.observations),
            "rms": self.rms,
            "residuals": [None if np.isnan(r) else float(r) for r in self.residuals],
            "plateau_resolved": self.plateau_resolved,
            "slope_resolved": self.slope_resolved,
            "misfits": list(misfits(self)),
        }


@lru_cache(maxsize=16)
def fit_law(observations: Observations, level: float = LEVEL) -> LawFit:
    """Returns the law fitted to one curve.

    Estimates are medians of the posterior, intervals have equal tails of it. The last
    fits are remembered: sections of a report ask for the same ones.

    Args:
        observations: steps-to-result at three or more batch sizes.
        level: nominal coverage of the intervals.

    Raises:
        UserError: fewer than three batch sizes, or a level that is none.

    >>> fit = fit_law(Observations.of([1, 4, 16, 64, 256], [410, 112, 35, 16, 11]))
    >>> fit.plateau_resolved, round(fit.exponent.value, 1)
    (True, 1.0)
    """
    check(observations, level)
    [posterior] = posteriors([observations])
    # At half a tail, a flat curve has a slope in at most 5 % (law_coverage_test.py).
    needed = 1 - (1 - level) / 4
    plateau = support(posterior, observations, "c2") >= needed
    slope = support(posterior, observations, "c1") >= needed
    c1 = Estimate.of(posterior.c1, level, has_low=slope)
    c2 = Estimate.of(posterior.c2, level, has_low=plateau)
    critical = Estimate.of(posterior.critical_batch_size, level, slope, plateau)
    curve = np.log2(c1.value / observations.batch_size + c2.value)
    residuals = np.log2(observations.middle) - curve
    return LawFit(
        c1=c1,
        c2=c2,
        critical_batch_size=critical,
        level=level,
        scale=Estimate.of(posterior.residual_scale, level),
        residuals=np.where(observations.is_bound, np.nan, residuals),
        observations=observations,
        plateau_resolved=plateau,
        slope_resolved=slope,
        posterior=posterior,
    )


def check(observations: Observations, level: float = LEVEL, curve: str = "") -> None:
    """Raises UserError unless observations can be fitted at a level."""
    if observations.batch_sizes < MINIMUM_POINTS:
        raise UserError(
            f"the fit of c1/B + c2 needs at least {MINIMUM_POINTS} batch sizes with a "
            f"steps-to-result; {f'curve {curve!r} has' if curve else 'there are'} "
            f"{observations.batch_sizes}."
        )
    if not 0 < level < 1:
        raise UserError(f"level is {level!r}; it must lie between 0 and 1.")


def misfits(fit: LawFit) -> tuple[str, ...]:
    """Returns sentences on what is wrong with the law for a curve, if anything is.

    A K* that lies MISFIT octaves or more from the fit, K* that rise by as much with
    the batch size, and an exponent whose interval, or the middle 68 % of it, leaves
    1 out.
    """
    points, sentences = fit.observations, []
    far = np.nan_to_num(np.abs(fit.residuals))
    worst = int(far.argmax())
    if far[worst] >= MISFIT:
        sentences.append(
            f"K* at batch size {points.batch_size[worst]:.12g} lies {far[worst]:.1f} "
            "octaves from the fit: the law or that K* is wrong, and c1 and c2 with it."
        )
    rise, first, last = _rise(points)
    if rise >= MISFIT:
        sentences.append(
            f"K* rises by {rise:.1f} octaves from batch size {first:.12g} to "
            f"{last:.12g}, which c1/B + c2 cannot: c1 and c2 are those of another form."
        )
    a, middle = fit.exponent, Estimate.of(fit.free.exponent, _MIDDLE)
    if not a.low <= 1 <= a.high:
        sentences.append(
            f"The exponent of B lies between {a.low:.2f} and {a.high:.2f} and not at "
            "1: take c1/c2 averaged over it."
        )
    elif not middle.low <= 1 <= middle.high:
        sentences.append(
            f"The exponent of B is doubtful (68 %: {middle.low:.2f} to "
            f"{middle.high:.2f}): the ends of c1/c2 rest on 1 (see averaged)."
        )
    return tuple(sentences)


def _rise(points: Observations) -> tuple[float, float, float]:
    """Returns the largest rise of K* with the batch size in octaves, and where."""
    located = points.located()
    b, low = located.batch_size, np.fmax(located.low, 1e-9)
    low = np.where(located.is_exact, located.high, low)
    rises = np.where(b > b[:, None], np.log2(low / located.high[:, None]), 0.0)
    i, j = np.unravel_index(int(rises.argmax()), rises.shape)
    return float(rises[i, j]), float(b[i]), float(b[j])
