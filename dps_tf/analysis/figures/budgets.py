"""What error does a budget buy at each batch size?"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from dps_tf.analysis.figures.style import batch_ticks, log2_axis, looks, mark_style


def draw(axis: Axes, best: pd.DataFrame) -> None:
    """Draws the best value under each budget against the batch size.

    Args:
        axis: an empty axis; the caller labels its y axis.
        best: one row per budget and batch size: budget (its label), batch_size, value,
            is_exact (whether no trial that was stopped might have been better).
    """
    log2_axis(axis, "x")
    shown = looks([str(name) for name in best["budget"]])
    for budget, rows in best.groupby("budget", sort=False):
        look = shown[str(budget)]
        rows = rows.sort_values("batch_size")
        sizes, values = rows["batch_size"], rows["value"]
        axis.plot(sizes, values, color=look.color, linestyle=look.line)
        for exact, mine in rows.groupby("is_exact"):
            style = mark_style(look, hollow=not exact)
            axis.plot(mine["batch_size"], mine["value"], **style)
    axis.set(xlabel="Batch size")
    batch_ticks(axis, best["batch_size"].tolist())
