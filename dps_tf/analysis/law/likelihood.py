"""Observations, steps-to-result that lie in brackets, and their likelihood.

log2 K* is normal about a model's curve with one residual scale (in octaves) for all
batch sizes. A K* that was found at an evaluation contributes the probability of its
bracket and not the density at its end, so that neither half an evaluation interval of
bias nor a false precision enters where K* is a few intervals.

A study of a curve under one of several seeds has a shift, the same at every batch size,
from its points and initial weights. The shift is normal about 0. The mean of the shifts
is a factor of c1 and c2 that no K* shows: curves have it in them. How each shift
differs from the mean is integrated out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import erfc, log_ndtr

from dps_tf.analysis.tables import (
    Bools,
    Codes,
    Floats,
    numbers,
    refuse_first,
    require,
    row_number,
    winner_at_end,
)
from dps_tf.core import UserError

SCALE_FLOOR = 0.01
"""Octaves: 0.7 %. No repeat of a search for a minimum agrees better than that; the
floor keeps the likelihood bounded where a curve passes through every bracket."""
SCALE_CEILING = 2.0
"""Octaves: a factor of four. Beyond it there is no law to speak of."""
_ALLOWED = {
    "bracket_low": "at least 0 and below steps_to_result",
    "noise": "a number of octaves of at least 0",
}
_ROOT = 0.5**0.5
_RULE = np.polynomial.hermite_e.hermegauss(3)  # For the shift of a seed.


@dataclass(frozen=True, eq=False)
class Observations:
    """Steps-to-result of one curve, in the order of the batch sizes.

    Observations with the same content are equal.

    Attributes:
        batch_size: [n] examples per step, positive.
        low: [n] K* lies above it; NaN where K* is exact, 0 where it is only known not
            to be more than `high`.
        high: [n] K* lies at or below it, positive; infinity where K* is only known to
            be more than `low`.
        noise: [n] octaves, standard deviation of log2 K* that repeats show, or 0. It
            adds to the residual scale, in squares, so that noisy cells weigh less.
        seed: [n] which study of the curve it belongs to, from 0.
        interval: [n] evaluation interval, in steps, of a K* that is no bound; NaN where
            unknown. By default the width of the bracket.
    """

    batch_size: Floats
    low: Floats
    high: Floats
    noise: Floats
    seed: Codes
    interval: Floats

    @classmethod
    def of(
        cls,
        batch_size: ArrayLike,
        steps_to_result: ArrayLike,
        bracket_low: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        seed: ArrayLike | None = None,
        interval: ArrayLike | None = None,
    ) -> Observations:
        """Returns checked observations; each argument is an attribute of the class.

        K* are the values of `high`. By default no bracket and no noise is known, and
        all belong to one study; any values tell seeds apart.

        Raises:
            UserError: a value that is not positive, or not finite without a bracket, a
                bracket that does not lie below its K*, or different lengths.
        """
        b = np.asarray(batch_size, np.float64)
        high = np.asarray(steps_to_result, np.float64)
        empty = np.full(len(high), np.nan)
        low = np.asarray(empty if bracket_low is None else bracket_low, np.float64)
        spread = np.asarray(empty if noise is None else noise, float)
        spread = np.where(np.isnan(spread), 0.0, spread)
        if not len(b) == len(high) == len(low) == len(spread):
            raise UserError(
                f"batch_size, steps_to_result, bracket_low and noise have {len(b)}, "
                f"{len(high)}, {len(low)} and {len(spread)} values: give one of each "
                "per batch size."
            )
        is_right = {
            "batch_size": np.isfinite(b) & (b > 0),
            "steps_to_result": (np.isfinite(high) | (low > 0)) & (high > 0),
            "bracket_low": np.isnan(low) | (low >= 0) & (low < high),
            "noise": np.isfinite(spread) & (spread >= 0),
        }
        for name, values in zip(is_right, (b, high, low, spread), strict=True):
            if not is_right[name].all():
                i = int(np.argmin(is_right[name]))
                row = row_number(pd.Series(batch_size), i)
                raise UserError(
                    f"{name} is {values[i]:g} in row {row}; it must be "
                    f"{_ALLOWED.get(name, 'a positive number')}."
                )
        codes, _ = pd.factorize(np.asarray(np.zeros(len(b)) if seed is None else seed))
        every = np.asarray(empty if interval is None else interval, np.float64)
        every = np.where(every > 0, every, high - low)
        every = np.where(np.isinf(high) | (low == 0) | np.isnan(low), np.nan, every)
        at = np.argsort(b, kind="stable")
        return cls(b[at], low[at], high[at], spread[at], codes[at], every[at])

    @classmethod
    def from_results(cls, results: pd.DataFrame) -> Observations:
        """Returns the observations of one curve of a table; rows differ in B and seed.

        Columns: batch_size and steps_to_result; optionally bracket_low, noise (octaves)
        and seed. A row with bracket_low alone is a bound.

        In a results table, a cell that no trial is known to have solved is bounded by
        the steps that were followed. A K* whose best metaparameters lie at an end of
        their range is an upper bound, since a wider range may give less. Cells with a
        K* of 0, and cells in which every trial diverged, are left out.
        """
        require(results, ["batch_size", "steps_to_result"], "results")
        cells = results[[n for n in ("batch_size", "seed") if n in results]].astype(str)
        if "run" not in results and cells.duplicated().any():
            cell = " of seed ".join(cells[cells.duplicated()].iloc[0])
            raise UserError(
                f"a curve has batch size {cell} twice: give each study once, or number "
                "runs in a column run."
            )
        names = ("steps_to_result", "bracket_low", "noise")
        steps, low, noise = (_floats(results, name) for name in names)
        used, beyond = ~np.isnan(steps), low
        if "steps_bound" in results.columns:
            used, is_bounded = steps > 0, results["steps_bound"] != ""
            beyond = np.where(is_bounded, _followed(results), np.nan)
        low = np.where(winner_at_end(results) & ~np.isnan(steps), 0.0, low)
        is_beyond = np.isnan(steps) & (beyond > 0)
        columns = (
            pd.Series(_floats(results, "batch_size"), results.index),
            np.where(is_beyond, np.inf, steps),
            np.where(is_beyond, beyond, low),
            noise,
            results.get("seed", pd.Series(0, results.index)).to_numpy(),
            _floats(results, "evaluation_interval"),
        )
        return cls.of(*(values[used | is_beyond] for values in columns))

    def where(self, kept: Codes | Bools) -> Observations:
        """Returns some of them, by their places or by whether each is kept, [n]."""
        return Observations(*(getattr(self, f.name)[kept] for f in fields(self)))

    def located(self) -> Observations:
        """Returns the observations that are bounded on both sides, or exact."""
        return self.where(~self.is_bound)

    def without_brackets(self) -> Observations:
        """Returns observations with exact K* amid brackets, and half widths as noise.

        Their likelihood is wider than the likelihood of brackets.
        """
        inside = self.half_width > 0
        return replace(
            self,
            low=np.where(inside, np.nan, self.low),
            high=self.high * np.exp2(-self.half_width),
            noise=np.hypot(self.noise, self.half_width),
        )

    def __len__(self) -> int:
        return len(self.batch_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observations) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> tuple[bytes, ...]:
        return tuple(getattr(self, f.name).tobytes() for f in fields(self))

    @cached_property
    def is_exact(self) -> Bools:
        """Which steps-to-result have no bracket, [n]."""
        return np.isnan(self.low)

    @cached_property
    def half_width(self) -> Floats:
        """Half of each bracket in octaves, 0 where K* is exact or a bound; [n]."""
        inside = ~(self.is_bound | self.is_exact)
        low, high = np.where(inside, (self.low, self.high), 1.0)
        return np.asarray(np.log2(high / low) / 2, np.float64)

    @cached_property
    def middle(self) -> Floats:
        """The middle of each bracket; K* itself if exact; or the bound; [n]."""
        half = np.where(self.is_exact, self.high, (self.low + self.high) / 2)
        return np.where(np.isinf(self.high), self.low, half)

    @cached_property
    def is_bound(self) -> Bools:
        """Which steps-to-result are bounded on one side only, [n]."""
        return np.asarray(np.isinf(self.high) | (self.low == 0), np.bool_)

    @cached_property
    def distinct(self) -> tuple[Floats, Codes]:
        """The distinct batch sizes, and which of them each K* has, [n]."""
        sizes, place = np.unique(self.batch_size, return_inverse=True)
        return sizes, place

    @property
    def rms_noise(self) -> float:
        """The root mean square of the noise, in octaves."""
        return float(np.sqrt(np.mean(self.noise**2)))

    @cached_property
    def seeds(self) -> int:
        """The number of studies."""
        return len(np.unique(self.seed))

    @property
    def batch_sizes(self) -> int:
        """The number of distinct batch sizes with more than a bound."""
        return len(np.unique(self.batch_size[~self.is_bound]))


def _floats(results: pd.DataFrame, name: str) -> Floats:
    """Returns a column, NaN if empty or missing, [n]; UserError for no number."""
    column = results.reindex(columns=[name])[name]
    values = numbers(column)
    wrong = values.isna() & column.notna()
    refuse_first(wrong, column, "of results", "a number")
    return values.to_numpy(np.float64)


def _followed(results: pd.DataFrame) -> Floats:
    """Returns the last evaluation before any trial met the goal, if stated, [n]."""
    names = ("steps_low", "step_budget", "evaluation_interval")
    low, budget, interval = (_floats(results, name) for name in names)
    interval = np.maximum(interval, 1)
    last = np.floor(budget / interval) * interval
    return np.where(np.isnan(low), last, low - interval)


Each = Sequence[Floats]
"""An array for each K*."""


def log_likelihood(
    observations: Observations, curve: Each, variance: Each, shift: Floats
) -> Floats:
    """Returns the log-likelihood of curves, at the mean shift of their seeds, [...].

    Args:
        observations: n steps-to-result.
        curve: log2 steps of a model at the batch size of each, n times [...].
        variance: square of the residual scale of each, broadcast to [...].
        shift: standard deviation of what a seed shifts all its K* by, in octaves,
            broadcast likewise; positive, and of no meaning for a single seed.
    """
    # From 2 half widths on, a normal of a bracket's variance is off by 0.01 nats at
    # most within three scales.
    least = np.array([part.min() for part in variance]) + observations.noise**2
    is_wide = observations.is_bound | (least < 4 * observations.half_width**2)
    if observations.seeds == 1:
        wide, rest = np.flatnonzero(is_wide), np.flatnonzero(~is_wide)
        value = _of_wide(observations, wide, curve, variance, None)
        return value + _normal(observations, rest, curve, variance, False)[2]
    seeds = np.unique(observations.seed)
    rows = [np.flatnonzero(observations.seed == seed) for seed in seeds]
    parts = [_normal(observations, own, curve, variance) for own in rows]
    # Were shifts independent, each would be normal, of these variances and means.
    spread = [1 / (precision + shift**-2) for precision, _, _ in parts]
    center = [part[1] * square for part, square in zip(parts, spread, strict=True)]
    sums = np.sum(center, axis=0), np.sum(spread, axis=0)
    # Shifts add up to 0: the density of their sum there, after over before.
    value = 0.5 * (np.log(len(rows) / sums[1]) - sums[0] ** 2 / sums[1])
    value = value - (len(rows) - 1) * np.log(shift)
    for own, part, square, middle in zip(rows, parts, spread, center, strict=True):
        value += part[2] + 0.5 * (np.log(square) + middle * part[1])
        wide = own[is_wide[own]]
        if not len(wide):
            continue
        # What brackets and bounds differ by from that, over the shift of their seed.
        precision, pull, top = _normal(observations, wide, curve, variance)
        share = square / sums[1]
        middle, width = middle - share * sums[0], np.sqrt(square * (1 - share))
        terms = []
        for node, weight in zip(*_RULE, strict=True):
            at = middle + width * node
            exact = _of_wide(observations, wide, curve, variance, at)
            exact += np.log(weight / _RULE[1].sum())
            terms.append(exact - (pull - 0.5 * precision * at) * at)
        most = np.maximum.reduce(terms)
        value += most - top + np.log(sum(np.exp(term - most) for term in terms))
    return np.asarray(value, np.float64)


def _normal(
    observations: Observations,
    rows: Codes,
    curve: Each,
    variance: Each,
    is_shifted: bool = True,
) -> tuple[Floats, Floats, Floats]:
    """Returns the precision p, pull q and constant k of some K*.

    Their log-probability, all shifted by x, is k + q x - p x^2 / 2, where brackets are
    taken for normals of their variance; bounds are left out. Unless `is_shifted`, p and
    q are 0.
    """
    half, middle = observations.half_width, np.log2(observations.middle)
    added = observations.noise**2 + half**2 / 3
    precision, pull, value = (np.zeros(()) for _ in range(3))
    totals: list[Floats] = []
    for i in rows[~observations.is_bound[rows]]:
        total = variance[i] + added[i]
        off = middle[i] - curve[i]
        if is_shifted:
            weighted = off / total
            precision, pull = precision + 1 / total, pull + weighted
            off *= weighted
        else:
            off *= off
            off /= total
        # A density times the bracket's width is a probability.
        off += np.log(2 * np.pi) - 2 * np.log(2 * half[i] or 1.0)
        value = value + off
        totals.append(total)
    # One logarithm of a product is quicker than many; sixteen are no overflow.
    for first in range(0, len(totals), 16):
        value = value + np.log(np.asarray(prod(totals[first : first + 16])))
    return precision, pull, -0.5 * value


def _of_wide(
    observations: Observations,
    rows: Codes,
    curve: Each,
    variance: Each,
    at: Floats | None,
) -> Floats:
    """Returns the log-probability of some brackets and bounds, all shifted by `at`."""
    value = np.zeros(curve[0].shape)
    for i in rows:
        low, high, noise = (
            each[i]
            for each in (observations.low, observations.high, observations.noise)
        )
        mean = curve[i] if at is None else curve[i] + at
        scale = np.sqrt(variance[i] + noise**2)
        if low == 0 or np.isinf(high):
            above = mean - np.log2(low) if low else np.log2(high) - mean
            value += log_ndtr(above / scale)
            continue
        away = np.abs(np.log2(high * low) / 2 - mean) / scale
        value += log_interval(away, np.log2(high / low) / 2 / scale)
    return value


def log_interval(away: Floats, half: Floats) -> Floats:
    """Returns log(Phi(away + half) - Phi(away - half)), `away` not being negative."""
    # Taken in the left tail, where the difference keeps its precision.
    far, near = (away + half) * _ROOT, (away - half) * _ROOT
    chance = np.asarray(erfc(near) - erfc(far))
    lost = chance < 1e-280
    chance[lost] = 1.0
    value = np.asarray(np.log(0.5 * chance), np.float64)
    if lost.any():
        # So far out that the difference itself is lost.
        ends = (-np.asarray(end)[lost] / _ROOT for end in (near, far))
        log_near, log_far = map(log_ndtr, ends)
        difference = np.minimum(log_far - log_near, -1e-16)
        value[lost] = log_near + np.log1p(-np.exp(difference))
    return value
