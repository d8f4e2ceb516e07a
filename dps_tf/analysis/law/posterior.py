"""A posterior of c1/B^a + c2, as `integration.py` makes it: marginals and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from scipy.stats import chi, norm

from dps_tf.analysis.law.lattice import Lattice
from dps_tf.analysis.tables import Floats

DECISIVE = 1e-3
"""Share of the greatest likelihood above which the likelihood of the least value
decides an interval: each octave more below it would add as much."""
_BINS = 4096
_EDGES = np.linspace(0.0, 4.6, 17)
_REACH = (_EDGES[1:] + _EDGES[:-1]) / 2
"""Half widths of even distributions about 0 that make up a normal one, whose quantiles
they meet by 0.5 %: r has the density r^2 exp(-r^2 / 2)."""
_SHARE = np.diff(chi.cdf(_EDGES, 3)) / chi.cdf(_EDGES[-1], 3)


@dataclass(frozen=True)
class Distribution:
    """A distribution of log2 of a positive quantity in bins of equal width.

    Attributes:
        low: lower end of the first bin, in octaves.
        width: of a bin, in octaves.
        masses: probability of each bin, adding up to 1, [k].
    """

    low: float
    width: float
    masses: Floats

    @classmethod
    def of(
        cls,
        log2: Floats,
        widths: ArrayLike,
        weights: Floats,
        bins: int = _BINS,
        blur: ArrayLike = 0.0,
    ) -> Distribution:
        """Returns the distribution of cells with a weight that is spread evenly.

        Args:
            log2: middle of each cell, of any shape.
            widths: width of each, in octaves, broadcast to that shape.
            weights: weight of each, not negative; they need not add up to 1.
            bins: number of bins.
            blur: standard deviation of what is normal and adds to each, broadcast.
        """
        # Before anything else: most cells of a lattice weigh next to nothing.
        kept = weights > weights.max() * 1e-9
        wide = np.broadcast_to(np.asarray(widths, np.float64), log2.shape)[kept]
        added = np.broadcast_to(blur, log2.shape)[kept] if np.any(blur) else None
        log2, weights = log2[kept], weights[kept]
        if added is not None:
            reach = 2 * added[:, None] * _REACH
            wide = np.sqrt(wide[:, None] ** 2 + reach**2)
            weights = weights[:, None] * _SHARE
            kept = weights > weights.max() * 1e-9
            log2 = np.broadcast_to(log2[:, None], wide.shape)[kept]
            wide, weights = wide[kept], weights[kept]
        cells = log2, np.maximum(wide / 2, 1e-9), weights
        low, high = (cells[0] - cells[1]).min(), (cells[0] + cells[1]).max()
        whole = cls._in_bins(cells, low, high, bins)
        if not np.any(blur):
            return whole
        # What is blurred most reaches far with next to no weight.
        low, high = np.log2(whole.quantiles([1e-6, 1 - 1e-6]))
        return cls._in_bins(cells, low, high, bins)

    @classmethod
    def _in_bins(
        cls, cells: tuple[Floats, Floats, Floats], low: float, high: float, bins: int
    ) -> Distribution:
        """Returns a distribution of cells (middles, half widths, weights)."""
        middle, half, weight = cells
        bin_width = (high - low) / bins
        half = np.maximum(half, bin_width / 2)
        # A density is the sum of steps: up where a cell begins, down where it ends.
        height = weight / (2 * half)
        slope = np.zeros(bins + 2)
        for ends, sign in ((middle - half, 1.0), (middle + half, -1.0)):
            place = ends - low
            place /= bin_width
            place = np.clip(place, 0, bins, out=place)
            whole = place.astype(np.int64)
            place -= whole
            # A step within a bin is shared with the next one.
            over = sign * np.bincount(whole, height * place, bins + 1)
            slope[:-1] += sign * np.bincount(whole, height, bins + 1) - over
            slope[1:] += over
        masses = np.maximum(np.cumsum(slope)[:bins], 0)
        masses = np.asarray(masses / masses.sum(), np.float64)
        return cls(float(low), float(bin_width), masses)

    @property
    def middles(self) -> Floats:
        """The middle of each bin, in octaves, [k]."""
        place = np.arange(len(self.masses)) + 0.5
        return np.asarray(self.low + self.width * place, np.float64)

    @property
    def density(self) -> Floats:
        """The probability per octave in each bin, [k]."""
        return np.asarray(self.masses / self.width, np.float64)

    @cached_property
    def at_low_end(self) -> float:
        """The density in the lowest bins over the greatest; of no weight near 0."""
        return float(self.density[:8].mean() / self.density.max())

    @cached_property
    def _below(self) -> Floats:
        return np.concatenate([[0.0], np.minimum(np.cumsum(self.masses), 1.0)])

    def quantiles(self, levels: Sequence[float]) -> Floats:
        """Returns quantiles of the quantity itself."""
        edges = self.low + self.width * np.arange(len(self._below))
        return np.asarray(np.exp2(np.interp(levels, self._below, edges)), np.float64)

    def probability_above(self, value: float) -> float:
        """Returns the probability that the quantity is greater than a value."""
        edges = self.low + self.width * np.arange(len(self._below))
        return float(1 - np.interp(np.log2(value), edges, self._below))


@dataclass(frozen=True)
class Draws:
    """Draws of a posterior, each [d]: c1 (examples^a), c2 (steps), a and the scale.

    `shift` is the standard deviation of a seed's shift, in octaves as the scale.
    """

    c1: Floats
    c2: Floats
    exponent: Floats
    scale: Floats
    shift: Floats

    def steps(self, batch_size: float | Floats) -> Floats:
        """Returns c1/B^a + c2 of each draw, in steps: [d], or [d, n] at n sizes."""
        power = np.power.outer(batch_size, self.exponent)
        return np.asarray((self.c1 / power + self.c2).T, np.float64)

    def further(self, batch_size: float, noise: float = 0.0) -> Floats:
        """Returns K* of a further study at a batch size for each draw, in steps.

        The scatter about the curve, the shift of a seed and `noise` (octaves) are in
        it; the rounding to evaluations is not.
        """
        z = norm.ppf(_spread_out(len(self.c1), 5))
        octaves = z * np.sqrt(self.scale**2 + self.shift**2 + noise**2)
        return np.asarray(self.steps(batch_size) * np.exp2(octaves), np.float64)


@dataclass(frozen=True)
class Posterior:
    """Weights on the grids of the slices of a lattice.

    Attributes:
        lattice: scales, exponents and effects of the slices.
        log2_c1: [s, g].
        log2_c2: [s, h].
        log_density: natural logarithm of likelihood and prior, [s, g, h].
        log_slice: natural logarithm of the weight of each slice, without the prior of
            the lattice, [s].
        blur: standard deviation of the mean shift of the seeds, in octaves, [s]. The
            grids are of c1 and c2 with that shift in them; `c1`, `c2`, `steps` and
            `draws` have c1 and c2 without it.
    """

    lattice: Lattice
    log2_c1: Floats
    log2_c2: Floats
    log_density: Floats
    log_slice: Floats
    blur: Floats

    @cached_property
    def within(self) -> Floats:
        """The weight of each cell within its slice, [s, g, h]."""
        top = self.log_density.max(axis=(1, 2), keepdims=True)
        weight = np.exp(self.log_density - top)
        return np.asarray(weight / weight.sum(axis=(1, 2), keepdims=True), np.float64)

    @cached_property
    def rests_on(self) -> tuple[str, ...]:
        """Which of c1 and residual_scale the least value that the prior allows decides.

        Their likelihood there, averaged over all else, is more than DECISIVE of its
        maximum: data do not refuse that they are less.
        """
        least = {"c1": self.of_seeds("c1"), "residual_scale": self.residual_scale}
        return tuple(name for name in least if least[name].at_low_end > DECISIVE)

    @cached_property
    def supported(self) -> Floats:
        """The weight `within` of every c1 with twice the support of the least c1.

        The weight is whole, unless c1 rests on the least c1 that the prior allows.
        """
        if "c1" not in self.rests_on:
            return self.within
        c1 = self.of_seeds("c1")
        density = c1.density
        until = int(density.argmax())
        low = density[:until] < 2 * density[:8].mean()
        least = c1.middles[np.flatnonzero(low).max(initial=0)]
        kept = self.log2_c1 > least
        return np.asarray(self.within * kept[:, :, None], np.float64)

    @cached_property
    def slices(self) -> Floats:
        """The weight of each slice, adding up to 1, [s]."""
        log_weight = self.log_slice + self.lattice.log_measure
        return np.asarray(np.exp(log_weight - logsumexp(log_weight)), np.float64)

    @property
    def widths(self) -> tuple[Floats, Floats]:
        """The widths of the cells of log2 c1 and of log2 c2, each [s]."""
        one, two = self.log2_c1, self.log2_c2
        return one[:, 1] - one[:, 0], two[:, 1] - two[:, 0]

    @cached_property
    def c1(self) -> Distribution:
        """The distribution of c1, in examples to the power a."""
        return self._constant("c1", self.blur)

    @cached_property
    def c2(self) -> Distribution:
        """The distribution of c2, in steps."""
        return self._constant("c2", self.blur)

    def of_seeds(self, name: str) -> Distribution:
        """Returns the distribution of c1 or c2 at the mean shift of the seeds.

        K* show c1 and c2 at that shift. With one seed it is the constant itself.
        """
        same = not self.blur.any()
        return getattr(self, name) if same else self._constant(name, 0 * self.blur)

    def _constant(self, name: str, blur: Floats) -> Distribution:
        k = ("c1", "c2").index(name)
        weight = self.within.sum(axis=2 - k) * self.slices[:, None]
        values, widths = (self.log2_c1, self.log2_c2)[k], self.widths[k][:, None]
        return Distribution.of(values, widths, weight, blur=blur[:, None])

    @cached_property
    def critical_batch_size(self) -> Distribution:
        """The distribution of (c1/c2)^(1/a), at which both terms are equal."""
        return Distribution.of(*self.log2_critical(), self._weight)

    def log2_critical(self) -> tuple[Floats, Floats]:
        """Returns log2 of the critical batch size of each cell, and widths."""
        a = self.lattice.exponent[:, None, None]
        value = (self.log2_c1[:, :, None] - self.log2_c2[:, None, :]) / a
        width = np.hypot(*self.widths)[:, None, None] / a
        return value, np.broadcast_to(width, value.shape)

    @cached_property
    def residual_scale(self) -> Distribution:
        """The distribution of the residual scale, in octaves."""
        step = self.lattice.scale_step / np.log(2)
        return Distribution.of(np.log2(self.lattice.scale), step, self.slices)

    @cached_property
    def exponent(self) -> Distribution:
        """The distribution of a; of no width where a is 1."""
        step = self.lattice.exponent_step / np.log(2)
        return Distribution.of(np.log2(self.lattice.exponent), step, self.slices)

    def steps(self, batch_size: float) -> Distribution:
        """Returns the distribution of the curve at a batch size, in steps."""
        falling = self.log2_c1 - self.lattice.exponent[:, None] * np.log2(batch_size)
        value = np.logaddexp2(falling[:, :, None], self.log2_c2[:, None, :])
        share = np.exp2(falling[:, :, None] - value)
        one, two = (width[:, None, None] for width in self.widths)
        width = np.hypot(share * one, (1 - share) * two)
        blur = self.blur[:, None, None]
        return Distribution.of(value, width, self._weight, blur=blur)

    @cached_property
    def _weight(self) -> Floats:
        return np.asarray(self.within * self.slices[:, None, None], np.float64)

    def draws(self, number: int = 8192) -> Draws:
        """Returns draws of equal weight, spread evenly over the posterior.

        Every call gives the same draws, by systematic sampling of cells and a sequence
        of low discrepancy within them. The order is random but the same for every
        curve: shuffle the draws of one curve before they meet draws of another.

        >>> from dps_tf.analysis.law import Observations, fit_law
        >>> fit = fit_law(Observations.of([1, 4, 16, 64], [410, 112, 35, 16]))
        >>> draws = fit.posterior.draws(1000)
        >>> bool(np.mean(draws.further(256) < 10) < 0.05)
        True
        """
        total = np.cumsum(self._weight.ravel())
        places = (np.arange(number) + 0.5) / number * total[-1]
        cell = np.minimum(np.searchsorted(total, places), len(total) - 1)
        order = np.argsort(_spread_out(number, 1), kind="stable")
        s, g, h = np.unravel_index(cell[order], self._weight.shape)
        one, two = self.widths
        c1 = self.log2_c1[s, g] + one[s] * (_spread_out(number, 2) - 0.5)
        c2 = self.log2_c2[s, h] + two[s] * (_spread_out(number, 3) - 0.5)
        level = np.exp2(self.blur[s] * norm.ppf(_spread_out(number, 6)))
        lattice = self.lattice
        log_scale = lattice.scale_step * (_spread_out(number, 4) - 0.5)
        scale = lattice.scale[s] * np.exp(log_scale)
        shift = scale * lattice.effect[s]
        return Draws(
            level * np.exp2(c1), level * np.exp2(c2), lattice.exponent[s], scale, shift
        )


def _spread_out(number: int, which: int) -> Floats:
    """Returns numbers in (0, 1) of low discrepancy, another sequence for each `which`.

    Multiples of the square root of a prime, modulo 1 (Weyl).
    """
    root = np.sqrt((2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0)[which])
    return np.asarray((np.arange(1, number + 1) * root + 0.5) % 1.0, np.float64)
