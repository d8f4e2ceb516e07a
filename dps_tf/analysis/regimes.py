"""Finds where perfect scaling ends and where larger batches stop helping.

Neither paper gives these ends a number, and every number depends on its definition and
its tolerance t; so each comes with both, and with its sensitivity to t. `ends` returns
the ends on the fit K = c1/B + c2 with their intervals, and beside them the ends on the
measured points, which rest on single K* and move by octaves with their scatter.
DEFINITIONS lists both kinds. K0 is the K* at the smallest batch size B0; several K* at
one batch size count as their geometric mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law import Estimate, LawFit, Observations
from dps_tf.analysis.tables import Bools, Floats
from dps_tf.core import UserError

TOLERANCES = (0.1, 0.2, 0.5, 1.0)
TOLERANCE = 0.2
"""Tolerance of figures and sentences: 20 % over linear scaling, as in the published
code of Zhang et al. 2024. Tables show the ends at further tolerances."""
DEFINITIONS = {
    "perfect_scaling_first": "last B before one with K B > (1+t) K0 B0",
    "perfect_scaling_last": "largest B with K B <= (1+t) K0 B0",
    "maximum_useful": "smallest B with K <= (1+t) min K",
    "linear_scaling_from": "largest B with K B <= (1+t) K1 B1",
    "fit_perfect_scaling": "fit: t c1/c2, where K B = (1+t) c1",
    "fit_maximum_useful": "fit: c1/c2 / t, where K = (1+t) c2",
    "fit_linear_scaling_from": "fit: (1+t) B1 + t c1/c2",
}
"""Definitions of the end of a regime, by name; linear_scaling_from with t = 20 % is
that of Zhang et al. 2024."""
_ROUNDING = 1e-12  # Relative: a point exactly on its limit stays within it.


@dataclass(frozen=True)
class Regime:
    """The end of a regime under one definition.

    Attributes:
        name: of the definition, a key of DEFINITIONS.
        tolerance: t.
        batch_size: the end.
        low: lower end of its interval; None for definitions on measured points.
        high: upper end; None also for an open one.
        is_open: whether the end may lie beyond the measured batch sizes.
    """

    name: str
    tolerance: float
    batch_size: float
    low: float | None = None
    high: float | None = None
    is_open: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the regime as JSON, with its definition."""
        return {**asdict(self), "definition": DEFINITIONS[self.name]}


@dataclass(frozen=True)
class Ends:
    """The ends of the regimes of one curve at one tolerance.

    Attributes:
        tolerance: t.
        perfect: end of perfect scaling on the fit, t c1/c2.
        flat: batch size from which the fit is flat, c1/c2 / t.
        points_perfect: end of perfect scaling on the points, before its first failure.
        points_flat: the smallest batch size on the points' plateau; None where it is
            the largest measured one, beyond which K* may go on falling.
        is_flat: whether fit and points both find the curve flat within what was
            measured.
    """

    tolerance: float
    perfect: Estimate
    flat: Estimate
    points_perfect: float
    points_flat: float | None
    is_flat: bool


def ends(fit: LawFit, tolerance: float = TOLERANCE) -> Ends:
    """Returns where perfect scaling ends and from where the curve is flat.

    Observations of the fit that are only bounds do not count as points.
    """
    points = by_batch_size(fit.observations)
    perfect, _ = perfect_scaling_first(points, tolerance)
    useful, is_open = maximum_useful(points, tolerance)
    flat = _affine(fit, 0.0, 1 / tolerance)
    largest = float(points.batch_size[-1])
    # Of an open c1/c2 the upper end alone is known.
    at_most = flat.value if flat.low else flat.high
    return Ends(
        tolerance=tolerance,
        perfect=_affine(fit, 0.0, tolerance),
        flat=flat,
        points_perfect=perfect,
        points_flat=None if is_open else useful,
        is_flat=fit.plateau_resolved and at_most <= largest and not is_open,
    )


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


def perfect_scaling_first(
    observations: Observations, tolerance: float
) -> tuple[float, bool]:
    """Returns the end of perfect scaling by its first failure, and whether it is open.

    Open: no measured batch size fails.
    """
    b, fails = _over_linear(observations, 0, tolerance)
    if not fails.any():
        return float(b[-1]), True
    # K0 B0 itself never fails, so there is a batch size before the first failure.
    return float(b[int(np.argmax(fails)) - 1]), False


def maximum_useful(observations: Observations, tolerance: float) -> tuple[float, bool]:
    """Returns the smallest batch size on the plateau, and whether it is open.

    Open: it is the largest measured one, beyond which K* may go on falling.
    """
    limit = (1 + tolerance) * observations.high.min() * (1 + _ROUNDING)
    smallest = float(
        observations.batch_size[int(np.argmax(observations.high <= limit))]
    )
    return smallest, bool(smallest == observations.batch_size[-1])


def linear_scaling_from(
    observations: Observations, batch_size: float, tolerance: float = TOLERANCE
) -> tuple[float, bool]:
    """Returns the largest batch size on linear scaling, and whether it is open.

    Linear scaling counts from `batch_size`. Open: the largest measured one is on it.

    Raises:
        UserError: the batch size was not measured.
    """
    place = np.flatnonzero(observations.batch_size == batch_size)
    if len(place) == 0:
        sizes = ", ".join(f"{b:g}" for b in observations.batch_size)
        raise UserError(
            f"batch size {batch_size:g} has no steps-to-result to scale from; "
            f"measured: {sizes}."
        )
    b, fails = _over_linear(observations, int(place[0]), tolerance)
    return float(b[~fails][-1]), not bool(fails[-1])


def _over_linear(
    observations: Observations, start: int, tolerance: float
) -> tuple[Floats, Bools]:
    """Returns the batch sizes from `start` on, and which are over linear scaling."""
    b = observations.batch_size[start:]
    examples = observations.high[start:] * b
    limit = (1 + tolerance) * examples[0] * (1 + _ROUNDING)
    return b, np.asarray(examples > limit, np.bool_)


def measured_regimes(
    observations: Observations,
    tolerances: Sequence[float] = TOLERANCES,
    linear_from: float | None = None,
) -> list[Regime]:
    """Returns the ends on the measured points by every definition and tolerance.

    K* counts at the upper end of its bracket, as in both papers. Several K* at one
    batch size count as their geometric mean, so that the order of rows is irrelevant.
    `linear_from` is the batch size B1 of linear_scaling_from, which is left out by
    default.
    """
    observations = by_batch_size(observations)
    first = observations.batch_size[0]
    regimes = []
    for t in tolerances:
        ends_of = {
            "perfect_scaling_first": perfect_scaling_first(observations, t),
            "perfect_scaling_last": linear_scaling_from(observations, first, t),
            "maximum_useful": maximum_useful(observations, t),
        }
        if linear_from is not None:
            end = linear_scaling_from(observations, linear_from, t)
            ends_of["linear_scaling_from"] = end
        regimes += [
            Regime(name, t, value, is_open=is_open)
            for name, (value, is_open) in ends_of.items()
        ]
    return regimes


def fitted_regimes(
    fit: LawFit,
    tolerances: Sequence[float] = TOLERANCES,
    linear_from: float | None = None,
) -> list[Regime]:
    """Returns the ends of the regimes on the fitted curve, with intervals.

    `linear_from` is the batch size B1 of fit_linear_scaling_from, by default the
    smallest measured one.
    """
    first = float(fit.observations.batch_size[0])
    start = first if linear_from is None else float(linear_from)
    regimes = []
    for t in tolerances:
        for name, offset, factor in (
            ("fit_perfect_scaling", 0.0, t),
            ("fit_maximum_useful", 0.0, 1 / t),
            ("fit_linear_scaling_from", (1 + t) * start, t),
        ):
            e = _affine(fit, offset, factor)
            high = e.high if np.isfinite(e.high) else None
            regimes.append(Regime(name, t, e.value, e.low, high))
    return regimes


def _affine(fit: LawFit, offset: float, factor: float) -> Estimate:
    """Returns offset + factor c1/c2."""
    critical = fit.critical_batch_size
    ends = (critical.value, critical.low, critical.high)
    return Estimate(*(offset + factor * end for end in ends))


def sensitivity(regimes: Sequence[Regime]) -> pd.DataFrame:
    """Returns the batch sizes, a row for each definition, a column for each tolerance.

    The last column, `octaves`, is log2 of the largest over the smallest of them: how
    far the choice of t moves the answer.
    """
    rows = [(r.name, f"{100 * r.tolerance:g} %", r.batch_size) for r in regimes]
    columns = list(dict.fromkeys(column for _, column, _ in rows))
    names = list(dict.fromkeys(name for name, _, _ in rows))
    table = pd.DataFrame(np.nan, index=names, columns=columns)
    for name, column, value in rows:
        table.loc[name, column] = value
    spread = np.log2(table.max(axis=1) / table.min(axis=1))
    return table.assign(octaves=spread).rename_axis("definition").reset_index()
