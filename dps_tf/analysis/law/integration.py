"""The posterior of c1/B^a + c2, integrated over a lattice.

Residual scale and exponent lie on a lattice. Each pair of them, a slice, has a grid of
(log2 c1, log2 c2) of its own, on what is not negligible there: a small scale has a
hundred times narrower posterior than a large one. Doubling all resolutions moves no end
of a 95 % interval by more than 1 % of its width (`tests/analysis/law_test.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from dps_tf.analysis.law.lattice import NEGLIGIBLE, Lattice, Ranges
from dps_tf.analysis.law.likelihood import (
    SCALE_CEILING,
    SCALE_FLOOR,
    Observations,
    log_likelihood,
)
from dps_tf.analysis.law.posterior import Posterior
from dps_tf.analysis.law.prior import EXPONENT_SPREAD, log_prior_of_c2, prior_ends
from dps_tf.analysis.tables import Floats

_RESOLUTION = (28, 20, 40, 8)
"""Cells of a lattice, along the scale, the exponent, and log c1 and log c2 each, and
nodes along the share of the seeds."""
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
    scales, exponents, cells, roots = _RESOLUTION
    several = max(curve.seeds for curve in curves) > 1
    if free_exponent or several:
        # There are many slices, so each gets fewer cells.
        scales, cells = scales * 3 // 5, cells * 7 // 10
        roots = roots // 2 if free_exponent else roots
    ends = _LOG_EXPONENTS if free_exponent else (0.0, 0.0)
    ranges = Ranges(
        _LOG_SCALES, np.array([0.0]), np.array([ends]), (1.0 - several, 1.0)
    )
    rounds = [True] * (_ROUNDS if free_exponent else 0) + [False] * _EXACT_ROUNDS
    for rough in rounds:
        least = float(ranges.roots_at(roots)[0][0])
        asked = replace(ranges, roots=(least, least)) if rough else ranges
        lattice = Lattice.of(asked, (12, 11, roots))
        parts = [_evaluate(curve, lattice, _COARSE, rough) for curve in curves]
        evidence = np.sum([part.log_slice for part in parts], axis=0)
        narrowed = asked.narrowed(lattice, evidence)
        # Brackets decide the scale: rough rounds narrow the exponents only.
        wide = replace(narrowed, scales=ranges.scales, roots=ranges.roots)
        ranges = wide if rough else narrowed
    lattice = Lattice.of(ranges, (scales, exponents, roots))
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
    scale, quick = lattice.scale, observations.without_brackets()
    if rough:
        scale = np.hypot(scale, 0.12 * lattice.exponent * lattice.exponent_step * span)
    slices = np.stack([scale, lattice.exponent, scale * lattice.effect])
    half = observations.half_width
    small = (scale < 2 * half.max()) & (not rough)
    # Ends of what is not negligible where seeds shift most hold where they shift less.
    each = lattice.shape[2]
    is_most = np.arange(len(scale)) % each == 0
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
    density = _density(quick if rough else observations, axes, slices)
    weight = logsumexp(density, axis=(1, 2)) + np.log(widths).sum(axis=0)
    seeds = observations.seeds
    blur = scale * lattice.effect * (seeds > 1) / seeds**0.5
    return Posterior(lattice, axes[0], axes[1], density, np.asarray(weight), blur)


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

    `slices` has scale, exponent and shift of each, [3, s]. Where `widths` of cells are
    given, what a curve changes by within half a cell counts as noise, so that no top
    falls between them.
    """
    scale, exponent, shift = slices[:, :, None]
    sizes, place = observations.distinct
    falling = axes[0] - exponent * np.log2(sizes)[:, None, None]
    terms = np.exp2(falling)[..., None], np.exp2(axes[1])[:, None, :]
    factor = 0.5 * max(1.0, (len(observations) / 8) ** 0.5)
    variance, shift = scale[:, None] ** 2, shift[:, None]
    cells = axes.shape[2]
    value = np.empty((len(scale), cells, cells))
    # In blocks that stay in the processor's cache, which is faster.
    block = max(1, _BLOCK // (len(observations) * cells**2))
    for start in range(0, len(value), block):
        part = slice(start, start + block)
        # NumPy is slow where an operand has to be repeated.
        plateau = np.repeat(terms[1][part], cells, axis=1)
        curve, total = [], [variance[part]] * len(sizes)
        if widths is not None:
            one, two = (factor * widths[:, part, None, None]) ** 2
            first, second, both = (
                np.broadcast_to(each, plateau.shape).copy()
                for each in (variance[part] + one, -2 * one, one + two)
            )
        for k in range(len(sizes)):
            steps = terms[0][k, part] + plateau
            if widths is not None:
                # variance + ((1 - share) one)^2 + (share two)^2
                share = plateau / steps
                total[k] = share * both
                total[k] += second
                total[k] *= share
                total[k] += first
            curve.append(np.log2(steps, out=steps))
        each = [curve[k] for k in place], [total[k] for k in place]
        value[part] = log_likelihood(observations, *each, shift[part])
    value += log_prior_of_c2(axes[1], observations)[:, None, :]
    return value
