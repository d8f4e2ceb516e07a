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
from dps_tf.analysis.law import LEVEL, Draws, LawFit, Observations, fit_law
from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.step_times import DRAWS
from dps_tf.analysis.tables import Floats, require
from dps_tf.core import UserError

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
    best, at = np.inf, 0.0
    for size, low, high in zip(
        located.batch_size, located.middle, located.high, strict=True
    ):
        if low > RISE * best:
            return f"K* rises from batch size {at:g} to {size:g}, which the law cannot"
        if high < best:
            best, at = float(high), float(size)
    return ""


def predict_curve(
    points: Observations, batch_sizes: Sequence[float] | Floats, level: float = LEVEL
) -> pd.DataFrame:
    """Returns predictions of one curve, one row per batch size; see `predict`."""
    if why := obstacles(points):
        rows = [{"batch_size": size, "abstains": why} for size in batch_sizes]
    else:
        fit = fit_law(points, level)
        draws = fit.free.draws(DRAWS)
        rows = [_prediction(fit, draws, size) for size in batch_sizes]
    return pd.DataFrame(rows, columns=COLUMNS)


COLUMNS = ["batch_size", "steps", "steps_low", "steps_high"]
COLUMNS += ["study_low", "study_high", "abstains"]


def _prediction(fit: LawFit, draws: Draws, batch_size: float) -> dict[str, Any]:
    """Returns the prediction for one batch size, a row of COLUMNS."""
    why = _refusal(fit, batch_size)
    row: dict[str, Any] = {"batch_size": batch_size, "abstains": why}
    if why:
        return row
    law, study = draws.steps(batch_size), draws.further(batch_size)
    row["steps"] = np.median(law)
    row["steps_low"], row["steps_high"] = np.quantile(law, tails(fit.level))
    row["study_low"], row["study_high"] = np.quantile(study, tails(fit.level))
    return row


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
    if not sizes.size or not np.isfinite(sizes).all() or (sizes <= 0).any():
        raise UserError(
            f"batch_sizes is {list(batch_sizes)!r}; it must hold positive numbers."
        )
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
