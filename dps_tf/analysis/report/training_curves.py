"""How did the best trial of each cell come to its goal?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    FigureText,
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import RowsByCell, groups
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import count, number
from dps_tf.core.goal import Goal


def training_curves_part(context: ReportContext) -> Part:
    """Returns a figure per curve; of a single cell the headline section shows it."""
    if len(context.curves.cells) == 1:
        return Part()
    return Part(illustrations=training_figures(context))


def training_figures(context: ReportContext) -> list[Illustration]:
    """Returns a figure per curve: the metric of the goal of each cell's best trial."""
    curves, tables = context.curves, context.tables
    names = study_key(tables.studies)
    keys = tables.studies[names].itertuples(index=False, name=None)
    goals = dict(zip(keys, tables.goals, strict=True))
    figures: list[Illustration] = []
    # Before the first evaluation there is no column of any metric.
    metrics = sorted({goal.metric for goal in tables.goals} & set(tables.curves))
    columns = ["trial", "step", "is_bound", *metrics]
    rows_of = RowsByCell(tables.curves, curves.cells, columns)
    for panel, curve, cells in groups(curves):
        goal = goals[tuple(cells.iloc[0][names])]
        if goal.metric not in metrics:
            continue
        parts = []
        for cell in cells.to_dict("records"):
            record = best_record(rows_of.of(cell), cell, goal)
            parts.append(record.assign(curve=f"batch size {cell['batch_size']}"))
        table = pd.concat(parts)
        if table.empty:
            continue
        line_styles = style.sequential_styles(table["curve"])
        with style.one_axis(line_styles, columns=3) as (figure, axis):
            draw_training(axis, table, goal.threshold, line_styles)
            axis.set_ylabel(goal.metric)
        name = file_name("training", curves.panel_title(panel), curve)
        figure_text = _figure_text(name, curves.title(panel, curve), goal, table)
        figures.append(illustration(figure, figure_text, folded=bool(figures)))
    return figures


def best_record(
    records: pd.DataFrame, cell: dict[Any, Any], goal: Goal
) -> pd.DataFrame:
    """Returns step and value of the goal's metric, of the best trial of a cell.

    Where nobody met the goal it is the trial that came closest.

    Args:
        records: rows of the table of curves of this cell.
        cell: its row of the results.
        goal: what it had to reach.
    """
    mine = records[records[goal.metric].notna() & ~records["is_bound"]]
    if pd.notna(cell["best_trial"]):
        trial = int(cell["best_trial"])
    elif len(mine):
        values = mine[goal.metric].to_numpy(float)
        sign = 1 if goal.direction == "minimize" else -1
        trial = int(mine["trial"].to_numpy()[np.argmin(sign * values)])
    else:
        trial = -1
    chosen = mine[mine["trial"] == trial]
    return pd.DataFrame({"step": chosen["step"], "value": chosen[goal.metric]})


def draw_training(
    axis: Axes, curves: pd.DataFrame, goal: float, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws a metric against the step, with the goal as a horizontal line.

    Args:
        axis: an empty axis; the caller labels its y axis.
        curves: one row per curve and evaluation: curve, step, value.
        goal: threshold of the metric.
        line_styles: line style of each curve.
    """
    for curve, rows in curves.groupby("curve", sort=False):
        line_style = style.line_style_of(line_styles, curve)
        rows = rows.sort_values("step")
        axis.plot(
            rows["step"],
            rows["value"],
            color=line_style.color,
            linestyle=line_style.line,
            marker=line_style.marker,
            markevery=[len(rows) - 1],
        )
    axis.axhline(goal, color=style.INK, linewidth=1.0, linestyle=(0, (4, 3)))
    axis.annotate(
        f"goal {goal:g}",
        (0.0, goal),
        xycoords=("axes fraction", "data"),
        xytext=(3, 3),
        textcoords="offset points",
        ha="left",
        fontsize=9,
    )
    values = curves["value"]
    if (values > 0).all() and values.max() > 20 * values.min():
        style.log10_axis(axis, "y")
    style.log10_axis(axis, "x")
    axis.set(xlabel="Step")


def _figure_text(name: str, where: str, goal: Goal, table: pd.DataFrame) -> FigureText:
    told = "; ".join(
        f"{name}: {number(rows['value'].iloc[-1])} at step {rows['step'].iloc[-1]}"
        for name, rows in table.groupby("curve", sort=False)
    )
    return FigureText(
        name=name,
        title=f"Training of the best trials: {where}",
        caption=(
            f"{goal.metric} at every evaluation of the best trial of each cell, up to "
            "the mark at its last one; where nobody met the goal, of the trial that "
            f"came closest. Dashed: the goal, {goal}. Larger batches are lighter."
        ),
        alt=(
            f"Line chart of {goal.metric} against the step for "
            f"{count(table['curve'].nunique(), 'trial')}; last values: {told}."
        ),
    )
