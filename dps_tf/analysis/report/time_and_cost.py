"""Which batch size is fastest, and which cheapest, given what a step takes?"""

from __future__ import annotations

from typing import Any

import pandas as pd

from dps_tf.analysis.cost import time_and_cost
from dps_tf.analysis.figures import cost as drawing
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import legend_below, looks, new_figure, styled
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Section,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, place_of
from dps_tf.analysis.report.measured import SIZE
from dps_tf.analysis.report.wording import number

_COLUMNS = (
    Column("curve", "Curve"),
    Column("batch_size", "Batch size"),
    Column("devices", "Devices", "That share the batch."),
    Column("seconds", "Seconds per step"),
    Column("time_seconds", "Seconds to result", "K* times the seconds of a step."),
    Column("cost", "Cost", "Time times the price of all devices."),
    Column("note", "Least", "Of its curve: fastest, cheapest."),
)


def time_and_cost_section(curves: Curves, step_times: pd.DataFrame | None) -> Section:
    """Returns figures and table of time and cost; empty without step times.

    Args:
        curves: of the report.
        step_times: see `cost.read_step_times`.
    """
    title = "Time and cost"
    if step_times is None:
        return Section("cost", title)
    found = curves.naming.name(time_and_cost(curves.cells, step_times))
    found["curve"] = [
        place_of(curves, str(row.panel), str(row.curve))
        + (f", {row.devices} devices" if found["devices"].nunique() > 1 else "")
        for row in found.itertuples()
    ]
    figures = [_figure(found, "time_seconds", "is_fastest", "Seconds to result")]
    if (found["price"] > 0).any():
        figures.append(_figure(found, "cost", "is_cheapest", "Cost of a result"))
    frame = found.assign(note=[_note(row) for row in found.to_dict("records")])
    table = PageTable("cost-table", "Time and cost of one result", _COLUMNS, frame)
    text = (
        "K* times the given seconds of a step: one run of the best trial, without the "
        "search for it and without evaluations."
    )
    return Section("cost", title, (text,), tuple(figures), (table,))


def _note(row: Any) -> str:
    words = ["fastest"] if row["is_fastest"] else []
    if row["is_cheapest"] and row["price"] > 0:
        words.append("cheapest")
    return ", ".join(words)


def _figure(found: pd.DataFrame, value: str, least: str, label: str) -> Illustration:
    shown = looks([str(name) for name in found["curve"]])
    table = found.assign(value=found[value], is_least=found[least])
    with styled():
        figure = new_figure(*SIZE)
        axis = figure.subplots()
        drawing.draw(axis, table, shown)
        axis.set_ylabel(label)
        legend_below(figure, curve_handles(shown), columns=2)
    told = "; ".join(
        f"{row['curve']}: {number(row['value'])} at batch size {row['batch_size']}"
        for row in table[table["is_least"]].to_dict("records")
    )
    words = FigureText(
        name=value,
        title=f"{label} against batch size",
        caption=f"{label} of the best trial, from the given step times. Ring: the "
        "least of its curve.",
        alt=f"Line chart of {label.lower()} against batch size. Least: {told}.",
    )
    return illustration(figure, words)
