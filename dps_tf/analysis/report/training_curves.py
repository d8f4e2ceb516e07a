"""How did the best trial of each cell come to its goal?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import training_curve as drawing
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import legend_below, looks, new_figure, styled
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves, RowsByCell, groups, place_of
from dps_tf.analysis.report.measured import SIZE
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.wording import count, number
from dps_tf.analysis.tables import STUDY_KEY
from dps_tf.core.goal import Goal

_MOST = 8
"""Cells of one curve in one picture."""


def training_curve_figures(
    curves: Curves, goals: dict[tuple[Any, ...], Goal], records: pd.DataFrame
) -> list[Illustration]:
    """Returns a figure per curve: the metric of the goal of each cell's best trial.

    Args:
        curves: of the report.
        goals: by the values of STUDY_KEY.
        records: the table of curves.
    """
    figures: list[Illustration] = []
    metrics = sorted({goal.metric for goal in goals.values()})
    columns = ["trial", "step", "is_bound", *metrics]
    rows_of = RowsByCell(records, curves.cells, columns)
    for panel, curve, cells in groups(curves):
        goal = goals[tuple(cells.iloc[0][STUDY_KEY])]
        parts = []
        for cell in cells.head(_MOST).to_dict("records"):
            record = best_record(rows_of.of(cell), cell, goal)
            label = f"batch size {cell['batch_size']}"
            parts.append(record.assign(curve=label))
        table = pd.concat(parts)
        if table.empty:
            continue
        with styled():
            figure = new_figure(*SIZE)
            axis = figure.subplots()
            shown = looks([str(name) for name in table["curve"]])
            drawing.draw(axis, table, goal.threshold, shown)
            axis.set_ylabel(goal.metric)
            legend_below(figure, curve_handles(shown), columns=3)
        words = _words(curves, panel, curve, goal, (table, len(cells) - _MOST))
        figures.append(illustration(figure, words, folded=bool(figures)))
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


def _words(
    curves: Curves, panel: str, curve: str, goal: Goal, shown: tuple[pd.DataFrame, int]
) -> FigureText:
    table, left_out = shown
    where = place_of(curves, panel, curve)
    told = "; ".join(
        f"{name}: {number(rows['value'].iloc[-1])} at step {rows['step'].iloc[-1]}"
        for name, rows in table.groupby("curve", sort=False)
    )
    return FigureText(
        name=file_name("training", panel if panel in where else "", curve),
        title=f"Training of the best trials: {where}",
        caption=(
            f"{goal.metric} at every evaluation of the best trial of each cell, up to "
            "the mark at its last one; where nobody met the goal, of the trial that "
            f"came closest. Dashed: the goal, {goal}."
            + (f" The {left_out} largest batch sizes are not shown." * (left_out > 0))
        ),
        alt=(
            f"Line chart of {goal.metric} against the step for "
            f"{count(table['curve'].nunique(), 'trial')}; last values: {told}."
        ),
    )
