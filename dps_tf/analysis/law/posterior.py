"""What the data say of (c1, c2) of K* = c1/B + c2, on a grid.

Why no t interval about least squares: where K* is a few evaluation intervals, the
large batch sizes share one bracket, and so one rounding error. Residuals then say
nothing of it, and neither does a bootstrap that redraws them: both intervals of c2 are
too short. The likelihood of `likelihood.py` keeps what is known, that the curve passes
each bracket. Its posterior is near the t interval where brackets are narrow, and the
range of values that pass the brackets where they are wide;
`tests/analysis/law_coverage_test.py` measures the coverage of both.

The prior (PRIOR, printed beside intervals): c1 is log-uniform. c2 has the density
1 / (1 + c2/m)^2, a proper one whose median m is the least K* of the curve: flat towards
0, so that a plateau that the data do not show has an upper end, and falling beyond what
was measured, so that this end does not depend on the largest residual scale that is
thought possible, which with four batch sizes it otherwise does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.interpolate import RectBivariateSpline
from scipy.special import ndtr

from dps_tf.analysis.law.likelihood import SCALE_CEILING, SCALE_FLOOR, Observations
from dps_tf.analysis.tables import Codes, Floats

_COARSE, _COARSE_SCALES = 20, 10
_FINE, _SCALES = 32, 16
C1_BELOW = 6.0
"""Octaves below the least K* B at which the prior of c1 ends: a falling part of that
size is 2 % of K* at the smallest batch size. Matters where no slope is resolved."""
PRIOR = "c1 log-uniform; c2 ~ 1/(1 + c2/m)^2, m the least K*; scale log-uniform"
_FINER = 4  # Times, by splines of the log-weight, before quantiles are read off.
_NEGLIGIBLE = 10.0  # Nats below the maximum: 5e-5 of it.
_PASSES = 12
_DRAWS = 20_000  # The ends of a 95 % interval then move by 1 % of its width.

Ends = tuple[float, float]
"""Of an axis of the grid."""


@dataclass(frozen=True)
class Posterior:
    """Weights on a grid.

    Attributes:
        log2_c1: [g].
        log2_c2: [h].
        log_scale: natural logarithm of the residual scale in octaves, [s].
        log_weight: natural logarithm of the weight, not normalized, [s, g, h].
    """

    log2_c1: Floats
    log2_c2: Floats
    log_scale: Floats
    log_weight: Floats

    def _weight(self, *axes: int) -> Floats:
        """Returns the weight, its greatest being 1, added up over some axes."""
        weight = np.exp(self.log_weight - self.log_weight.max())
        return np.asarray(weight.sum(axis=axes), np.float64)

    @cached_property
    def finer(self) -> tuple[Floats, Floats, Floats]:
        """log2 c1 [G], log2 c2 [H] and their weight, adding up to 1, [G, H]."""
        log_weight = np.log(np.maximum(self._weight(0), 1e-12))
        c1 = np.linspace(self.log2_c1[0], self.log2_c1[-1], _FINER * _FINE)
        c2 = np.linspace(self.log2_c2[0], self.log2_c2[-1], _FINER * _FINE)
        spline = RectBivariateSpline(self.log2_c1, self.log2_c2, log_weight)
        fine = np.exp(np.minimum(spline(c1, c2), log_weight.max() + 0.5))
        return c1, c2, np.asarray(fine / fine.sum(), np.float64)

    def quantiles_c1(self, levels: Sequence[float]) -> Floats:
        """Returns quantiles of c1, in examples."""
        c1, _, weight = self.finer
        return _exp2(atom_quantiles(c1, weight.sum(axis=1), levels))

    def quantiles_c2(self, levels: Sequence[float]) -> Floats:
        """Returns quantiles of c2, in steps."""
        _, c2, weight = self.finer
        return _exp2(atom_quantiles(c2, weight.sum(axis=0), levels))

    def quantiles_critical(self, levels: Sequence[float]) -> Floats:
        """Returns quantiles of the critical batch size c1/c2."""
        c1, c2, weight = self.finer
        ratio = c1[:, None] - c2[None, :]
        return _exp2(atom_quantiles(ratio.ravel(), weight.ravel(), levels))

    def quantiles_steps(self, batch_size: float, levels: Sequence[float]) -> Floats:
        """Returns quantiles of the curve c1/B + c2 at a batch size, in steps."""
        c1, c2, weight = self.finer
        steps = np.logaddexp2(c1[:, None] - np.log2(batch_size), c2[None, :])
        return _exp2(atom_quantiles(steps.ravel(), weight.ravel(), levels))

    @cached_property
    def draws(self) -> tuple[Floats, Floats]:
        """Draws of (log2 c1, log2 c2) [d, 2] and of the scale in octaves [d]."""
        rng = np.random.default_rng(0)  # The same tables give the same numbers.
        weight = self._weight(1, 2)
        chosen = rng.choice(len(weight), _DRAWS, p=weight / weight.sum())
        return _draw(self, chosen, rng), np.exp(self.log_scale[chosen])

    def quantiles_prediction(
        self, batch_size: float, levels: Sequence[float]
    ) -> Floats:
        """Returns quantiles of K* of a further study at a batch size, in steps.

        The curve's uncertainty and the scatter about it together; the rounding of K* to
        its evaluations comes on top.
        """
        constants, scale = self.draws
        falling = constants[:, 0] - np.log2(batch_size)
        steps = np.logaddexp2(falling, constants[:, 1])
        scatter = np.random.default_rng(1).standard_normal(len(scale)) * scale
        return _exp2(np.quantile(steps + scatter, levels))

    @property
    def log_evidence(self) -> Floats:
        """The natural logarithm of the weight of each scale, [s]."""
        weight = np.log(np.maximum(self._weight(1, 2), 1e-300))
        return np.asarray(weight + self.log_weight.max(), np.float64)

    @property
    def means(self) -> tuple[float, float]:
        """The means of log2 c1 and log2 c2."""
        c1, c2, weight = self.finer
        return float(weight.sum(axis=1) @ c1), float(weight.sum(axis=0) @ c2)

    @property
    def scale(self) -> float:
        """The median of the residual scale, in octaves."""
        found = atom_quantiles(self.log_scale, self._weight(1, 2), [0.5])
        return float(np.exp(found[0]))


def _exp2(values: Floats) -> Floats:
    return np.asarray(np.exp2(values), np.float64)


def atom_quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> Floats:
    """Returns quantiles of weighted values; half of each weight lies to either side."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    middle = (total - weights[order] / 2) / total[-1]
    return np.asarray(np.interp(levels, middle, values[order]), np.float64)


def posterior(
    observations: Observations,
    center: Floats,
    log_scales: Ends | None = None,
) -> Posterior:
    """Returns the posterior of c1 and c2 on a grid that covers all but 1e-4 of it.

    `center` is (log2 c1, log2 c2) near its top, for example of least squares.
    `log_scales` are the ends of the axis of ln(scale), to share it between curves; by
    default they are found along with the others.
    """
    shared = log_scales is not None
    scales = log_scales or (np.log(SCALE_FLOOR), np.log(SCALE_CEILING))
    ends = _first_ends(observations, center)
    for step in range(_PASSES):
        grid = _evaluate(observations, ends, scales, (_COARSE, _COARSE_SCALES))
        narrower, narrower_scales = _narrowed(grid, center)
        settled = all(
            (new[1] - new[0]) > 0.5 * (old[1] - old[0])
            for new, old in zip(narrower, ends, strict=True)
        )
        ends = narrower
        scales = scales if shared else narrower_scales
        if settled and step:
            break
    return _evaluate(observations, ends, scales, (_FINE, _SCALES))


def _first_ends(observations: Observations, center: Floats) -> list[Ends]:
    located = observations.located()
    steps = np.log2(located.middle)
    examples = steps + np.log2(located.batch_size)
    # The prior of c2 has 2^-12 of its weight below the lower end.
    c1, c2 = float(center[0]), float(center[1])
    return [_wide(examples, C1_BELOW, c1), _wide(steps, 12, c2)]


def _wide(values: Floats, below: float, middle: float) -> Ends:
    low, high = float(values.min()) - below, float(values.max()) + 4
    return min(low, middle - 1), max(high, middle + 1)


def _narrowed(grid: Posterior, center: Floats) -> tuple[list[Ends], Ends]:
    """Returns the ends of what is not negligible, one grid cell wider."""
    ends = []
    for axis, other, middle in (
        (grid.log2_c1, (0, 2), center[0]),
        (grid.log2_c2, (0, 1), center[1]),
    ):
        top = grid.log_weight.max(axis=other)
        kept = axis[top > top.max() - _NEGLIGIBLE]
        cell = axis[1] - axis[0]
        # A coarse grid may miss a sharp top, and least squares does not.
        near = (min(kept[0], middle), max(kept[-1], middle))
        if not axis[0] <= middle <= axis[-1]:
            near = (kept[0], kept[-1])
        ends.append((float(near[0] - cell), float(near[1] + cell)))
    top = grid.log_weight.max(axis=(1, 2))
    kept = grid.log_scale[top > top.max() - _NEGLIGIBLE]
    cell = grid.log_scale[1] - grid.log_scale[0]
    low = max(float(kept[0] - cell), float(np.log(SCALE_FLOOR)))
    # A coarse grid knows only large scales: never cut the small ones before it is fine.
    cut = len(kept) and grid.log2_c1[1] - grid.log2_c1[0] < np.exp(kept[0])
    low = low if cut else float(grid.log_scale[0])
    return ends, (low, min(float(kept[-1] + cell), float(np.log(SCALE_CEILING))))


def _evaluate(
    observations: Observations,
    ends: list[Ends],
    scales: Ends,
    sizes: tuple[int, int],
) -> Posterior:
    log2_c1 = np.linspace(*ends[0], sizes[0])
    log2_c2 = np.linspace(*ends[1], sizes[0])
    log_scale = np.linspace(*scales, sizes[1])
    log2_batch = np.log2(observations.batch_size)[:, None, None]
    curve = np.logaddexp2(log2_c1[None, :, None] - log2_batch, log2_c2[None, None, :])
    weight = _log_likelihood(observations, curve, np.exp(log_scale))
    prior = log_prior_of_c2(log2_c2, observations)[None, :]
    return Posterior(log2_c1, log2_c2, log_scale, weight + prior)


def log_prior_of_c2(log2_c2: Floats, observations: Observations) -> Floats:
    """Returns the log-density of log2 c2, up to a constant; see the module."""
    over = np.log(2) * (log2_c2 - np.log2(observations.located().middle.min()))
    return np.asarray(over - 2 * np.logaddexp(0, over), np.float64)


def _log_likelihood(observations: Observations, curve: Floats, scale: Floats) -> Floats:
    """Returns the log-likelihood of curves [n, g, h] at scales [s], as [s, g, h]."""
    exact = observations.is_exact
    high = np.log2(observations.high)
    # 2^-60 of a step stands for a bracket that starts at 0.
    low = np.log2(np.maximum(observations.low, 2.0**-60))
    value = np.zeros((len(scale), *curve.shape[1:]))
    for i, noise in enumerate(observations.noise):
        total = np.hypot(scale, noise)[:, None, None]
        above = high[i] - curve[i]
        if exact[i]:
            value += -0.5 * (above / total) ** 2 - np.log(total)
            continue
        below = low[i] - curve[i]
        # In the left tail, where the difference of the two keeps its precision.
        flip = below + above > 0
        below, above = np.where(flip, -above, below), np.where(flip, -below, above)
        probability = ndtr(above / total) - ndtr(below / total)
        value += np.log(np.maximum(probability, 1e-300))
    return value


def joint_draws(
    curves: Mapping[str, Observations], starts: Mapping[str, Floats], scale: float
) -> dict[str, Floats]:
    """Returns draws of (log2 c1, log2 c2) per curve with one common scale, [d, 2].

    The same tables give the same draws. `starts` are of least squares, and `scale` is
    that of all curves together, in octaves.
    """
    freedom = sum(len(curve) - 2 for curve in curves.values())
    spread = 6 / np.sqrt(2 * freedom)
    exact = all(curve.is_exact.all() for curve in curves.values())
    # Brackets may be compatible with any smaller scale, exact values are not.
    low = max(scale * np.exp(-spread), SCALE_FLOOR) if exact else SCALE_FLOOR
    high = min(max(scale, 2 * SCALE_FLOOR) * np.exp(spread), SCALE_CEILING)
    ends = (float(np.log(low)), float(np.log(high)))
    grids = {
        name: posterior(curve, starts[name], log_scales=ends)
        for name, curve in curves.items()
    }
    # Given the scale, curves are independent: its weight is a product over them.
    log_weight = np.sum([grid.log_evidence for grid in grids.values()], axis=0)
    weight = np.exp(log_weight - log_weight.max())
    rng = np.random.default_rng(0)  # The same tables give the same numbers.
    chosen = rng.choice(len(weight), _DRAWS, p=weight / weight.sum())
    return {name: _draw(grid, chosen, rng) for name, grid in grids.items()}


def _draw(grid: Posterior, scales: Codes, rng: np.random.Generator) -> Floats:
    """Returns draws of (log2 c1, log2 c2) given the position of each one's scale."""
    drawn = np.empty((len(scales), 2))
    cells = np.array(
        [grid.log2_c1[1] - grid.log2_c1[0], grid.log2_c2[1] - grid.log2_c2[0]]
    )
    for s in np.unique(scales):
        mine = np.flatnonzero(scales == s)
        weight = np.exp(grid.log_weight[s] - grid.log_weight[s].max()).ravel()
        place = rng.choice(len(weight), len(mine), p=weight / weight.sum())
        first, second = np.divmod(place, len(grid.log2_c2))
        drawn[mine, 0] = grid.log2_c1[first]
        drawn[mine, 1] = grid.log2_c2[second]
    spread = rng.uniform(-0.5, 0.5, drawn.shape) * cells
    return np.asarray(drawn + spread, np.float64)
