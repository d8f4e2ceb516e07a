"""What the data say of c1/B^a + c2: its posterior, integrated over a lattice.

Why no t interval about least squares: where K* is a few evaluation intervals, the
large batch sizes share one bracket, and so one rounding error. Residuals then say
nothing of it, and neither does a bootstrap that redraws them. The likelihood of
`likelihood.py` keeps that the curve passes each bracket; `prior.py` has the prior.

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

from dps_tf.analysis.law.lattice import NEGLIGIBLE, Lattice, Ranges, cells_between
from dps_tf.analysis.law.likelihood import (
    SCALE_CEILING,
    SCALE_FLOOR,
    Observations,
    log_likelihood,
)
from dps_tf.analysis.law.posterior import Posterior
from dps_tf.analysis.law.prior import EXPONENT_SPREAD, log_prior_of_c2, prior_ends
from dps_tf.analysis.tables import Floats

_CELLS = (28, 20, 40)
"""Along the scale, along the exponent, and along each of log c1 and log c2."""
_COARSE, _PASSES, _ROUNDS, _EXACT_ROUNDS = 18, 14, 5, 2
_BLOCK = 80_000
_LOG_SCALES = np.log([SCALE_FLOOR, SCALE_CEILING])
_LOG_EXPONENTS = (-4 * EXPONENT_SPREAD, 4 * EXPONENT_SPREAD)


def posteriors(
    curves: Sequence[Observations], free_exponent: bool = False, refinement: int = 1
) -> list[Posterior]:
    """Returns the posteriors of curves with one scale and one exponent, but for 1e-4.

    Given these, curves are independent: the weight of a slice is the product of theirs.

    Args:
        curves: each with steps-to-result at three or more batch sizes.
        free_exponent: whether a has its prior; else it is 1.
        refinement: factor on the number of cells along each axis.
    """
    scales, exponents, cells = (refinement * count for count in _CELLS)
    seeds = max(curve.seeds for curve in curves)
    if free_exponent or seeds > 1:
        scales, cells = scales * 3 // 5, cells * 7 // 10
    ends = _LOG_EXPONENTS if free_exponent else (0.0, 0.0)
    ranges = Ranges(_LOG_SCALES, np.array([0.0]), np.array([ends]))
    rounds = [True] * (_ROUNDS if free_exponent else 0) + [False] * _EXACT_ROUNDS
    for rough in rounds:
        lattice = Lattice.of(ranges, (12, 11), seeds)
        coarse = [_evaluate(curve, lattice, _COARSE, rough=rough) for curve in curves]
        evidence = np.sum([one.log_slice for one in coarse], axis=0)
        narrowed = ranges.narrowed(lattice, evidence)
        # Brackets decide the scale: rough ones narrow the exponents only.
        ranges = replace(narrowed, scales=ranges.scales) if rough else narrowed
    lattice = Lattice.of(ranges, (scales, exponents), seeds)
    alone = [_evaluate(curve, lattice, cells) for curve in curves]
    together = np.sum([one.log_slice for one in alone], axis=0)
    return [replace(one, log_slice=together) for one in alone]


def _evaluate(
    observations: Observations,
    lattice: Lattice,
    cells: int,
    null: str = "",
    rough: bool = False,
) -> Posterior:
    """Returns the posterior on a lattice.

    `null` names the constant that is 0. A `rough` one takes brackets for densities and
    adds to the scale what the lattice of exponents is too coarse for.
    """
    ends = prior_ends(observations, lattice.exponent)
    if null:
        # So far below that its term is less than a millionth of a step.
        place = int(null == "c2")
        ends[place] = ends[place][:, :1] - np.array([[40.0, 39.0]])
    scale, quick = lattice.scale, observations.without_brackets()
    if rough:
        span = np.ptp(np.log2(observations.batch_size))
        scale = np.hypot(scale, 0.12 * lattice.exponent * lattice.exponent_step * span)
    shape = [1 if null == name else cells for name in ("c1", "c2")]
    coarse = np.minimum(shape, _COARSE)
    limits = ends
    for points in (quick,) if rough else (quick, observations):
        for _ in range(_PASSES):
            axes, widths = zip(*map(cells_between, ends, coarse), strict=True)
            density = _density(points, lattice, axes, scale, null, widths)
            tops = density.max(axis=2), density.max(axis=1)
            narrower = list(map(_narrowed, tops, ends, widths, limits))
            sizes = [np.ptp(each, axis=2).prod(axis=0) for each in (narrower, ends)]
            ends = narrower
            if (sizes[0] > 0.6 * sizes[1]).all():
                break
    axes, widths = zip(*map(cells_between, ends, shape), strict=True)
    density = _density(quick if rough else observations, lattice, axes, scale, null)
    area = sum(np.log(w) for w, size in zip(widths, shape, strict=True) if size > 1)
    weight = logsumexp(density, axis=(1, 2)) + area
    return Posterior(lattice, axes[0], axes[1], density, np.asarray(weight))


def _narrowed(top: Floats, ends: Floats, widths: Floats, limits: Floats) -> Floats:
    """Returns the ends of what is not negligible along an axis, [s, 2].

    `top` is the greatest density at each value of the axis, [s, g].
    """
    if top.shape[1] == 1:
        return ends
    kept = top > top.max(axis=1, keepdims=True) - NEGLIGIBLE
    first = kept.argmax(axis=1)
    last = kept.shape[1] - kept[:, ::-1].argmax(axis=1)
    places = np.stack([first - 1, last + 1], axis=1)
    wider: Floats = ends[:, :1] + widths[:, None] * places
    return wider.clip(limits[:, :1], limits[:, 1:])


def _density(
    observations: Observations,
    lattice: Lattice,
    axes: Sequence[Floats],
    scale: Floats,
    null: str,
    cells: Sequence[Floats] = (),
) -> Floats:
    """Returns the logarithm of likelihood and prior, [s, g, h].

    Where `cells` has their widths, what a curve changes by within half a cell counts as
    noise, so that no top falls between them.
    """
    falling = axes[0] - lattice.exponent[:, None] * np.log2(
        observations.batch_size[:, None, None]
    )
    terms = np.exp2(falling)[..., None], np.exp2(axes[1])[:, None, :]
    half = 0.5 * max(1.0, (len(observations) / 8) ** 0.5)
    within = [half * width[:, None, None] for width in cells]
    variance, effect = scale[:, None, None] ** 2, lattice.effect[:, None, None]
    value = np.empty((len(scale), axes[0].shape[1], axes[1].shape[1]))
    # In blocks that stay in the processor's cache, which is faster.
    block = max(1, _BLOCK // (len(observations) * value[0].size))
    for start in range(0, len(value), block):
        part = slice(start, start + block)
        steps = terms[0][:, part] + terms[1][part]
        total = np.broadcast_to(variance[part], (len(steps), *variance[part].shape))
        if within:
            share = terms[0][:, part] / steps
            one, two = share * within[0][part], (1 - share) * within[1][part]
            total = total + one**2 + two**2
        value[part] = log_likelihood(observations, np.log2(steps), total, effect[part])
    if null == "c2":
        return value
    return value + log_prior_of_c2(axes[1], observations)[:, None, :]


def support(posterior: Posterior, observations: Observations, constant: str) -> float:
    """Returns the posterior probability of what the data support more than 0.

    It is that of the values of c1 or c2 (`constant`) at which the likelihood, averaged
    over all else, is greater than it is without the term; near 1, the term is there.
    Source: the evidence of Pereira, Stern and Wechsler 2008, with the prior as
    reference.
    """
    cells = posterior.log2_c1.shape[1]
    without = _evaluate(observations, posterior.lattice, cells, constant)
    marginal = getattr(posterior, constant)
    likelihood = np.log(np.maximum(marginal.density, 1e-300)) + posterior.log_evidence
    if constant == "c2":
        likelihood -= log_prior_of_c2(marginal.middles, observations)
    return float(np.sum(marginal.masses[likelihood > without.log_evidence]))
