"""The regimes of curves as bars: perfect scaling, diminishing returns, plateau."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dps_tf.analysis.regimes import TOLERANCE, Ends
from dps_tf.analysis.report import style
from dps_tf.analysis.report.style import Axes, LineStyle

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


def draw_regimes(
    axis: Axes, regimes: Mapping[str, Ends], line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws the regimes of curves, by name, a bar each, under the headline figure."""
    for height, (name, ends) in enumerate(regimes.items()):
        _bar(axis, height, ends, style.line_style_of(line_styles, name))
        _critical(axis, height, ends)
    axis.set_ylim(len(regimes) - 0.4, -0.6)
    axis.set_yticks(range(len(regimes)), labels=list(regimes), fontsize=9)
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("Batch size")


def spans(ends: Ends) -> list[tuple[float, float, str]]:
    """Returns start, end and name of each regime of a curve.

    Names are perfect, diminishing and flat; a regime that lies outside of the measured
    batch sizes is left out. Where an end of c1/c2 is open, regimes go as far as its
    other end makes sure, and what lies between them is left out.
    """
    smallest, largest, is_open = ends.smallest, ends.largest, _is_open(ends)
    perfect = ends.perfect.low if is_open else ends.perfect.value
    useful = ends.flat.high if is_open else ends.flat.value
    perfect = float(np.clip(perfect, smallest, largest))
    useful = max(useful, perfect) if ends.is_flat else largest
    regimes = [
        (smallest, perfect, "perfect"),
        *([] if is_open else [(perfect, useful, "diminishing")]),
        (useful, largest, "flat"),
    ]
    return [span for span in regimes if span[1] > span[0]]


def _is_open(ends: Ends) -> bool:
    """Returns whether an end of the interval of c1/c2 is open."""
    return ends.critical.low == 0 or bool(np.isinf(ends.critical.high))


class CriticalMark(NamedTuple):
    """Places of c1/c2 and its interval, all within the measured batch sizes."""

    at: float
    low: float
    high: float
    marker: str


def critical_mark(ends: Ends) -> CriticalMark | None:
    """Returns the mark of c1/c2 of a curve; None where nothing bounds it.

    A diamond, or an arrow where c1/c2 lies beyond what was measured; where an end is
    open, an arrow at the other one.
    """
    critical, smallest, largest = ends.critical, ends.smallest, ends.largest
    if critical.low == 0 and np.isinf(critical.high):
        return None
    value, marker = critical.value, "d"
    low, high = np.clip((critical.low, critical.high), smallest, largest)
    if _is_open(ends):
        marker = "<" if critical.low == 0 else ">"
        value = critical.high if critical.low == 0 else critical.low
    elif not smallest <= value <= largest:
        marker = ">" if value > largest else "<"
    at = min(max(value, smallest), largest)
    return CriticalMark(at, float(low), float(high), marker)


def _bar(axis: Axes, height: int, ends: Ends, line_style: LineStyle) -> None:
    outline = {"edgecolor": line_style.color, "linewidth": 1.0, "height": 0.5}
    fills: dict[str, dict[str, Any]] = {
        "perfect": {"facecolor": line_style.color},
        "diminishing": {"facecolor": "white", "hatch": "////"},
        "flat": {"facecolor": "white"},
    }
    for start, end, kind in spans(ends):
        axis.barh(height, end - start, left=start, zorder=2, **outline, **fills[kind])


def _critical(axis: Axes, height: int, ends: Ends) -> None:
    mark = critical_mark(ends)
    if mark is None:
        return
    ends_of = [mark.low, mark.high]
    axis.plot(ends_of, [height, height], color=style.INK, linewidth=1.2, zorder=4)
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
