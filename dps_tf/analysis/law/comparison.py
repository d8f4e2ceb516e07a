"""By how much c1, c2 and c1/c2 of a curve differ from those of another one.

The curves of a sweep (sparsities, optimizers) are fitted with one residual scale, which
several short curves know better than each alone. Their ratios come with intervals, with
the probability of lying above 1, the same adjusted for the number of ratios, and with
the range that is excluded. Whether two intervals overlap is no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law.distribution import Distribution
from dps_tf.analysis.law.fit import LEVEL, Estimate, check
from dps_tf.analysis.law.integration import posteriors
from dps_tf.analysis.law.likelihood import Observations
from dps_tf.analysis.law.posterior import Posterior
from dps_tf.analysis.law.prior import log_prior_of_c2
from dps_tf.analysis.tables import Floats
from dps_tf.core import UserError, near_matches

QUANTITIES = ("c1", "c2", "critical_batch_size")
MARGIN = 1.25
"""Factor within which two curves count as equal, unless another is given."""
UNLIKE_SEARCHES = (
    "48 points in three dimensions lie 0.3 to 1.7 octaves above 24 in one, at equal "
    "curvature: a ratio of unlike searches is partly one of searches."
)
"""Caution of a ratio, from simulated searches."""
_SLICE_BINS = 160


@dataclass(frozen=True)
class Ratio(Estimate):
    """A ratio of two curves.

    An end is open (0 or infinity) where the data do not refuse that a constant of one
    of the curves is 0. Where that is c1, numbers are those of `Posterior.supported`.

    Attributes:
        probability: that it is greater than 1; no more than 0.5 where the lower end is
            open by c1, which may be less than any that is allowed, and no less where
            the upper end is.
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
class CurveRatio:
    """One curve against a reference curve.

    `searches` says what K* of each are the best of where that is unlike (see
    UNLIKE_SEARCHES), as `64 points in 2 dimensions against 24 points in 1 dimension`.
    """

    curve: str
    reference: str
    c1: Ratio
    c2: Ratio
    critical_batch_size: Ratio
    searches: str = ""

    @property
    def moves(self) -> tuple[str, ...]:
        """Which of c1 and c2 differ, by their verdicts."""
        return tuple(n for n in ("c1", "c2") if getattr(self, n).verdict in _SIDES)


_SIDES, _SMALL = ("higher", "lower"), "smaller than an evaluation interval"


@dataclass(frozen=True)
class Comparison:
    """Several curves with one residual scale, `scale` in octaves.

    `ratios` has one per pair, in the order given; for the rest see `compare`.
    """

    ratios: tuple[CurveRatio, ...]
    scale: Estimate
    level: float
    margin: float

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
        table = self.to_frame().astype(object).replace({np.nan: None, np.inf: None})
        rows, scale = table.to_dict("records"), self.scale.to_json()
        return {"residual_scale_octaves": scale, "margin": self.margin, "ratios": rows}


def compare(
    curves: Mapping[str, Observations],
    reference: str | None = None,
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    margin: float = MARGIN,
    level: float = LEVEL,
    searches: Mapping[str, str] | None = None,
) -> Comparison:
    """Returns the ratios of c1, c2 and c1/c2 of a joint fit of several curves.

    Ratios are medians of the posterior with equal-tailed intervals. A pair whose K*
    were evaluated at unlike intervals at one batch size is refused: K* depends on the
    interval. An effect that is smaller than an interval is unresolved.

    Args:
        curves: by name, each with three or more batch sizes.
        reference: the curve that all others are compared with; by default the first.
        pairs: (curve, reference) of each comparison, instead.
        margin: factor within which curves count as equal, above 1.
        level: nominal coverage of the intervals.
        searches: what K* of each curve are the best of, such as `24 points in 1
            dimension`; nothing where that is unknown.

    Raises:
        UserError: fewer than two curves, a curve that is too short, an unknown name,
            or a margin that is none.

    >>> sizes = [1, 4, 16, 64, 256]
    >>> one = Observations.of(sizes, [410, 112, 35, 16, 11])
    >>> two = Observations.of(sizes, [1210, 310, 86, 28, 15])
    >>> compare({"sgd": one, "pruned": two}, "sgd").ratios[0].moves
    ('c1',)
    """
    wanted = _pairs(curves, reference, pairs)
    if not 1 < margin < np.inf:
        raise UserError(f"margin is {margin!r}; it must be a factor above 1.")
    for name, observations in curves.items():
        check(observations, level, name)
    joint = dict(zip(curves, posteriors(list(curves.values())), strict=True))
    first = next(iter(joint.values()))
    parts = {name: _by_slice(each) for name, each in joint.items()}
    vanishing = {name: _vanishing(joint[name], curves[name], level) for name in joint}
    ratios = []
    for name, other in wanted:
        both, of_both = (curves[name], curves[other]), (joint[name], joint[other])
        refused, small = _unlike(*both), _below_interval(both, of_both)
        # A ratio that is refused keeps its ends.
        may_be_0 = [set() if refused else vanishing[each] for each in (name, other)]
        for q in QUANTITIES:
            ratio = _distribution(parts[name][q], parts[other][q], first)
            verdict = refused or (_SMALL if q in small else "")
            low, high = _open_by(q, *may_be_0), _open_by(q, *may_be_0[::-1])
            ratios.append(_ratio(ratio, level, verdict, low, high))
    adjusted = [
        replace(ratio, p_adjusted=float(p), verdict=_verdict(ratio, p, level, margin))
        for ratio, p in zip(ratios, holm([r.p_adjusted for r in ratios]), strict=True)
    ]
    of_pairs = []
    for k, (name, other) in enumerate(wanted):
        c1, c2, critical = adjusted[3 * k : 3 * k + 3]
        unlike = _against(searches or {}, name, other)
        of_pairs.append(CurveRatio(name, other, c1, c2, critical, unlike))
    scale = Estimate.of(first.residual_scale, level)
    return Comparison(tuple(of_pairs), scale, level, margin)


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
    curves: Mapping[str, Observations],
    reference: str | None,
    pairs: Sequence[tuple[str, str]] | None,
) -> list[tuple[str, str]]:
    if len(curves) < 2:
        raise UserError("a comparison needs at least two curves.")
    reference = next(iter(curves)) if reference is None else reference
    named = [reference, *(name for pair in pairs or () for name in pair)]
    for name in named:
        if name not in curves:
            raise UserError(
                f"reference curve {name!r} is unknown: {near_matches(name, curves)}."
            )
    if pairs is not None:
        return list(pairs)
    return [(name, reference) for name in curves if name != reference]


def _against(searches: Mapping[str, str], curve: str, reference: str) -> str:
    own, other = searches.get(curve, ""), searches.get(reference, "")
    return f"{own} against {other}" if own and other and own != other else ""


Part = tuple[Floats, Floats, Floats]
"""log2 of a quantity [s, k], the width of its cells [s] and their weights [s, k]."""


def _by_slice(posterior: Posterior) -> dict[str, Part]:
    """Returns the distribution of each quantity within each slice."""
    one, two = posterior.widths
    kept = posterior.supported
    c1 = (posterior.log2_c1, one, kept.sum(axis=2))
    c2 = (posterior.log2_c2, two, posterior.within.sum(axis=1))
    values, widths = posterior.log2_critical()
    within = [
        Distribution.of(*each, bins=_SLICE_BINS)
        for each in zip(values, widths, np.maximum(kept, 1e-300), strict=True)
    ]
    critical = (
        np.stack([each.middles for each in within]),
        np.array([each.width for each in within]),
        np.stack([each.masses for each in within]) * kept.sum(axis=(1, 2))[:, None],
    )
    return {"c1": c1, "c2": c2, "critical_batch_size": critical}


def _distribution(one: Part, other: Part, joint: Posterior) -> Distribution:
    """Returns the distribution of a ratio: given a slice, both are independent."""
    kept = joint.slices > 1e-7
    values = one[0][kept][:, :, None] - other[0][kept][:, None, :]
    widths = np.hypot(one[1][kept], other[1][kept])[:, None, None]
    weights = one[2][kept][:, :, None] * other[2][kept][:, None, :]
    return Distribution.of(values, widths, weights * joint.slices[kept][:, None, None])


def _ratio(
    distribution: Distribution,
    level: float,
    verdict: str,
    low: set[str],
    high: set[str],
) -> Ratio:
    """Returns a ratio of which some constants open the ends."""
    above = distribution.probability_above(1.0)
    # c1 may be less than any c1 that is allowed: that it is more cannot be found.
    above = min(above, 0.5) if "c1" in low else above
    above = max(above, 0.5) if "c1" in high else above
    p_value = np.nan if verdict.startswith("refused") else 2 * min(above, 1 - above)
    middles = np.abs(distribution.middles)
    order = np.argsort(middles)
    total = np.cumsum(distribution.masses[order])
    within = float(np.exp2(np.interp(level, total, middles[order])))
    estimate = Estimate.of(distribution, level, not low, not high)
    ends = estimate.value, estimate.low, estimate.high
    return Ratio(*ends, above, p_value, np.inf if low or high else within, verdict)


def _vanishing(
    posterior: Posterior, observations: Observations, level: float
) -> set[str]:
    """Returns which constants of a curve may be 0 in a joint fit.

    c1 where it rests on its support; c2, whose prior has no end that matters, as in
    `integration.support`.
    """
    c2 = posterior.c2
    kept = c2.density > c2.density.max() * 1e-4
    likelihood = np.log(c2.density[kept])
    likelihood -= log_prior_of_c2(c2.middles[kept], observations)
    more = c2.masses[kept][likelihood > likelihood[0]].sum()
    c2_vanishes = {"c2"} if more < 1 - (1 - level) / 4 else set()
    return c2_vanishes.union({"c1"}.intersection(posterior.rests_on))


def _open_by(quantity: str, curve: set[str], reference: set[str]) -> set[str]:
    """Returns by which constants that may be 0 the lower end of a ratio is open."""
    if quantity == "critical_batch_size":
        return curve & {"c1"} | reference & {"c2"}
    return curve & {quantity}


def _unlike(one: Observations, other: Observations) -> str:
    """Returns why two curves cannot be compared, or nothing."""
    for b in np.intersect1d(one.batch_size, other.batch_size):
        ours, theirs = (
            np.nanmin(np.append(each.interval[each.batch_size == b], np.inf))
            for each in (one, other)
        )
        if np.isfinite(ours) and np.isfinite(theirs) and ours != theirs:
            return (
                f"refused: evaluated every {ours:.12g} and every {theirs:.12g} steps "
                f"at batch size {b:.12g}"
            )
    return ""


def _below_interval(
    curves: Sequence[Observations], joint: Sequence[Posterior]
) -> tuple[str, ...]:
    """Returns the quantities whose difference is less than an evaluation interval.

    That of c1 by its steps at the smallest batch size, that of c2 at the largest; the
    ratio of both where neither differs by more.
    """
    ends = [np.nan_to_num(curve.interval[[0, -1]]) for curve in curves]
    widest = np.max(ends, axis=0)
    c1, c2 = (
        abs(np.subtract(*(getattr(each, name).quantiles([0.5])[0] for each in joint)))
        for name in ("c1", "c2")
    )
    smallest = min(curve.batch_size[0] for curve in curves)
    small = [c1 / smallest < widest[0], c2 < widest[1]]
    return tuple(n for n, s in zip(QUANTITIES, [*small, all(small)], strict=True) if s)


def _verdict(ratio: Ratio, p_adjusted: float, level: float, margin: float) -> str:
    if ratio.verdict not in ("", _SMALL):
        return ratio.verdict
    if p_adjusted < 1 - level and not ratio.verdict:
        return _SIDES[int(ratio.value < 1)]
    return f"equal within {margin:g}" if ratio.within <= margin else "unresolved"
