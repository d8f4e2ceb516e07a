"""Does a rule predict the best learning rate? The effective rate of the best trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dps_tf.analysis.figures.style import (
    MUTED,
    Look,
    batch_ticks,
    fallback,
    log2_axis,
    log10_axis,
    mark_style,
)

RULES: dict[str, Any] = {"linear": (0, (6, 2)), "square root": (0, (1, 1.6))}


def draw(
    axis: Axes, rates: pd.DataFrame, rules: pd.DataFrame, looks: Mapping[str, Look]
) -> None:
    """Draws the best effective learning rate against the batch size.

    Args:
        axis: an empty axis.
        rates: one row per curve and batch size: curve, batch_size, rate (of the best
            trial), low and high (over the trials that met the goal; NaN if unknown).
        rules: one row per curve, rule and batch size: curve, rule (a key of RULES),
            batch_size, rate.
        looks: look of each curve.
    """
    log2_axis(axis, "x")
    for (_, rule), rows in rules.groupby(["curve", "rule"], sort=False):
        rows = rows.sort_values("batch_size")
        axis.plot(
            rows["batch_size"],
            rows["rate"],
            color=MUTED,
            linewidth=1.0,
            linestyle=RULES[str(rule)],
            zorder=1.5,
        )
    for curve, rows in rates.groupby("curve", sort=False):
        look = fallback(looks, str(curve))
        rows = rows.sort_values("batch_size")
        bars = rows.dropna(subset=["low", "high"])
        axis.vlines(
            bars["batch_size"],
            bars["low"],
            bars["high"],
            color=look.color,
            linewidth=1.2,
            alpha=0.6,
            zorder=2,
        )
        style = {**mark_style(look), "linestyle": look.line}
        axis.plot(rows["batch_size"], rows["rate"], **style, zorder=3)
    axis.set(xlabel="Batch size", ylabel="Effective learning rate")
    log10_axis(axis, "y")
    batch_ticks(axis, rates["batch_size"].tolist())


def rule_handles() -> list[Any]:
    """Returns the legend of the rules."""
    return [
        Line2D([], [], color=MUTED, linewidth=1.0, linestyle=line, label=f"{rule} rule")
        for rule, line in RULES.items()
    ]
