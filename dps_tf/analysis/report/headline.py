"""K* against the batch size, with law and regimes, and along further axes.

Marks are K* with the bracket they lie in, or with the least and greatest K* over study
seeds; curves are the fitted c1/B + c2; straight lines of slope -1 are perfect scaling
from each curve's smallest batch size. Underneath, one bar per curve shows its regimes.
Where a further axis of the cells has three or more values that are numbers, K* is drawn
against these too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.best_trials import training_figures
from dps_tf.analysis.report.content import (
    FigureText,
    Illustration,
    Part,
    ReportContext,
    Tooltip,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, curves_of, fit_lines
from dps_tf.analysis.report.drawing import draw_curves, draw_steps_to_result
from dps_tf.analysis.report.naming import file_name, naming
from dps_tf.analysis.report.regimes import DEFINITION, draw_regimes, regimes_of
from dps_tf.analysis.report.style import Axes, Figure, LineStyle
from dps_tf.analysis.tables import axes_of, study_key
from dps_tf.analysis.wording import and_list, count, listed, number, percent, steps

NAME = "steps_to_result"
"""File name of the headline figure, without suffix."""

_WIDTH = 6.9
_NARROW = 4.6
"""Inches, shown on phones: text stays as large as that of the page."""
_ROW = 0.24
"""Inches per curve in the strip of regimes."""
_LEAST_VALUES = 3
"""Of an axis that K* is drawn against."""


def headline_part(context: ReportContext) -> Part:
    """Returns the headline figure; of a single cell its training curve comes first."""
    figure = headline(context.curves, context.regimes)
    if len(context.curves.cells) > 1:
        return Part(illustrations=(figure,))
    figures = (*training_figures(context), figure)
    return Part(illustrations=figures, title="The training curve")


def headline(curves: Curves, regimes: pd.DataFrame) -> Illustration:
    """Returns the headline figure of all panels."""
    narrow, _ = _drawn(curves, regimes, 1, _NARROW)
    figure, axes = _drawn(curves, regimes, 2, _WIDTH)
    with style.styled():
        figure.canvas.draw()
    text = FigureText(
        NAME,
        "Steps to result against batch size",
        _caption(curves, regimes),
        _alt(curves),
    )
    tooltips = _tooltips(figure, axes, curves)
    return illustration(figure, text, tooltips=tooltips, narrow=style.svg(narrow))


def steps_figure(results: pd.DataFrame) -> Figure:
    """Returns the headline figure of a results table, for a notebook or a script."""
    curves = curves_of(results, naming(results))
    return _drawn(curves, regimes_of(curves), 2, _WIDTH)[0]


def _drawn(
    curves: Curves, regimes: pd.DataFrame, most_columns: int, width: float
) -> tuple[Figure, dict[str, Axes]]:
    """Returns the figure, and the axes of each panel, so many side by side at most."""
    panels = [name for name in curves.naming.panels if len(curves.panel(name))]
    panels = panels or curves.naming.panels[:1]
    columns = min(most_columns, len(panels))
    rows = -(-len(panels) // columns)
    deepest = int(regimes.groupby("panel").size().max()) if len(regimes) else 0
    height = 0.78 * width + (0.5 + _ROW * deepest if deepest else 0)
    handles = _handles(curves, regimes)
    axes = {}
    with style.styled():
        # Two panels share what a single one leaves free at its sides.
        figure = style.new_figure(width * (1 if columns == 1 else 1.7), height * rows)
        grid = figure.subfigures(rows, columns, squeeze=False).flat
        for panel, part in zip(panels, grid, strict=False):
            strip = regimes[regimes["panel"] == panel]
            axes[panel] = _panel(part, curves, panel, strip)
            if len(panels) > 1:
                axes[panel].set_title(panel)
        style.legend_below(figure, handles, columns=3 if width > _NARROW else 2)
    return figure, axes


def _panel(part: Figure, curves: Curves, panel: str, regimes: pd.DataFrame) -> Axes:
    line_styles = curves.naming.line_styles
    if regimes.empty:
        axis = part.subplots()
    else:
        strip_height = 0.35 + _ROW * len(regimes)
        axis, strip = part.subplots(
            2, 1, sharex=True, height_ratios=[5.0, strip_height]
        )
    draw_steps_to_result(
        axis, curves.panel(panel), fit_lines(curves, panel), line_styles
    )
    if not regimes.empty:
        draw_regimes(strip, regimes, line_styles)
        axis.set_xlabel("")
    return axis


def _handles(curves: Curves, regimes: pd.DataFrame) -> list[Any]:
    """Returns what the legend explains: the curves, then what else is drawn."""
    drawn = curves.naming.line_styles_of(curves.plot_rows["curve"])
    handles = style.curve_handles(drawn)
    if is_scaled(curves):
        dotted: dict[str, Any] = {"color": style.MUTED, "linestyle": (0, (1, 2.5))}
        handles.append(style.line_handle("perfect scaling", **dotted))
    if curves.fits:
        handles.append(style.line_handle("fit of c1/B + c2", color=style.MUTED))
    if (curves.plot_rows["bound"] != "").any():
        hollow = style.mark_style(LineStyle(style.MUTED, "o", "-"), hollow=True)
        handles.append(style.line_handle("only a bound is known", **hollow))
    if not regimes.empty:
        edge: dict[str, Any] = {"edgecolor": style.MUTED, "linewidth": 1.0}
        diamond: dict[str, Any] = {"marker": "d", "color": style.INK}
        hatched = {"facecolor": "white", "hatch": "////"}
        handles += [
            style.patch_handle("scales perfectly", facecolor=style.MUTED, **edge),
            style.patch_handle("diminishing returns", **hatched, **edge),
            style.patch_handle("maximal data parallelism", facecolor="white", **edge),
            style.line_handle("c1/c2 with interval", linestyle="none", **diamond),
        ]
    return handles


def is_scaled(curves: Curves) -> bool:
    """Returns whether any curve has several batch sizes."""
    sizes = curves.plot_rows.groupby(["panel", "curve"])["batch_size"].nunique()
    return bool((sizes > 1).any())


def _tooltips(figure: Figure, axes: dict[str, Axes], curves: Curves) -> list[Tooltip]:
    """Returns a tooltip per mark, where the mark lies in the drawn figure."""
    size = figure.bbox
    tooltips = []
    for panel, axis in axes.items():
        for row in curves.panel(panel).to_dict("records"):
            position = (row["batch_size"], row["steps_to_result"])
            x, y = axis.transData.transform(position)
            # Rounded, so that the page has the same bytes on every machine.
            left, top = round(x / size.width, 4), round(1 - y / size.height, 4)
            tooltips.append(Tooltip(left, top, _told(row)))
    return tooltips


def _told(row: Mapping[Hashable, Any]) -> str:
    start = f"{row['curve']}, batch size {row['batch_size']}: "
    if row["bound"] == ">=":
        return f"{start}at least {steps(row['steps_to_result'])} steps"
    if row["bound"] == "<=":
        return f"{start}at most {steps(row['high'])} steps"
    if row["repeats"] > 1:
        ends = f"{steps(row['low'])} to {steps(row['high'])}"
        return (
            f"{start}median of {row['repeats']} seeds "
            f"{steps(row['steps_to_result'])} steps, {ends}"
        )
    return (
        f"{start}{steps(row['high'])} steps, the first evaluation that met the goal "
        f"(the one before: {steps(row['low'])})"
    )


def _caption(curves: Curves, regimes: pd.DataFrame) -> str:
    goals = list(dict.fromkeys(curves.cells["goal"]))
    repeated = bool((curves.plot_rows["repeats"] > 1).any())
    bar = (
        "bars run from the least to the greatest K* over study seeds, the mark is "
        "their median"
        if repeated
        else "the bar below a mark runs from the last evaluation that did not meet the "
        "goal to the first one that did; steps between evaluations are not known"
    )
    parts = [
        f"K*, the steps that the best of a study's trials needs to reach the goal "
        f"({and_list(goals)}), on log2 axes; {bar}.",
        curves.best_of(),
    ]
    if is_scaled(curves):
        parts.append(
            "Dotted lines: perfect scaling from each curve's smallest batch size "
            "(twice the batch, half the steps)."
        )
    if curves.fits:
        level = next(iter(curves.fits.values())).level
        parts.append(
            "Curves: c1/B + c2 fitted unweighted to log K*, each K* taken to lie in "
            f"its bracket, with its {percent(level)} band; thin lines: where K* of a "
            f"new study would lie with {percent(level)}."
        )
    if curves.fits and (curves.cells["at_boundary"] != "").any():
        parts.append(
            "To the fit, a K* whose best trial lies at an end of its range is an upper "
            "bound: a wider range might give a smaller one."
        )
    if (curves.plot_rows["bound"] != "").any():
        parts.append(
            "Hollow marks with an arrow are bounds: the records do not say more."
        )
    if not regimes.empty:
        parts.append(DEFINITION)
    return " ".join(part for part in parts if part)


def _alt(curves: Curves) -> str:
    parts = []
    keys = ["panel", "curve"]
    for (panel, curve), rows in curves.plot_rows.groupby(keys, sort=False):
        exact = rows[rows["bound"] == ""].sort_values("batch_size")
        where = f"{panel}, {curve}" if len(curves.naming.panels) > 1 else str(curve)
        if exact.empty:
            parts.append(f"{where}: only bounds are known")
            continue
        told = [
            f"{steps(row['steps_to_result'])} at {row['batch_size']}"
            for row in exact.to_dict("records")
        ]
        parts.append(f"{where}: {and_list(told)}")
    number = count(len(parts), "curve")
    return f"Line chart of steps to result against batch size, {number}. " + (
        "; ".join(parts) + "." if parts else "No cell has a result."
    )


def along_axes_part(context: ReportContext) -> Part:
    """Returns a figure for each axis with numbers enough; nothing without any."""
    cells = context.curves.cells
    lines = {axis: lines_along(cells, axis) for axis in axes_of(cells)}
    return Part(
        illustrations=[
            _along_figure(axis, rows)
            for axis, rows in lines.items()
            if rows["value"].nunique() >= _LEAST_VALUES
        ]
    )


def lines_along(cells: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Returns K* against an axis: a row for each of its values and all else alike.

    Columns: curve (what is alike: the batch size, and what else the cells differ in),
    value, steps_to_result (the geometric mean over study seeds). Values that are no
    numbers, and cells with only a bound or with K* = 0, are left out.
    """
    known = cells[(cells["steps_bound"] == "") & (cells["steps_to_result"] > 0)]
    values = pd.to_numeric(known[axis], errors="coerce")
    known = known.assign(value=values)[values.notna()]
    alike = [name for name in study_key(cells) if name not in (axis, "seed")]
    told = [n for n in alike if n == "batch_size" or known[n].nunique() > 1]
    rows = known.assign(log=np.log(known["steps_to_result"].astype(float)))
    means = rows.groupby([*alike, "value"], sort=True)["log"].mean().reset_index()
    names = [
        ", ".join(f"{n.rpartition('.')[2].replace('_', ' ')} {row[n]}" for n in told)
        for row in means.to_dict("records")
    ]
    steps_to_result = np.exp(means["log"])
    return means[["value"]].assign(curve=names, steps_to_result=steps_to_result)


def draw_along(
    axis: Axes, rows: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws the lines of `lines_along`, powers of two and zero on the x axis."""
    axis.set_xscale("symlog", base=2, linthresh=1.0)
    style.log2_axis(axis, "y")
    draw_curves(axis, rows, ("value", "steps_to_result"), line_styles)
    values = sorted(rows["value"].unique())
    axis.set_xticks(values, labels=[style.spell(value) for value in values])
    axis.set(ylabel="Steps to result")


def _along_figure(name: str, rows: pd.DataFrame) -> Illustration:
    line_styles = style.sequential_styles(rows["curve"])
    called = name.rpartition(".")[2].replace("_", " ")
    with style.one_axis(line_styles) as (figure, axis):
        draw_along(axis, rows, line_styles)
        axis.set_xlabel(called[0].upper() + called[1:])
    told = listed(
        rows,
        "curve",
        lambda row: f"{steps(row['steps_to_result'])} at {number(row['value'])}",
    )
    figure_text = FigureText(
        name=file_name("steps_to_result_along", called),
        title=f"Steps to result against {called}",
        caption=(
            f"K* against {name}, one line for each batch size: flat where the axis "
            "costs no steps. Geometric means over study seeds; cells of which only a "
            "bound is known are left out."
        ),
        alt=f"Line chart of steps to result against {called}. {told}.",
    )
    return illustration(figure, figure_text)
