"""How did the trials of each cell end, and what is there to beware of?"""

from __future__ import annotations

import pandas as pd

from dps_tf.analysis.figures import search_health as drawing
from dps_tf.analysis.figures.style import legend_below, new_figure, styled
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    illustration,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.naming import cell_names, file_name
from dps_tf.analysis.report.wording import count

_COLUMNS = 2
_ROW = 0.24


def health_figures(curves: Curves) -> list[Illustration]:
    """Returns a figure per panel: a picture per curve, in it a bar per cell."""
    figures = []
    for panel, cells in curves.cells.groupby("panel", sort=False):
        parts = [rows for _, rows in cells.groupby("curve", sort=False)]
        rows_of_parts = -(-len(parts) // _COLUMNS)
        columns = min(_COLUMNS, len(parts))
        bars = max(len(rows) for rows in parts)
        with styled():
            figure = new_figure(
                7.6 if columns > 1 else 6.2,
                0.6 + rows_of_parts * (0.9 + _ROW * bars),
            )
            axes = figure.subplots(rows_of_parts, columns, squeeze=False, sharex=True)
            for axis, rows in zip(axes.flat, parts, strict=False):
                drawing.draw(axis, _bars(rows))
                axis.set_title(str(rows["curve"].iloc[0]))
            for axis in axes.flat[len(parts) :]:
                axis.set_visible(False)
            legend_below(figure, drawing.legend_handles(), columns=5)
        figures.append(illustration(figure, _words(curves, str(panel), cells)))
    return figures


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


def _words(curves: Curves, panel: str, cells: pd.DataFrame) -> FigureText:
    several = len(curves.naming.panels) > 1
    totals = ", ".join(
        f"{int(cells[outcome].sum())} {outcome}" for outcome in drawing.OUTCOMES
    )
    return FigureText(
        name=file_name("search_health", panel if several else ""),
        title=f"Outcomes of all trials{f': {panel}' if several else ''}",
        caption=(
            "Complete: met the goal. Censored: out-run, stopped because enough others "
            "had met the goal before it could. Incomplete: spent its step budget. "
            "Infeasible: diverged. Failed: an error. One bar per batch size. B: a best "
            "value lies within 5 % of an end of its range, on its scale. L: not "
            "levelled off, half as many trials would have given a K* larger by more "
            "than 10 % and more than one evaluation interval. O: still open."
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
            **{outcome: cells[outcome] for outcome in drawing.OUTCOMES},
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
        *(Column(name, name.capitalize()) for name in drawing.OUTCOMES),
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
