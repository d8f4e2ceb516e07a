"""Do the curves have one shape? K* divided by K* at a common batch size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dps_tf.analysis.figures.style import (
    MUTED,
    LineStyle,
    batch_ticks,
    fallback,
    log2_axis,
    mark_style,
)


def draw(axis: Axes, points: pd.DataFrame, looks: Mapping[str, LineStyle]) -> None:
    """Draws K*(B) / K*(B0) against B on log2 axes, with perfect scaling from B0.

    Args:
        axis: an empty axis.
        points: one row per curve and batch size: curve, batch_size, ratio, base (the
            batch size at which the ratio is 1).
        looks: look of each curve.
    """
    log2_axis(axis, "x")
    log2_axis(axis, "y")
    for curve, rows in points.groupby("curve", sort=False):
        look = fallback(looks, str(curve))
        rows = rows.sort_values("batch_size")
        style = {**mark_style(look), "linestyle": look.line}
        axis.plot(rows["batch_size"], rows["ratio"], **style, label=str(curve))
    low = float(points["ratio"].min()) / 1.5
    base = float(points["base"].iloc[0])
    sizes = points["batch_size"].to_numpy(float)
    grid = np.geomspace(sizes.min(), sizes.max(), 50)
    axis.plot(grid, base / grid, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2.5)))
    axis.set_ylim(low, float(points["ratio"].max()) * 1.5)
    axis.set(xlabel="Batch size", ylabel=f"Steps relative to batch size {base:g}")
    batch_ticks(axis, points["batch_size"].tolist())
