"""The headline figure: K* against the batch size, with law and regimes.

Marks are K* with their brackets, or with the least and greatest K* over study seeds;
curves are the fitted c1/B + c2; straight lines of slope -1 are perfect scaling from
each curve's smallest batch size. Published curves that the reader named lie behind
them. Underneath, one bar per curve shows its regimes.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.charts import Panel, point_note, steps_chart
from dps_tf.analysis.report.content import (
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, by_curve, curves_of, fit_lines
from dps_tf.analysis.report.drawing import draw_steps_to_result
from dps_tf.analysis.report.learning_curves import training_figures
from dps_tf.analysis.report.published import draw_published, for_chart, published_marks
from dps_tf.analysis.report.regimes import BARS, DEFINITION, draw_regimes
from dps_tf.analysis.report.style import Axes, Figure, LineStyle
from dps_tf.analysis.wording import and_list, count, percent, steps
from dps_tf.core import UserError

NAME = "steps_to_result"
"""File name of the headline figure, without suffix."""

_WIDTH = 6.9
_ROW = 0.24
"""Inches per curve in the strip of regimes."""
_LEGEND_LINE = 0.12
"""Inches per published curve in the legend, which has two columns then."""


def headline_part(context: ReportContext) -> Part:
    """Returns the headline figure, after the training curve if there is one cell."""
    figure = headline(context.curves, context.published)
    if len(context.curves.cells) > 1:
        return Part(illustrations=(figure,))
    figures = (*training_figures(context), figure)
    return Part(illustrations=figures, title="The training curve")


def headline(curves: Curves, published: pd.DataFrame | None = None) -> Illustration:
    """Returns the headline figure of all panels, each with all published curves."""
    beside = for_chart(published)
    line_styles = _line_styles(curves, beside)
    figure = _drawn(curves, beside)
    panels = [
        Panel(
            curves.panel_title(name),
            rows.assign(note=[point_note(row) for row in rows.to_dict("records")]),
            fit_lines(rows, curves.fits),
            curves.ends_in(name),
            beside,
        )
        for name in curves.panels
        if len(rows := curves.panel(name))
    ]
    return illustration(
        figure,
        NAME,
        "Steps to result against batch size",
        caption=_caption(curves, beside),
        alt=_alt(curves, beside),
        definition=_definition(curves),
        chart=steps_chart(panels, line_styles) if panels else "",
    )


def steps_figure(results: pd.DataFrame) -> Figure:
    """Returns the headline figure of a results table, for a notebook or a script."""
    if results.empty:
        raise UserError("the tables hold no study, and there is nothing to draw.")
    return _drawn(curves_of(results), for_chart(None))


def _line_styles(curves: Curves, beside: pd.DataFrame) -> dict[str, LineStyle]:
    """Returns a style per curve, published ones last so that they shift no other."""
    return style.assign_styles([*curves.line_styles, *beside["curve"]])


def _drawn(curves: Curves, beside: pd.DataFrame) -> Figure:
    """Returns the figure, two panels side by side at most."""
    panels = [name for name in curves.panels if len(curves.panel(name))]
    panels = panels or curves.panels[:1]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    deepest = max((len(curves.ends_in(panel)) for panel in panels), default=0)
    height = 0.78 * _WIDTH + (0.5 + _ROW * deepest if deepest else 0)
    with style.styled():
        # Two panels share what a single one leaves free at its sides.
        width = _WIDTH * (1 if columns == 1 else 1.7)
        further = _LEGEND_LINE * beside["curve"].nunique()
        figure = style.new_figure(width, height * rows + further)
        grid = figure.subfigures(rows, columns, squeeze=False).flat
        for panel, part in zip(panels, grid, strict=False):
            axis = _panel(part, curves, panel, beside)
            if len(panels) > 1:
                axis.set_title(panel)
        # Names of published curves are long.
        columns = 2 if len(beside) else 3
        style.legend_below(figure, _handles(curves, beside), columns)
    return figure


def _panel(part: Figure, curves: Curves, panel: str, beside: pd.DataFrame) -> Axes:
    line_styles, regimes = curves.line_styles, curves.ends_in(panel)
    if not regimes:
        axis = part.subplots()
    else:
        strip_height = 0.35 + _ROW * len(regimes)
        axis, strip = part.subplots(
            2, 1, sharex=True, height_ratios=[5.0, strip_height]
        )
    rows = curves.panel(panel)
    draw_steps_to_result(axis, rows, fit_lines(rows, curves.fits), line_styles)
    if len(beside):
        draw_published(axis, beside, _line_styles(curves, beside))
        style.batch_ticks(axis, [*rows["batch_size"], *beside["batch_size"]])
    if regimes:
        draw_regimes(strip, regimes, line_styles)
        axis.set_xlabel("")
    return axis


def _handles(curves: Curves, beside: pd.DataFrame) -> list[Any]:
    """Returns the entries of the legend: the curves, then what else is drawn."""
    drawn = curves.line_styles_of(curves.plot_rows["curve"])
    handles = style.curve_handles(drawn)
    line_styles = _line_styles(curves, beside)
    handles += [
        style.line_handle(name, **published_marks(line_styles[name]))
        for name in dict.fromkeys(beside["curve"])
    ]
    if is_scaled(curves):
        dotted: dict[str, Any] = {"color": style.MUTED, "linestyle": (0, (1, 2.5))}
        handles.append(style.line_handle("perfect scaling", **dotted))
    if curves.fits:
        handles.append(style.line_handle("fit of c1/B + c2", color=style.MUTED))
        further: dict[str, Any] = {"color": style.MUTED, "linewidth": 0.6}
        handles.append(style.line_handle("a further study, 95 %", **further))
        seeds = [fit.observations.seeds for fit in curves.fits.values()]
        handles += style.band_handles(seeds)
    if (curves.plot_rows["bound"] != "").any():
        hollow = style.mark_style(LineStyle(style.MUTED, "o", "-"), hollow=True)
        handles.append(style.line_handle("only a bound is known", **hollow))
    if curves.fits:
        edge: dict[str, Any] = {"edgecolor": style.MUTED, "linewidth": 1.0}
        diamond: dict[str, Any] = {"marker": "d", "color": style.INK}
        hatched = {"facecolor": "white", "hatch": "////"}
        handles += [
            style.patch_handle("scales perfectly", facecolor=style.MUTED, **edge),
            style.patch_handle("diminishing returns", **hatched, **edge),
            style.patch_handle("plateau", facecolor="white", **edge),
            style.line_handle("c1/c2 with interval", linestyle="none", **diamond),
        ]
    return handles


def is_scaled(curves: Curves) -> bool:
    """Returns whether any curve has several batch sizes."""
    sizes = curves.plot_rows.groupby("key", sort=False)["batch_size"].nunique()
    return bool((sizes > 1).any())


def _caption(curves: Curves, beside: pd.DataFrame) -> str:
    goals = list(dict.fromkeys(curves.cells["goal"]))
    parts = [f"Steps K* of the best trial to the goal ({and_list(goals, 2)})."]
    if is_scaled(curves):
        parts.append("Dotted: perfect scaling (twice the batch, half the steps).")
    if curves.fits:
        level = next(iter(curves.fits.values())).level
        parts.append(f"Curve: the fit c1/B + c2 with its {percent(level)} band.")
    if (curves.plot_rows["bound"] != "").any():
        parts.append("Hollow marks are bounds.")
    if len(beside):
        parts.append("Small marks: published curves.")
    if curves.fits:
        parts.append(BARS)
    return " ".join(parts)


def _definition(curves: Curves) -> str:
    if (curves.plot_rows["repeats"] > 1).any():
        bars = (
            "A mark is the median of K* over study seeds; its bar runs from the least "
            "to the greatest."
        )
    else:
        bars = (
            "The bar below a mark runs from the last evaluation that did not meet the "
            "goal to the first one that did; steps between evaluations are not known."
        )
    parts = [bars, curves.best_of()]
    if curves.fits:
        level = next(iter(curves.fits.values())).level
        parts.append(
            "The fit is unweighted in log K*, each K* taken to lie in its bracket; "
            f"thin lines bound K* of a new study with {percent(level)}."
        )
    if (curves.plot_rows["bound"] != "").any():
        parts.append(
            "A hollow mark is a bound: the records give no more, or the best trial "
            "lies at an end of its range, and a wider one might give a smaller K*."
        )
    if curves.fits:
        parts.append(DEFINITION)
    return " ".join(part for part in parts if part)


def _alt(curves: Curves, beside: pd.DataFrame) -> str:
    parts = []
    for rows in by_curve(curves.plot_rows).values():
        exact = rows[rows["bound"] == ""].sort_values("batch_size")
        panel, curve = rows[["panel", "curve"]].iloc[0]
        where = f"{panel}, {curve}" if len(curves.panels) > 1 else curve
        if exact.empty:
            parts.append(f"{where}: only bounds are known")
            continue
        points = [_point(row) for _, row in exact.iterrows()]
        parts.append(f"{where}: {and_list(points)}")
    parts += [
        f"{name}: {_point(rows.iloc[0])} to {_point(rows.iloc[-1])}"
        for name, rows in beside.groupby("curve", sort=False)
    ]
    number = count(len(parts), "curve")
    return f"Line chart of steps to result against batch size, {number}. " + (
        "; ".join(parts) + "." if parts else "No cell has a result."
    )


def _point(row: pd.Series) -> str:
    return f"{steps(row['steps_to_result'])} at {row['batch_size']}"
