"""How did the best trials come to their goal, and what are they worth there?

Does a large batch generalize worse? A question of Shallue et al. 2019, asked of the
best trial of each cell where it met the goal on the validation split. Two trials at the
same validation metric may differ on the test set. Trials that are trained for as long
as helps are another matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.loading import Tables
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
from dps_tf.analysis.report.curves import RowsByCell, goals_of, groups
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import count, number
from dps_tf.core import TRAIN_LOSS, Goal

_SPLITS = ("train", "validation", "test")


def training_curves_part(context: ReportContext) -> Part:
    """Returns a figure per curve; of a single cell the headline section shows it."""
    if len(context.curves.cells) == 1:
        return Part()
    return Part(illustrations=training_figures(context))


def training_figures(context: ReportContext) -> list[Illustration]:
    """Returns a figure per curve: the metric of the goal of each cell's best trial."""
    curves = context.curves
    key = study_key(curves.cells)
    rows_of, goals = drawn_records(context)
    figures: list[Illustration] = []
    for panel, curve, cells in groups(curves):
        goal = goals.get(tuple(cells.iloc[0][key]))
        if goal is None:
            continue
        records = [(cell, rows_of.of(cell)) for cell in cells.to_dict("records")]
        metric = drawn_metric(pd.concat([rows for _, rows in records]), goal)
        parts = []
        for cell, rows in records:
            record = _best_record(told_of(rows, metric), cell, goal, metric)
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
        figure_text = _training_text(name, where, goal, metric, table)
        figures.append(illustration(figure, figure_text, folded=bool(figures)))
    return figures


def drawn_records(
    context: ReportContext,
) -> tuple[RowsByCell, dict[tuple[Any, ...], Goal]]:
    """Returns the evaluations of each cell, and the goals whose metric they tell.

    Evaluations have the columns that `drawn_metric` asks for. Goals are by study.
    """
    tables = context.tables
    goals = goals_of(tables)
    # Before the first evaluation there is no column of any metric.
    told = {
        study: goal for study, goal in goals.items() if goal.metric in tables.curves
    }
    metrics = {goal.metric for goal in told.values()} | {TRAIN_LOSS} & set(
        tables.curves
    )
    columns = ["trial", "step", "is_bound", *sorted(metrics)]
    return RowsByCell(tables.curves, context.curves.cells, columns), told


def drawn_metric(records: pd.DataFrame, goal: Goal) -> str:
    """Returns the metric whose course is told: the goal's, or the loss of training.

    Evaluations over many examples end once the goal is out of reach, and only bound its
    metric then.
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


def _best_record(
    mine: pd.DataFrame, cell: dict[Any, Any], goal: Goal, metric: str
) -> pd.DataFrame:
    """Returns step and value of the best trial, or of the one that came closest."""
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
    """Draws a metric against the step, and its threshold, if any, as a line.

    Columns of the table: curve, step, value.
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


def _training_text(
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


def generalization_part(context: ReportContext) -> Part:
    """Returns a figure per metric of a goal, and a table; nothing without test sets."""
    curves = context.curves
    found = at_result(curves.cells, context.tables)
    if found["test"].isna().all():
        return Part()
    named = curves.cells.loc[found.index]
    titles = map(curves.title, named["panel"], named["curve"])
    found.insert(0, "curve", list(titles))
    columns = (
        Column("curve", "Curve"),
        Column("batch_size", "Batch size"),
        Column("steps_to_result", "K*"),
        Column("metric", "Metric"),
        Column("train", "Training", "On a fixed part of the training split."),
        Column("validation", "Validation", "On which the goal was met, as a rule."),
        Column("test", "Test"),
    )
    caption = "The best trial of each cell at K*"
    table = PageTable("generalization-table", caption, columns, found)
    text = (
        "Each cell at the evaluation at which its best trial met the goal: one trial, "
        "whose metrics have the sampling error of the examples they are over."
    )
    known = found[found["test"].notna()]
    figures = [
        _test_figure(metric, rows)
        for metric, rows in known.groupby("metric", sort=False)
    ]
    return Part((text,), figures, (table,))


def at_result(cells: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Returns what the best trial of each cell was worth at K*, split by split.

    One row per cell whose K* is known, with its index in `cells`, rows of `results`:
    the columns that name a study, steps_to_result, metric, and train, validation and
    test, NaN where a split was not evaluated.
    """
    key = study_key(cells)
    goals = goals_of(tables)
    known = cells[cells["best_trial"].notna() & cells["steps_to_result"].notna()]
    at = known[[*key, "best_trial", "steps_to_result"]].merge(
        tables.curves,
        how="left",
        left_on=[*key, "best_trial", "steps_to_result"],
        right_on=[*key, "trial", "step"],
    )
    rows = []
    for row in at.to_dict("records"):
        metric = goals[tuple(row[name] for name in key)].metric.partition("/")[2]
        values = {split: row.get(f"{split}/{metric}", np.nan) for split in _SPLITS}
        rows.append({"metric": metric, **values})
    worth = pd.DataFrame(rows, known.index, ["metric", *_SPLITS])
    return known[[*key, "steps_to_result"]].join(worth)


def _test_figure(metric: Any, table: pd.DataFrame) -> Illustration:
    line_styles = style.assign_styles(table["curve"])
    # Seeds of one curve and batch size are points on one line: their median.
    keys = ["curve", "batch_size"]
    drawn = table.groupby(keys, sort=False)[["test"]].median().reset_index()
    with style.one_axis(line_styles) as (figure, axis):
        style.log2_axis(axis, "x")
        draw_curves(axis, drawn, ("batch_size", "test"), line_styles)
        axis.set(xlabel="Batch size", ylabel=f"test/{metric} at K*")
        style.batch_ticks(axis, drawn["batch_size"].tolist())
    told = "; ".join(
        f"{curve}: {number(rows['test'].iloc[0])} at batch size "
        f"{rows['batch_size'].iloc[0]}, {number(rows['test'].iloc[-1])} at "
        f"{rows['batch_size'].iloc[-1]}"
        for curve, rows in drawn.sort_values("batch_size").groupby("curve", sort=False)
    )
    figure_text = FigureText(
        name=file_name("generalization", str(metric)),
        title=f"Test {metric} at K* against batch size",
        caption=(
            f"test/{metric} of the best trial of each cell at the evaluation at which "
            "it met the goal; the median where there are several seeds. The goal makes "
            "the validation metric nearly the same everywhere: a trend here says that "
            "batch sizes differ in what they generalize."
        ),
        alt=f"Line chart of test/{metric} at K* against batch size. {told}.",
    )
    return illustration(figure, figure_text)
