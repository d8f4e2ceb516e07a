"""Which batch size is fastest, and which cheapest, given what a step takes?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.cost import seconds_per_step, time_and_cost
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import number

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
    figures = [_figure(found, "time_seconds", "is_fastest", "Seconds to result")]
    if (found["price"] > 0).any():
        figures.append(_figure(found, "cost", "is_cheapest", "Cost of a result"))
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
    keys = study_key(speeds)
    best = context.curves.cells[[*keys, "best_trial"]].dropna(subset="best_trial")
    best = best.rename(columns={"best_trial": "trial"}).astype({"trial": np.int64})
    mine = speeds.merge(best, on=[*keys, "trial"])
    return mine.assign(devices=1, price=0.0)


def costs(curves: Curves, step_times: pd.DataFrame) -> pd.DataFrame:
    """Returns time and cost of one result, per curve, batch size and devices.

    Columns: those of `cost.time_and_cost`; curve (with the panel and the devices where
    there are several), note (which is the least of its curve).

    Args:
        curves: of the report.
        step_times: see `cost.read_step_times`.
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
    """Draws a quantity of time or money against the batch size, the least ringed.

    Args:
        axis: an empty axis; the caller labels its y axis.
        table: one row per curve and batch size: curve, batch_size, value, is_least.
        line_styles: line style of each curve.
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


def _figure(found: pd.DataFrame, value: str, least: str, label: str) -> Illustration:
    line_styles = style.assign_styles(found["curve"])
    table = found.assign(value=found[value], is_least=found[least])
    with style.one_axis(line_styles) as (figure, axis):
        draw_costs(axis, table, line_styles)
        axis.set_ylabel(label)
    told = "; ".join(
        f"{row['curve']}: {number(row['value'])} at batch size {row['batch_size']}"
        for row in table[table["is_least"]].to_dict("records")
    )
    figure_text = FigureText(
        name=value,
        title=f"{label} against batch size",
        caption=f"{label} of the best trial. Ring: the least of its curve.",
        alt=f"Line chart of {label.lower()} against batch size. Least: {told}.",
    )
    return illustration(figure, figure_text)
