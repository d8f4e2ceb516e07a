"""Does a large batch generalize worse? The best trials at K*, split by split.

This question of Shallue et al. 2019 is answered with the best trial of each cell at the
evaluation that met the goal on the validation split: trials of the same validation
metric may differ on the test set. The answer says nothing of longer training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import goals_of
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.style import file_name
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import number

_SPLITS = ("train", "validation", "test")


def generalization_part(context: ReportContext) -> Part:
    """Returns a figure per metric of a goal, and a table; empty without test sets."""
    curves = context.curves
    metrics = at_result(curves.cells, context.tables)
    if metrics["test"].isna().all():
        return Part()
    named = curves.cells.loc[metrics.index]
    metrics.insert(0, "curve", curves.titles(named))
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
    table = PageTable("generalization-table", caption, columns, metrics)
    text = (
        "Each cell at the evaluation at which its best trial met the goal: one trial, "
        "whose metrics have the sampling error of the examples they are over."
    )
    tested = metrics[metrics["test"].notna()]
    figures = [
        _test_figure(metric, rows)
        for metric, rows in tested.groupby("metric", sort=False)
    ]
    return Part((text,), figures, (table,))


def at_result(cells: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Returns the metric of the best trial of each cell at K*, on each split.

    One row per cell with a K*, under its index in `cells`, which are rows of `results`.
    Columns: `study_key`, steps_to_result, metric, and train, validation and test, NaN
    where a split was not evaluated.
    """
    key = study_key(cells)
    goals = goals_of(tables)
    with_result = cells[cells["best_trial"].notna() & cells["steps_to_result"].notna()]
    at = with_result[[*key, "best_trial", "steps_to_result"]].merge(
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
    values_of = pd.DataFrame(rows, with_result.index, ["metric", *_SPLITS])
    return with_result[[*key, "steps_to_result"]].join(values_of)


def _test_figure(metric: Any, table: pd.DataFrame) -> Illustration:
    line_styles = style.assign_styles(table["curve"])
    # The median stands for the seeds of one curve and batch size.
    keys = ["curve", "batch_size"]
    drawn = table.groupby(keys, sort=False)[["test"]].median().reset_index()
    with style.one_axis(line_styles) as (figure, axis):
        style.log2_axis(axis, "x")
        draw_curves(axis, drawn, ("batch_size", "test"), line_styles)
        axis.set(xlabel="Batch size", ylabel=f"test/{metric} at K*")
        style.batch_ticks(axis, drawn["batch_size"].tolist())
    listing = "; ".join(
        f"{curve}: {number(rows['test'].iloc[0])} at batch size "
        f"{rows['batch_size'].iloc[0]}, {number(rows['test'].iloc[-1])} at "
        f"{rows['batch_size'].iloc[-1]}"
        for curve, rows in drawn.sort_values("batch_size").groupby("curve", sort=False)
    )
    return illustration(
        figure,
        file_name("generalization", str(metric)),
        f"Test {metric} at K* against batch size",
        caption=(
            f"test/{metric} of the best trial of each cell at K*; the median where "
            "there are several seeds. The validation metric is nearly the same "
            "everywhere, by the goal: a trend shows that batch sizes generalize "
            "differently."
        ),
        alt=f"Line chart of test/{metric} at K* against batch size. {listing}.",
    )
