"""Would a rule for the learning rate have found what the search found?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import learning_rate as drawing
from dps_tf.analysis.figures.style import fallback, legend_below, new_figure, styled
from dps_tf.analysis.heuristics import DISTANCE, RULES, WITHIN, best_rates, rules
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    SortableText,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, place_of
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.wording import and_list, number, percent, steps
from dps_tf.core.errors import UserError

_COLUMNS = 2
_LEAST_SIZES = 2


def rates_of(
    curves: Curves,
    studies: pd.DataFrame,
    bounded: pd.DataFrame,
    anchor: int | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns best rates and rules of the curves, of the first seed of each, named.

    Both are empty where no learning rate was tuned or no curve has a K*.

    Args:
        curves: of the report.
        studies: one row per cell.
        bounded: trials with bounds.
        anchor: batch size that rules start from; the smallest with a K* by default.

    Raises:
        UserError: an anchor at which no curve has a K*.
    """
    none = pd.DataFrame(), pd.DataFrame()
    if bounded.empty or "learning_rate" not in bounded:
        return none
    first = studies[studies["seed"] == studies["seed"].min()].reset_index(drop=True)
    mine = bounded[bounded["seed"] == studies["seed"].min()]
    try:
        by_rule = rules(first, mine, anchor)
    except UserError:
        if anchor is not None:
            raise
        # Nobody reached the goal: there is no best rate to start a rule from.
        return none
    best = best_rates(first, mine).dropna(subset="effective_learning_rate")
    return curves.naming.name(best), curves.naming.name(by_rule)


def learning_rate_figures(
    curves: Curves, best: pd.DataFrame, by_rule: pd.DataFrame
) -> list[Illustration]:
    """Returns a figure per panel: a picture per curve.

    Args:
        curves: of the report.
        best: see `rates_of`.
        by_rule: see `rates_of`.
    """
    figures: list[Illustration] = []
    if best.empty:
        return figures
    for panel, rows in best.groupby("panel", sort=False):
        parts = [
            (str(curve), mine)
            for curve, mine in rows.groupby("curve", sort=False)
            if len(mine) >= _LEAST_SIZES
        ]
        if not parts:
            continue
        lines = by_rule[by_rule["panel"] == panel]
        columns = min(_COLUMNS, len(parts))
        height = -(-len(parts) // columns)
        with styled():
            figure = new_figure(7.6 if columns > 1 else 6.2, 0.6 + 3.1 * height)
            axes = figure.subplots(height, columns, squeeze=False, sharey=True).flat
            for axis, (curve, mine) in zip(axes, parts, strict=False):
                rule = lines[lines["curve"] == curve].rename(
                    columns={"rule_rate": "rate"}
                )
                look = fallback(curves.naming.looks, curve)
                drawing.draw(axis, _drawn(mine), rule, look)
                axis.set_title(curve)
            for axis in list(axes)[len(parts) :]:
                axis.set_visible(False)
            legend_below(figure, drawing.legend_handles())
        figures.append(illustration(figure, _words(curves, str(panel), rows, lines)))
    return figures


def _drawn(best: pd.DataFrame) -> pd.DataFrame:
    names = {
        "effective_learning_rate": "rate",
        "effective_low": "low",
        "effective_high": "high",
        "spread_open": "is_open",
    }
    return best.rename(columns=names)


def _words(
    curves: Curves, panel: str, best: pd.DataFrame, by_rule: pd.DataFrame
) -> FigureText:
    several = len(curves.naming.panels) > 1
    anchors = and_list([str(size) for size in sorted(by_rule["anchor"].unique())])
    told = "; ".join(
        f"{curve}: "
        + ", ".join(
            f"{number(row['effective_learning_rate'])} at {row['batch_size']}"
            for row in rows.sort_values("batch_size").to_dict("records")
        )
        for curve, rows in best.groupby("curve", sort=False)
    )
    return FigureText(
        name=file_name("learning_rate", panel if several else ""),
        title=f"Best effective learning rate{f': {panel}' if several else ''}",
        caption=(
            "lr / (1 - momentum) of the best trial; the bar spans the trials that met "
            f"the goal within {percent(WITHIN)} of K*, and ends in arrows where trials "
            "that were stopped might belong to them. Grey: what the linear and the "
            f"square-root rule say, from the best rate at batch size {anchors}. An "
            "argmin over few trials is noisy."
        ),
        alt=f"Line charts of the best effective learning rate. {told}.",
    )


def rule_table(curves: Curves, by_rule: pd.DataFrame) -> PageTable | None:
    """Returns what K* each rule would have given, or None without any rule.

    Args:
        curves: of the report.
        by_rule: see `rates_of`.
    """
    if by_rule.empty:
        return None
    beyond = by_rule[by_rule["batch_size"] != by_rule["anchor"]]
    keys = ["panel", "curve", "batch_size"]
    rows = []
    for (panel, curve, size), cell in beyond.groupby(keys, sort=False):
        row: dict[str, Any] = {
            "curve": place_of(curves, str(panel), str(curve)),
            "batch_size": size,
        }
        for entry in cell.to_dict("records"):
            row[f"{entry['rule']}_rate"] = _rate(entry["rule_rate"])
            row[f"{entry['rule']}_steps"] = _steps(entry)
        rows.append(row)
    if not rows:
        return None
    columns = [Column("curve", "Curve"), Column("batch_size", "Batch size")]
    for rule in RULES:
        title = rule.replace("_", " ").capitalize()
        columns.append(Column(f"{rule}_rate", f"{title}: rate", "What the rule says."))
        columns.append(
            Column(
                f"{rule}_steps",
                f"{title}: steps",
                "Steps to result of the measured trial nearest to that rate, at most "
                f"{DISTANCE:g} octaves away, and how many times K* it is.",
            )
        )
    frame = pd.DataFrame(rows, columns=[column.name for column in columns])
    caption = "What rules for the learning rate would have given"
    return PageTable("rules", caption, tuple(columns), frame)


def _rate(value: float) -> SortableText:
    return SortableText(number(float(value)), float(value))


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
