"""Finds where perfect scaling ends and where larger batches stop helping.

Neither paper gives these ends a number, and every number depends on its definition and
its tolerance t, so that each is said with t. On the fit K = c1/B + c2, perfect scaling
ends at t c1/c2, where K B = (1 + t) c1. The curve is flat from c1/c2 / t on, where
K = (1 + t) c2. Beside them stand the ends on the measured points, which rest on single
K* and move by octaves with their scatter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dps_tf.analysis.law import Estimate, LawFit, Observations
from dps_tf.analysis.wording import interval, number, percent, with_interval

TOLERANCE = 0.2
"""Tolerance of figures and sentences: 20 % over linear scaling, as in the published
code of Zhang et al. 2024."""
_ROUNDING = 1e-12  # Relative: a point exactly on its limit stays within it.


@dataclass(frozen=True)
class Ends:
    """The ends of the regimes of one curve at one tolerance.

    Attributes:
        tolerance: t.
        smallest: smallest measured batch size.
        largest: largest measured batch size.
        critical: c1/c2.
        points_perfect: end of perfect scaling on the points, before its first failure.
        points_flat: smallest batch size on the plateau of the points; None where it is
            the largest measured one, beyond which K* may go on falling.
        is_flat: whether fit and points both find the curve flat within what was
            measured.
    """

    tolerance: float
    smallest: float
    largest: float
    critical: Estimate
    points_perfect: float
    points_flat: float | None
    is_flat: bool

    @property
    def perfect(self) -> Estimate:
        """The end of perfect scaling on the fit, t c1/c2."""
        return self._times(self.tolerance)

    @property
    def flat(self) -> Estimate:
        """The batch size from which the fit is flat, c1/c2 / t."""
        return self._times(1 / self.tolerance)

    def _times(self, factor: float) -> Estimate:
        critical = self.critical
        ends_of = (critical.value, critical.low, critical.high)
        return Estimate(*(factor * end for end in ends_of))

    @property
    def by_fit(self) -> str:
        """The ends on the fit, as a clause without full stop."""
        if self.perfect.low == 0 and np.isinf(self.perfect.high):
            return "the fit does not say up to which batch size scaling is perfect"
        perfect, flat = (
            batch_size_text(end, self.smallest) for end in (self.perfect, self.flat)
        )
        ends = "ends" if perfect.startswith("below") else "holds up to batch size"
        start = "" if flat.startswith("below") else "from batch size "
        level = (
            f"the steps level off {start}{flat}"
            if self.is_flat
            else f"up to {self.largest:.12g} the steps are not seen to level off"
        )
        return (
            "by the fit, perfect scaling (twice the batch size, half the steps, within "
            f"{percent(self.tolerance)}) {ends} {perfect}, and {level}"
        )

    @property
    def sentence(self) -> str:
        """The ends on the fit and on the points."""
        points = f"by single points, up to {self.points_perfect:.12g}"
        if self.points_flat is not None:
            points += f" and from {self.points_flat:.12g}"
        return f"{self.by_fit[0].upper()}{self.by_fit[1:]}; {points}."

    def to_json(self) -> dict[str, Any]:
        """Returns the ends as JSON; None stands for infinity."""
        return {
            "tolerance": self.tolerance,
            "perfect": self.perfect.to_json(),
            "flat": self.flat.to_json(),
            "points_perfect": self.points_perfect,
            "points_flat": self.points_flat,
            "is_flat": self.is_flat,
        }


def ends(fit: LawFit, tolerance: float = TOLERANCE) -> Ends:
    """Returns where perfect scaling ends and from where the curve is flat.

    Observations of the fit that are only bounds do not count as points.
    """
    points = by_batch_size(fit.observations)
    useful, is_open = maximum_useful(points, tolerance)
    sizes = fit.observations.batch_size
    found = Ends(
        tolerance,
        float(sizes.min()),
        float(sizes.max()),
        fit.critical_batch_size,
        perfect_scaling(points, tolerance),
        None if is_open else useful,
        is_flat=False,
    )
    # Of an open c1/c2 the upper end alone is known.
    at_most = found.flat.value if found.flat.low else found.flat.high
    is_near = bool(at_most <= points.batch_size[-1])
    return replace(found, is_flat=fit.plateau_resolved and is_near and not is_open)


def by_batch_size(observations: Observations) -> Observations:
    """Returns one K* per batch size, the geometric mean over seeds; bounds left out."""
    located = observations.located()
    sizes, group = np.unique(located.batch_size, return_inverse=True)
    sums = np.bincount(group, weights=np.log(located.high))
    # A single K* stays what it is, to its last bit.
    single = np.bincount(group) == 1
    mean = np.exp(sums / np.bincount(group))
    mean[single] = located.high[np.searchsorted(located.batch_size, sizes)][single]
    return Observations.of(sizes, mean)


def perfect_scaling(observations: Observations, tolerance: float) -> float:
    """Returns the last batch size before one with K B > (1 + t) K0 B0.

    K0 is the K* at the smallest batch size B0.
    """
    b = observations.batch_size
    examples = observations.high * b
    fails = examples > (1 + tolerance) * examples[0] * (1 + _ROUNDING)
    # K0 B0 itself never fails, so there is a batch size before the first failure.
    return float(b[int(np.argmax(fails)) - 1] if fails.any() else b[-1])


def maximum_useful(observations: Observations, tolerance: float) -> tuple[float, bool]:
    """Returns the smallest batch size with K <= (1 + t) min K, and whether it is open.

    Open: it is the largest measured one, beyond which K* may go on falling.
    """
    limit = (1 + tolerance) * observations.high.min() * (1 + _ROUNDING)
    smallest = float(
        observations.batch_size[int(np.argmax(observations.high <= limit))]
    )
    return smallest, bool(smallest == observations.batch_size[-1])


def batch_size_text(end: Estimate, smallest: float) -> str:
    """Returns the end of a regime with its interval, cut at the smallest batch size.

    >>> batch_size_text(Estimate(21.4, 17.2, 26.0), 4)
    '21 (17 to 26)'
    >>> batch_size_text(Estimate(0.212, 0.1, 9.0), 4)
    'below the smallest measured (at most 9)'
    >>> batch_size_text(Estimate(2.4, 0.0, 47.5), 4)
    'at most 48'
    """
    low, high = end.low, end.high
    if low == 0 and high >= smallest:
        return interval(low, high, 2)
    if end.value < smallest:
        upper_end = "" if high < smallest else f" ({interval(0.0, high, 2)})"
        return f"below the smallest measured{upper_end}"
    if low == 0 or low >= smallest:
        return with_interval(end.value, low, high)
    return f"{number(end.value, 2)} ({interval(0.0, high, 2)})"
