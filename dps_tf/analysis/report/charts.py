"""Interactive charts that take the place of a figure, with its numbers at each mark.

BokehJS draws the charts; the page holds it, so that they work from a file without any
network. Print, and browsers without scripts, show the figure instead. This is the only
module that imports bokeh.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import (
    BasicTickFormatter,
    ColumnDataSource,
    FactorRange,
    FixedTicker,
    HoverTool,
    NoOverlap,
)
from bokeh.plotting import figure
from bokeh.resources import Resources

from dps_tf.analysis.regimes import Ends
from dps_tf.analysis.report.regimes import critical_mark, spans
from dps_tf.analysis.report.style import INK, MUTED, LineStyle
from dps_tf.analysis.wording import steps

_TOOLS = "pan,wheel_zoom,box_zoom,reset,save"
_HEIGHT = 440
_ROW = 30
"""Height of the regimes of one curve, in CSS pixels."""
_MARKERS = {
    "o": "circle",
    "s": "square",
    "^": "triangle",
    "D": "diamond",
    "v": "inverted_triangle",
    "P": "plus",
    "X": "x",
    "*": "star",
    "d": "diamond",
    ">": "triangle",
    "<": "triangle",
}
_OUTCOMES = {
    "complete": "#0072B2",
    "censored": "#56B4E9",
    "incomplete": "#808a94",
    "infeasible": "#D55E00",
    "failed": "#CC79A7",
}
_FILLS: dict[str, dict[str, Any]] = {
    "perfect": {},
    "diminishing": {"fill_color": "white", "hatch_pattern": "/", "hatch_scale": 8},
    "flat": {"fill_color": "white"},
}
_LOG2_TICKS = [2.0**power for power in range(-4, 40)]
_LOG10_TICKS = [mark * 10.0**power for power in range(-9, 10) for mark in (1, 2, 5)]
"""Ticks of log axes; below two decades, bokeh's own ticks are evenly spaced numbers."""


class Panel(NamedTuple):
    """The contents of one panel of the chart of K*.

    Attributes:
        title: title of the panel; empty where there is only one.
        rows: rows of `curves.plot_rows_of`, with `note`, the text at each mark.
        lines: the fitted curves; see `curves.fit_lines`.
        regimes: the ends of the regimes of each curve, by name.
        published: rows of `published.for_chart`.
    """

    title: str
    rows: pd.DataFrame
    lines: pd.DataFrame
    regimes: Mapping[str, Ends]
    published: pd.DataFrame


def library() -> str:
    """Returns the source of BokehJS that this version of bokeh comes with."""
    return str(Resources(mode="inline", components=["bokeh"]).js_raw[0])


def steps_chart(panels: Iterable[Panel], line_styles: Mapping[str, LineStyle]) -> str:
    """Returns K* against the batch size with fits and regimes, panel below panel.

    `line_styles` includes the published curves; each of them has a legend entry.
    """
    plots = []
    for panel in panels:
        plot = _steps_plot(panel, line_styles)
        plots.append(plot)
        if panel.regimes:
            plots.append(_regimes_plot(panel.regimes, line_styles, plot))
    return _text(column(plots, sizing_mode="stretch_width"))


def learning_chart(
    best: pd.DataFrame, goal: float | None, metric: str, colors: Mapping[str, LineStyle]
) -> str:
    """Returns learning curves of the best trials, with empty ones for further trials.

    Columns of the table: curve, step, value. The page fills the lines and marks of each
    outcome with the trials of the cell that the reader chooses.
    """
    values = best["value"]
    is_log = values.min() > 0 and values.max() > 20 * values.min()
    plot = _new_plot("Step", metric, "log" if is_log else "linear")
    marks = []
    for curve, rows in best.sort_values("step").groupby("curve", sort=False):
        color = colors[str(curve)].color
        shared = {"color": color, "legend_label": str(curve), "level": "overlay"}
        note = [f"best trial, {curve}"] * len(rows)
        source = ColumnDataSource({"x": rows["step"], "y": rows["value"], "note": note})
        plot.line("x", "y", source=source, line_width=2, **shared)
        marks.append(plot.scatter("x", "y", source=source, size=4, **shared))
    for outcome, color in _OUTCOMES.items():
        shared = {"color": color, "legend_label": outcome}
        lines = {"name": f"lines {outcome}", **shared}
        plot.multi_line("xs", "ys", source=_empty("xs", "ys"), **lines)
        mark = {"name": f"marks {outcome}", "size": 5, "fill_alpha": 0.5, **shared}
        marks.append(plot.scatter("x", "y", source=_empty("x", "y", "note"), **mark))
    if goal is not None:
        ends = [best["step"].min(), best["step"].max()]
        dashed = {"color": MUTED, "line_dash": "dashed", "legend_label": "goal"}
        plot.line(ends, [goal, goal], **dashed)
    tooltips = [("", "@note"), ("step", "@x{0,0}"), ("value", "@y")]
    plot.add_tools(HoverTool(renderers=marks, tooltips=tooltips))
    _finish(plot)
    return _text(plot)


def _new_plot(x_label: str, y_label: str, y_type: str = "log", **changes: Any) -> Any:
    options = {"height": _HEIGHT, "tools": _TOOLS, **changes}
    plot = figure(
        sizing_mode="stretch_width",
        x_axis_type="log",
        y_axis_type=y_type,
        x_axis_label=x_label,
        y_axis_label=y_label,
        background_fill_alpha=0,
        border_fill_alpha=0,
        **options,
    )
    plot.toolbar.logo = None
    for axis in (plot.xaxis, plot.yaxis):
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_color = None
        # A phone has no room for all labels.
        axis.major_label_policy = NoOverlap(min_distance=8)
    for axis, kind in ((plot.xaxis, "log"), (plot.yaxis, y_type)):
        if kind == "log":
            # Numbers, not powers of ten.
            axis.formatter = BasicTickFormatter(use_scientific=False)
            axis.ticker = FixedTicker(ticks=_LOG10_TICKS)
    # A page that is scrolled by the wheel must not be caught by a chart.
    plot.toolbar.active_scroll = None
    return plot


def _finish(plot: Any) -> None:
    plot.legend.click_policy = "hide"
    plot.legend.background_fill_alpha = 0
    plot.legend.border_line_alpha = 0
    plot.legend.location = "center"
    plot.legend.margin = 0
    plot.legend.padding = 0
    plot.legend.spacing = 14
    plot.legend.ncols = 3
    plot.add_layout(plot.legend[0], "below")


def _text(plot: Any) -> str:
    """Returns a chart as JSON with ids from 1001 on: bokeh's depend on earlier ones."""
    ids: dict[str, str] = {}
    text = json.dumps(json_item(plot))
    return re.sub(
        r'"p\d+"', lambda m: ids.setdefault(m.group(), f'"p{1001 + len(ids)}"'), text
    )


def _empty(*names: str) -> ColumnDataSource:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    return ColumnDataSource(columns)


def _steps_plot(panel: Panel, line_styles: Mapping[str, LineStyle]) -> Any:
    plot = _new_plot("Batch size", "Steps to result", title=panel.title or None)
    sizes = [*panel.rows["batch_size"], *panel.published["batch_size"]]
    plot.xaxis.ticker = sorted({int(size) for size in sizes})
    plot.yaxis.ticker = FixedTicker(ticks=_LOG2_TICKS)
    marks = []
    for curve, rows in panel.rows.groupby("curve", sort=False):
        line_style = line_styles[str(curve)]
        fit = panel.lines[panel.lines["curve"] == curve]
        marks.append(_curve(plot, rows.sort_values("batch_size"), fit, line_style))
    for curve, rows in panel.published.groupby("curve", sort=False):
        marks.append(_published_curve(plot, rows, line_styles[str(curve)]))
    tooltips = [("", "@curve"), ("batch size", "@x{0,0}"), ("K*", "@note")]
    plot.add_tools(HoverTool(renderers=marks, tooltips=tooltips))
    _finish(plot)
    return plot


def _curve(
    plot: Any, rows: pd.DataFrame, fit: pd.DataFrame, line_style: LineStyle
) -> Any:
    """Draws one curve as one entry of the legend; returns its marks."""
    curve = str(rows["curve"].iloc[0])
    shared = {"color": line_style.color, "legend_label": curve}
    if len(fit):
        ends = ["batch_size", "low", "high", "steps", "further_low", "further_high"]
        source = ColumnDataSource(fit[ends].to_dict("list"))
        band: dict[str, Any] = {"source": source, "fill_alpha": 0.12, **shared}
        if fit["seeds"].iloc[0] == 1:
            band |= {"fill_alpha": 0.0, "hatch_pattern": "/", "hatch_alpha": 0.3}
            band |= {"hatch_color": line_style.color, "hatch_scale": 8}
        plot.varea("batch_size", "low", "high", **band)
        plot.line("batch_size", "steps", source=source, line_width=2, **shared)
        for end in ("further_low", "further_high"):
            thin = {"source": source, "line_width": 0.6, "line_alpha": 0.6, **shared}
            plot.line("batch_size", end, **thin)
    exact = rows[rows["bound"] == ""]
    sizes, values = list(exact["batch_size"]), list(exact["steps_to_result"])
    plot.line(sizes, values, line_width=1, line_alpha=0.5, **shared)
    if len(exact) and len(rows) > 1:
        product, least = sizes[0] * values[0], min(values)
        ends = [sizes[0], product / least]
        dotted = {"line_dash": "dotted", **shared}
        plot.line(ends, [values[0], least], **dotted)
    low = np.maximum(exact["low"].to_numpy(float), 0.5)
    wide = {"line_width": 5, "line_alpha": 0.35, **shared}
    plot.segment(sizes, low, sizes, list(exact["high"]), **wide)
    source = ColumnDataSource(
        {
            "x": list(rows["batch_size"]),
            "y": list(rows["steps_to_result"]),
            "curve": [curve] * len(rows),
            "note": list(rows["note"]),
            "filled": [0.0 if bound else 1.0 for bound in rows["bound"]],
        }
    )
    marker = _MARKERS.get(line_style.marker, "circle")
    look = {"size": 9, "marker": marker, "fill_alpha": "filled", **shared}
    return plot.scatter("x", "y", source=source, **look)


def _published_curve(plot: Any, rows: pd.DataFrame, line_style: LineStyle) -> Any:
    """Draws a published curve, small marks on a thin dashed line; returns its marks."""
    curve = str(rows["curve"].iloc[0])
    shared = {"color": line_style.color, "legend_label": curve}
    source = ColumnDataSource(
        {
            "x": list(rows["batch_size"]),
            "y": list(rows["steps_to_result"]),
            "curve": [curve] * len(rows),
            "note": [steps(value) for value in rows["steps_to_result"]],
        }
    )
    plot.line("x", "y", source=source, line_dash="dashed", **shared)
    marker = _MARKERS.get(line_style.marker, "circle")
    return plot.scatter("x", "y", source=source, size=5, marker=marker, **shared)


def _regimes_plot(
    regimes: Mapping[str, Ends], line_styles: Mapping[str, LineStyle], above: Any
) -> Any:
    """Returns the regimes of each curve as a bar, under the chart of K*."""
    names = list(regimes)
    plot = _new_plot(
        "",
        "",
        "auto",
        height=50 + _ROW * len(names),
        tools="",
        toolbar_location=None,
        x_range=above.x_range,
        y_range=FactorRange(factors=names[::-1]),
    )
    plot.xaxis.ticker = above.xaxis[0].ticker
    plot.grid.grid_line_color = None
    for curve, ends in regimes.items():
        color = line_styles[curve].color
        for start, end, kind in spans(ends):
            fill = {"color": color, **_FILLS[kind]}
            plot.hbar(y=[curve], left=[start], right=[end], height=0.5, **fill)
        mark = critical_mark(ends)
        if mark is not None:
            plot.segment([mark.low], [curve], [mark.high], [curve], color=INK)
            turned = {">": -np.pi / 2, "<": np.pi / 2}.get(mark.marker, 0.0)
            look = {"size": 10, "marker": _MARKERS[mark.marker], "angle": turned}
            plot.scatter([mark.at], [curve], color=INK, **look)
    return plot


def point_note(row: Mapping[Any, Any]) -> str:
    """Returns K* of a row of `curves.plot_rows_of` in words, with bracket or bound."""
    if row["bound"] == ">=":
        return f"at least {steps(row['steps_to_result'])}"
    if row["bound"] == "<=":
        return f"at most {steps(row['steps_to_result'])}"
    ends = f"{steps(row['low'])} to {steps(row['high'])}"
    if row["repeats"] > 1:
        median = steps(row["steps_to_result"])
        return f"{median}, the median of {row['repeats']} seeds ({ends})"
    high = steps(row["high"])
    return f"{high}, bracket ({steps(row['low'])}, {high}]"
