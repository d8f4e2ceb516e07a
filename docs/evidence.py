"""Comparisons that verdicts rest on, and the rule by which each gets its word.

`Evidence` is one comparison: a factor or a difference with its interval. `word` is the
rule, and `holm` adjusts the probabilities of a family of comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from dps_tf.analysis import law
from dps_tf.analysis.law import LEVEL, Distribution, Estimate
from dps_tf.analysis.paired_ratios import PairedRatio
from dps_tf.analysis.tables import Floats
from dps_tf.analysis.wording import number, with_interval

REFUTED, UNTOLD = "does not", "not told apart"
KINDS = ("agrees", REFUTED, UNTOLD, "not measured")
SIDES = ("higher", "lower")
NOT_HIGHER = "not higher"
SIGNIFICANT = 0.05
POWER = 0.8
MOST_SEEDS, MANY_SEEDS = 10, 1_000
LEVELS = (np.arange(2000) + 0.5) / 2000
"""At which quantiles stand for a distribution."""


def estimate(shown: Estimate) -> str:
    """Returns a value with its interval; where an end is open, the bound alone."""
    return with_interval(shown.value, shown.low, shown.high, digits=3)


@dataclass(frozen=True)
class Evidence:
    """One comparison.

    Attributes:
        about: what is compared.
        studies: the tables.
        value: a factor (`null` is 1) or a difference (`null` is 0).
        low, high: ends of its 95 % interval.
        p: twice the probability of the less likely side of `null`.
        within: the least factor, or distance, beyond which 5 % lie; infinity where
            none is excluded.
        null: where nothing differs.
        refused: why nothing can be compared, or nothing.
        is_small: the effect is smaller than an evaluation interval.
        searches: what K* of both are the best of, where that is unlike.
        error: the standard error of a mean, in octaves or as a difference.
        seeds: of how many it is the mean, where tables of it have other numbers.
        replicates: what the mean is over, where it is not over seeds.
    """

    about: str
    studies: tuple[str, ...]
    value: float
    low: float
    high: float
    p: float
    within: float
    null: float = 1.0
    refused: str = ""
    is_small: bool = False
    searches: str = ""
    error: float | None = None
    seeds: int = 0
    replicates: str = "seeds"

    def __str__(self) -> str:
        """Returns its value and interval; where an end is open, the bound alone."""
        if self.null == 1:
            return estimate(Estimate(self.value, self.low, self.high))
        shown = [f"{x:+.3g}" for x in (self.value, self.low, self.high)]
        return f"{shown[0]} ({shown[1]} to {shown[2]})"


def word(found: Evidence, p_adjusted: float, claim: str, margin: float) -> str:
    """Returns the verdict of one comparison: the rule above the table.

    Args:
        found: the comparison.
        p_adjusted: its `p`, adjusted for the comparisons of its claim.
        claim: `higher`, `lower`, `different`, `equal` (within the margin) or
            `not higher` (than the margin).
        margin: a factor, or a distance.

    Returns:
        `agrees`, `does not`, `not told apart within X` (of what is claimed not higher,
        `at most` the upper end) or `not measured`. What is
        claimed equal, or not higher, agrees within the margin even if it differs.
    """
    if found.refused:
        return "not measured"
    differs = p_adjusted < SIGNIFICANT and not found.is_small
    side = "higher" if found.value > found.null else "lower"
    is_near = found.within <= margin
    agrees, refuted = {
        "equal": (is_near, differs),
        "different": (differs, is_near),
        NOT_HIGHER: (found.high < margin, differs and side == "higher"),
    }.get(claim, (differs and side == claim, differs and side != claim))
    if agrees or refuted:
        return "agrees" if agrees else REFUTED
    if claim == NOT_HIGHER and np.isfinite(found.high):
        return f"not told apart, at most {found.high:.3g}"
    if np.isinf(found.within):
        return "not told apart, no factor is excluded"
    reach = number(found.within) if found.null else f"±{found.within:.3g}"
    return f"{UNTOLD} within {reach}"


def seeds_needed(found: Evidence, seeds: int, comparisons: int, claim: str = "") -> str:
    """Returns how many seeds would tell a comparison apart, as a clause, or nothing.

    With a probability of POWER, if the estimate is true, its error (of a factor: in
    octaves) falls with the root of the number of `seeds`, and p is adjusted for all
    `comparisons` of the claim. A mean with an `error` is tested by t, with as many
    degrees of freedom as seeds less one; others are normal, with the error of their
    interval. Nothing where an end is open. Where the estimate lies on the other side
    than `claim` the clause says so.
    """
    ends = np.array([found.value, found.low, found.high])
    if found.refused or np.isinf(found.within):
        return ""
    middle, low, high = np.log2(ends) if found.null else ends
    numbers = np.arange(2 if found.error else 1, MANY_SEEDS + 1)
    error = found.error or (high - low) / (2 * stats.norm.isf((1 - LEVEL) / 2))
    away = abs(middle) / error * np.sqrt(numbers / (found.seeds or seeds))
    level = SIGNIFICANT / (2 * comparisons)
    if found.error:
        power = stats.nct.sf(stats.t.isf(level, numbers - 1), numbers - 1, away)
    else:
        power = stats.norm.sf(stats.norm.isf(level) - away)
    enough = numbers[power >= POWER]
    if not len(enough):
        return f"open, as more than {MANY_SEEDS:,} {found.replicates} are needed"
    clause = "open, as " if enough[0] > MOST_SEEDS else ""
    side = "higher" if found.value > found.null else "lower"
    what = f" to show it {side}" if claim in SIDES and claim != side else ""
    return f"{clause}{enough[0]} {found.replicates} are needed{what}"


def of_t(
    about: str,
    studies: Sequence[str],
    found: tuple[float, float, float],
    null: int,
) -> Evidence:
    """Returns what a mean, its standard error and degrees of freedom say.

    The mean is a difference (`null` 0), or one in octaves, shown as a factor (1).
    """
    middle, error, freedom = found
    spread = stats.t(freedom)
    width = spread.ppf(0.5 + LEVEL / 2) * error
    reach = brentq(
        lambda x: (
            spread.cdf((x - middle) / error) - spread.cdf((-x - middle) / error) - LEVEL
        ),
        0,
        abs(middle) + 2 * width,
    )
    p = 2 * spread.sf(abs(middle) / error)
    ends = (middle, middle - width, middle + width)
    if null == 1:
        ends, reach = tuple(np.exp2(ends)), np.exp2(reach)
    return Evidence(about, tuple(studies), *ends, p, reach, null, error=error)


def of_distribution(
    about: str, studies: Sequence[str], x: Distribution, null: int
) -> Evidence:
    """Returns what a distribution says of a factor (`null` 1), or of it less 1 (0)."""
    ends = x.quantiles([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    low, value, high = ends - (1 - null)
    far = np.exp2(np.abs(x.middles)) if null else np.abs(np.exp2(x.middles) - 1)
    order = np.argsort(far)
    within = np.interp(LEVEL, np.cumsum(x.masses[order]), far[order])
    above = x.probability_above(1.0)
    p = 2 * min(above, 1 - above)
    return Evidence(about, tuple(studies), value, low, high, p, float(within), null)


def quotient(mean: tuple[float, float, float], other: Estimate) -> Distribution:
    """Returns the distribution of a ratio over another that is independent of it.

    `mean` is what `log2_of` returns, with t-distributed error; the logarithm of the
    other, known by its median and interval, is normal.
    """
    middle, error, freedom = mean
    spread = np.log2(other.high / other.low) / 2 / stats.norm.ppf(0.5 + LEVEL / 2)
    one = middle + error * stats.t(freedom).ppf(LEVELS)
    two = np.log2(other.value) + spread * stats.norm.ppf(LEVELS)
    return _of_differences(one, two)


def over(one: Distribution, other: Distribution) -> Distribution:
    """Returns the distribution of a ratio of two independent quantities."""
    return _of_differences(*(np.log2(each.quantiles(LEVELS)) for each in (one, other)))


def _of_differences(one: Floats, other: Floats) -> Distribution:
    """Returns the distribution of a ratio from quantiles of both, in octaves."""
    octaves = np.subtract.outer(one, other)
    return Distribution.of(octaves, 0.0, np.ones_like(octaves))


def log2_of(found: PairedRatio) -> tuple[float, float, float]:
    """Returns mean, standard error and degrees of freedom of a ratio, in octaves."""
    freedom = found.seeds - 1
    width = np.log2(found.high / found.low) / 2
    error = width / stats.t.ppf(0.5 + LEVEL / 2, freedom)
    return np.log2(found.ratio), error, freedom


def holm(found: Mapping[str, Evidence]) -> dict[str, float]:
    """Returns the probabilities of a family, adjusted as Holm (1979) does.

    Comparisons that are refused are none of the family, and have 1.
    """
    p = law.holm([np.nan if each.refused else each.p for each in found.values()])
    return dict(zip(found, np.nan_to_num(p, nan=1.0), strict=True))
