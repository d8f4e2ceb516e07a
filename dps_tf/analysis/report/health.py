"""How did the trials of each cell end, and what is there to beware of?"""

from __future__ import annotations

import pandas as pd

from dps_tf.analysis.figures import search_health as drawing
from dps_tf.analysis.figures.style import legend_below, new_figure, styled
from dps_tf.analysis.report.content import (
    Column,
    Illustration,
    PageTable,
    Words,
    illustration,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.naming import cell_names, file_name
from dps_tf.analysis.report.wording import count

_ROW = 0.27


def health_figures(curves: Curves) -> list[Illustration]:
    """Returns a figure per panel: one bar per cell, its trials by outcome."""
    figures = []
    for panel, cells in curves.cells.groupby("panel", sort=False):
        labels = cell_names(cells.assign(panel=""))
        table = cells.assign(label=labels, note=_notes(cells))
        with styled():
            figure = new_figure(7.6, 1.3 + _ROW * len(cells))
            drawing.draw(figure.subplots(), table)
            legend_below(figure, drawing.legend_handles(), columns=5)
        figures.append(illustration(figure, _words(curves, str(panel), cells)))
    return figures


def _notes(cells: pd.DataFrame) -> list[str]:
    notes = []
    for row in cells.to_dict("records"):
        parts = [f"{row['at_boundary']} at its end"] if row["at_boundary"] else []
        # The column is nullable: NA is no False.
        if pd.notna(row["levelled_off"]) and not row["levelled_off"]:
            parts.append("not levelled off")
        if not row["closed"]:
            parts.append("open")
        notes.append("; ".join(parts))
    return notes


def _words(curves: Curves, panel: str, cells: pd.DataFrame) -> Words:
    several = len(curves.naming.panels) > 1
    totals = ", ".join(
        f"{int(cells[outcome].sum())} {outcome}" for outcome in drawing.OUTCOMES
    )
    return Words(
        name=file_name("search_health", panel if several else ""),
        title=f"Outcomes of all trials{f': {panel}' if several else ''}",
        caption=(
            "Complete: met the goal. Censored: out-run, stopped because enough others "
            "had met the goal before it could. Incomplete: spent its step budget. "
            "Infeasible: diverged. Failed: an error. Notes: metaparameters whose best "
            "value lies within 5 % of an end of its range, on its scale; not levelled "
            "off: half as many trials would have given a K* larger by more than 10 % "
            "and more than one evaluation interval."
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
            "levelled_off": cells["levelled_off"]
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
            "levelled_off",
            "Levelled off",
            "Whether half as many trials would have given nearly the same K*.",
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
