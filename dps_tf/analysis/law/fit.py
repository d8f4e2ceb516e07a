"""The law K* = c1/B + c2, fitted to steps-to-result against batch size.

c1 (examples) rules where batches are small and twice the batch is half the steps; c2
(steps) is the plateau; at the critical batch size c1/c2 a study needs twice the steps
of the plateau. Lee et al. 2021 and McCandlish et al. 2018 have this form (c2 = S_min,
c1 = E_min).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from scipy.stats import norm

from dps_tf.analysis.law import prior
from dps_tf.analysis.law.integration import posteriors
from dps_tf.analysis.law.likelihood import SCALE_FLOOR, Observations
from dps_tf.analysis.law.posterior import Distribution, Posterior
from dps_tf.analysis.tables import Floats
from dps_tf.core import UserError, is_number

Name = TypeVar("Name", bound=Hashable)
"""What names a curve: a text, or a value such as `core.Curve`."""
LEVEL = 0.95
MINIMUM_POINTS = 3
"""Batch sizes with more than a bound that a curve alone needs: for two parameters and a
residual scale. One such curve is enough for all of a joint fit; see `joinable`."""
FEW_POINTS = 5
"""Batch sizes below which the prior decides how far intervals reach."""
MISFIT = 0.75
"""Octaves: twice the greatest scatter of published K* about their fits."""
DOUBTFUL = 0.9
"""An estimate of the exponent below it is doubted: of simulated sweeps like the shipped
ones that follow the law, one in eleven is; statistics.md has the table."""
SCALE_CAUTION = (
    "No scatter about the law is seen beside the brackets: these intervals rest on the "
    f"least residual scale that is allowed, {SCALE_FLOOR} octaves."
)


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
        quantity: Distribution,
        level: float = LEVEL,
        has_low: bool = True,
        has_high: bool = True,
    ) -> Estimate:
        """Returns the median with an equal-tailed interval, or with open ends."""
        levels = [tails(level)[0], 0.5, tails(level)[1]]
        low, value, high = (float(end) for end in quantity.quantiles(levels))
        return cls(value, low if has_low else 0.0, high if has_high else np.inf)

    @property
    def octaves(self) -> float:
        """The width of the interval in octaves."""
        return float(np.log2(self.high / self.low)) if self.low else float("inf")

    def to_json(self) -> dict[str, float | None]:
        """Returns value, low and high; None stands for infinity."""
        return {
            name: getattr(self, name) if np.isfinite(getattr(self, name)) else None
            for name in ("value", "low", "high")
        }


@dataclass(frozen=True)
class LawFit:
    """K* = c1/B + c2 with what the data say of it.

    Intervals hold the scatter of each K* about the law, but no factor that all K* of a
    curve share, which moves c1 and c2 and not c1/c2, unless there are several seeds.

    Attributes:
        observations: what was fitted, in the order of the batch sizes.
        level: nominal coverage of the intervals.
        posterior: what all numbers are read off; see `Posterior.draws`.
    """

    observations: Observations
    level: float
    posterior: Posterior = field(repr=False, compare=False)

    @property
    def slope_resolved(self) -> bool:
        """Whether the data refuse c1 = 0; else c1 and c1/c2 are open towards 0.

        Data do not refuse it where the least c1 that the prior allows decides the
        interval.
        """
        return "c1" not in self.posterior.rests_on

    @cached_property
    def plateau_resolved(self) -> bool:
        """Whether the data refuse c2 = 0; else c2 is open, and c1/c2 upwards.

        Data refuse it under two conditions. By the likelihood averaged over all else,
        some values of c2 have more support than 0; they hold all of the posterior but
        half a tail (the evidence of Pereira, Stern and Wechsler 2008, with the prior
        as reference). And no c1 makes 0 likely, by the ratio to the largest likelihood
        (Wilks 1938). With one K* and lower bounds, a larger c2 leaves more room to c1,
        and is no more likely.
        """
        law, c2 = self.posterior, self.posterior.of_seeds("c2")
        log_prior = prior.log_prior_of_c2(law.log2_c2, self.observations)
        scale = (law.slices / law.widths[1])[:, None] / np.exp(log_prior)

        def likelihood(of_slices: Floats) -> Floats:
            # Where the grid of a slice ends, its likelihood is as at c2 = 0.
            slices = zip(law.log2_c2, of_slices * scale, strict=True)
            each = [np.interp(c2.middles, *s, right=0.0) for s in slices]
            return np.asarray(np.sum(each, axis=0))

        averaged = likelihood(law.within.sum(axis=1))
        largest = likelihood(law.within.max(axis=1) / law.widths[0][:, None])
        supported = c2.masses[averaged > averaged[0]].sum()
        refused = np.exp(-(norm.ppf(tails(self.level)[1]) ** 2) / 2)
        is_supported = supported >= 1 - (1 - self.level) / 4
        return bool(is_supported and largest[0] < refused * largest.max())

    @property
    def unresolved(self) -> set[str]:
        """Which of c1 and c2 may be 0."""
        resolved = {"c1": self.slope_resolved, "c2": self.plateau_resolved}
        return {name for name in resolved if not resolved[name]}

    @cached_property
    def c1(self) -> Estimate:
        """The estimate of c1, in examples."""
        return Estimate.of(self.posterior.c1, self.level, self.slope_resolved)

    @cached_property
    def c2(self) -> Estimate:
        """The estimate of c2, in steps."""
        return Estimate.of(self.posterior.c2, self.level, self.plateau_resolved)

    @cached_property
    def critical_batch_size(self) -> Estimate:
        """The estimate of c1/c2, in examples per step."""
        return self._critical(self.posterior)

    @cached_property
    def critical_averaged(self) -> Estimate:
        """The critical batch size (c1/c2)^(1/a), averaged over a."""
        return self._critical(self.free)

    def _critical(self, law: Posterior) -> Estimate:
        ends = self.slope_resolved, self.plateau_resolved
        return Estimate.of(law.critical_batch_size, self.level, *ends)

    @property
    def scale(self) -> Estimate:
        """The residual scale, in octaves."""
        return Estimate.of(self.posterior.residual_scale, self.level)

    @cached_property
    def free(self) -> Posterior:
        """The posterior of c1/B^a + c2, where a has EXPONENT_PRIOR."""
        return posteriors([self.observations], free_exponent=True)[0]

    @cached_property
    def exponent(self) -> Estimate:
        """The exponent a of c1/B^a + c2; for the law it is 1."""
        return Estimate.of(self.free.exponent, self.level)

    @property
    def is_short(self) -> bool:
        """Whether there are so few batch sizes that the prior decides the intervals."""
        return self.observations.batch_sizes < FEW_POINTS

    @cached_property
    def residuals(self) -> Floats:
        """log2(K* / fit) at the middle of each bracket, in octaves; NaN for a bound."""
        points = self.observations
        residuals = np.log2(points.middle) - np.log2(self.steps(points.batch_size))
        return np.where(points.is_bound, np.nan, residuals)

    @property
    def rests_on_scale(self) -> bool:
        """Whether SCALE_CAUTION applies."""
        return "residual_scale" in self.posterior.rests_on

    @property
    def rms(self) -> float:
        """The root mean square residual, in octaves."""
        return float(np.sqrt(np.nanmean(self.residuals**2)))

    def steps(self, batch_size: Floats) -> Floats:
        """Returns c1/B + c2 of the estimates, in steps."""
        return self.c1.value / np.asarray(batch_size, np.float64) + self.c2.value

    def band(self, batch_size: Floats) -> Floats:
        """Returns low and high of the law at each batch size, in steps, [2, b]."""
        laws = [self.posterior.steps(b) for b in batch_size]
        return np.transpose([law.quantiles(tails(self.level)) for law in laws])

    def prediction(self, batch_size: Floats) -> Floats:
        """Returns low and high of K* of a further study, in steps, [2, b].

        Wider than `band` by the scatter of K* about the law, the shift of a seed and
        the noise of its observations; the rounding of K* to its evaluations is left
        out.
        """
        draws, levels = self.posterior.draws(), tails(self.level)
        studies = [draws.further(b, self.observations.rms_noise) for b in batch_size]
        return np.transpose([np.quantile(study, levels) for study in studies])

    def to_json(self) -> dict[str, Any]:
        """Returns the fit without its data; None stands for infinity."""
        names = "c1 c2 critical_batch_size scale exponent critical_averaged".split()
        return {
            "law": "steps_to_result = c1 / batch_size + c2",
            **{name: getattr(self, name).to_json() for name in names},
            "level": self.level,
            "prior": f"{prior.PRIOR}; {prior.EXPONENT_PRIOR}",
            "points": len(self.observations),
            "rms": self.rms,
            "residuals": [None if np.isnan(r) else float(r) for r in self.residuals],
            "plateau_resolved": self.plateau_resolved,
            "slope_resolved": self.slope_resolved,
            "misfits": list(misfits(self).values()),
        }


@lru_cache(maxsize=128)
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
    _check({"": observations}, level)
    [law] = posteriors([observations])
    return LawFit(observations, level, law)


def joinable(curves: Mapping[Name, Observations]) -> dict[Name, Observations]:
    """Returns the curves that a joint fit can have.

    All curves share the residual scale, so that one curve with MINIMUM_POINTS batch
    sizes that are no bounds is enough; without it there is no joint fit. In any other
    curve one such K* limits c1 and c2 from above, and bounds leave an end open.
    """
    usable = {name: curve for name, curve in curves.items() if curve.batch_sizes}
    sizes = [curve.batch_sizes for curve in usable.values()]
    return usable if max(sizes, default=0) >= MINIMUM_POINTS else {}


def joint_fit(
    curves: Mapping[Name, Observations],
    level: float = LEVEL,
    free_exponent: bool = False,
) -> dict[Name, LawFit]:
    """Returns fits with one residual scale, and with one exponent where it is free.

    The last ones are remembered: each reference of a table asks for the same fit.

    Raises:
        UserError: a curve whose K* are all bounds, no curve with three batch sizes that
            have another (see `joinable`), or a level that is none.
    """
    _check(curves, level)
    fits = _joint_fit(tuple(curves.values()), level, free_exponent)
    return dict(zip(curves, fits, strict=True))


@lru_cache(maxsize=16)
def _joint_fit(
    curves: tuple[Observations, ...], level: float, free_exponent: bool
) -> list[LawFit]:
    laws = posteriors(list(curves), free_exponent)
    both = zip(curves, laws, strict=True)
    return [LawFit(points, level, law) for points, law in both]


def _check(curves: Mapping[Name, Observations], level: float) -> None:
    most = max((points.batch_sizes for points in curves.values()), default=0)
    if most < MINIMUM_POINTS:
        where = "each of these curves has at most" if len(curves) > 1 else "there are"
        raise UserError(
            f"the fit of c1/B + c2 needs at least {MINIMUM_POINTS} batch sizes "
            f"with a steps-to-result that is no bound; {where} {most}."
        )
    usable = joinable(curves)
    for name in curves:
        if name not in usable:
            raise UserError(
                f"curve {name!r} has no steps-to-result that is more than a bound; "
                "leave it out of the joint fit."
            )
    if not (is_number(level) and 0 < level < 1):
        raise UserError(f"level is {level!r}; it must lie between 0 and 1.")


def misfits(fit: LawFit) -> dict[str, str]:
    """Returns sentences on what is wrong with the law for a curve, if anything is.

    Their names are 'far', a K* that lies MISFIT octaves or more from the fit; 'rise',
    K* that rise by as much with the batch size; and 'exponent', where its interval
    leaves 1 out or it is estimated to be less than DOUBTFUL.
    """
    points, sentences = fit.observations, {}
    far = np.nan_to_num(np.abs(fit.residuals))
    worst = int(far.argmax())
    if far[worst] >= MISFIT:
        sentences["far"] = (
            f"K* at batch size {points.batch_size[worst]:.12g} lies {far[worst]:.1f} "
            "octaves from the fit: the law or that K* is wrong, and c1 and c2 with it."
        )
    rise, first, last = _rise(points)
    if rise >= MISFIT:
        sentences["rise"] = (
            f"K* rises by {rise:.1f} octaves from batch size {first:.12g} to "
            f"{last:.12g}, which c1/B + c2 cannot: the curve has another form, and c1 "
            "and c2 mean nothing."
        )
    a = fit.exponent
    if a.value < DOUBTFUL or not a.low <= 1 <= a.high:
        sentences["exponent"] = (
            f"The exponent of B is {a.value:.2f} ({a.low:.2f} to {a.high:.2f}), where "
            "the law has 1: take c1/c2 averaged over it."
        )
    return sentences


def _rise(points: Observations) -> tuple[float, float, float]:
    """Returns the largest rise of K* with the batch size in octaves, and where."""
    located = points.located()
    b, low = located.batch_size, np.fmax(located.low, 1e-9)
    low = np.where(located.is_exact, located.high, low)
    rises = np.where(b > b[:, None], np.log2(low / located.high[:, None]), 0.0)
    i, j = np.unravel_index(int(rises.argmax()), rises.shape)
    return float(rises[i, j]), float(b[i]), float(b[j])
