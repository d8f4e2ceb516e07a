"""Learning curves of best trials; in a browser, of all trials of a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.charts import learning_chart
from dps_tf.analysis.report.content import (
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import cell_names, goals_of, groups, of_curve
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import RowsByCell, metaparameter_names, study_key
from dps_tf.analysis.wording import count, number, setting
from dps_tf.core import TRAIN_LOSS, Goal

_MOST_TRIALS = 3000
"""Most trials of the whole page: each takes some 500 bytes."""
_MOST_EVALUATIONS = 40
"""Most evaluations of one trial, evenly spread; curves.parquet has all of them."""


def training_curves_part(context: ReportContext) -> Part:
    """Returns a figure per curve; none for one cell, which the headline section has."""
    if len(context.curves.cells) == 1:
        return Part()
    return Part(illustrations=training_figures(context))


def training_figures(context: ReportContext) -> list[Illustration]:
    """Returns a figure per curve: the metric of the goal of each cell's best trial.

    In the browser the reader may add all trials of a cell.
    """
    curves, tables = context.curves, context.tables
    key = study_key(curves.cells)
    records, goals = drawn_records(context)
    trials = RowsByCell(tables.bounded, curves.cells, list(tables.bounded.columns))
    figures: list[Illustration] = []
    for curve, cells in groups(curves):
        goal = goals.get(tuple(cells.iloc[0][key]))
        if goal is None:
            continue
        metric, best = _best_records(cells, records, goal)
        if best.empty:
            continue
        line_styles = style.sequential_styles(best["curve"])
        threshold = goal.threshold if metric == goal.metric else None
        with style.one_axis(line_styles, columns=3) as (figure, axis):
            draw_training(axis, best, threshold, line_styles)
            axis.set_ylabel(metric)
        name, where = curves.file_name("training", curve), curves.title(curve)
        of_cells = of_curve(curves.cells, curve)
        most = max(3, _MOST_TRIALS // len(curves.cells))
        shown = trials_by_cell(of_cells, records, trials, metric, most)
        figures.append(
            illustration(
                figure,
                name,
                f"Training of the best trials: {where}",
                folded=bool(figures),
                **_texts(goal, metric, best),
                chart=learning_chart(best, threshold, metric, line_styles),
                trials=json.dumps(shown),
            )
        )
    return figures


def _best_records(
    cells: pd.DataFrame, records: RowsByCell, goal: Goal
) -> tuple[str, pd.DataFrame]:
    """Returns the metric that is drawn, and curve, step, value of the best trials."""
    of_cells = [(cell, records.of(cell)) for cell in cells.to_dict("records")]
    metric = drawn_metric(pd.concat([rows for _, rows in of_cells]), goal)
    parts = []
    for cell, rows in of_cells:
        record = _best_record(exact_values(rows, metric), cell, goal, metric)
        parts.append(record.assign(curve=f"batch size {cell['batch_size']}"))
    return metric, pd.concat(parts)


def trials_by_cell(
    cells: pd.DataFrame,
    records: RowsByCell,
    trials: RowsByCell,
    metric: str,
    most: int = _MOST_TRIALS,
) -> list[dict[str, Any]]:
    """Returns the evaluations of the fastest trials of each cell that has any.

    A cell has name, left_out (number of trials beyond `most`) and trials; a trial has
    outcome, note (number and metaparameters in words), steps and values.
    """
    drawn_cells = []
    for cell in cells.assign(cell_name=cell_names(cells)).to_dict("records"):
        rows = exact_values(records.of(cell), metric)
        by_trial = dict(iter(rows.groupby("trial")))
        of_cell = trials.of(cell).sort_values("latest", kind="stable")
        names = metaparameter_names(of_cell)
        drawn = [
            _trial(trial, by_trial[trial["trial"]], metric, names)
            for trial in of_cell.to_dict("records")
            if trial["trial"] in by_trial
        ]
        if drawn:
            left_out = max(0, len(drawn) - most)
            heading = {"name": cell["cell_name"], "left_out": left_out}
            drawn_cells.append({**heading, "trials": drawn[:most]})
    return drawn_cells


def _trial(
    trial: Any, rows: pd.DataFrame, metric: str, names: list[str]
) -> dict[str, Any]:
    rows = rows.sort_values("step")
    every = -(-len(rows) // _MOST_EVALUATIONS)
    # From the end, so that the last evaluation is always there.
    rows = rows.iloc[::-1].iloc[::every].iloc[::-1]
    point = [f"{n} {setting(float(trial[n]))}" for n in names if pd.notna(trial[n])]
    return {
        "outcome": str(trial["outcome"]),
        "note": ", ".join([f"trial {trial['trial']}", *point]),
        "steps": [int(step) for step in rows["step"]],
        "values": [float(f"{value:.5g}") for value in rows[metric]],
    }


def drawn_records(
    context: ReportContext,
) -> tuple[RowsByCell, dict[tuple[Any, ...], Goal]]:
    """Returns the evaluations of each cell, and the goals whose metric they hold.

    Evaluations have the columns that `drawn_metric` needs. Goals are by study.
    """
    tables = context.tables
    # Before the first evaluation there is no column of any metric.
    goals = {
        study: goal
        for study, goal in goals_of(tables).items()
        if goal.metric in tables.curves
    }
    metrics = {goal.metric for goal in goals.values()} | {TRAIN_LOSS} & set(
        tables.curves
    )
    columns = ["trial", "step", "is_bound", *sorted(metrics)]
    return RowsByCell(tables.curves, context.curves.cells, columns), goals


def drawn_metric(records: pd.DataFrame, goal: Goal) -> str:
    """Returns the metric that is drawn: the goal's, or the training loss.

    Evaluations over many examples end once the goal is out of reach; the metric is then
    only a bound, and the training loss is drawn if that holds for most.
    """
    exact = records[goal.metric].notna() & ~records["is_bound"]
    has_loss = TRAIN_LOSS in records and bool(records[TRAIN_LOSS].notna().any())
    return TRAIN_LOSS if has_loss and 2 * exact.sum() < len(records) else goal.metric


def exact_values(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the evaluations that give a metric as a finite value, not as a bound."""
    values = records[metric].to_numpy(float, na_value=np.nan)
    exact = ~records["is_bound"].to_numpy(bool) | (metric == TRAIN_LOSS)
    finite: pd.DataFrame = records[np.isfinite(values) & exact]
    return finite


def _best_record(
    records: pd.DataFrame, cell: dict[Any, Any], goal: Goal, metric: str
) -> pd.DataFrame:
    """Returns step and value of the best trial, or of the trial that came closest."""
    if pd.notna(cell["best_trial"]):
        trial = int(cell["best_trial"])
    elif len(records):
        values = records[metric].to_numpy(float)
        sign = 1 if goal.direction == "minimize" or metric == TRAIN_LOSS else -1
        trial = int(records["trial"].to_numpy()[np.argmin(sign * values)])
    else:
        trial = -1
    chosen = records[records["trial"] == trial]
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
    # Trials that met the goal untrained have step 0 only.
    if (curves["step"] > 0).any():
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


def _texts(goal: Goal, metric: str, table: pd.DataFrame) -> dict[str, str]:
    """Returns caption and alt of a figure of training."""
    goal_text = (
        f"Dashed: the goal, {goal}."
        if metric == goal.metric
        else f"{goal.metric} is not drawn: most evaluations ended once the goal was "
        "out of reach, and only bound it."
    )
    ends = "; ".join(
        f"{name}: {number(rows['value'].iloc[-1])} at step {rows['step'].iloc[-1]}"
        for name, rows in table.groupby("curve", sort=False)
    )
    return {
        "caption": f"{metric} of the best trial of each cell, up to the mark at its "
        "last evaluation; where no trial met the goal, of the one that came closest. "
        f"{goal_text} Larger batches are lighter.",
        "alt": f"Line chart of {metric} against the step for "
        f"{count(table['curve'].nunique(), 'trial')}; last values: {ends}.",
    }
