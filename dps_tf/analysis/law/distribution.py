"""A distribution of one positive quantity, from weights of cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from dps_tf.analysis.tables import Floats

_BINS = 4096


@dataclass(frozen=True)
class Distribution:
    """A distribution of log2 of a quantity in bins of equal width.

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
        cls, log2: Floats, widths: ArrayLike, weights: Floats, bins: int = _BINS
    ) -> Distribution:
        """Returns that of cells whose weight is spread evenly about their middles.

        Args:
            log2: middle of each cell, of any shape.
            widths: width of each, in octaves, broadcast to that shape.
            weights: of each, not negative; they need not add up to 1.
            bins: their number.
        """
        half = np.maximum(np.broadcast_to(widths, log2.shape).ravel() / 2, 1e-9)
        middle, weight = log2.ravel(), weights.ravel()
        kept = weight > weight.max() * 1e-9
        middle, half, weight = middle[kept], half[kept], weight[kept]
        low, high = float((middle - half).min()), float((middle + half).max())
        bin_width = (high - low) / bins
        half = np.maximum(half, bin_width / 2)
        # A density is the sum of steps: up where a cell begins, down where it ends.
        height = weight / (2 * half)
        slope = np.zeros(bins + 2)
        for ends, sign in ((middle - half, 1.0), (middle + half, -1.0)):
            place = np.clip((ends - low) / bin_width, 0, bins)
            whole = place.astype(np.int64)
            over = place - whole
            slope += np.bincount(whole, sign * height * (1 - over), bins + 2)
            slope += np.bincount(whole + 1, sign * height * over, bins + 2)
        masses = np.maximum(np.cumsum(slope)[:bins], 0)
        return cls(low, bin_width, np.asarray(masses / masses.sum(), np.float64))

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
        return np.concatenate([[0.0], np.cumsum(self.masses)])

    def quantiles(self, levels: Sequence[float]) -> Floats:
        """Returns quantiles of the quantity itself."""
        edges = self.low + self.width * np.arange(len(self._below))
        return np.asarray(np.exp2(np.interp(levels, self._below, edges)), np.float64)

    def probability_above(self, value: float) -> float:
        """Returns the probability that the quantity is greater than a value."""
        edges = self.low + self.width * np.arange(len(self._below))
        return float(1 - np.interp(np.log2(value), edges, self._below))
