"""Where does a curve scale perfectly, and where is it flat? For figure and page."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from dps_tf.analysis.law import Observations
from dps_tf.analysis.regimes import (
    Regime,
    fitted_regimes,
    maximum_useful,
    measured_regimes,
    perfect_scaling_first,
)
from dps_tf.analysis.report.content import (
    Column,
    PageTable,
    SortableText,
    page_table,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.wording import interval, number, percent

TOLERANCE = 0.2
"""For figure and sentences; the table shows what others would give."""
_LEAST_SIZES = 3
"""Batch sizes below which a curve has no regimes to speak of."""
_COLUMNS = [
    "panel",
    "curve",
    "smallest",
    "perfect_end",
    "useful_end",
    "largest",
    "critical",
    "critical_low",
    "critical_high",
    "tolerance",
    "definition",
]
_NAMES = {
    "perfect_scaling_first": "perfect scaling, first failure",
    "perfect_scaling_last": "perfect scaling, last success",
    "maximum_useful": "maximum useful",
    "fit_perfect_scaling": "perfect scaling, fit",
    "fit_maximum_useful": "maximum useful, fit",
    "linear_scaling_from": "linear scaling from B1, last success",
    "fit_linear_scaling_from": "linear scaling from B1, fit",
}
_DEFINITIONS = (
    "Perfect scaling, first failure: last B before the first with K* B > (1 + t) K0 "
    "B0, B0 the smallest batch size and K0 its K*. Last success: largest B with K* B "
    "<= (1 + t) K0 B0. Maximum useful: smallest B with K* <= (1 + t) min K*; 'at "
    "least' where that is the largest one measured. On the fit: B = t c1/c2, B = c1/c2 "
    "/ t, and B = (1 + t) B1 + t c1/c2 (Zhang et al. 2024 use t = 20 %); B1 is the "
    "batch size given as --anchor, else the smallest."
)


def _observed(curves: Curves) -> list[tuple[str, str, Observations]]:
    """Returns the observations of each curve with enough batch sizes."""
    found = []
    for (panel, curve), cells in curves.cells.groupby(["panel", "curve"], sort=False):
        observations = Observations.from_results(cells[cells["closed"]])
        if observations.batch_sizes >= _LEAST_SIZES:
            found.append((str(panel), str(curve), observations))
    return found


def regimes_of(curves: Curves) -> pd.DataFrame:
    """Returns the regimes of each curve that has three batch sizes or more.

    Columns: panel, curve, smallest and largest batch size, perfect_end, useful_end (NaN
    where the curve is not seen to become flat), critical, critical_low, critical_high
    (c1/c2; NaN without a fit, ends NaN or infinite where open), tolerance, definition.
    """
    rows = []
    for panel, curve, observations in _observed(curves):
        perfect, _ = perfect_scaling_first(observations, TOLERANCE)
        useful, is_open = maximum_useful(observations, TOLERANCE)
        fit = curves.fits.get((panel, curve))
        rows.append(
            {
                "panel": panel,
                "curve": curve,
                "smallest": observations.batch_size[0],
                "perfect_end": perfect,
                "useful_end": math.nan if is_open else useful,
                "largest": observations.batch_size[-1],
                "critical": fit.critical_batch_size.value if fit else math.nan,
                "critical_low": fit.critical_batch_size.low if fit else math.nan,
                "critical_high": fit.critical_batch_size.high if fit else math.nan,
                "tolerance": TOLERANCE,
                "definition": _definition(),
            }
        )
    return pd.DataFrame(rows, columns=_COLUMNS)


def _definition() -> str:
    t = f"{1 + TOLERANCE:g}"
    return (
        f"Bars: filled, perfect scaling, up to the last batch size before the first "
        f"one with K* B > {t} K*0 B0 (B0 the smallest); open, maximal data "
        f"parallelism, from the smallest batch size with K* <= {t} min K*; hatched, "
        "diminishing returns between them. Diamond: c1/c2 with its interval, on the "
        "measured range; an arrow at its end where c1/c2 lies beyond."
    )


def regime_page_table(curves: Curves, anchor: int | None = None) -> PageTable:
    """Returns every definition at every tolerance, one row per curve and definition.

    Args:
        curves: of the report.
        anchor: batch size that linear scaling is counted from; by default the smallest
            of each curve.
    """
    rows: list[dict[str, Any]] = []
    tolerances: list[float] = []
    for panel, curve, observations in _observed(curves):
        # The fit answers for a batch size that this curve has not measured.
        start = anchor if anchor in observations.batch_size else None
        found = measured_regimes(observations, linear_from=start)
        fit = curves.fits.get((panel, curve))
        found += fitted_regimes(fit, linear_from=anchor) if fit else []
        tolerances = sorted({regime.tolerance for regime in found})
        for name in dict.fromkeys(regime.name for regime in found):
            row: dict[str, Any] = {
                "curve": curves.title(panel, curve),
                "definition": _NAMES[name],
            }
            mine = [regime for regime in found if regime.name == name]
            row |= {f"t{regime.tolerance:g}": _text(regime) for regime in mine}
            rows.append(row)
    columns = (
        Column("curve", "Curve"),
        Column("definition", "End of", _DEFINITIONS),
        *(
            Column(f"t{t:g}", f"t = {percent(t)}", "Batch size at this tolerance.")
            for t in tolerances
        ),
    )
    caption = "Ends of the regimes by definition and tolerance t, in batch sizes"
    return page_table("regimes", caption, columns, rows)


def _text(regime: Regime) -> SortableText:
    if regime.batch_size is None:
        return SortableText("undefined", math.nan)
    value = number(regime.batch_size)
    if regime.low is not None:
        high = math.inf if regime.high is None else regime.high
        return SortableText(
            f"{value} ({interval(regime.low, high)})", regime.batch_size
        )
    # The end may lie beyond the largest batch size that was measured.
    return SortableText(
        f"at least {value}" if regime.is_open else value, regime.batch_size
    )
