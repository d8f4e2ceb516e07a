"""Does a large batch generalize worse? The test metric at K*, against batch size.

A question of Shallue et al. 2019, asked of the best trial of each cell where it met the
goal on the validation split. Two trials at the same validation metric may differ on the
test set. Trials that are trained for as long as helps are another matter.
"""

from __future__ import annotations

from typing import Any

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
from dps_tf.analysis.report.curves import RowsByCell
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.tables import metric_names, study_key
from dps_tf.analysis.wording import number

_SPLITS = ("train", "validation", "test")


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
        _figure(metric, rows) for metric, rows in known.groupby("metric", sort=False)
    ]
    return Part((text,), figures, (table,))


def at_result(cells: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Returns what the best trial of each cell was worth at K*, split by split.

    Args:
        cells: rows of `results`, all or some.
        tables: that they are of.

    Returns:
        One row per cell whose K* is known, with its index in `cells`: the columns that
        name a study, steps_to_result, metric, and train, validation and test, NaN where
        a split was not evaluated.
    """
    key = study_key(cells)
    keys = tables.studies[key].itertuples(index=False, name=None)
    goals = dict(zip(keys, tables.goals, strict=True))
    columns = ["trial", "step", *metric_names(tables.curves)]
    known = cells[cells["best_trial"].notna() & cells["steps_to_result"].notna()]
    rows_of = RowsByCell(tables.curves, cells, columns)
    rows = []
    for cell in known.to_dict("records"):
        metric = goals[tuple(cell[name] for name in key)].metric.partition("/")[2]
        mine = rows_of.of(cell)
        at = (mine["trial"] == cell["best_trial"]) & (
            mine["step"] == cell["steps_to_result"]
        )
        rows.append(
            {
                **{name: cell[name] for name in key},
                "steps_to_result": cell["steps_to_result"],
                "metric": metric,
                **{split: _value(mine[at], f"{split}/{metric}") for split in _SPLITS},
            }
        )
    columns = [*key, "steps_to_result", "metric", *_SPLITS]
    return pd.DataFrame(rows, known.index, columns)


def _value(evaluation: pd.DataFrame, column: str) -> float:
    if column not in evaluation or evaluation.empty:
        return float("nan")
    return float(evaluation[column].iloc[0])


def _figure(metric: Any, table: pd.DataFrame) -> Illustration:
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
