"""Which batch size is fastest, and which cheapest?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from dps_tf.analysis.figures.style import (
    INK,
    LineStyle,
    batch_ticks,
    fallback,
    log2_axis,
    log10_axis,
    mark_style,
)

_BEST: dict[str, Any] = {
    "marker": "o",
    "markersize": 14,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 1.4,
    "linestyle": "none",
}


def draw(axis: Axes, curves: pd.DataFrame, looks: Mapping[str, LineStyle]) -> None:
    """Draws a quantity of time or money against the batch size, the least ringed.

    Args:
        axis: an empty axis; the caller labels its y axis.
        curves: one row per curve and batch size: curve, batch_size, value, is_least.
        looks: look of each curve.
    """
    log2_axis(axis, "x")
    axis.set_yscale("log")
    for curve, rows in curves.groupby("curve", sort=False):
        look = fallback(looks, str(curve))
        rows = rows.sort_values("batch_size")
        style = {**mark_style(look), "linestyle": look.line}
        axis.plot(rows["batch_size"], rows["value"], **style)
        least = rows[rows["is_least"]]
        axis.plot(least["batch_size"], least["value"], **_BEST)
    log10_axis(axis, "y")
    axis.set(xlabel="Batch size")
    batch_ticks(axis, curves["batch_size"].tolist())
