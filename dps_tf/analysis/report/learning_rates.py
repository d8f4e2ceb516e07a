"""The best learning rate against the batch size, beside the rates of two rules."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dps_tf.analysis.heuristics import WITHIN, best_rates, rules
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, first_seed
from dps_tf.analysis.report.drawing import two_abreast
from dps_tf.analysis.report.style import Axes, Figure, LineStyle, file_name
from dps_tf.analysis.tables import belongs
from dps_tf.analysis.wording import and_list, listed, number, percent, with_panel

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
    """Returns best rates beside the rates of rules, for the first seed of each curve.

    The part is empty where no learning rate was tuned or no curve has a K*.
    """
    curves, bounded = context.curves, context.tables.bounded
    if bounded.empty or "learning_rate" not in bounded:
        return Part()
    first = first_seed(context.tables.studies).reset_index(drop=True)
    group = bounded[belongs(bounded, first)]
    best = best_rates(first, group).dropna(subset="effective_learning_rate")
    named = curves.name(best), curves.name(rules(first, group))
    return Part((), learning_rate_figures(curves, *named))


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
                line_style = style.line_style_of(curves.line_styles, curve)
                draw_rates(axis, group, rule, line_style)
                axis.set_title(curve)
            style.legend_below(figure, _handles())
        figures.append(_illustrated(figure, curves.panel_title(panel), rows, lines))
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


def _illustrated(
    figure: Figure, panel: str, best: pd.DataFrame, by_rule: pd.DataFrame
) -> Illustration:
    anchors = and_list([str(size) for size in sorted(by_rule["anchor"].unique())])
    listing = listed(
        best,
        lambda row: f"{number(row['effective_learning_rate'])} at {row['batch_size']}",
    )
    return illustration(
        figure,
        file_name("learning_rate", panel),
        with_panel("Best effective learning rate", panel),
        caption=(
            "lr / (1 - momentum) of the best trial; the bar spans the trials that met "
            f"the goal within {percent(WITHIN)} of K*, and ends in arrows where trials "
            "that were stopped might belong to them. Grey: what the linear and the "
            f"square-root rule say, from the best rate at batch size {anchors}. The "
            "best rate of few trials is noisy."
        ),
        alt=f"Line charts of the best effective learning rate. {listing}.",
    )
