"""Published curves: how the chart of K* shows them, and the laws that they follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dps_tf.analysis.published import fits
from dps_tf.analysis.regimes import TOLERANCE, ends
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    NOTHING,
    Column,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    constants,
    estimate_text,
    page_table,
)
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.wording import count, percent

_COLUMNS = (
    Column("curve", "Curve"),
    Column("goal", "Goal"),
    Column("points", "Points"),
    Column("c1", "c1, examples"),
    Column("c2", "c2, steps"),
    Column("critical", "c1/c2, examples"),
    Column("rms", "Residual, octaves", "Root mean square of log2(K* / fit)."),
    Column("perfect", "Perfect up to", f"On the fit, within {percent(TOLERANCE)}."),
    Column(
        "flat",
        "Flat from",
        f"On the fit, within {percent(TOLERANCE)}; only if the points are flat too.",
    ),
    Column("exponent", "Exponent a", "Of c1/B^a + c2; 1 is the law."),
)


def published_part(context: ReportContext) -> Part:
    """Returns the fits of the published curves that the reader named."""
    if context.published is None:
        return Part()
    text = (
        f"{_error_text(context.published['relative_error'])} Workloads, goals and "
        "numbers of trials may differ from this report: compare shapes before levels."
    )
    return Part((text,), (), (_fits(context.published),))


def for_chart(published: pd.DataFrame | None) -> pd.DataFrame:
    """Returns the published points under names that no curve of a sweep has.

    Columns: curve (as `NAME (published)`), batch_size, steps_to_result; no rows
    without published curves.
    """
    columns = ["curve", "batch_size", "steps_to_result"]
    if published is None:
        return pd.DataFrame(columns=columns)
    rows = published[columns].sort_values("batch_size", kind="stable")
    return rows.assign(curve=[f"{name} (published)" for name in rows["curve"]])


def draw_published(
    axis: Axes, published: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws rows of `for_chart` behind the curves of a sweep, on the same axis."""
    for curve, rows in published.groupby("curve", sort=False):
        keywords = published_marks(line_styles[str(curve)])
        axis.plot(rows["batch_size"], rows["steps_to_result"], **keywords)
    if len(published):
        axis.relim()
        axis.autoscale(enable=True)


def published_marks(line_style: LineStyle) -> dict[str, Any]:
    """Returns the keywords of a published curve: small marks on a thin line."""
    thin = {"linewidth": 1.0, "markersize": 4.0, "zorder": 2}
    return style.joined_marks(line_style, **thin)


def _error_text(errors: pd.Series) -> str:
    """Returns a sentence on the errors of published K* that their table gives."""
    given = errors.dropna()
    text = f"The table of published K* gives an error for {len(given)} of "
    text += f"{count(len(errors), 'point')}"
    return (
        f"{text}, at most {percent(float(given.max()))}." if len(given) else f"{text}."
    )


def _fits(table: pd.DataFrame) -> PageTable:
    goals = table.drop_duplicates("curve").set_index("curve")["goal"]
    rows = []
    for curve, fit in fits(table).items():
        found = ends(fit)
        rows.append(
            {
                "curve": curve,
                "goal": str(goals[curve]),
                "points": len(fit.observations),
                **constants(fit),
                "rms": SortableText(f"{fit.rms:.2f}", fit.rms),
                "perfect": estimate_text(found.perfect),
                "flat": estimate_text(found.flat) if found.is_flat else NOTHING,
                "exponent": estimate_text(fit.exponent),
            }
        )
    caption = "Fits of K* = c1/B + c2 to the published curves"
    return page_table("published-fits", caption, _COLUMNS, rows)
