"""Where does a curve scale perfectly, and where is it flat?"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dps_tf.analysis.regimes import TOLERANCE, ends
from dps_tf.analysis.report import style
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.wording import interval, number, with_interval

BARS = (
    "Bars: filled, perfect scaling; hatched, diminishing returns; open, the plateau. "
    "Diamond: c1/c2."
)
DEFINITION = (
    f"Perfect scaling ends at B = {TOLERANCE:g} c1/c2 of the fit, where K* B = "
    f"{1 + TOLERANCE:g} c1. The plateau begins at B = c1/c2 / "
    f"{TOLERANCE:g}, where K* = {1 + TOLERANCE:g} c2, if the points are flat there "
    "too. Between the two returns diminish. The line of the diamond is the interval of "
    "c1/c2; all is drawn within the measured batch sizes, with an arrow at their end "
    "where c1/c2 lies beyond. Where an end of that interval is open, an arrow at the "
    "other one takes the place of the diamond, and what is not known has no bar."
)


def regimes_of(curves: Curves) -> pd.DataFrame:
    """Returns the regimes of each curve that has a fit.

    Columns: key, panel, curve, smallest and largest batch size; perfect_end and
    useful_end on the fit with `_low` and `_high` (infinite where open); points_perfect
    and points_useful on the points (NaN where these are not seen to become flat);
    is_flat, whether fit and points both find the curve flat within what was measured;
    critical, critical_low, critical_high (c1/c2); tolerance.
    """
    rows = []
    for key, fit in curves.fits.items():
        sizes = fit.observations.batch_size
        curve_ends = ends(fit)
        useful = math.nan if curve_ends.points_flat is None else curve_ends.points_flat
        row: dict[str, Any] = {
            "key": key,
            "panel": curves.labels[key].panel,
            "curve": curves.labels[key].name,
            "smallest": float(sizes.min()),
            "largest": float(sizes.max()),
            "points_perfect": curve_ends.points_perfect,
            "points_useful": useful,
            "is_flat": curve_ends.is_flat,
            "tolerance": curve_ends.tolerance,
        }
        for name, estimate in (
            ("perfect_end", curve_ends.perfect),
            ("useful_end", curve_ends.flat),
            ("critical", fit.critical_batch_size),
        ):
            row |= {
                name: estimate.value,
                f"{name}_low": estimate.low,
                f"{name}_high": estimate.high,
            }
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["key", "panel", "curve"])


def batch_size_text(value: float, low: float, high: float, smallest: float) -> str:
    """Returns the end of a regime with its interval, cut at the smallest batch size.

    >>> batch_size_text(21.4, 17.2, 26.0, 4), batch_size_text(0.212, 0.1, 9.0, 4)
    ('21 (17 to 26)', 'below the smallest measured (at most 9)')
    >>> batch_size_text(2.4, 0.0, 47.5, 4)
    'at most 48'
    """
    if low == 0 and high >= smallest:
        return interval(low, high, 2)
    if value < smallest:
        upper_end = "" if high < smallest else f" ({interval(0.0, high, 2)})"
        return f"below the smallest measured{upper_end}"
    if low == 0 or low >= smallest:
        return with_interval(value, low, high)
    return f"{number(value, 2)} ({interval(0.0, high, 2)})"


def draw_regimes(
    axis: Axes, regimes: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws a table of `regimes_of`, one bar per curve, under the headline figure."""
    for height, row in enumerate(regimes.to_dict("records")):
        line_style = style.line_style_of(line_styles, row["curve"])
        _bar(axis, height, row, line_style)
        _critical(axis, height, row)
    axis.set_ylim(len(regimes) - 0.4, -0.6)
    axis.set_yticks(
        range(len(regimes)), labels=[str(name) for name in regimes["curve"]], fontsize=9
    )
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("Batch size")


def spans(row: Mapping[Hashable, Any]) -> list[tuple[float, float, str]]:
    """Returns start, end and name of each regime of a row of `regimes_of`.

    Names are perfect, diminishing and flat; a regime that lies outside of the measured
    batch sizes is left out. Where an end of c1/c2 is open, regimes go as far as its
    other end makes sure, and what lies between them is left out.
    """
    smallest, largest = float(row["smallest"]), float(row["largest"])
    is_open = _is_open(row)
    ends = "perfect_end_low useful_end_high" if is_open else "perfect_end useful_end"
    perfect, useful = (float(row[name]) for name in ends.split())
    perfect = float(np.clip(perfect, smallest, largest))
    useful = max(useful, perfect) if row["is_flat"] else largest
    regimes = [
        (smallest, perfect, "perfect"),
        *([] if is_open else [(perfect, useful, "diminishing")]),
        (useful, largest, "flat"),
    ]
    return [span for span in regimes if span[1] > span[0]]


def _is_open(row: Mapping[Hashable, Any]) -> bool:
    """Returns whether an end of the interval of c1/c2 is open."""
    return float(row["critical_low"]) == 0 or np.isinf(float(row["critical_high"]))


class CriticalMark(NamedTuple):
    """Places of c1/c2 and its interval, all within the measured batch sizes."""

    at: float
    low: float
    high: float
    marker: str


def critical_mark(row: Mapping[Hashable, Any]) -> CriticalMark | None:
    """Returns the mark of c1/c2 of a row of `regimes_of`; None where it is unknown.

    A diamond, or an arrow where c1/c2 lies beyond what was measured; where an end is
    open, an arrow at the other one.
    """
    value = float(row["critical"])
    ends = np.array([row["critical_low"], row["critical_high"]], np.float64)
    if np.isnan(value) or (ends[0] == 0 and np.isinf(ends[1])):
        return None
    smallest, largest = float(row["smallest"]), float(row["largest"])
    low, high = np.clip(ends, smallest, largest)
    marker = "d" if smallest <= value <= largest else ">" if value > largest else "<"
    if _is_open(row):
        marker, value = ("<", ends[1]) if ends[0] == 0 else (">", ends[0])
    at = min(max(value, smallest), largest)
    return CriticalMark(at, float(low), float(high), marker)


def _bar(
    axis: Axes, height: int, row: dict[Hashable, Any], line_style: LineStyle
) -> None:
    outline = {"edgecolor": line_style.color, "linewidth": 1.0, "height": 0.5}
    fills: dict[str, dict[str, Any]] = {
        "perfect": {"facecolor": line_style.color},
        "diminishing": {"facecolor": "white", "hatch": "////"},
        "flat": {"facecolor": "white"},
    }
    for start, end, kind in spans(row):
        axis.barh(height, end - start, left=start, zorder=2, **outline, **fills[kind])


def _critical(axis: Axes, height: int, row: dict[Hashable, Any]) -> None:
    mark = critical_mark(row)
    if mark is None:
        return
    ends = [mark.low, mark.high]
    axis.plot(ends, [height, height], color=style.INK, linewidth=1.2, zorder=4)
    axis.plot(
        [mark.at],
        [height],
        marker=mark.marker,
        color=style.INK,
        markeredgecolor="white",
        markersize=8,
        linestyle="none",
        zorder=5,
        clip_on=False,
    )
