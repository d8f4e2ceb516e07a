"""How do one's own curves lie beside published ones?"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dps_tf.analysis.figures.style import LINES, MARKERS, MUTED

# From the far end of the lists, so that they differ from the curves they lie behind.
_MARKERS = MARKERS[::-1]
_LINES = LINES[::-1]


def draw(axis: Axes, published: pd.DataFrame) -> None:
    """Draws published curves in grey behind one's own, on the same axes.

    Args:
        axis: an axis that holds K* against the batch size.
        published: one row per curve and batch size: curve, batch_size,
            steps_to_result.
    """
    for place, (_, rows) in enumerate(published.groupby("curve", sort=False)):
        rows = rows.sort_values("batch_size")
        axis.plot(rows["batch_size"], rows["steps_to_result"], **_style(place))
    axis.relim()
    axis.autoscale(enable=True)


def legend_handles(published: pd.DataFrame) -> list[Any]:
    """Returns the legend of the published curves."""
    names = list(dict.fromkeys(published["curve"]))
    return [
        Line2D([], [], **_style(place), label=str(name))
        for place, name in enumerate(names)
    ]


def _style(place: int) -> dict[str, Any]:
    return {
        "color": MUTED,
        "linewidth": 1.0,
        "linestyle": _LINES[place % len(_LINES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 4.5,
        "markerfacecolor": "white",
        "zorder": 2,
    }
