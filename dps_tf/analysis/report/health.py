"""How did the trials of each cell end, and what is there to beware of?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    PageTable,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.drawing import small_axes
from dps_tf.analysis.report.naming import cell_names, file_name
from dps_tf.analysis.report.style import Axes
from dps_tf.analysis.wording import count, with_panel

# Hatches differ, so that no outcome depends on its colour.
OUTCOMES: dict[str, dict[str, Any]] = {
    "complete": {"facecolor": "#0072B2"},
    "censored": {"facecolor": "#BFDDF0"},
    "incomplete": {"facecolor": "#FFFFFF", "hatch": "...."},
    "infeasible": {"facecolor": "#F3C9AC", "hatch": "xxxx"},
    "failed": {"facecolor": "#000000"},
}
_EDGE: dict[str, Any] = {"edgecolor": style.INK, "linewidth": 0.5}
_COLUMNS = 2
_ROW = 0.24


def health_part(context: ReportContext) -> Part:
    """Returns a figure per panel, a picture per curve and a bar per cell; a table."""
    curves = context.curves
    figures = []
    for panel, cells in curves.cells.groupby("panel", sort=False):
        parts = [rows for _, rows in cells.groupby("curve", sort=False)]
        rows_of_parts = -(-len(parts) // _COLUMNS)
        columns = min(_COLUMNS, len(parts))
        bars = max(len(rows) for rows in parts)
        with style.styled():
            figure = style.new_figure(
                7.6 if columns > 1 else 6.2,
                0.6 + rows_of_parts * (0.9 + _ROW * bars),
            )
            axes = small_axes(figure, len(parts), columns, sharex=True)
            for axis, rows in zip(axes, parts, strict=True):
                draw_outcomes(axis, _bars(rows))
                axis.set_title(str(rows["curve"].iloc[0]))
            handles = [style.patch_handle(k, **_EDGE, **v) for k, v in OUTCOMES.items()]
            style.legend_below(figure, handles, columns=5)
        figure_text = _figure_text(curves.panel_title(panel), cells)
        figures.append(illustration(figure, figure_text))
    return Part(illustrations=figures, tables=(health_table(curves),))


def draw_outcomes(axis: Axes, cells: pd.DataFrame) -> None:
    """Draws one stacked bar per cell: its trials by outcome.

    Args:
        axis: an empty axis.
        cells: one row per cell, top to bottom: label, note, complete, censored,
            incomplete, infeasible, failed (numbers of trials).
    """
    heights = np.arange(len(cells))
    start = np.zeros(len(cells))
    for outcome, marks in OUTCOMES.items():
        counts = cells[outcome].to_numpy(float)
        some = counts > 0
        axis.barh(
            heights[some],
            counts[some],
            left=start[some],
            height=0.72,
            **_EDGE,
            **marks,
        )
        start = start + counts
    axis.set_yticks(heights, labels=[str(label) for label in cells["label"]])
    for height, total, note in zip(heights, start, cells["note"], strict=True):
        axis.annotate(
            str(note),
            (total, height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            fontweight="bold",
        )
    axis.set_ylim(len(cells) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="Trials", ylabel="Batch size")


def _bars(cells: pd.DataFrame) -> pd.DataFrame:
    several = cells["seed"].nunique() > 1
    labels = [
        f"{row['batch_size']}" + (f", seed {row['seed']}" if several else "")
        for row in cells.to_dict("records")
    ]
    return cells.assign(label=labels, note=[_flags(row) for _, row in cells.iterrows()])


def _flags(row: pd.Series) -> str:
    flags = "B" if row["at_boundary"] else ""
    # The column is nullable: NA is no False.
    if pd.notna(row["lone_winner"]) and row["lone_winner"]:
        flags += "L"
    return flags + ("" if row["closed"] else "O")


def _figure_text(panel: str, cells: pd.DataFrame) -> FigureText:
    totals = ", ".join(f"{int(cells[outcome].sum())} {outcome}" for outcome in OUTCOMES)
    return FigureText(
        name=file_name("search_health", panel),
        title=with_panel("Outcomes of all trials", panel),
        caption=(
            "Complete: met the goal. Censored: out-run, stopped because enough others "
            "had met the goal before it could. Incomplete: spent its step budget. "
            "Infeasible: diverged. Failed: an error. One bar per batch size. B: a best "
            "value lies within 5 % of an end of its range, on its scale. L: the "
            "winner is alone, K_(2) is more than 10 % and more than one evaluation "
            "interval above K*. O: still open."
        ),
        alt=(
            f"Stacked bars, one for each of {count(len(cells), 'cell')}, of the "
            f"trials by outcome; in total {totals}."
        ),
    )


def health_table(curves: Curves) -> PageTable:
    """Returns the table of the search: one row per cell."""
    cells = curves.cells
    frame = pd.DataFrame(
        {
            "cell": cell_names(cells),
            "trials": cells["trials"],
            **{outcome: cells[outcome] for outcome in OUTCOMES},
            "infeasible_share": cells["infeasible_share"].round(3),
            "lone_winner": cells["lone_winner"]
            .map({True: "yes", False: "no"})
            .fillna("unknown"),
            "resolution": cells["interval_over_kstar"].round(3),
            "at_boundary": cells["at_boundary"],
            "state": cells["closed"].map({True: "closed", False: "open"}),
        }
    )
    columns = (
        Column("cell", "Cell"),
        Column("trials", "Trials", "The five outcomes add up to it."),
        *(Column(name, name.capitalize()) for name in OUTCOMES),
        Column("infeasible_share", "Infeasible share", "Diverged trials over trials."),
        Column(
            "lone_winner",
            "Winner alone",
            "Whether K_(2) is more than 10 % and one evaluation interval above K*.",
        ),
        Column(
            "resolution",
            "Interval / K*",
            "Steps between evaluations over K*: the relative resolution of K*.",
        ),
        Column("at_boundary", "At boundary", "Best value within 5 % of an end."),
        Column("state", "Study"),
    )
    return PageTable("health", "Health of the search, one row per cell", columns, frame)
