"""How did the best trial of a cell come to its goal? The record of its evaluations."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from dps_tf.analysis.figures.style import INK, LineStyle, fallback, log10_axis


def draw(
    axis: Axes, curves: pd.DataFrame, goal: float, looks: Mapping[str, LineStyle]
) -> None:
    """Draws a metric against the step, with the goal as a horizontal line.

    Args:
        axis: an empty axis; the caller labels its y axis.
        curves: one row per curve and evaluation: curve, step, value.
        goal: threshold of the metric.
        looks: look of each curve.
    """
    for curve, rows in curves.groupby("curve", sort=False):
        look = fallback(looks, str(curve))
        rows = rows.sort_values("step")
        axis.plot(
            rows["step"],
            rows["value"],
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            markevery=[len(rows) - 1],
            label=str(curve),
        )
    axis.axhline(goal, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    axis.annotate(
        f"goal {goal:g}",
        (0.0, goal),
        xycoords=("axes fraction", "data"),
        xytext=(3, 3),
        textcoords="offset points",
        ha="left",
        fontsize=9,
    )
    values = curves["value"]
    if (values > 0).all() and values.max() > 20 * values.min():
        log10_axis(axis, "y")
    log10_axis(axis, "x")
    axis.set(xlabel="Step")
