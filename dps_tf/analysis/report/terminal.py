"""What the command prints: results as plain text."""

from __future__ import annotations

import pandas as pd

from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.content import Report
from dps_tf.analysis.report.results_table import aligned, terminal_table
from dps_tf.analysis.report.wording import number
from dps_tf.analysis.tables import metric_names

_MOST_ROWS = 24
"""Evaluations of a plain training run that are printed; the last one is among them."""


def terminal_text(report: Report, tables: Tables) -> str:
    """Returns the table of results, what is missing, and what to beware of.

    A single trial of a single cell is a plain training run: its curve comes first.
    """
    parts = []
    if len(tables.results) == 1 and len(tables.trials) == 1:
        parts.append(curve_text(tables.curves))
    parts.append(terminal_table(report.results))
    if report.state:
        parts.append(f"not finished: {report.state}\n")
    warned = [caution for caution in report.cautions if not caution.is_note]
    if warned:
        total = len(report.results)
        lines = [
            f"  {item.title} ({len(item.cells)} of {total} cells)"
            if item.cells
            else f"  {item.title}"
            for item in warned
        ]
        parts.append("\n".join(["beware (the report explains):", *lines]) + "\n")
    return "\n".join(parts)


def curve_text(curves: pd.DataFrame) -> str:
    """Returns the evaluations of one trial as aligned text, thinned out if many."""
    names = [name for name in metric_names(curves) if curves[name].notna().any()]
    step = -(-len(curves) // _MOST_ROWS)
    # From the end, so that the last evaluation is always there.
    shown = curves.sort_values("step").iloc[::-1].iloc[::step].iloc[::-1]
    texts = {"step": [f"{value:,}" for value in shown["step"]]}
    for name in names:
        texts[name] = [number(float(value), 4) for value in shown[name]]
    return aligned(texts)


def published_text(report: Report) -> str:
    """Returns the fits of published curves as plain text."""
    table = report.sections[0].tables[0]
    columns = {
        column.title: [
            getattr(value, "text", str(value)) for value in table.frame[column.name]
        ]
        for column in table.columns
    }
    return aligned(columns, left={"Curve", "Goal"})
