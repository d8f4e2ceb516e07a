"""Would fewer trials have found the same K*? The best of n redrawn trials."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dps_tf.analysis.figures.style import MUTED, LineStyle, log2_axis, log10_axis


def draw(axis: Axes, quantiles: pd.DataFrame, *, look: LineStyle, top: float) -> None:
    """Draws the median and the interval of the best of n trials of one cell.

    Where a quantile lies beyond the last trial that is known to have met the goal, it
    is open: the median is not drawn there, and the band runs off the axis.

    Args:
        axis: an empty axis.
        quantiles: one row per n: n, median, low, high (multiples of K*); infinite
            where open.
        look: look of the curve that the cell belongs to.
        top: upper end of the axis, at least 1.
    """
    log2_axis(axis, "x")
    rows = quantiles.sort_values("n")
    n = rows["n"].to_numpy(float)
    values = rows[["low", "median", "high"]].to_numpy(float)
    low, median, high = np.minimum(values, 8 * top).T
    axis.fill_between(
        n, low, high, step="post", color=look.color, alpha=0.18, linewidth=0
    )
    # The edges carry the band in print, where its tint may be lost.
    for edge in (low, high):
        axis.step(n, edge, where="post", color=look.color, linewidth=0.7)
    drawn = np.where(np.isfinite(values[:, 1]), median, np.nan)
    axis.step(n, drawn, where="post", color=look.color, linewidth=2.2, zorder=3)
    axis.axhline(1.0, color=MUTED, linewidth=0.8)
    axis.set_xlim(1, max(2.0, n.max()))
    axis.set_ylim(0.93, top)
    log10_axis(axis, "y", most=5)
