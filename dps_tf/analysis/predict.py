"""Predicts K* at batch sizes that were not measured, or says why it cannot.

Predictions come from the joint posterior of the law K* = c1/B^a + c2 with a free
exponent a, so that an interval covers that a may not be 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.fit_table import curves_of_table
from dps_tf.analysis.law import LEVEL, LawFit, Observations, fit_law
from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.step_times import DRAWS
from dps_tf.analysis.tables import Floats, require
from dps_tf.core import UserError, check_positive

COLUMNS = ["batch_size", "steps", "steps_low", "steps_high"]
COLUMNS += ["study_low", "study_high", "abstains"]
MINIMUM_SIZES = 4
"""Batch sizes with a located K* below which nothing is predicted: fewer leave no degree
of freedom beside the exponent."""
REACH = 4.0
"""Factor beyond the measured batch sizes up to which a law may be followed."""
SAME = 1.25
"""Factor within which two predictions give the same answer."""
RISE = 1.5
"""Factor by which a K* must exceed one at a smaller batch size to count as a rise: two
standard deviations of the difference of two searches of 0.2 octaves each."""


def obstacles(points: Observations) -> str:
    """Returns why no K* of a curve can be predicted, as a clause; empty if it can."""
    if points.batch_sizes < MINIMUM_SIZES:
        return (
            f"K* is known at {points.batch_sizes} batch sizes, and {MINIMUM_SIZES} are "
            "needed"
        )
    located = points.located()
    least = np.minimum.accumulate(located.high)
    rises = located.middle[1:] > RISE * least[:-1]
    if not rises.any():
        return ""
    end = int(rises.argmax()) + 1
    start = int(located.high[:end].argmin())
    low, high = located.batch_size[start], located.batch_size[end]
    return f"K* rises from batch size {low:g} to {high:g}, which the law cannot"


def predict_curve(
    points: Observations, batch_sizes: Sequence[float] | Floats, level: float = LEVEL
) -> pd.DataFrame:
    """Returns predictions of one curve, one row per batch size; see `predict`."""
    table = pd.DataFrame({"batch_size": batch_sizes}).reindex(columns=COLUMNS)
    if why := obstacles(points):
        return table.assign(abstains=why)
    fit = fit_law(points, level)
    draws, levels = fit.free.draws(DRAWS), tails(level)
    table["abstains"] = [_refusal(fit, size) for size in batch_sizes]
    for row, size in enumerate(batch_sizes):
        if not table["abstains"][row]:
            law, study = draws.steps(size), draws.further(size)
            ends = [*np.quantile(law, levels), *np.quantile(study, levels)]
            table.loc[row, COLUMNS[1:-1]] = [np.median(law), *ends]
    return table


def _refusal(fit: LawFit, batch_size: float) -> str:
    """Returns why K* at a batch size is not predicted; empty if it is."""
    sizes = fit.observations.located().batch_size
    if not sizes.min() / REACH <= batch_size <= sizes.max() * REACH:
        return (
            f"{batch_size:g} is more than {REACH:g} times beyond the measured batch "
            f"sizes {sizes.min():g} to {sizes.max():g}"
        )
    with_free, with_one = (
        float(law.steps(batch_size).quantiles([0.5])[0])
        for law in (fit.free, fit.posterior)
    )
    if max(with_free / with_one, with_one / with_free) <= SAME:
        return ""
    return (
        f"the exponent decides: c1/B + c2 says {with_one:.3g} steps, and c1/B^a + c2 "
        f"says {with_free:.3g}"
    )


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
        tables: what `dps_tf.load` returns, or a table that `dps_tf.fit` reads.
        batch_sizes: positive numbers, for each of which K* is predicted.
        sparsities: measured sparsities of the curves to predict; by default all.
        level: nominal coverage of the intervals.

    Raises:
        UserError: a batch size that is not positive, a sparsity that was not measured,
            or tables that lack a column.

    Examples:
        >>> sizes = np.array([8, 16, 32, 64, 128, 256])
        >>> table = pd.DataFrame({"batch_size": sizes})
        >>> table["steps_to_result"] = 24_000 / sizes + 260
        >>> predict(table, [48])["steps"].round(-1).tolist()
        [760.0]
    """
    sizes = np.asarray(batch_sizes, np.float64)
    for size in sizes.tolist():
        check_positive("a batch size to predict", size)
    results = getattr(tables, "results", tables)
    if sparsities is not None:
        require(results, ["sparsity"], "results")
        measured = sorted(set(results["sparsity"]))
        for sparsity in set(sparsities).difference(measured):
            raise UserError(
                f"sparsity {sparsity:g} was not measured, and K* is not predicted "
                f"between sparsities: choose among {', '.join(map(str, measured))}."
            )
    predictions = [
        predict_curve(Observations.from_results(rows), sizes, level).assign(curve=name)
        for name, rows in curves_of_table(results).items()
        if sparsities is None or rows["sparsity"].iloc[0] in sparsities
    ]
    return pd.concat(predictions, ignore_index=True)[["curve", *COLUMNS]]
