"""What a terminal or a notebook prints: results, what is missing, and cautions."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable
from typing import Any

import pandas as pd

from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report.cautions import first_error
from dps_tf.analysis.report.content import (
    Report,
)
from dps_tf.analysis.report.curves import axis_order
from dps_tf.analysis.report.results import metaparameters_of, steps_text
from dps_tf.analysis.tables import axes_of, metric_names, study_key
from dps_tf.analysis.wording import count, number, setting
from dps_tf.core import OUTCOMES, is_axis

_FEW_CELLS = 6
"""Most cells whose K* `print(tables)` shows."""
_MOST_ROWS = 24
"""Most evaluations of a plain training run that are printed, the last one included."""


def terminal_text(report: Report, tables: Tables) -> str:
    """Returns the text for a terminal: results, what is missing, and cautions.

    A single trial of a single cell is a plain training run: its curve comes first.
    """
    parts = []
    if len(tables.results) == 1 and len(tables.trials) == 1:
        parts.append(curve_text(tables.curves))
    parts.append(terminal_table(report.results))
    if report.state:
        parts.append(f"not finished: {report.state}\n")
    if (tables.bounded["outcome"] == "failed").any():
        parts.append(f"first error of a failed trial: {first_error(tables.trials)}\n")
    warned = [caution for caution in report.cautions if not caution.is_note]
    if warned:
        total = len(report.results) + sum(len(s.not_begun) for s in report.sweeps)
        lines = [
            f"  {item.title} ({len(item.cells)} of {total} cells)"
            if item.cells and item.unit == "cell"
            else f"  {item.title}"
            for item in warned
        ]
        parts.append("\n".join(["beware (the report explains):", *lines]) + "\n")
    return "\n".join(parts)


def terminal_table(results: pd.DataFrame) -> str:
    """Returns the results as aligned plain text, one line per cell.

    Columns of `study_key` that are the same in all rows stand once, above the table.
    """
    if results.empty:
        return "no cell has begun\n"
    head, columns = _plain_columns(results)
    left = {"workload", "optimizer", "sparsity_method", "precision", "goal", "note"}
    left |= set(axes_of(results))
    return f"{head}\n{aligned(columns, left)}"


def short_table(tables: Tables) -> str:
    """Returns the sizes of the tables and K* of the first cells, for a terminal."""
    shown = tables.results.head(_FEW_CELLS).to_dict("records")
    columns = {
        "cell": tables.best["cell"].head(_FEW_CELLS).tolist(),
        "steps_to_result": [steps_text(row) for row in shown],
        "best_trial": [_plain(row["best_trial"]) for row in shown],
    }
    more = len(tables.results) - len(shown)
    return (
        f"{count(len(tables.results), 'cell')}, {count(len(tables.trials), 'trial')}, "
        f"{count(len(tables.curves), 'evaluation')}\n"
        + aligned(columns, left={"cell"})
        + (f"and {count(more, 'more cell')}\n" if more else "")
        + "tables: results, best, trials, curves, ...; .columns explains all columns"
    )


def html_table(tables: Tables) -> str:
    """Returns the results as a table for notebooks, with notes on damaged files."""
    if tables.results.empty:
        return "<p>no cell has begun</p>"
    head, columns = _plain_columns(tables.results)
    shown = pd.DataFrame({name: v for name, v in columns.items() if any(v)})
    notes = "".join(f"<p>note: {html.escape(text)}</p>" for text in tables.problems)
    table = shown.to_html(index=False, border=0)
    return f"<p>{html.escape(head)}</p>{table}{notes}"


def _plain_columns(results: pd.DataFrame) -> tuple[str, dict[str, list[str]]]:
    """Returns the values that all rows share, as a line, and other columns as texts."""
    last = ["batch_size", "seed"]
    key = study_key(results)
    shown = results.sort_values(
        [*(name for name in key if name not in last), *last],
        key=lambda v: v.map(axis_order(v)) if is_axis(v.name) else v,
    )
    # Three digits would give two sparsities one name, or round one up to 1.
    shown = shown.assign(sparsity=[f"{value:.12g}" for value in shown["sparsity"]])
    fixed = [name for name in [*key, "goal"] if shown[name].nunique() == 1]
    fixed = [name for name in fixed if name != "batch_size"]
    head = "  ".join(f"{name} {_plain(shown[name].iloc[0])}" for name in fixed)
    columns: dict[str, list[str]] = {
        name: [_plain(value) for value in shown[name]]
        for name in [*key, "goal"]
        if name not in fixed
    }
    records = shown.to_dict("records")
    columns["steps_to_result"] = [steps_text(row) for row in records]
    for name in metaparameters_of(results):
        columns[name] = [_plain(row[name]) for row in records]
    for name in ("trials", *OUTCOMES):
        # Outcomes of no trial are left out; the others add up to the trials.
        if name in ("trials", "complete") or shown[name].any():
            columns[name] = [str(row[name]) for row in records]
    columns["note"] = [_note(row) for row in records]
    return head, columns


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return "-" if pd.isna(value) else setting(value)
    return "-" if pd.isna(value) else str(value)


def _note(row: Any) -> str:
    notes = [] if row["closed"] else ["open"]
    if row["at_boundary"]:
        notes.append(f"{row['at_boundary']} at its end")
    return "; ".join(notes)


def aligned(columns: dict[str, list[str]], left: Collection[str] = ()) -> str:
    """Returns columns of texts, by heading, as lines; empty columns are left out.

    Columns named in `left` are aligned to the left, all others to the right.
    """
    shown = {name: texts for name, texts in columns.items() if any(texts)}
    widths = {name: max(len(name), *map(len, v)) for name, v in shown.items()}

    def line(texts: Iterable[str]) -> str:
        cells = (
            text.ljust(width) if name in left else text.rjust(width)
            for text, (name, width) in zip(texts, widths.items(), strict=True)
        )
        return "  ".join(cells).rstrip() + "\n"

    rows = zip(*shown.values(), strict=True)
    return line(shown) + "".join(line(row) for row in rows)


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
