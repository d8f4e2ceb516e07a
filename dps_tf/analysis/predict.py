"""Predictions of K*: what a batch size that was not measured would need, or why not.

The joint posterior of the law K* = c1/B^a + c2 is the source, with the exponent a free
under its prior, so that an interval knows that a may not be 1. Two intervals are given:
of the law's curve, and of the K* of a further study, which scatters about it.

A prediction is refused, with the reason, where the data cannot carry it; see
`obstacles`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.fit_table import curves_of_table, observations_by_curve
from dps_tf.analysis.law import LEVEL, Draws, LawFit, Observations, fit_law
from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.step_times import DRAWS
from dps_tf.analysis.tables import Floats, require
from dps_tf.core import UserError

MINIMUM_SIZES = 4
"""Batch sizes with a located K* below which nothing is predicted."""
REACH = 4.0
"""Factor beyond the measured batch sizes up to which a law may be followed."""
SAME = 1.25
"""Factor within which two predictions give the same answer."""
RISE = 1.5
"""Factor by which a K* must exceed one at a smaller batch size to count as a rise: two
standard deviations of the difference of two searches of 0.2 octaves each."""


def obstacles(points: Observations) -> str:
    """Returns why nothing is predicted of a curve; empty if nothing is in the way.

    A curve of fewer than four batch sizes has no degree of freedom beside the
    exponent, and one on which K* rises with B is no curve of the law.
    """
    if points.batch_sizes < MINIMUM_SIZES:
        return (
            f"K* is known at {points.batch_sizes} batch sizes, and {MINIMUM_SIZES} are "
            "needed"
        )
    located = points.located()
    best, at = np.inf, 0.0
    for size, low, high in zip(
        located.batch_size, located.middle, located.high, strict=True
    ):
        if low > RISE * best:
            return f"K* rises from batch size {at:g} to {size:g}, which the law cannot"
        if high < best:
            best, at = float(high), float(size)
    return ""


def too_far(points: Observations, batch_size: float) -> str:
    """Returns why a batch size is too far from those measured; empty if it is not."""
    sizes = points.located().batch_size
    least, most = float(sizes.min()) / REACH, float(sizes.max()) * REACH
    if least <= batch_size <= most:
        return ""
    return (
        f"{batch_size:g} is more than {REACH:g} times beyond the measured batch sizes "
        f"{sizes.min():g} to {sizes.max():g}"
    )


def predict_curve(
    points: Observations, batch_sizes: Sequence[float] | Floats, level: float = LEVEL
) -> pd.DataFrame:
    """Returns predictions of one curve, one row per batch size; see `predict`."""
    sizes = np.asarray(batch_sizes, np.float64)
    general = obstacles(points)
    rows: list[Mapping[str, Any]]
    if general:
        rows = [{"batch_size": size, "abstains": general} for size in sizes]
        return pd.DataFrame(rows, columns=COLUMNS)
    fit = fit_law(points, level)
    draws = fit.free.draws(DRAWS)
    rows = []
    for size in sizes:
        why = too_far(points, size) or _by_exponent(fit, size)
        row = {"batch_size": size, "abstains": why}
        rows.append(row if why else {**row, **_intervals(draws, size, level)})
    return pd.DataFrame(rows, columns=COLUMNS)


COLUMNS = ["batch_size", "steps", "steps_low", "steps_high"]
COLUMNS += ["study_low", "study_high", "abstains"]


def _by_exponent(fit: LawFit, batch_size: float) -> str:
    """Returns why the exponent changes a prediction; empty if it does not."""
    with_free = float(fit.free.steps(batch_size).quantiles([0.5])[0])
    with_one = float(fit.posterior.steps(batch_size).quantiles([0.5])[0])
    ratio = max(with_free / with_one, with_one / with_free)
    if ratio <= SAME:
        return ""
    return (
        f"the exponent decides: c1/B + c2 says {with_one:.3g} steps, and c1/B^a + c2 "
        f"says {with_free:.3g}"
    )


def _intervals(draws: Draws, batch_size: float, level: float) -> dict[str, float]:
    ends = list(tails(level))
    law, study = draws.steps(batch_size), draws.further(batch_size)
    low, high = np.quantile(law, ends)
    study_low, study_high = np.quantile(study, ends)
    return {
        "steps": float(np.median(law)),
        "steps_low": float(low),
        "steps_high": float(high),
        "study_low": float(study_low),
        "study_high": float(study_high),
    }


def predict(
    tables: Any,
    batch_sizes: Sequence[float],
    sparsities: Sequence[float] | None = None,
    level: float = LEVEL,
) -> pd.DataFrame:
    """Returns K* at batch sizes that were not measured, or why it is not predicted.

    Columns: curve, batch_size, steps (the median of the law's curve) with steps_low and
    steps_high, study_low and study_high (between which a further study's K* lies),
    abstains (the reason; the numbers are NaN then).

    Args:
        tables: what `dps_tf.load` returns, or a table as of `dps_tf.fit`.
        batch_sizes: of the predictions.
        sparsities: of the curves that are predicted, each one that was measured; by
            default all.
        level: nominal coverage of the intervals.

    Raises:
        UserError: a batch size that is not positive, a sparsity that was not measured,
            or tables that lack a column.

    Examples:
        >>> tables = dps_tf.load("sweeps/quickstart")  # doctest: +SKIP
        >>> dps_tf.predict(tables, [48, 2048])  # doctest: +SKIP
    """
    sizes = np.asarray(batch_sizes, np.float64)
    if not sizes.size or not np.isfinite(sizes).all() or (sizes <= 0).any():
        raise UserError(
            f"batch_sizes is {list(batch_sizes)!r}; it must hold positive numbers."
        )
    results = getattr(tables, "results", tables)
    curves = observations_by_curve(results)
    if sparsities is not None:
        curves = _of_sparsities(results, curves, sparsities)
    found = [
        predict_curve(points, sizes, level).assign(curve=name)
        for name, points in curves.items()
    ]
    return pd.concat(found, ignore_index=True)[["curve", *COLUMNS]]


def _of_sparsities(
    results: pd.DataFrame,
    curves: Mapping[str, Observations],
    sparsities: Sequence[float],
) -> dict[str, Observations]:
    """Returns the curves of some sparsities; UserError for one without any."""
    require(results, ["sparsity"], "results")
    measured = sorted(set(results["sparsity"]))
    for sparsity in sparsities:
        if sparsity not in measured:
            raise UserError(
                f"sparsity {sparsity:g} was not measured, and K* is not predicted "
                f"between sparsities: choose among {', '.join(map(str, measured))}."
            )
    named = curves_of_table(results)
    return {
        name: points
        for name, points in curves.items()
        if named[name]["sparsity"].iloc[0] in sparsities
    }
