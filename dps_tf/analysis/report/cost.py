"""What does a faster result cost, in examples, time and money?

McCandlish et al. 2018 ("An Empirical Model of Large-Batch Training", section 2.3)
expect the steps S and the examples E = S B of all batch sizes to lie on
(S/Smin - 1)(E/Emin - 1) = 1. With Smin = c2 and Emin = c1 this is K* = c1/B + c2, so
that the frontier of the fit is drawn, and their critical batch size Emin/Smin is c1/c2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    constants,
    illustration,
    number_text,
    page_table,
)
from dps_tf.analysis.report.curves import Curves, best_trials_of, of_curve
from dps_tf.analysis.report.measurements import averaged, mean_scale
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.step_times import seconds_per_step, time_and_cost
from dps_tf.analysis.wording import listed, number, steps

_COLUMNS = (
    Column("curve", "Curve"),
    Column("batch_size", "Batch size"),
    Column("devices", "Devices", "That share the batch."),
    Column("seconds", "Seconds per step"),
    Column("time_seconds", "Seconds to result", "K* times the seconds of a step."),
    Column("cost", "Cost", "Time times the price of all devices."),
    Column("note", "Least", "Of its curve: fastest, cheapest."),
)
_LEAST: dict[str, Any] = {
    "marker": "o",
    "markersize": 14,
    "markerfacecolor": "none",
    "markeredgecolor": style.INK,
    "markeredgewidth": 1.4,
    "linestyle": "none",
}
_REACH = 64.0
"""Factor from c1/c2 to the batch sizes at the ends of a frontier that is drawn."""


def cost_part(context: ReportContext) -> Part:
    """Returns figures and table of time and cost.

    From the given step times, else from those that training recorded; nothing without
    either.
    """
    given = context.options.step_times
    times = recorded_step_times(context) if given is None else given
    if times.empty:
        return Part()
    found = costs(context.curves, times)
    figures = [_cost_figure(found, "time_seconds", "is_fastest", "Seconds to result")]
    if (found["price"] > 0).any():
        figures.append(_cost_figure(found, "cost", "is_cheapest", "Cost of a result"))
    text = (
        "K* times the recorded seconds of a step of the best trial: its training and "
        "its evaluations, on the machines that the sweep ran on and slowed by whatever "
        "ran beside it, without the search for it. Batch sizes that ran on different "
        "machines cannot be compared."
        if given is None
        else "K* times the given seconds of a step: one run of the best trial, without "
        "the search for it and without evaluations."
    )
    recorded = ("devices", "cost") if given is None else ()
    columns = tuple(column for column in _COLUMNS if column.name not in recorded)
    table = PageTable("cost-table", "Time and cost of one result", columns, found)
    return Part((text,), figures, (table,))


def recorded_step_times(context: ReportContext) -> pd.DataFrame:
    """Returns seconds per step of the best trial of each cell, as training recorded.

    Columns: those of `study_key`, trial, devices (1), seconds, price (0); see `costs`.
    """
    speeds = seconds_per_step(context.tables.work)
    if speeds.empty:
        return speeds
    best = best_trials_of(context.curves.cells)
    return speeds.merge(best, on=list(best)).assign(devices=1, price=0.0)


def costs(curves: Curves, step_times: pd.DataFrame) -> pd.DataFrame:
    """Returns time and cost of one result, per curve, batch size and devices.

    Columns: those of `cost.time_and_cost`; curve (with the panel and the devices where
    there are several), note (which is the least of its curve).
    """
    found = curves.naming.name(time_and_cost(curves.cells, step_times))
    several = found["devices"].nunique() > 1
    records = found.to_dict("records")
    found["curve"] = [
        title + (f", {row['devices']} devices" if several else "")
        for title, row in zip(curves.titles(found), records, strict=True)
    ]
    found["note"] = [_note(row) for row in records]
    return found


def _note(row: Any) -> str:
    notes = ["fastest"] if row["is_fastest"] else []
    if row["is_cheapest"] and row["price"] > 0:
        notes.append("cheapest")
    return ", ".join(notes)


def draw_costs(
    axis: Axes, table: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws time or money against the batch size, with a ring around the least.

    Columns of the table: curve, batch_size, value, is_least.
    """
    style.log2_axis(axis, "x")
    axis.set_yscale("log")
    for curve, rows in table.groupby("curve", sort=False):
        rows = rows.sort_values("batch_size")
        marks = style.joined_marks(style.line_style_of(line_styles, curve))
        axis.plot(rows["batch_size"], rows["value"], **marks)
        least = rows[rows["is_least"]]
        axis.plot(least["batch_size"], least["value"], **_LEAST)
    style.log10_axis(axis, "y")
    axis.set(xlabel="Batch size")
    style.batch_ticks(axis, table["batch_size"].tolist())


def _cost_figure(
    found: pd.DataFrame, value: str, least: str, label: str
) -> Illustration:
    line_styles = style.assign_styles(found["curve"])
    table = found.assign(value=found[value], is_least=found[least])
    with style.one_axis(line_styles) as (figure, axis):
        draw_costs(axis, table, line_styles)
        axis.set_ylabel(label)
    listing = "; ".join(
        f"{row['curve']}: {number(row['value'])} at batch size {row['batch_size']}"
        for row in table[table["is_least"]].to_dict("records")
    )
    figure_text = FigureText(
        name=value,
        title=f"{label} against batch size",
        caption=f"{label} of the best trial. Ring: the least of its curve.",
        alt=f"Line chart of {label.lower()} against batch size. Least: {listing}.",
    )
    return illustration(figure, figure_text)


def frontier_part(context: ReportContext) -> Part:
    """Returns steps against examples of all curves, and a table of their ends.

    Nothing without a fit.
    """
    curves = context.curves
    table = examples(curves)
    if table.empty or not curves.fits:
        return Part()
    line_styles = curves.styles_of_titles(table["curve"])
    with style.one_axis(line_styles) as (figure, axis):
        draw_frontier(axis, table, frontiers(curves), line_styles)
    listing = listed(
        table,
        "curve",
        lambda row: f"{steps(row['steps'])} steps, {number(row['examples'])} examples",
    )
    figure_text = FigureText(
        name="steps_and_examples",
        title="Steps against examples",
        caption=(
            "One mark per batch size, the smallest on the right: examples processed, "
            "K* B, against steps, K*. Line: the frontier (S/c2 - 1)(E/c1 - 1) = 1 of "
            "the fit, the form of McCandlish et al. 2018. Dotted: its ends, the fewest "
            "steps c2 and the fewest examples c1; at c1/c2 both are twice the least."
        ),
        alt=f"Line chart of examples against steps. {listing}.",
    )
    figures = (illustration(figure, figure_text),)
    return Part((), figures, (frontier_table(context),))


def examples(curves: Curves) -> pd.DataFrame:
    """Returns one row per curve and batch size with a K*: curve, steps, examples.

    A goal that was met before the first step has no place on logarithmic axes.
    """
    rows = curves.exact[curves.exact["steps_to_result"] > 0]
    seen = rows["steps_to_result"] * rows["batch_size"]
    named = pd.DataFrame({"curve": curves.titles(rows)}, rows.index)
    return named.assign(steps=rows["steps_to_result"], examples=seen)


def frontiers(curves: Curves) -> pd.DataFrame:
    """Returns the frontier of each fit with a plateau and a slope.

    Columns: curve, steps, examples, c1, c2.
    """
    tables = []
    for (panel, curve), fit in curves.fits.items():
        if not (fit.plateau_resolved and fit.slope_resolved):
            continue
        critical = fit.c1.value / fit.c2.value
        sizes = critical * np.geomspace(1 / _REACH, _REACH, 80)
        table = pd.DataFrame({"steps": fit.steps(sizes)})
        table = table.assign(examples=table["steps"] * sizes, c1=fit.c1.value)
        title = curves.title(panel, curve)
        tables.append(table.assign(c2=fit.c2.value, curve=title))
    columns = ["curve", "steps", "examples", "c1", "c2"]
    return pd.concat(tables) if tables else pd.DataFrame(columns=columns)


def draw_frontier(
    axis: Axes,
    table: pd.DataFrame,
    lines: pd.DataFrame,
    line_styles: Mapping[str, LineStyle],
) -> None:
    """Draws tables of `examples` and of `frontiers`, both axes logarithmic."""
    axis.set_xscale("log")
    axis.set_yscale("log")
    for curve, rows in table.groupby("curve", sort=False):
        line_style = style.line_style_of(line_styles, curve)
        axis.plot(rows["steps"], rows["examples"], **style.mark_style(line_style))
        line = lines[lines["curve"] == curve]
        if len(line):
            color = line_style.color
            axis.plot(line["steps"], line["examples"], color=color, zorder=1.8)
            ends = {"color": color, "linewidth": 0.9, "linestyle": (0, (1, 2.5))}
            axis.axvline(line["c2"].iloc[0], **ends)
            axis.axhline(line["c1"].iloc[0], **ends)
    for name, limit in (("steps", axis.set_xlim), ("examples", axis.set_ylim)):
        limit(table[name].min() / 1.8, table[name].max() * 1.8)
    axis.set(xlabel="Steps to result", ylabel="Examples processed")
    style.log10_axis(axis, "x")
    style.log10_axis(axis, "y")


def frontier_table(context: ReportContext) -> PageTable:
    """Returns the ends of each frontier, c1/c2, and the noise scale beside it."""
    curves = context.curves
    scales = averaged(curves, context.tables.measurements)
    rows = [
        {
            "curve": curves.title(*pair),
            **constants(fit),
            "noise": number_text(mean_scale(of_curve(scales, *pair))),
        }
        for pair, fit in curves.fits.items()
    ]
    columns = (
        Column("curve", "Curve"),
        Column("c2", "Fewest steps, c2"),
        Column("c1", "Fewest examples, c1"),
        Column("critical", "c1/c2, examples"),
        Column(
            "noise",
            "Noise scale, examples",
            "tr(Sigma) and |G|^2 each averaged over steps up to K*, then divided; "
            "geometric mean over the cells of the curve. Empty where not measured.",
        ),
    )
    caption = "The ends of the frontier of steps and examples"
    return page_table("frontier", caption, columns, rows)
