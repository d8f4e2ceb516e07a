"""Where a posterior is integrated along the residual scale and the exponent."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from dps_tf.analysis.law.prior import EXPONENT_SPREAD
from dps_tf.analysis.tables import Floats

NEGLIGIBLE = 11.0
"""Nats below the maximum: 2e-5 of it."""
_NEGLIGIBLE_OTHER = 8.0


@dataclass(frozen=True)
class Lattice:
    """The values of each slice, which all batch sizes share.

    Attributes:
        scale: residual scale in octaves, [s].
        exponent: a, [s].
        effect: standard deviation of a seed's shift over the scale, [s].
        log_measure: natural logarithm of the prior weight of the slice's cell, [s].
        scale_step: width of a cell in ln(scale).
        exponent_step: width of the slice's cell in ln(a), [s]; 0 where a is 1.
        shape: number of scales, of exponents of each, and of effects.
    """

    scale: Floats
    exponent: Floats
    effect: Floats
    log_measure: Floats
    scale_step: float
    exponent_step: Floats
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, ranges: Ranges, shape: tuple[int, int, int]) -> Lattice:
        """Returns a lattice in ranges, with so many of each where a range has a width.

        Scales and exponents are middles of cells, roots nodes of a Gauss-Legendre rule.
        Beforehand, the share of the seeds in the variance of a K* is uniform.
        """
        low, high = ranges.scales
        step = (high - low) / shape[0]
        log_scale = np.asarray(low + step * (np.arange(shape[0]) + 0.5), np.float64)
        ends = ranges.exponents_at(log_scale)
        count = shape[1] if ends[0, 0] < ends[0, 1] else 1
        a_step = (ends[:, 1] - ends[:, 0]) / count
        log_a = ends[:, :1] + a_step[:, None] * (np.arange(count) + 0.5)
        root, weight = ranges.roots_at(shape[2])
        full = (shape[0], count, len(root))
        s, a, e, w, width = (
            np.broadcast_to(values, full).ravel()
            for values in (
                log_scale[:, None, None],
                log_a[:, :, None],
                np.sqrt(1 - root**2) / root,
                np.log(weight),
                a_step[:, None, None],
            )
        )
        measure = np.log(step) + w
        if count > 1:
            measure += norm.logpdf(a, 0, EXPONENT_SPREAD) + np.log(width)
        return cls(np.exp(s), np.exp(a), e, measure, step, width, full)


@dataclass(frozen=True)
class Ranges:
    """Where a lattice lies: ends of ln(scale), and of ln(a) at some ln(scale).

    Attributes:
        scales: ends of ln(scale).
        at: values of ln(scale), ascending, [k].
        exponents: ends of ln(a) at each of these, [k, 2]; equal where a is 1.
        roots: ends of the square root of the share of the variance of a K* that is not
            the seeds'; both are 1 for a single seed.
    """

    scales: tuple[float, float]
    at: Floats
    exponents: Floats
    roots: tuple[float, float]

    def exponents_at(self, log_scale: Floats) -> Floats:
        """Returns the ends of ln(a) at some ln(scale), [s, 2]."""
        ends = [np.interp(log_scale, self.at, end) for end in self.exponents.T]
        return np.stack(ends, axis=1)

    def roots_at(self, count: int) -> tuple[Floats, Floats]:
        """Returns so many roots, or the one that there is, and their weights."""
        low, width = self.roots[0], self.roots[1] - self.roots[0]
        if not width:
            return np.array([low]), np.ones(1)
        nodes, weights = np.polynomial.legendre.leggauss(count)
        root = low + width * (nodes + 1) / 2
        return root, width * root * weights

    def narrowed(self, lattice: Lattice, evidence: Floats) -> Ranges:
        """Returns the ranges of what is not negligible, a cell wider."""
        log_weight = (evidence + lattice.log_measure).reshape(lattice.shape)
        weight = logsumexp(log_weight, axis=2)
        log_scale = np.log(lattice.scale.reshape(lattice.shape)[:, 0, 0])
        of_scale = logsumexp(weight, axis=1)
        kept = log_scale[of_scale > of_scale.max() - NEGLIGIBLE]
        half = lattice.scale_step
        scales = (
            max(float(kept[0]) - half, self.scales[0]),
            min(float(kept[-1]) + half, self.scales[1]),
        )
        of_root = logsumexp(evidence.reshape(lattice.shape), axis=(0, 1))
        kept_roots = np.flatnonzero(of_root > of_root.max() - _NEGLIGIBLE_OTHER)
        nodes = [self.roots[0], *self.roots_at(len(of_root))[0], self.roots[1]]
        roots = float(nodes[kept_roots[0]]), float(nodes[kept_roots[-1] + 2])
        if lattice.shape[1] == 1:
            return replace(self, scales=scales, roots=roots)
        log_a = np.log(lattice.exponent.reshape(lattice.shape)[:, :, 0])
        step = lattice.exponent_step.reshape(lattice.shape)[:, 0, 0]
        kept_a = weight > weight.max(axis=1, keepdims=True) - _NEGLIGIBLE_OTHER
        low = np.where(kept_a, log_a, np.inf).min(axis=1) - step
        high = np.where(kept_a, log_a, -np.inf).max(axis=1) + step
        ends = self.exponents_at(log_scale)
        ends = np.stack([np.maximum(low, ends[:, 0]), np.minimum(high, ends[:, 1])], 1)
        return Ranges(scales, log_scale, ends, roots)
