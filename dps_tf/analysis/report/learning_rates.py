"""Would a rule for the learning rate have found what the search found?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.heuristics import DISTANCE, RULES, WITHIN, best_rates, rules
from dps_tf.analysis.loading import Tables
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
from dps_tf.analysis.report.curves import Curves, first_seed
from dps_tf.analysis.report.drawing import two_abreast
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.wording import (
    and_list,
    listed,
    number,
    percent,
    steps,
    with_panel,
)
from dps_tf.core import UserError

_LEAST_SIZES = 2
_RULE_LINES: dict[str, dict[str, Any]] = {
    "linear": {"color": style.MUTED, "linewidth": 1.1, "linestyle": (0, (6, 2))},
    "square_root": {"color": style.MUTED, "linewidth": 1.1, "linestyle": (0, (1, 1.6))},
}
_SPREAD: dict[str, Any] = {
    "linestyle": "none",
    "color": style.MUTED,
    "marker": "|",
    "markersize": 10,
}


def learning_rates_part(context: ReportContext) -> Part:
    """Returns best rates beside those of rules, and what the rules would have given."""
    curves = context.curves
    best, by_rule = rates_of(curves, context.tables, context.options.anchor)
    table = rule_table(curves, by_rule)
    figures = learning_rate_figures(curves, best, by_rule)
    return Part((), figures, () if table is None else (table,))


def rates_of(
    curves: Curves, tables: Tables, anchor: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns best rates and rules of the curves, of the first seed of each, named.

    Both are empty where no learning rate was tuned or no curve has a K*. Rules start
    from the anchor, by default the smallest batch size with a K*.

    Raises:
        UserError: an anchor at which no curve has a K*.
    """
    none = pd.DataFrame(), pd.DataFrame()
    bounded = tables.bounded
    if bounded.empty or "learning_rate" not in bounded:
        return none
    first = first_seed(tables.studies).reset_index(drop=True)
    group = bounded[bounded["seed"] == first["seed"].iloc[0]]
    try:
        by_rule = rules(first, group, anchor)
    except UserError:
        if anchor is not None:
            raise
        # Nobody reached the goal: there is no best rate to start a rule from.
        return none
    best = best_rates(first, group).dropna(subset="effective_learning_rate")
    return curves.naming.name(best), curves.naming.name(by_rule)


def learning_rate_figures(
    curves: Curves, best: pd.DataFrame, by_rule: pd.DataFrame
) -> list[Illustration]:
    """Returns a figure per panel: a picture per curve with two batch sizes or more."""
    figures: list[Illustration] = []
    if best.empty:
        return figures
    for panel, rows in best.groupby("panel", sort=False):
        parts = [
            (str(curve), group)
            for curve, group in rows.groupby("curve", sort=False)
            if len(group) >= _LEAST_SIZES
        ]
        if not parts:
            continue
        lines = by_rule[by_rule["panel"] == panel]
        with style.styled():
            figure, axes = two_abreast(len(parts), 3.1, sharey=True)
            for axis, (curve, group) in zip(axes, parts, strict=True):
                rule = lines[lines["curve"] == curve]
                line_style = style.line_style_of(curves.naming.line_styles, curve)
                draw_rates(axis, group, rule, line_style)
                axis.set_title(curve)
            style.legend_below(figure, _handles())
        figure_text = _figure_text(curves.panel_title(panel), rows, lines)
        figures.append(illustration(figure, figure_text))
    return figures


def draw_rates(
    axis: Axes, rates: pd.DataFrame, rules: pd.DataFrame, line_style: LineStyle
) -> None:
    """Draws the best effective learning rate of a curve against the batch size.

    The rates are rows of `best_rates`, the rules of `heuristics.rules`.
    """
    style.log2_axis(axis, "x")
    axis.set_yscale("log")
    for rule, rows in rules.groupby("rule", sort=False):
        rows = rows.sort_values("batch_size")
        line = {**_RULE_LINES[str(rule)], "zorder": 1.5}
        axis.plot(rows["batch_size"], rows["rule_rate"], **line)
    rates = rates.sort_values("batch_size")
    sizes = rates["batch_size"]
    low, high = rates["effective_low"], rates["effective_high"]
    axis.vlines(sizes, low, high, color=line_style.color, linewidth=1.4)
    best = rates["effective_learning_rate"]
    axis.plot(sizes, best, **style.joined_marks(line_style, zorder=3))
    still_open = rates[rates["spread_open"]]
    for end, sign in (("effective_low", "v"), ("effective_high", "^")):
        arrow = {"marker": sign, "markersize": 3.5, "linestyle": "none"}
        sizes_open = still_open["batch_size"]
        axis.plot(sizes_open, still_open[end], color=line_style.color, **arrow)
    axis.set(xlabel="Batch size", ylabel="Effective learning rate")
    style.log10_axis(axis, "y", most=7)
    style.batch_ticks(axis, sizes.tolist())


def _handles() -> list[Any]:
    """Returns the legend of the rules and of the spread."""
    rule_handles = [
        style.line_handle(f"{rule.replace('_', ' ')} rule", **line)
        for rule, line in _RULE_LINES.items()
    ]
    return [*rule_handles, style.line_handle("trials nearly as good", **_SPREAD)]


def _figure_text(panel: str, best: pd.DataFrame, by_rule: pd.DataFrame) -> FigureText:
    anchors = and_list([str(size) for size in sorted(by_rule["anchor"].unique())])
    listing = listed(
        best,
        "curve",
        lambda row: f"{number(row['effective_learning_rate'])} at {row['batch_size']}",
    )
    return FigureText(
        name=file_name("learning_rate", panel),
        title=with_panel("Best effective learning rate", panel),
        caption=(
            "lr / (1 - momentum) of the best trial; the bar spans the trials that met "
            f"the goal within {percent(WITHIN)} of K*, and ends in arrows where trials "
            "that were stopped might belong to them. Grey: what the linear and the "
            f"square-root rule say, from the best rate at batch size {anchors}. An "
            "argmin over few trials is noisy."
        ),
        alt=f"Line charts of the best effective learning rate. {listing}.",
    )


def rule_table(curves: Curves, by_rule: pd.DataFrame) -> PageTable | None:
    """Returns what K* each rule would have given, or None without any rule."""
    if by_rule.empty:
        return None
    beyond = by_rule[by_rule["batch_size"] != by_rule["anchor"]]
    keys = ["panel", "curve", "batch_size"]
    rows = []
    for (panel, curve, size), cell in beyond.groupby(keys, sort=False):
        title = curves.title(panel, curve)
        row: dict[str, Any] = {"curve": title, "batch_size": size}
        for entry in cell.to_dict("records"):
            row[f"{entry['rule']}_rate"] = number_text(entry["rule_rate"])
            row[f"{entry['rule']}_steps"] = _steps(entry)
        rows.append(row)
    if not rows:
        return None
    columns = [Column("curve", "Curve"), Column("batch_size", "Batch size")]
    of_nearest = (
        "Steps to result of the measured trial nearest to that rate, at most "
        f"{DISTANCE:g} octaves away, and how many times K* it is."
    )
    for rule in RULES:
        title = rule.replace("_", " ").capitalize()
        columns.append(Column(f"{rule}_rate", f"{title}: rate", "What the rule says."))
        columns.append(Column(f"{rule}_steps", f"{title}: steps", of_nearest))
    caption = "What rules for the learning rate would have given"
    return page_table("rules", caption, columns, rows)


def _steps(entry: Any) -> SortableText:
    if pd.isna(entry["nearest_trial"]):
        return SortableText("no trial near", np.nan)
    if pd.isna(entry["steps_to_result"]):
        bound = str(entry["steps_bound"])
        return SortableText(bound or str(entry["outcome"]), np.nan)
    value = float(entry["steps_to_result"])
    over = entry["over_best"]
    times = f" ({number(float(over))} K*)" if pd.notna(over) else ""
    return SortableText(f"{steps(value)}{times}", value)
