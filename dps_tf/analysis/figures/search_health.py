"""How did the trials of each cell end?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dps_tf.analysis.figures.style import INK

# Hatches differ, so that no outcome depends on its colour.
OUTCOMES: dict[str, dict[str, Any]] = {
    "complete": {"facecolor": "#0072B2"},
    "censored": {"facecolor": "#BFDDF0"},
    "incomplete": {"facecolor": "#FFFFFF", "hatch": "...."},
    "infeasible": {"facecolor": "#F3C9AC", "hatch": "xxxx"},
    "failed": {"facecolor": "#000000"},
}


def draw(axis: Axes, cells: pd.DataFrame) -> None:
    """Draws one stacked bar per cell: its trials by outcome.

    Args:
        axis: an empty axis.
        cells: one row per cell, top to bottom: label, note, complete, censored,
            incomplete, infeasible, failed (numbers of trials).
    """
    places = np.arange(len(cells))
    start = np.zeros(len(cells))
    for outcome, style in OUTCOMES.items():
        counts = cells[outcome].to_numpy(float)
        some = counts > 0
        axis.barh(
            places[some],
            counts[some],
            left=start[some],
            height=0.72,
            edgecolor=INK,
            linewidth=0.5,
            **style,
        )
        start = start + counts
    axis.set_yticks(places, labels=[str(label) for label in cells["label"]])
    for place, total, note in zip(places, start, cells["note"], strict=True):
        axis.annotate(
            str(note),
            (total, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            fontweight="bold",
        )
    axis.set_ylim(len(cells) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="Trials", ylabel="Batch size")


def legend_handles() -> list[Any]:
    """Returns the legend of the outcomes."""
    return [
        Patch(edgecolor=INK, linewidth=0.5, label=outcome, **style)
        for outcome, style in OUTCOMES.items()
    ]
