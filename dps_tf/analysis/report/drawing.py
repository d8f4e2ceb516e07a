"""Drawings that several sections share; each draws a tidy table on given axes.

The drawings show K* against the batch size with its brackets, bounds and fits; any
quantity as one line per curve; and small pictures side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.style import Axes, Figure, LineStyle

_ROOM = 1.7
"""Factor between the outermost K* and the ends of the axis."""


def draw_curves(
    axis: Axes,
    table: pd.DataFrame,
    columns: tuple[str, str],
    line_styles: Mapping[str, LineStyle],
    **changes: Any,
) -> None:
    """Draws a line per curve with a mark per row.

    `columns` names x and y; `changes` are further keywords of the lines.
    """
    x, y = columns
    for curve, rows in table.groupby("curve", sort=False):
        rows = rows.sort_values(x)
        marks = style.joined_marks(style.line_style_of(line_styles, curve), **changes)
        axis.plot(rows[x], rows[y], **marks)


def draw_steps_to_result(
    axis: Axes,
    plot_rows: pd.DataFrame,
    fits: pd.DataFrame,
    line_styles: Mapping[str, LineStyle],
) -> None:
    """Draws K* against the batch size, both on log2 axes.

    The rows come from `curves.plot_rows_of`, the fits from `curves.fit_lines`.
    """
    style.log2_axis(axis, "x")
    style.log2_axis(axis, "y")
    axis.set(xlabel="Batch size", ylabel="Steps to result")
    if plot_rows.empty:
        axis.text(0.5, 0.5, "no cell has a result", transform=axis.transAxes)
        return
    low, high = _limits(plot_rows)
    curves = plot_rows["curve"].nunique()
    for position, (curve, rows) in enumerate(plot_rows.groupby("curve", sort=False)):
        line_style = style.line_style_of(line_styles, str(curve))
        rows = rows.sort_values("batch_size")
        _perfect_scaling(axis, rows, line_style, low)
        _line(axis, rows, fits[fits["curve"] == curve], line_style)
        _marks(axis, rows, line_style, low)
        # Bounds of several curves often coincide, at the end of one budget.
        _bounds(axis, rows, line_style, shift=1.07 ** (position - (curves - 1) / 2))
    axis.set_ylim(low, high)
    sizes = plot_rows["batch_size"].to_numpy(float)
    axis.set_xlim(sizes.min() / 1.35, sizes.max() * 1.35)
    style.batch_ticks(axis, plot_rows["batch_size"].tolist())


def _limits(plot_rows: pd.DataFrame) -> tuple[float, float]:
    values = plot_rows["steps_to_result"].to_numpy(float)
    tops = np.maximum(values, plot_rows["high"].to_numpy(float))
    # The other end of a bound is not drawn.
    lows = plot_rows.loc[plot_rows["bound"] == "", "low"].to_numpy(float)
    # A bracket that starts at step 0 has no place on the axis: it runs off its end.
    bottom = min(values.min(), lows[lows > 0].min(initial=np.inf))
    return float(bottom) / _ROOM, float(np.nanmax(tops)) * _ROOM


def _perfect_scaling(
    axis: Axes, rows: pd.DataFrame, line_style: LineStyle, bottom: float
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
        color=line_style.color,
        linewidth=0.9,
        linestyle=(0, (1, 2.5)),
        zorder=1.5,
        scalex=False,
    )


def _line(
    axis: Axes, rows: pd.DataFrame, fit: pd.DataFrame, line_style: LineStyle
) -> None:
    """Joins the points, by a thin line where there is a fitted curve too."""
    color = line_style.color
    marks = {"color": color, "linestyle": line_style.line, "zorder": 2.5}
    exact = rows[rows["bound"] == ""]
    thin = {} if fit.empty else {"linewidth": 0.8, "alpha": 0.5}
    axis.plot(exact["batch_size"], exact["steps_to_result"], **{**marks, **thin})
    if fit.empty:
        return
    sizes = fit["batch_size"]
    band = style.band_style(color, int(fit["seeds"].iloc[0]))
    axis.fill_between(sizes, fit["low"], fit["high"], **band)
    axis.plot(sizes, fit["steps"], **marks)
    for end in ("further_low", "further_high"):
        axis.plot(sizes, fit[end], color=color, linewidth=0.6, alpha=0.6, zorder=2)


def _marks(
    axis: Axes, rows: pd.DataFrame, line_style: LineStyle, bottom: float
) -> None:
    exact = rows[rows["bound"] == ""]
    single = exact[exact["repeats"] <= 1]
    axis.vlines(
        single["batch_size"],
        np.maximum(single["low"].to_numpy(float), bottom),
        single["high"],
        color=line_style.color,
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
            ecolor=line_style.color,
            elinewidth=1.4,
            capsize=5,
            zorder=3,
        )
    axis.plot(
        exact["batch_size"],
        exact["steps_to_result"],
        zorder=4,
        **style.mark_style(line_style),
    )


def _bounds(
    axis: Axes, rows: pd.DataFrame, line_style: LineStyle, shift: float
) -> None:
    for row in rows[rows["bound"] != ""].to_dict("records"):
        x, y = row["batch_size"] * shift, row["steps_to_result"]
        up = row["bound"] == ">="
        axis.annotate(
            "",
            xy=(x, y),
            xytext=(0, 24 if up else -24),
            textcoords="offset points",
            arrowprops={
                "arrowstyle": "<-",
                "color": line_style.color,
                "linewidth": 1.4,
                "shrinkA": 0,
                "shrinkB": 3,
            },
            zorder=3.5,
        )
        hollow = style.mark_style(line_style, hollow=True)
        axis.plot([x], [y], zorder=4, **hollow)


def small_axes(figure: Figure, number: int, columns: int, **shared: bool) -> list[Axes]:
    """Returns `number` axes of an empty figure, in rows of `columns`."""
    rows = -(-number // columns)
    axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axis in axes[number:]:
        axis.set_visible(False)
    return axes[:number]


def two_abreast(
    number: int, height: float, **shared: bool
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `number` axes of a height in inches, two in a row."""
    columns = min(2, number)
    width = 7.6 if columns > 1 else 6.2
    figure = style.new_figure(width, 0.6 + -(-number // columns) * height)
    return figure, small_axes(figure, number, columns, **shared)
