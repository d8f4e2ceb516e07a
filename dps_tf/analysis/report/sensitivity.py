"""How far do K* and the law depend on the goal, the interval and the number of points?

Everything is computed again from records; where trials were stopped before they could
answer, a range is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    illustration,
    number_text,
    page_table,
)
from dps_tf.analysis.report.curves import Curves, first_seed, of_curve
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.naming import cell_names, file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.sensitivity import (
    INTERVALS,
    by_goal,
    by_interval,
    by_points,
    law_by_goal,
)
from dps_tf.analysis.tables import curve_key
from dps_tf.analysis.wording import interval, number, steps

_CONSTANTS = {
    "c1": "c1 (examples)",
    "c2": "c2 (steps)",
    "critical_batch_size": "c1/c2 (examples)",
}
_ENDS = ("low", "high")
_STEPS = (
    "K* lies in this range; one number where the records decide it. 'At least': they "
    "do not bound it from above."
)


def sensitivity_part(context: ReportContext) -> Part:
    """Returns K* and the law against the goal, and tables of sensitivities."""
    tables, curves = context.tables, context.curves
    by_goals = by_goal(tables)
    if by_goals.empty:
        return Part()
    laws = _named(law_by_goal(by_goals), curves)
    figures = _figures(laws, curves.naming.name(by_goals), curves)
    intervals = {n: f"K* at {n} times the interval" for n in INTERVALS}
    half = by_points(tables).assign(multiple=0.5)
    of_half = {0.5: "K* of the first half of the points"}
    found = (
        _range_table(
            curves,
            by_interval(tables),
            "by-interval",
            "K* and the evaluation interval",
            intervals,
        ),
        _range_table(curves, half, "by-points", "K* and the number of points", of_half),
        _range_table(
            curves, by_goals, "by-goal", "K* and the goal", _goal_titles(by_goals)
        ),
    )
    text = (
        "A study that differed only in these choices would have given other numbers. "
        "That the goal was met in a bracket holds for a metric that only improves: a "
        "validation error goes up and down, so an evaluation that did not happen may "
        "have met the goal earlier. K* at twice and four times the interval shows how "
        "much that matters here."
    )
    return Part((text,), figures, [table for table in found if len(table.frame)])


def _named(laws: pd.DataFrame, curves: Curves) -> pd.DataFrame:
    """Returns the laws of the first seed of each curve, with its panel and its name."""
    if laws.empty:
        return laws.assign(panel="", curve="")
    keys = curve_key(curves.cells)
    names = curves.cells.sort_values("seed", kind="stable")
    names = names.drop_duplicates(["panel", "curve"])[[*keys, "panel", "curve"]]
    return laws.merge(names, on=keys)


def draw_goals(
    axis: Axes, cells: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws steps against the batch size, a line per `curve`: the goal in words."""
    style.log2_axis(axis, "x")
    style.log2_axis(axis, "y")
    draw_curves(axis, cells, ("batch_size", "steps"), line_styles, markersize=4.5)
    axis.set(xlabel="Batch size", ylabel="Steps to result")
    style.batch_ticks(axis, cells["batch_size"].tolist())


def draw_constant(axis: Axes, laws: pd.DataFrame, name: str) -> None:
    """Draws a constant of the law with its interval against the threshold of the goal.

    Columns of the table: threshold, and the constant with `_low` and `_high`.
    """
    axis.set_yscale("log")
    values = laws[name].to_numpy(float)
    bottom, top = values.min() / 4, values.max() * 4
    laws = laws.sort_values("threshold")
    # An open end runs off the axis.
    ends = (np.clip(laws[f"{name}_{end}"], bottom / 2, top * 2) for end in _ENDS)
    axis.vlines(laws["threshold"], *ends, color=style.INK, alpha=0.5)
    marks = style.joined_marks(LineStyle(style.INK, "o", "-"))
    axis.plot(laws["threshold"], laws[name], **marks)
    axis.set_ylim(bottom, top)
    axis.set(xlabel="Goal", ylabel=_CONSTANTS[name])
    style.log10_axis(axis, "y", most=6)


def _figures(
    laws: pd.DataFrame, cells: pd.DataFrame, curves: Curves
) -> list[Illustration]:
    """Returns a figure for each curve that has a fit at two goals or more."""
    found: list[Illustration] = []
    for (panel, curve), group in laws.groupby(["panel", "curve"], sort=False):
        if group["multiple"].nunique() < 2:
            continue
        exact = of_curve(cells[cells["low"] == cells["high"]], panel, curve)
        exact = first_seed(exact)
        shown = exact.assign(curve=[f"goal {t:g}" for t in exact["threshold"]])
        line_styles = style.sequential_styles(shown["curve"])
        with style.styled():
            figure = style.new_figure(7.6, 6.0)
            first, *others = figure.subplots(2, 2).flat
            draw_goals(first, shown.assign(steps=shown["low"]), line_styles)
            for axis, name in zip(others, _CONSTANTS, strict=True):
                draw_constant(axis, group, name)
            style.legend_below(figure, style.curve_handles(line_styles), columns=5)
        name = file_name("law_and_goal", curves.panel_title(panel), str(curve))
        figure_text = _figure_text(name, curves.title(panel, curve), group)
        found.append(illustration(figure, figure_text, folded=bool(found)))
    return found


def _figure_text(name: str, title: str, laws: pd.DataFrame) -> FigureText:
    listing = "; ".join(
        f"at {row['threshold']:g} c1 {number(row['c1'])} and c2 {number(row['c2'])}"
        for row in laws.to_dict("records")
    )
    return FigureText(
        name=name,
        title=f"K* and the law against the goal: {title}",
        caption=(
            "K* for looser goals, from the same records, where these decide it; then "
            "c1, c2 and c1/c2 of the fits, with their intervals, which leave the axis "
            "where they are open. Compare Shallue et al. 2019, Figure 2."
        ),
        alt=f"Line charts of K*, c1, c2 and c1/c2 for several goals: {listing}.",
    )


def range_text(row: Mapping[Any, Any]) -> SortableText:
    """Returns K* between `low` and `high` of a row, as far as it is known."""
    low, high = float(row["low"]), float(row["high"])
    if np.isinf(low):
        return SortableText("not reached", np.nan)
    return SortableText(steps(low) if low == high else interval(low, high), low)


def _goal_titles(frame: pd.DataFrame) -> dict[Any, str]:
    """Returns the title of the column of each goal, by its multiple of the own one."""
    thresholds = frame.groupby("multiple")["threshold"].agg(["min", "max"])
    return {
        multiple: f"K* at {low:g}" if low == high else f"K* at {multiple:g} times"
        for multiple, low, high in thresholds.itertuples()
    }


def _range_table(
    curves: Curves,
    frame: pd.DataFrame,
    name: str,
    caption: str,
    titles: Mapping[Any, str],
) -> PageTable:
    """Returns a row per cell, with a range of K* for each titled `multiple`.

    The K* that was recorded stands beside them unless 1 is a multiple.
    """
    named = curves.naming.name(frame)
    named = named.assign(cell=cell_names(named))
    rows = []
    for cell, group in named.groupby("cell", sort=False):
        known = number_text(group["steps_to_result"].iloc[0], steps)
        row: dict[str, Any] = {"cell": cell, "steps": known}
        for entry in group.to_dict("records"):
            row[f"at_{entry['multiple']:g}"] = range_text(entry)
        rows.append(row)
    columns = [Column("cell", "Cell")]
    columns += [] if 1 in titles else [Column("steps", "K*")]
    columns += [Column(f"at_{n:g}", title, _STEPS) for n, title in titles.items()]
    return page_table(name, caption, columns, rows)
