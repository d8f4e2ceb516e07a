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

from dps_tf.analysis.fit_table import observations_by_curve
from dps_tf.analysis.law import LEVEL, Draws, LawFit, Observations, fit_law
from dps_tf.analysis.law.fit import tails
from dps_tf.analysis.step_times import DRAWS
from dps_tf.analysis.tables import Floats, curve_key, require
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


def check_batch_sizes(batch_sizes: Sequence[float]) -> Floats:
    """Returns batch sizes as numbers; UserError unless there are some, all positive."""
    sizes = np.asarray(batch_sizes, np.float64)
    if not sizes.size or not np.isfinite(sizes).all() or (sizes <= 0).any():
        raise UserError(
            f"batch_sizes is {list(batch_sizes)!r}; it must hold positive numbers."
        )
    return sizes


def predict(
    tables: Any,
    batch_sizes: Sequence[float],
    sparsities: Sequence[float] | None = None,
    level: float = LEVEL,
) -> pd.DataFrame:
    """Returns K* at batch sizes that were not measured, or why it is not predicted.

    Columns: curve, sparsity where `sparsities` are given, batch_size, steps (the median
    of the law's curve) with steps_low and steps_high, study_low and study_high (between
    which a further study's K* lies), abstains (the reason; the numbers are NaN then).

    Args:
        tables: what `dps_tf.load` returns, or a table as of `dps_tf.fit`.
        batch_sizes: of the predictions.
        sparsities: of the predictions, measured ones or some between them: curves that
            differ in their sparsity only are then taken together; by default the
            measured curves.
        level: nominal coverage of the intervals.

    Raises:
        UserError: a batch size that is not positive, or tables that lack a column.

    Examples:
        >>> tables = dps_tf.load("sweeps/quickstart")  # doctest: +SKIP
        >>> dps_tf.predict(tables, [48, 2048])  # doctest: +SKIP
    """
    sizes = check_batch_sizes(batch_sizes)
    results = getattr(tables, "results", tables)
    if sparsities is not None:
        return _over_sparsities(results, sizes, sparsities, level)
    found = [
        predict_curve(points, sizes, level).assign(curve=name)
        for name, points in observations_by_curve(results).items()
    ]
    return pd.concat(found, ignore_index=True)[["curve", *COLUMNS]]


def _over_sparsities(
    results: pd.DataFrame, sizes: Floats, sparsities: Sequence[float], level: float
) -> pd.DataFrame:
    """Returns predictions of each family of curves that differ in sparsity only."""
    require(results, ["sparsity"], "results")
    # A dense curve has no method: it belongs to the family of every method.
    keys = [n for n in curve_key(results) if n in results.columns]
    keys = [n for n in keys if n not in ("sparsity", "sparsity_method")]
    families = results.groupby(keys, sort=False) if keys else [((), results)]
    found = []
    for key, rows in families:
        name = ", ".join(str(value) for value in key)
        measured = {
            float(part["sparsity"].iloc[0]): observations_by_curve(
                part.assign(curve=name)
            )[name]
            for _, part in rows.groupby("sparsity")
        }
        for sparsity in sparsities:
            part = _at_sparsity(measured, float(sparsity), sizes, level)
            found.append(part.assign(curve=name, sparsity=sparsity))
    return pd.concat(found, ignore_index=True)[["curve", "sparsity", *COLUMNS]]


def _at_sparsity(
    measured: Mapping[float, Observations],
    sparsity: float,
    sizes: Floats,
    level: float,
) -> pd.DataFrame:
    if sparsity in measured:
        return predict_curve(measured[sparsity], sizes, level)
    usable = {s: points for s, points in measured.items() if not obstacles(points)}
    below = [s for s in usable if s < sparsity]
    above = [s for s in usable if s > sparsity]
    if not below or not above:
        why = f"sparsity {sparsity:g} lies outside those that were measured"
        return pd.DataFrame({"batch_size": sizes, "abstains": why}).reindex(
            columns=COLUMNS
        )
    ends = max(below), min(above)
    both = [fit_law(usable[s], level).free.draws(DRAWS) for s in ends]
    draws = _between(both[0], both[1], ends, sparsity)
    rows = []
    for size in sizes:
        why = next(filter(None, (too_far(usable[s], size) for s in ends)), "")
        row = {"batch_size": size, "abstains": why}
        rows.append(row if why else {**row, **_intervals(draws, size, level)})
    return pd.DataFrame(rows, columns=COLUMNS)


def _between(
    low: Draws, high: Draws, ends: tuple[float, float], sparsity: float
) -> Draws:
    """Returns draws of the law at a sparsity between two measured ones.

    log c1 and log c2 are taken to be linear in log(1 - s), the logarithm of the share
    of parameters that are left: an assumption, which nothing measured supports.
    """
    left = [np.log1p(-s) for s in (ends[0], sparsity, ends[1])]
    share = float((left[1] - left[0]) / (left[2] - left[0]))
    return Draws(
        c1=low.c1 ** (1 - share) * high.c1**share,
        c2=low.c2 ** (1 - share) * high.c2**share,
        exponent=(1 - share) * low.exponent + share * high.exponent,
        scale=(1 - share) * low.scale + share * high.scale,
    )
