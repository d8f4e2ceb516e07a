"""Ratios of c1, c2 and c1/c2 of several curves, and the exponent they have in common.

The curves of a sweep (sparsities, optimizers) are fitted with one residual scale, which
several short curves know better than each alone. Whether two intervals overlap is no
comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import pandas as pd
from scipy.stats import norm

from dps_tf.analysis.law.fit import LEVEL, Estimate, LawFit, Name, joint_fit
from dps_tf.analysis.law.likelihood import Observations
from dps_tf.analysis.law.posterior import Distribution, Posterior
from dps_tf.analysis.law.prior import EXPONENT_SPREAD
from dps_tf.analysis.tables import Floats
from dps_tf.core import UserError, check_known, is_number

QUANTITIES = ("c1", "c2", "critical_batch_size")
MARGIN = 1.25
"""Factor within which two curves count as equal, unless another is given."""
UNLIKE_SEARCHES = (
    "48 points in three dimensions lie 0.3 to 1.7 octaves above 24 in one, at equal "
    "curvature: a ratio of unlike searches is partly one of searches."
)
"""Caution of a ratio, from simulated searches."""
_SIDES, _SMALL = ("higher", "lower"), "smaller than an evaluation interval"
_TERMS = {"c1": ("c1", ""), "c2": ("c2", ""), "critical_batch_size": ("c1", "c2")}
"""The constant that a quantity rises with, and the one that it falls with."""
_SLICE_BINS = 160


@dataclass(frozen=True)
class Ratio(Estimate):
    """A ratio of two curves.

    An end is open (0 or infinity) where the data do not refuse that a constant of one
    of the curves is 0. Where c1 may be 0, `Posterior.supported` has the numbers.

    Attributes:
        probability: that it is greater than 1; no more than 0.5 where the lower end is
            open, since data do not refuse a ratio of 0, and no less where the upper is.
        p_adjusted: twice the probability of the less likely side of 1, adjusted for
            all ratios of the comparison (Holm 1979); NaN where the pair is refused.
        within: the least factor X such that the ratio lies between 1/X and X with the
            probability `level`: factors beyond it are excluded. Infinity where an end
            is open.
        verdict: `higher` or `lower` (p_adjusted is below 1 - level), `equal within X`
            (X is at most the margin), `unresolved`, or `refused`, with the reason.
    """

    probability: float
    p_adjusted: float
    within: float
    verdict: str


@dataclass(frozen=True)
class CurveRatio(Generic[Name]):
    """One curve against a reference curve.

    `searches` says what K* of each are the best of where that is unlike (see
    UNLIKE_SEARCHES), as `64 points in 2 dimensions against 24 points in 1 dimension`.
    """

    curve: Name
    reference: Name
    c1: Ratio
    c2: Ratio
    critical_batch_size: Ratio
    searches: str = ""

    @property
    def moves(self) -> tuple[str, ...]:
        """Which of c1 and c2 differ, by their verdicts."""
        both = {"c1": self.c1, "c2": self.c2}
        return tuple(name for name in both if both[name].verdict in _SIDES)


@dataclass(frozen=True)
class Comparison(Generic[Name]):
    """Ratios of several curves, one per pair, with one residual scale in octaves.

    Attributes:
        ratios: one per pair.
        fits: the law of each curve in the joint fit, by name.
        margin: the factor within which curves count as equal.
    """

    ratios: tuple[CurveRatio[Name], ...]
    fits: Mapping[Name, LawFit]
    margin: float

    @property
    def scale(self) -> Estimate:
        """The residual scale of all curves, in octaves."""
        return next(iter(self.fits.values())).scale

    @property
    def level(self) -> float:
        """The nominal coverage of intervals."""
        return next(iter(self.fits.values())).level

    def to_frame(self) -> pd.DataFrame:
        """Returns one row per pair and quantity.

        Columns: curve, reference, quantity (of QUANTITIES), ratio, low, high,
        probability, p_adjusted, within, verdict, searches; see `Ratio`, `CurveRatio`.
        """
        rows = [
            {
                "curve": pair.curve,
                "reference": pair.reference,
                "quantity": name,
                **vars(getattr(pair, name)),
                "searches": pair.searches,
            }
            for pair in self.ratios
            for name in QUANTITIES
        ]
        return pd.DataFrame(rows).rename(columns={"value": "ratio"})

    def to_json(self) -> dict[str, Any]:
        """Returns the table as JSON; None stands for infinity and for NaN."""
        table = self.to_frame().astype(object)
        is_finite = table.notna() & ~table.isin([np.inf])
        return {
            "residual_scale_octaves": self.scale.to_json(),
            "margin": self.margin,
            "ratios": table.where(is_finite, None).to_dict("records"),
        }


def compare(
    curves: Mapping[Name, Observations],
    reference: Name | None = None,
    *,
    pairs: Sequence[tuple[Name, Name]] | None = None,
    margin: float = MARGIN,
    level: float = LEVEL,
    searches: Mapping[Name, str] | None = None,
) -> Comparison[Name]:
    """Returns the ratios of c1, c2 and c1/c2 of a joint fit of several curves.

    Ratios are medians of the posterior with equal-tailed intervals. A pair whose K*
    were evaluated at unlike intervals at one batch size is refused: K* depends on the
    interval. An effect that is smaller than an interval is unresolved.

    Args:
        curves: by name, each with a K* that is no bound, and one with such K* at three
            or more batch sizes; see `joinable`.
        reference: the curve that all others are compared with; by default the first.
        pairs: (curve, reference) of each comparison, instead.
        margin: factor within which curves count as equal, above 1.
        level: nominal coverage of the intervals.
        searches: what K* of each curve are the best of, such as `24 points in 1
            dimension`; nothing where that is unknown.

    Raises:
        UserError: fewer than two curves, curves that are too short, an unknown name,
            or a margin that is none.

    >>> sizes = [1, 4, 16, 64, 256]
    >>> one = Observations.of(sizes, [410, 112, 35, 16, 11])
    >>> two = Observations.of(sizes, [1210, 310, 86, 28, 15])
    >>> compare({"sgd": one, "pruned": two}, "sgd").ratios[0].moves
    ('c1',)
    """
    named_pairs = _pairs(curves, reference, pairs)
    if not is_number(margin) or margin <= 1:
        raise UserError(f"margin is {margin!r}; it must be a factor above 1.")
    fits = joint_fit(curves, level)
    compared = {name for pair in named_pairs for name in pair}
    parts = {name: _by_slice(fits[name].posterior) for name in compared}
    ratios = []
    for name, other in named_pairs:
        both = fits[name], fits[other]
        refused, small = _unlike(*both), _below_interval(*both)
        for q in QUANTITIES:
            law = _distribution(parts[name][q], parts[other][q], both[0].posterior)
            verdict = refused or (_SMALL if q in small else "")
            ratios.append(_ratio(law, level, _open_ends(q, *both), verdict))
    adjusted = [
        replace(ratio, p_adjusted=float(p), verdict=_verdict(ratio, p, level, margin))
        for ratio, p in zip(ratios, holm([r.p_adjusted for r in ratios]), strict=True)
    ]
    of_pairs = []
    for k, pair in enumerate(named_pairs):
        c1, c2, critical = adjusted[3 * k : 3 * k + 3]
        unlike = _against(searches or {}, *pair)
        of_pairs.append(CurveRatio(*pair, c1, c2, critical, unlike))
    return Comparison(tuple(of_pairs), fits, margin)


def holm(p_values: Sequence[float]) -> Floats:
    """Returns p-values adjusted for their number (Holm 1979).

    NaN stands for what is not asked: it stays, and does not count.

    >>> holm([0.01, 0.04, float("nan"), 0.03]).tolist()
    [0.03, 0.06, nan, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    left = np.count_nonzero(~np.isnan(p)) - np.arange(len(p))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(left * p[order]), 1.0)
    return adjusted


def _pairs(
    curves: Mapping[Name, Observations],
    reference: Name | None,
    pairs: Sequence[tuple[Name, Name]] | None,
) -> list[tuple[Name, Name]]:
    """Returns (curve, reference) of each comparison."""
    if len(curves) < 2:
        raise UserError("a comparison needs at least two curves.")
    first = next(iter(curves)) if reference is None else reference
    others = [(name, first) for name in curves if name != first]
    named_pairs = others if pairs is None else list(pairs)
    for name in (first, *(name for pair in named_pairs for name in pair)):
        check_known("reference curve", str(name), [*map(str, curves)])
    return named_pairs


def _against(searches: Mapping[Name, str], curve: Name, reference: Name) -> str:
    own, other = searches.get(curve, ""), searches.get(reference, "")
    return f"{own} against {other}" if own and other and own != other else ""


Part = tuple[Floats, Floats, Floats, Floats]
"""log2 of a quantity [s, k], the width of its cells [s], their weights [s, k] and the
standard deviation of what adds to it [s]."""


def _by_slice(law: Posterior) -> dict[str, Part]:
    """Returns the distribution of each quantity within each slice."""
    one, two = law.widths
    kept = law.supported
    values, widths = law.log2_critical()
    within = [
        Distribution.of(*cells, bins=_SLICE_BINS)
        for cells in zip(values, widths, np.maximum(kept, 1e-300), strict=True)
    ]
    critical = (
        np.stack([part.middles for part in within]),
        np.array([part.width for part in within]),
        np.stack([part.masses for part in within]) * kept.sum(axis=(1, 2))[:, None],
        0 * law.blur,
    )
    return {
        "c1": (law.log2_c1, one, kept.sum(axis=2), law.blur),
        "c2": (law.log2_c2, two, law.within.sum(axis=1), law.blur),
        "critical_batch_size": critical,
    }


def _distribution(one: Part, other: Part, joint: Posterior) -> Distribution:
    """Returns the distribution of a ratio: given a slice, both are independent."""
    kept = joint.slices > 1e-7
    values = one[0][kept][:, :, None] - other[0][kept][:, None, :]
    widths = np.hypot(one[1][kept], other[1][kept])[:, None, None]
    weights = one[2][kept][:, :, None] * other[2][kept][:, None, :]
    weights = weights * joint.slices[kept][:, None, None]
    blur = np.hypot(one[3], other[3])[kept][:, None, None]
    return Distribution.of(values, widths, weights, blur=blur)


def _open_ends(quantity: str, curve: LawFit, other: LawFit) -> tuple[bool, bool]:
    """Returns whether the lower and the upper end of a ratio are open.

    A constant that may be 0 may make the ratio 0, or infinite where it divides.
    """
    above, below = _TERMS[quantity]
    return (
        above in curve.unresolved or below in other.unresolved,
        above in other.unresolved or below in curve.unresolved,
    )


def _ratio(
    law: Distribution, level: float, is_open: tuple[bool, bool], verdict: str
) -> Ratio:
    """Returns a ratio with its open ends; its p_adjusted is not adjusted yet."""
    low, high = is_open
    estimate = Estimate.of(law, level, not low, not high)
    above = law.probability_above(1.0)
    # Data do not refuse a ratio of 0 (of infinity): the prior alone would exclude it.
    above = min(above, 0.5) if low else above
    above = max(above, 0.5) if high else above
    distance = np.abs(law.middles)
    order = np.argsort(distance)
    total = np.cumsum(law.masses[order])
    within = float(np.exp2(np.interp(level, total, distance[order])))
    return Ratio(
        **vars(estimate),
        probability=above,
        p_adjusted=np.nan if "refused" in verdict else 2 * min(above, 1 - above),
        within=np.inf if low or high else within,
        verdict=verdict,
    )


def _unlike(curve: LawFit, other: LawFit) -> str:
    """Returns why two curves cannot be compared, or nothing."""
    intervals = [
        pd.Series(points.interval).groupby(points.batch_size).min()
        for points in (curve.observations, other.observations)
    ]
    both = pd.concat(intervals, axis=1, join="inner").dropna()
    for b, (one, two) in both[both[0] != both[1]].iterrows():
        return (
            f"refused: evaluated every {one:.12g} and every {two:.12g} steps at batch "
            f"size {b:.12g}"
        )
    return ""


def _below_interval(curve: LawFit, other: LawFit) -> tuple[str, ...]:
    """Returns the quantities whose difference is less than an evaluation interval.

    c1 is compared by its steps at the smallest batch size, and c2 at the largest. c1/c2
    is one of the quantities where neither c1 nor c2 differs by more.
    """
    points = curve.observations, other.observations
    steps = [
        abs(curve.c1.value - other.c1.value) / min(p.batch_size[0] for p in points),
        abs(curve.c2.value - other.c2.value),
    ]
    intervals = [np.nan_to_num(p.interval[[0, -1]]) for p in points]
    small = steps < np.max(intervals, axis=0)
    flags = zip(QUANTITIES, [*small, small.all()], strict=True)
    return tuple(name for name, is_small in flags if is_small)


def _verdict(ratio: Ratio, p_adjusted: float, level: float, margin: float) -> str:
    if ratio.verdict not in ("", _SMALL):
        return ratio.verdict
    if p_adjusted < 1 - level and not ratio.verdict:
        return _SIDES[int(ratio.value < 1)]
    return f"equal within {margin:g}" if ratio.within <= margin else "unresolved"


def exponent_of(curves: Mapping[Name, Observations]) -> Distribution:
    """Returns the distribution of an exponent that curves of one scale share."""
    [fit, *_] = joint_fit(curves, free_exponent=True).values()
    return fit.posterior.exponent


def exponent_of_all(tables: Sequence[Distribution]) -> Distribution:
    """Returns the distribution of an exponent that tables have in common.

    `tables` has what `exponent_of` returns of each table. Each table has a residual
    scale: given the exponent, tables are independent, and the prior counts once.
    """
    bins = len(tables[0].masses)
    low = min(table.low for table in tables)
    high = max(table.low + table.width * bins for table in tables)
    width = (high - low) / bins
    middles = low + width * (np.arange(bins) + 0.5)
    prior = norm.logpdf(middles * np.log(2), 0, EXPONENT_SPREAD)
    density = prior.copy()
    for table in tables:
        at = np.interp(middles, table.middles, table.density, left=0, right=0)
        # Where a table's lattice ended the density is negligible, and not 0.
        density += np.log(np.maximum(at, 1e-12)) - prior
    weights = np.asarray(np.exp(density - density.max()), np.float64)
    return Distribution.of(np.asarray(middles, np.float64), width, weights)
