"""How did the best trial of each cell come to its goal?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
from dps_tf.core.study import TRAIN_LOSS


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
    metrics = {goal.metric for goal in tables.goals} & set(tables.curves)
    columns = columns_drawn(tables.curves, metrics)
    rows_of = RowsByCell(tables.curves, curves.cells, columns)
    for panel, curve, cells in groups(curves):
        goal = goals[tuple(cells.iloc[0][names])]
        if goal.metric not in metrics:
            continue
        records = [(cell, rows_of.of(cell)) for cell in cells.to_dict("records")]
        metric = drawn_metric(pd.concat([rows for _, rows in records]), goal)
        parts = []
        for cell, rows in records:
            record = best_record(told_of(rows, metric), cell, goal, metric)
            parts.append(record.assign(curve=f"batch size {cell['batch_size']}"))
        table = pd.concat(parts)
        if table.empty:
            continue
        line_styles = style.sequential_styles(table["curve"])
        with style.one_axis(line_styles, columns=3) as (figure, axis):
            threshold = goal.threshold if metric == goal.metric else None
            draw_training(axis, table, threshold, line_styles)
            axis.set_ylabel(metric)
        name = file_name("training", curves.panel_title(panel), curve)
        where = curves.title(panel, curve)
        figure_text = _figure_text(name, where, goal, metric, table)
        figures.append(illustration(figure, figure_text, folded=bool(figures)))
    return figures


def columns_drawn(curves: pd.DataFrame, metrics: Collection[str]) -> list[str]:
    """Returns the columns of the table of curves that `drawn_metric` asks for."""
    loss = {TRAIN_LOSS} & set(curves)
    return ["trial", "step", "is_bound", *sorted({*metrics, *loss})]


def drawn_metric(records: pd.DataFrame, goal: Goal) -> str:
    """Returns the metric whose course is told: the goal's, or the loss of training.

    Evaluations over many examples end once the goal is out of reach, and only bound its
    metric then.

    Args:
        records: evaluations, with the columns of `columns_drawn`.
        goal: what had to be reached.
    """
    known = records[goal.metric].notna() & ~records["is_bound"]
    has_loss = TRAIN_LOSS in records and bool(records[TRAIN_LOSS].notna().any())
    return TRAIN_LOSS if has_loss and 2 * known.sum() < len(records) else goal.metric


def told_of(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the evaluations that tell a finite value of a metric, and no bound."""
    values = records[metric].to_numpy(float, na_value=np.nan)
    exact = ~records["is_bound"].to_numpy(bool) | (metric == TRAIN_LOSS)
    told: pd.DataFrame = records[np.isfinite(values) & exact]
    return told


def best_record(
    mine: pd.DataFrame, cell: dict[Any, Any], goal: Goal, metric: str
) -> pd.DataFrame:
    """Returns step and value of a metric, of the best trial of a cell.

    Where nobody met the goal it is the trial that came closest.

    Args:
        mine: evaluations of this cell that tell the metric.
        cell: its row of the results.
        goal: what it had to reach.
        metric: that of the goal, or the loss of training.
    """
    if pd.notna(cell["best_trial"]):
        trial = int(cell["best_trial"])
    elif len(mine):
        values = mine[metric].to_numpy(float)
        sign = 1 if goal.direction == "minimize" or metric == TRAIN_LOSS else -1
        trial = int(mine["trial"].to_numpy()[np.argmin(sign * values)])
    else:
        trial = -1
    chosen = mine[mine["trial"] == trial]
    return pd.DataFrame({"step": chosen["step"], "value": chosen[metric]})


def draw_training(
    axis: Axes,
    curves: pd.DataFrame,
    goal: float | None,
    line_styles: Mapping[str, LineStyle],
) -> None:
    """Draws a metric against the step, with the goal as a horizontal line.

    Args:
        axis: an empty axis; the caller labels its y axis.
        curves: one row per curve and evaluation: curve, step, value.
        goal: threshold of the metric; None for the loss of training.
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
    if goal is not None:
        _draw_goal(axis, goal)
    values = curves["value"]
    if (values > 0).all() and values.max() > 20 * values.min():
        style.log10_axis(axis, "y")
    style.log10_axis(axis, "x")
    axis.set(xlabel="Step")


def _draw_goal(axis: Axes, goal: float) -> None:
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


def _figure_text(
    name: str, where: str, goal: Goal, metric: str, table: pd.DataFrame
) -> FigureText:
    about = (
        f"Dashed: the goal, {goal}."
        if metric == goal.metric
        else f"{goal.metric} is not drawn: most evaluations ended once the goal was "
        "out of reach, and only bound it."
    )
    told = "; ".join(
        f"{name}: {number(rows['value'].iloc[-1])} at step {rows['step'].iloc[-1]}"
        for name, rows in table.groupby("curve", sort=False)
    )
    return FigureText(
        name=name,
        title=f"Training of the best trials: {where}",
        caption=(
            f"{metric} at every evaluation of the best trial of each cell, up to "
            "the mark at its last one; where nobody met the goal, of the trial that "
            f"came closest. {about} Larger batches are lighter."
        ),
        alt=(
            f"Line chart of {metric} against the step for "
            f"{count(table['curve'].nunique(), 'trial')}; last values: {told}."
        ),
    )
