"""How far does K* depend on how often trials were evaluated?

K* is computed again from records; where trials were stopped before they could answer, a
range is given. For K* and the law at another goal, ask for a report with that goal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dps_tf.analysis.report.content import (
    Column,
    Part,
    ReportContext,
    SortableText,
    number_text,
    page_table,
)
from dps_tf.analysis.report.naming import cell_names
from dps_tf.analysis.sensitivity import INTERVALS, by_interval
from dps_tf.analysis.wording import interval, steps

_STEPS = (
    "K* lies in this range; one number where the records decide it. 'At least': they "
    "do not bound it from above."
)


def sensitivity_part(context: ReportContext) -> Part:
    """Returns K* at coarser evaluation intervals; nothing without evaluations."""
    found = by_interval(context.tables)
    if found.empty:
        return Part()
    text = (
        "A study that was evaluated at other steps would have given another K*. "
        "That the goal was met in a bracket holds for a metric that only improves: a "
        "validation error goes up and down, so an evaluation that did not happen may "
        "have met the goal earlier. K* at twice and four times the interval shows how "
        "much that matters here."
    )
    named = context.curves.naming.name(found)
    rows = []
    for cell, group in named.assign(cell=cell_names(named)).groupby("cell", sort=False):
        known = number_text(group["steps_to_result"].iloc[0], steps)
        row: dict[str, Any] = {"cell": cell, "steps": known}
        for entry in group.to_dict("records"):
            row[f"at_{entry['multiple']}"] = range_text(entry)
        rows.append(row)
    columns = [Column("cell", "Cell"), Column("steps", "K*")]
    for times in INTERVALS:
        columns.append(
            Column(f"at_{times}", f"K* at {times} times the interval", _STEPS)
        )
    caption = "K* and the evaluation interval"
    return Part((text,), (), (page_table("by-interval", caption, columns, rows),))


def range_text(row: Mapping[Any, Any]) -> SortableText:
    """Returns K* between `low` and `high` of a row, as far as it is known."""
    low, high = float(row["low"]), float(row["high"])
    if np.isinf(low):
        return SortableText("not reached", np.nan)
    return SortableText(steps(low) if low == high else interval(low, high), low)
