"""A section of the report: how many examples did the best trial see?"""

from __future__ import annotations

from dps_tf.analysis.report import Part, register_report_section
from dps_tf.analysis.report.content import Column, page_table

COLUMNS = (
    Column("batch_size", "B", "Batch size."),
    Column("steps", "K*", "Steps of the best trial."),
    Column("examples", "K* B", "Examples it saw."),
)


def examples_part(context):
    """Returns a table with one row per cell whose K* is known."""
    results = context.tables.results.dropna(subset=["steps_to_result"])
    rows = [
        {"batch_size": size, "steps": steps, "examples": size * steps}
        for size, steps in zip(
            results["batch_size"], results["steps_to_result"], strict=True
        )
    ]
    table = page_table("examples_seen", "Each row is a cell.", COLUMNS, rows)
    return Part(paragraphs=("The cost of a result in examples.",), tables=(table,))


register_report_section("examples_seen", "Examples seen", examples_part)
