"""The posterior of c1/B^a + c2, integrated over a lattice.

Residual scale and exponent lie on a lattice. Each pair of them, a slice, has a grid of
(log2 c1, log2 c2) of its own, on what is not negligible there: the posterior of a small
scale is a hundred times narrower than that of a large one. Doubling all resolutions
moves no end of a 95 % interval by more than 1 % of its width
(`tests/analysis/law_test.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from dps_tf.analysis.law.lattice import EFFECTS, NEGLIGIBLE, Lattice, Ranges
from dps_tf.analysis.law.likelihood import (
    SCALE_CEILING,
    SCALE_FLOOR,
    Observations,
    log_likelihood,
)
from dps_tf.analysis.law.posterior import Posterior
from dps_tf.analysis.law.prior import EXPONENT_SPREAD, log_prior_of_c2, prior_ends
from dps_tf.analysis.tables import Floats

_RESOLUTION = (28, 20, 40)
"""Cells of a lattice, along the scale, the exponent, and log c1 and log c2 each."""
_COARSE, _ROUNDS, _EXACT_ROUNDS = 18, 3, 2
_BLOCK = 80_000
_LOG_SCALES = (float(np.log(SCALE_FLOOR)), float(np.log(SCALE_CEILING)))
_LOG_EXPONENTS = (-4 * EXPONENT_SPREAD, 4 * EXPONENT_SPREAD)


def posteriors(
    curves: Sequence[Observations], free_exponent: bool = False
) -> list[Posterior]:
    """Returns posteriors of curves with one scale and one exponent, on all but 1e-4.

    The exponent a is 1, or has its prior where it is free. Given scale and exponent,
    curves are independent: the weight of a slice is the product of theirs.
    """
    scales, exponents, cells = _RESOLUTION
    effects = EFFECTS if max(curve.seeds for curve in curves) > 1 else np.zeros(1)
    if free_exponent or len(effects) > 1:
        # There are many slices, so each gets fewer cells.
        scales, cells = scales * 3 // 5, cells * 7 // 10
    ends = _LOG_EXPONENTS if free_exponent else (0.0, 0.0)
    ranges = Ranges(_LOG_SCALES, np.array([0.0]), np.array([ends]))
    rounds = [True] * (_ROUNDS if free_exponent else 0) + [False] * _EXACT_ROUNDS
    for rough in rounds:
        lattice = Lattice.of(ranges, (12, 11), effects[-1:] if rough else effects)
        parts = [_evaluate(curve, lattice, _COARSE, rough) for curve in curves]
        evidence = np.sum([part.log_slice for part in parts], axis=0)
        narrowed = ranges.narrowed(lattice, evidence)
        # Brackets decide the scale: rough rounds narrow the exponents only.
        ranges = replace(narrowed, scales=ranges.scales) if rough else narrowed
    lattice = Lattice.of(ranges, (scales, exponents), effects)
    parts = [_evaluate(curve, lattice, cells) for curve in curves]
    together = np.sum([part.log_slice for part in parts], axis=0)
    return [replace(part, log_slice=together) for part in parts]


def _evaluate(
    observations: Observations, lattice: Lattice, cells: int, rough: bool = False
) -> Posterior:
    """Returns the posterior on a lattice, with so many cells along log2 c1 and log2 c2.

    A `rough` one takes brackets for densities and adds to the scale what the lattice of
    exponents is too coarse for.
    """
    limits = prior_ends(observations, lattice.exponent)
    ends = limits.copy()
    span = float(np.ptp(np.log2(observations.batch_size)))
    scale, quick = lattice.scale, observations.without_brackets(1.0)
    if rough:
        scale = np.hypot(scale, 0.12 * lattice.exponent * lattice.exponent_step * span)
    slices = np.stack([scale, lattice.exponent, lattice.effect])
    # From 2 half widths on, a normal of a bracket's variance is off by 0.01 nats at
    # most within three scales. A density times the bracket's width is a probability.
    half = observations.half_width
    small = (scale < 2 * half.max()) & (not rough)
    smooth = quick if rough else observations.without_brackets(3**-0.5)
    log_widths = float(np.log(2 * half[half > 0]).sum())
    # Ends of what is not negligible where seeds shift most hold where they shift less.
    each = lattice.shape[2]
    is_most = np.arange(len(scale)) % each == each - 1
    for points, asked in ((quick, is_most), (quick, ~is_most), (observations, small)):
        wide = np.flatnonzero(asked)
        while len(wide):
            before = ends[:, wide]
            axes, widths = _axes(before, _COARSE)
            density = _density(points, axes, slices[:, wide], widths)
            ends[:, wide] = _narrowed(density, before, widths, limits[:, wide])
            shrunk = np.ptp(ends[:, wide], axis=2) / np.ptp(before, axis=2)
            wide = wide[shrunk.prod(axis=0) <= 0.6]
        if asked is is_most:
            ends = np.repeat(ends[:, is_most], each, axis=1)
    axes, widths = _axes(ends, cells)
    density = np.empty((len(scale), cells, cells))
    density[small] = _density(observations, axes[:, small], slices[:, small])
    density[~small] = _density(smooth, axes[:, ~small], slices[:, ~small]) + log_widths
    weight = logsumexp(density, axis=(1, 2)) + np.log(widths).sum(axis=0)
    return Posterior(lattice, axes[0], axes[1], density, np.asarray(weight))


def _axes(ends: Floats, cells: int) -> tuple[Floats, Floats]:
    """Returns middles [2, s, g] of cells between ends [2, s, 2], and widths [2, s]."""
    widths = (ends[:, :, 1] - ends[:, :, 0]) / cells
    return ends[:, :, :1] + widths[:, :, None] * (np.arange(cells) + 0.5), widths


def _narrowed(density: Floats, ends: Floats, widths: Floats, limits: Floats) -> Floats:
    """Returns the ends of what is not negligible in each slice, [2, s, 2]."""
    narrower = []
    for axis in (0, 1):
        top = density.max(axis=2 - axis)
        kept = top > top.max(axis=1, keepdims=True) - NEGLIGIBLE
        last = kept.shape[1] - kept[:, ::-1].argmax(axis=1)
        cells = np.stack([kept.argmax(axis=1) - 1, last + 1], axis=1)
        narrower.append(ends[axis][:, :1] + widths[axis][:, None] * cells)
    return np.asarray(np.clip(narrower, limits[:, :, :1], limits[:, :, 1:]), np.float64)


def _density(
    observations: Observations,
    axes: Floats,
    slices: Floats,
    widths: Floats | None = None,
) -> Floats:
    """Returns the logarithm of likelihood and prior, [s, g, h].

    `slices` has scale, exponent and effect of each, [3, s]. Where `widths` of cells are
    given, what a curve changes by within half a cell counts as noise, so that no top
    falls between them.
    """
    scale, exponent, effect = slices[:, :, None]
    log2_size = np.log2(observations.batch_size)[:, None, None]
    falling = axes[0] - exponent * log2_size
    terms = np.exp2(falling)[..., None], np.exp2(axes[1])[:, None, :]
    half = 0.5 * max(1.0, (len(observations) / 8) ** 0.5)
    variance, effect = scale[:, None] ** 2, effect[:, None]
    cells = axes.shape[2]
    value = np.empty((len(scale), cells, cells))
    # In blocks that stay in the processor's cache, which is faster.
    block = max(1, _BLOCK // (len(observations) * cells**2))
    for start in range(0, len(value), block):
        part = slice(start, start + block)
        steps = terms[0][:, part] + terms[1][part]
        total = np.broadcast_to(variance[part], (len(steps), *variance[part].shape))
        if widths is not None:
            share = terms[0][:, part] / steps
            one, two = half * widths[:, part, None, None]
            total = total + (share * one) ** 2 + ((1 - share) * two) ** 2
        value[part] = log_likelihood(observations, np.log2(steps), total, effect[part])
    return value + log_prior_of_c2(axes[1], observations)[:, None, :]
