"""The tables of all cells on the page: K*, and the health of the search."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dps_tf.analysis.report.content import (
    Column,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    number_text,
)
from dps_tf.analysis.report.curves import cell_names
from dps_tf.analysis.wording import setting, steps
from dps_tf.core import OUTCOMES


def metaparameters_of(results: pd.DataFrame) -> list[str]:
    """Returns the names of the metaparameters, the columns before `trials`."""
    names = [str(name) for name in results.columns]
    return names[names.index("best_trial") + 1 : names.index("trials")]


def steps_text(row: Any) -> str:
    """Returns K* of a row of results as text, with its bracket or its bounds.

    `1,700 (1,650, 1,700]` means above 1,650, at or below 1,700.
    """
    has_steps = pd.notna(row["steps_to_result"])
    if has_steps and row["steps_bound"] == "":
        high = steps(row["steps_to_result"])
        return f"{high} ({steps(row['bracket_low'])}, {high}]"
    if has_steps and not row["closed"]:
        return f"at most {steps(row['steps_to_result'])} so far"
    if has_steps:
        ends = f"{steps(row['bracket_low'])} to {steps(row['steps_to_result'])}"
        return f"{ends} (bounds)"
    if str(row["steps_bound"]).startswith(">"):
        sign, _, value = str(row["steps_bound"]).partition(" ")
        return f"{sign} {steps(float(value.split(',')[0]))}"
    if not row["closed"]:
        return "none so far"
    return "all diverged" if row["infeasible"] == row["trials"] else "not reached"


def results_part(context: ReportContext) -> Part:
    """Returns the table of results: one row per cell."""
    curves, cells = context.curves, context.curves.cells
    records = cells.to_dict("records")
    shown: dict[Column, list[Any]] = {}
    for name, title in (("panel", "Workload"), ("curve", "Curve"), ("seed", "Seed")):
        if name == "curve" or cells[name].nunique() > 1:
            shown[Column(name, title)] = cells[name].tolist()
    shown[Column("batch_size", "Batch size")] = cells["batch_size"].tolist()
    steps_column = Column(
        "steps",
        "Steps to result K*",
        "First evaluated step at which the best trial met the goal, step b of (a, b]. "
        "The evaluation before it, at step a, did not meet it; steps that were not "
        "evaluated may have, also before a, since a metric goes up and down.",
    )
    shown[steps_column] = [
        SortableText(steps_text(row), number_text(row["steps_to_result"]).key)
        for row in records
    ]
    if curves.searches:
        search = Column("search", "Best of", "Points, and dimension of their space.")
        shown[search] = [curves.searches[key] for key in cells["key"]]
    best = Column("best_trial", "Best trial", "Its number in the study.")
    shown[best] = [number_text(row["best_trial"], "{:.0f}".format) for row in records]
    for name in metaparameters_of(cells.drop(columns=["key", "panel", "curve"])):
        if cells[name].notna().any():
            title = name.replace("_", " ").capitalize()
            column = Column(name, title, "Of the best trial.")
            shown[column] = [number_text(row[name], setting) for row in records]
    frame = pd.DataFrame({column.name: values for column, values in shown.items()})
    table = PageTable("results", "Results, one row per cell", tuple(shown), frame)
    return Part(tables=(table,))


def health_part(context: ReportContext) -> Part:
    """Returns a table of the outcomes of all trials and the flags of each cell."""
    cells = context.curves.cells
    alone = cells["lone_winner"].map({True: "yes", False: "no"}).fillna("unknown")
    frame = cells.assign(
        cell=cell_names(cells),
        infeasible_share=cells["infeasible_share"].round(3),
        lone_winner=alone,
        interval_over_kstar=cells["interval_over_kstar"].round(3),
        closed=cells["closed"].map({True: "closed", False: "open"}),
    )
    columns = (
        Column("cell", "Cell"),
        Column("trials", "Trials", "The sum of the five outcomes."),
        *(Column(name, name.capitalize()) for name in OUTCOMES),
        Column("infeasible_share", "Infeasible share", "Diverged trials over trials."),
        Column(
            "lone_winner",
            "Winner alone",
            "Whether K_(2) is more than 10 % and one evaluation interval above K*.",
        ),
        Column(
            "interval_over_kstar",
            "Interval / K*",
            "Steps between evaluations over K*: the relative resolution of K*.",
        ),
        Column("at_boundary", "At boundary", "Best value within 5 % of an end."),
        Column("closed", "Study"),
    )
    caption = "Health of the search, one row per cell"
    return Part(tables=(PageTable("health", caption, columns, frame),))
