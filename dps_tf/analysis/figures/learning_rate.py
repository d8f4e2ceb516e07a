"""Does a rule predict the best learning rate? The effective rate of the best trial."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dps_tf.analysis.figures.style import (
    MUTED,
    LineStyle,
    batch_ticks,
    log2_axis,
    log10_axis,
    mark_style,
)

_RULES: dict[str, Any] = {"linear": (0, (6, 2)), "square_root": (0, (1, 1.6))}


def draw(axis: Axes, rates: pd.DataFrame, rules: pd.DataFrame, look: LineStyle) -> None:
    """Draws the best effective learning rate of a curve against the batch size.

    Args:
        axis: an empty axis.
        rates: one row per batch size: batch_size, rate (of the best trial), low and
            high (over the trials that did nearly as well), is_open (whether trials
            that were stopped might belong to them).
        rules: one row per rule and batch size: rule (`linear` or `square_root`),
            batch_size, rate.
        look: of the curve.
    """
    log2_axis(axis, "x")
    axis.set_yscale("log")
    for rule, rows in rules.groupby("rule", sort=False):
        rows = rows.sort_values("batch_size")
        axis.plot(
            rows["batch_size"],
            rows["rate"],
            color=MUTED,
            linewidth=1.1,
            linestyle=_RULES[str(rule)],
            zorder=1.5,
        )
    rates = rates.sort_values("batch_size")
    sizes = rates["batch_size"]
    axis.vlines(sizes, rates["low"], rates["high"], color=look.color, linewidth=1.4)
    axis.plot(
        sizes, rates["rate"], zorder=3, **{**mark_style(look), "linestyle": look.line}
    )
    still_open = rates[rates["is_open"]]
    for end, sign in (("low", "v"), ("high", "^")):
        axis.plot(
            still_open["batch_size"],
            still_open[end],
            color=look.color,
            marker=sign,
            markersize=3.5,
            linestyle="none",
        )
    axis.set(xlabel="Batch size", ylabel="Effective learning rate")
    log10_axis(axis, "y", most=7)
    batch_ticks(axis, sizes.tolist())


def legend_handles() -> list[Any]:
    """Returns the legend of the rules and of the spread."""
    handles: list[Any] = [
        Line2D(
            [],
            [],
            color=MUTED,
            linewidth=1.1,
            linestyle=line,
            label=f"{rule.replace('_', ' ')} rule",
        )
        for rule, line in _RULES.items()
    ]
    bar: dict[str, Any] = {"color": MUTED, "marker": "|", "markersize": 10}
    handles.append(
        Line2D([], [], linestyle="none", label="trials nearly as good", **bar)
    )
    return handles
