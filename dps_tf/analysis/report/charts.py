"""Charts for exploring: K* of every curve, and the learning curve of any trial.

They are drawn in the browser by BokehJS, which the page holds, so that they work from a
file without any network. The printed figures show the same numbers to everybody else.
This is the only module that imports bokeh.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd
from bokeh.embed import json_item
from bokeh.models import (
    BasicTickFormatter,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NoOverlap,
)
from bokeh.plotting import figure
from bokeh.resources import Resources

from dps_tf.analysis.report.best_trials import drawn_metric, drawn_records, told_of
from dps_tf.analysis.report.content import Chart, ReportContext
from dps_tf.analysis.report.curves import Curves, RowsByCell, fit_lines
from dps_tf.analysis.report.naming import cell_names
from dps_tf.analysis.report.style import LineStyle
from dps_tf.analysis.tables import metaparameter_names, study_key
from dps_tf.analysis.wording import number, steps

_TOOLS = "pan,wheel_zoom,box_zoom,reset,save"
_HEIGHT = 420
_MARKERS = {
    "o": "circle",
    "s": "square",
    "^": "triangle",
    "D": "diamond",
    "v": "inverted_triangle",
    "P": "plus",
    "X": "x",
    "*": "star",
}
_OUTCOMES = {
    "best trial": "#E69F00",
    "complete": "#0072B2",
    "censored": "#56B4E9",
    "incomplete": "#808a94",
    "infeasible": "#D55E00",
    "failed": "#CC79A7",
}
_LOG_TICKS = [mark * 10.0**power for power in range(-9, 10) for mark in (1, 2, 5)]
"""On logarithmic axes. Below two decades, bokeh's own are evenly spaced numbers."""
_MOST_TRIALS = 3000
"""Trials of the whole page: each takes some 500 bytes."""
_MOST_EVALUATIONS = 40
"""Evaluations of one trial, evenly spread; all of them are in curves.parquet."""


def library() -> str:
    """Returns the source of BokehJS that this version of bokeh comes with."""
    return str(Resources(mode="inline", components=["bokeh"]).js_raw[0])


def charts(context: ReportContext) -> list[Chart]:
    """Returns the charts of a report: one of K* per panel, one of learning curves."""
    curves = context.curves
    found = [
        _scaling(curves, panel)
        for panel in curves.naming.panels
        if len(curves.panel(panel))
    ]
    trials = _learning_curves(context)
    return [*found, trials] if trials is not None else found


def _new_figure(x_label: str, y_label: str, y_type: str = "log") -> Any:
    plot = figure(
        height=_HEIGHT,
        sizing_mode="stretch_width",
        x_axis_type="log",
        y_axis_type=y_type,
        tools=_TOOLS,
        x_axis_label=x_label,
        y_axis_label=y_label,
        background_fill_alpha=0,
        border_fill_alpha=0,
    )
    plot.toolbar.logo = None
    for axis in (plot.xaxis, plot.yaxis):
        # Numbers, not powers of ten.
        axis.formatter = BasicTickFormatter(use_scientific=False)
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_color = None
        # A phone has no room for them all.
        axis.major_label_policy = NoOverlap(min_distance=8)
    for axis, kind in ((plot.xaxis, "log"), (plot.yaxis, y_type)):
        if kind == "log":
            axis.ticker = FixedTicker(ticks=_LOG_TICKS)
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
    """Returns a chart as JSON, its ids counted anew: bokeh's go on from before."""
    ids: dict[str, str] = {}
    text = json.dumps(json_item(plot))
    return re.sub(
        r'"p\d+"', lambda m: ids.setdefault(m.group(), f'"p{1001 + len(ids)}"'), text
    )


def _scaling(curves: Curves, panel: str) -> Chart:
    """Returns K* against the batch size with brackets, fits and their bands."""
    rows = curves.panel(panel)
    lines = fit_lines(curves, panel)
    plot = _new_figure("Batch size", "Steps to result")
    plot.xaxis.ticker = sorted({int(size) for size in rows["batch_size"]})
    cells = curves.cells[curves.cells["panel"] == panel]
    marks = []
    for curve, mine in rows.groupby("curve", sort=False):
        style = curves.naming.line_styles[str(curve)]
        shared = {"color": style.color, "legend_label": str(curve)}
        fit = lines[lines["curve"] == curve]
        if len(fit):
            ends = fit[["batch_size", "low", "high"]].to_dict("list")
            band = ColumnDataSource(ends)
            plot.varea(
                "batch_size", "low", "high", source=band, fill_alpha=0.12, **shared
            )
            plot.line(list(fit["batch_size"]), list(fit["steps"]), **shared)
        sizes = list(mine["batch_size"])
        low = np.maximum(mine["low"].to_numpy(float), 0.5)
        wide = {"line_width": 5, "line_alpha": 0.35, **shared}
        plot.segment(sizes, low, sizes, list(mine["high"]), **wide)
        marks.append(_marks(plot, mine, cells, style, shared))
    tooltips = [("curve", "@curve"), ("batch size", "@batch_size{0,0}")]
    tooltips += [("K*", "@steps"), ("best trial", "@trial")]
    plot.add_tools(HoverTool(renderers=marks, tooltips=tooltips))
    _finish(plot)
    title = "K* against batch size"
    name = curves.panel_title(panel)
    return Chart(f"{title}: {name}" if name else title, _text(plot))


def _marks(
    plot: Any, rows: pd.DataFrame, cells: pd.DataFrame, style: LineStyle, shared: Any
) -> Any:
    best: dict[int, str] = {}
    for cell in cells[cells["curve"] == rows["curve"].iloc[0]].to_dict("records"):
        if pd.notna(cell["best_trial"]):
            best.setdefault(cell["batch_size"], _trial_text(cell, cells.columns))
    bounds = {"": "", "<=": "at most ", ">=": "at least "}
    source = {
        "x": list(rows["batch_size"]),
        "y": list(rows["steps_to_result"]),
        "curve": [str(curve) for curve in rows["curve"]],
        "batch_size": list(rows["batch_size"]),
        "steps": [
            f"{bounds[row['bound']]}{steps(row['steps_to_result'])}"
            + (
                f", bracket ({steps(row['low'])}, {steps(row['high'])}]"
                if row["bound"] == "" and row["repeats"] == 1
                else ""
            )
            for row in rows.to_dict("records")
        ],
        "trial": [best.get(size, "unknown") for size in rows["batch_size"]],
    }
    marker = _MARKERS.get(style.marker, "circle")
    filled = [0.0 if bound else 1.0 for bound in rows["bound"]]
    look = {"size": 9, "marker": marker, "fill_alpha": "filled", **shared}
    filled_source = ColumnDataSource({**source, "filled": filled})
    return plot.scatter("x", "y", source=filled_source, **look)


def _trial_text(cell: Any, columns: Any) -> str:
    names = [n for n in ("learning_rate", "momentum") if n in columns]
    parts = [f"{n} {number(float(cell[n]))}" for n in names if pd.notna(cell[n])]
    return f"{int(cell['best_trial'])}" + (f" ({', '.join(parts)})" if parts else "")


def _learning_curves(context: ReportContext) -> Chart | None:
    """Returns the metric of the goal of each trial; the page fills in a chosen cell."""
    data = learning_curve_data(context)
    if not data:
        return None
    values = [v for cell in data for trial in cell["trials"] for v in trial["values"]]
    is_log = min(values) > 0 and max(values) > 20 * min(values)
    plot = _new_figure("Step", "Metric of the goal", "log" if is_log else "linear")
    marks = [_outcome(plot, outcome, color) for outcome, color in _OUTCOMES.items()]
    tooltips = [("trial", "@trial"), ("step", "@x{0,0}")]
    tooltips += [("value", "@y"), ("at", "@point")]
    plot.add_tools(HoverTool(renderers=marks, tooltips=tooltips))
    goal = {"name": "goal", "line_dash": "dashed", "color": "#808a94"}
    plot.line("x", "y", source=_empty("x", "y"), legend_label="goal", **goal)
    _finish(plot)
    return Chart("Learning curves of the trials", _text(plot), json.dumps(data))


def _outcome(plot: Any, outcome: str, color: str) -> Any:
    """Adds the lines and marks of one outcome, still empty; returns the marks."""
    is_best = outcome == "best trial"
    level = "overlay" if is_best else "glyph"  # above all others
    shared = {"color": color, "legend_label": outcome, "level": level}
    wide = 3 if is_best else 1
    line = {"name": f"lines {outcome}", "line_width": wide, **shared}
    plot.multi_line("xs", "ys", source=_empty("xs", "ys"), **line)
    mark = {"name": f"marks {outcome}", "size": 5, "fill_alpha": 0.5, **shared}
    source = _empty("x", "y", "trial", "point")
    return plot.scatter("x", "y", source=source, **mark)


def _empty(*names: str) -> ColumnDataSource:
    columns: dict[str, list[Any]] = {name: [] for name in names}
    return ColumnDataSource(columns)


def learning_curve_data(context: ReportContext) -> list[dict[str, Any]]:
    """Returns the evaluations of the trials of each cell that has any.

    Each cell: name, metric, goal (None where the loss of training stands in for the
    goal's metric), left_out (trials that are not held), notes; trials: number, outcome
    (`best trial` for the best), point (metaparameters in words), steps, values.
    """
    curves, tables = context.curves, context.tables
    key = study_key(curves.cells)
    records, goals = drawn_records(context)
    trials = RowsByCell(tables.bounded, curves.cells, list(tables.bounded.columns))
    names = metaparameter_names(tables.trials)
    most = max(3, _MOST_TRIALS // max(len(curves.cells), 1))
    found = []
    cells = curves.cells.assign(cell_name=cell_names(curves.cells))
    for cell in cells.to_dict("records"):
        goal = goals.get(tuple(cell[name] for name in key))
        if goal is None:
            continue
        rows = records.of(cell)
        metric = drawn_metric(rows, goal)
        rows = told_of(rows, metric)
        shown = trials.of(cell).sort_values("latest", kind="stable")
        mine = dict(iter(rows.groupby("trial")))
        drawn = [
            _trial(trial, mine[trial["trial"]], metric, cell["best_trial"], names)
            for trial in shown.to_dict("records")
            if trial["trial"] in mine
        ]
        if drawn:
            threshold = goal.threshold if metric == goal.metric else None
            about = {"name": cell["cell_name"], "metric": metric, "goal": threshold}
            about |= {"left_out": max(0, len(drawn) - most), "notes": ""}
            if threshold is None:
                about["notes"] = f"Most evaluations only bound {goal.metric}."
            found.append({**about, "trials": drawn[:most]})
    return found


def _trial(
    trial: Any, rows: pd.DataFrame, metric: str, best: Any, names: list[str]
) -> dict[str, Any]:
    rows = rows.sort_values("step")
    every = -(-len(rows) // _MOST_EVALUATIONS)
    # From the end, so that the last evaluation is always there.
    rows = rows.iloc[::-1].iloc[::every].iloc[::-1]
    is_best = pd.notna(best) and int(best) == trial["trial"]
    parts = [f"{n} {number(float(trial[n]))}" for n in names if pd.notna(trial[n])]
    return {
        "number": int(trial["trial"]),
        "outcome": "best trial" if is_best else str(trial["outcome"]),
        "point": ", ".join(parts),
        "steps": [int(step) for step in rows["step"]],
        "values": [float(f"{value:.5g}") for value in rows[metric]],
    }
