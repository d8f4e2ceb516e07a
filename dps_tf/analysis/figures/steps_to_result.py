"""How do steps-to-result fall with the batch size? The headline figure.

Points are K* with the bracket they lie in, or with the least and greatest K* over
study seeds; curves are the fitted c1/B + c2; straight lines of slope -1 are perfect
scaling from each curve's smallest batch size. Underneath, one bar per curve shows its
regimes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dps_tf.analysis.figures.style import (
    INK,
    MUTED,
    LineStyle,
    batch_ticks,
    fallback,
    log2_axis,
    mark_style,
)

_ROOM = 1.7
"""Factor between the outermost K* and the ends of the axis."""


def draw(
    axis: Axes, points: pd.DataFrame, fits: pd.DataFrame, looks: Mapping[str, LineStyle]
) -> None:
    """Draws K* against the batch size, both on log2 axes.

    Args:
        axis: an empty axis.
        points: one row per curve and batch size: curve, batch_size, steps_to_result,
            low and high (ends of the bar), bound (`""`, `<=` or `>=`), repeats (study
            seeds).
        fits: the fitted c1/B + c2 on a grid: curve, batch_size, steps, low and high
            (ends of its interval, NaN without).
        looks: look of each curve.
    """
    log2_axis(axis, "x")
    log2_axis(axis, "y")
    axis.set(xlabel="Batch size", ylabel="Steps to result")
    if points.empty:
        axis.text(0.5, 0.5, "no cell has a result", transform=axis.transAxes)
        return
    low, high = _limits(points)
    curves = points["curve"].nunique()
    for place, (curve, rows) in enumerate(points.groupby("curve", sort=False)):
        look = fallback(looks, str(curve))
        rows = rows.sort_values("batch_size")
        _perfect_scaling(axis, rows, look, low)
        _line(axis, rows, fits[fits["curve"] == curve], look)
        _marks(axis, rows, look, low)
        # Bounds of several curves often coincide, at the end of one budget.
        _bounds(axis, rows, look, shift=1.07 ** (place - (curves - 1) / 2))
    axis.set_ylim(low, high)
    sizes = points["batch_size"].to_numpy(float)
    axis.set_xlim(sizes.min() / 1.35, sizes.max() * 1.35)
    batch_ticks(axis, points["batch_size"].tolist())


def _limits(points: pd.DataFrame) -> tuple[float, float]:
    values = points["steps_to_result"].to_numpy(float)
    tops = np.maximum(values, points["high"].to_numpy(float))
    # The other end of a bound is not drawn.
    lows = points.loc[points["bound"] == "", "low"].to_numpy(float)
    # A bracket that starts at step 0 has no place on the axis: it runs off its end.
    bottom = min(values.min(), lows[lows > 0].min(initial=np.inf))
    return float(bottom) / _ROOM, float(np.nanmax(tops)) * _ROOM


def _perfect_scaling(
    axis: Axes, rows: pd.DataFrame, look: LineStyle, bottom: float
) -> None:
    exact = rows[rows["bound"] == ""]
    if exact.empty or len(rows) < 2:
        return
    first = exact.iloc[0]
    product = float(first["batch_size"]) * float(first["steps_to_result"])
    ends = np.array([float(first["batch_size"]), product / bottom])
    axis.plot(
        ends,
        product / ends,
        color=look.color,
        linewidth=0.9,
        linestyle=(0, (1, 2.5)),
        zorder=1.5,
        scalex=False,
    )


def _line(axis: Axes, rows: pd.DataFrame, fit: pd.DataFrame, look: LineStyle) -> None:
    """Draws the fitted curve, or joins the points where there is none."""
    style: dict[str, Any] = {"color": look.color, "linestyle": look.line, "zorder": 2.5}
    if fit.empty:
        exact = rows[rows["bound"] == ""]
        axis.plot(exact["batch_size"], exact["steps_to_result"], **style)
        return
    sizes = fit["batch_size"]
    axis.fill_between(
        sizes, fit["low"], fit["high"], color=look.color, alpha=0.12, linewidth=0
    )
    axis.plot(sizes, fit["steps"], **style)


def _marks(axis: Axes, rows: pd.DataFrame, look: LineStyle, bottom: float) -> None:
    exact = rows[rows["bound"] == ""]
    single = exact[exact["repeats"] <= 1]
    axis.vlines(
        single["batch_size"],
        np.maximum(single["low"].to_numpy(float), bottom),
        single["high"],
        color=look.color,
        linewidth=5,
        alpha=0.35,
        zorder=3,
    )
    repeated = exact[exact["repeats"] > 1]
    if len(repeated):
        middle = repeated["steps_to_result"]
        axis.errorbar(
            repeated["batch_size"],
            middle,
            yerr=[middle - repeated["low"], repeated["high"] - middle],
            fmt="none",
            ecolor=look.color,
            elinewidth=1.4,
            capsize=5,
            zorder=3,
        )
    axis.plot(
        exact["batch_size"], exact["steps_to_result"], zorder=4, **mark_style(look)
    )


def _bounds(axis: Axes, rows: pd.DataFrame, look: LineStyle, shift: float) -> None:
    for row in rows[rows["bound"] != ""].to_dict("records"):
        place = (row["batch_size"] * shift, row["steps_to_result"])
        _arrow(axis, place, row["bound"] == ">=", look)
        axis.plot([place[0]], [place[1]], zorder=4, **mark_style(look, hollow=True))


def _arrow(axis: Axes, place: tuple[Any, Any], up: bool, look: LineStyle) -> None:
    axis.annotate(
        "",
        xy=place,
        xytext=(0, 24 if up else -24),
        textcoords="offset points",
        arrowprops={
            "arrowstyle": "<-",
            "color": look.color,
            "linewidth": 1.4,
            "shrinkA": 0,
            "shrinkB": 3,
        },
        zorder=3.5,
    )


def draw_regimes(
    axis: Axes, regimes: pd.DataFrame, looks: Mapping[str, LineStyle]
) -> None:
    """Draws one bar per curve: where it scales perfectly, and where it is flat.

    Args:
        axis: an empty axis that shares the x axis of the headline figure.
        regimes: one row per curve: curve, smallest, perfect_end, useful_end, largest
            (batch sizes; NaN where undefined), critical, critical_low, critical_high
            (c1/c2 and its interval).
        looks: look of each curve.
    """
    for place, row in enumerate(regimes.to_dict("records")):
        look = fallback(looks, str(row["curve"]))
        _bar(axis, place, row, look)
        _critical(axis, place, row)
    axis.set_ylim(len(regimes) - 0.4, -0.6)
    axis.set_yticks(
        range(len(regimes)), labels=[str(name) for name in regimes["curve"]], fontsize=9
    )
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("Batch size")


def _bar(axis: Axes, place: int, row: dict[Hashable, Any], look: LineStyle) -> None:
    outline: dict[str, Any] = {"edgecolor": look.color, "linewidth": 1.0, "height": 0.5}
    smallest, largest = float(row["smallest"]), float(row["largest"])
    perfect, useful = float(row["perfect_end"]), float(row["useful_end"])
    perfect = smallest if np.isnan(perfect) else perfect
    useful = largest if np.isnan(useful) else max(useful, perfect)
    spans: list[tuple[float, float, dict[str, Any]]] = [
        (smallest, perfect, {"facecolor": look.color}),
        (perfect, useful, {"facecolor": "white", "hatch": "////"}),
        (useful, largest, {"facecolor": "white"}),
    ]
    for start, end, fill in spans:
        if end > start:
            axis.barh(place, end - start, left=start, zorder=2, **outline, **fill)


def _critical(axis: Axes, place: int, row: dict[Hashable, Any]) -> None:
    value = float(row["critical"])
    if np.isnan(value):
        return
    # Open ends run to the end of the bar, and the mark stays on it.
    smallest, largest = float(row["smallest"]), float(row["largest"])
    ends = np.clip([row["critical_low"], row["critical_high"]], smallest, largest)
    axis.plot(ends, [place, place], color=INK, linewidth=1.2, zorder=4)
    # Beyond what was measured an arrow shows the way.
    marker = "d" if smallest <= value <= largest else ">" if value > largest else "<"
    axis.plot(
        [min(max(value, smallest), largest)],
        [place],
        marker=marker,
        color=INK,
        markeredgecolor="white",
        markersize=8,
        linestyle="none",
        zorder=5,
        clip_on=False,
    )


def curve_handles(looks: Mapping[str, LineStyle]) -> list[Any]:
    """Returns the legend of the curves alone."""
    return [
        Line2D([], [], **{**mark_style(look), "linestyle": look.line}, label=name)
        for name, look in looks.items()
    ]


def legend_handles(
    looks: Mapping[str, LineStyle],
    *,
    scaled: bool,
    fitted: bool,
    bounded: bool,
    regimes: bool,
) -> list[Any]:
    """Returns what the legend explains: the curves, then what else is drawn."""
    handles = curve_handles(looks)
    neutral = LineStyle(MUTED, "o", "-")
    if scaled:
        dotted: dict[str, Any] = {"color": MUTED, "linestyle": (0, (1, 2.5))}
        handles.append(Line2D([], [], **dotted, label="perfect scaling"))
    if fitted:
        handles.append(Line2D([], [], color=MUTED, label="fit of c1/B + c2"))
    if bounded:
        hollow = mark_style(neutral, hollow=True)
        handles.append(Line2D([], [], **hollow, label="only a bound is known"))
    if regimes:
        edge: dict[str, Any] = {"edgecolor": MUTED, "linewidth": 1.0}
        diamond: dict[str, Any] = {"marker": "d", "color": INK, "linestyle": "none"}
        handles += [
            Patch(facecolor=MUTED, **edge, label="scales perfectly"),
            Patch(facecolor="white", hatch="////", **edge, label="diminishing returns"),
            Patch(facecolor="white", **edge, label="maximal data parallelism"),
            Line2D([], [], **diamond, label="c1/c2 with interval"),
        ]
    return handles
