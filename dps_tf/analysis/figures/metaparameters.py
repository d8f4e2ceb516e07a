"""Where in the space do trials meet the goal? One mark per trial."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dps_tf.analysis.figures.style import INK, MUTED, log10_axis, spell

# Shapes differ, so that no class depends on its colour.
CLASSES: dict[str, dict[str, Any]] = {
    "reached": {"marker": "o", "color": "#0072B2", "markersize": 6},
    "out-run": {
        "marker": "o",
        "color": "#0072B2",
        "markerfacecolor": "white",
        "markersize": 4.5,
    },
    "not reached": {
        "marker": "s",
        "color": MUTED,
        "markerfacecolor": "white",
        "markersize": 5,
    },
    "infeasible": {
        "marker": "x",
        "color": "#D55E00",
        "markersize": 6,
        "markeredgewidth": 1.6,
    },
    "failed": {
        "marker": "+",
        "color": "#000000",
        "markersize": 7,
        "markeredgewidth": 1.6,
    },
}
_BEST: dict[str, Any] = {
    "marker": "*",
    "markersize": 15,
    "color": "#E69F00",
    "markeredgecolor": INK,
    "markeredgewidth": 0.9,
}
_RASTER = 300
"""Trials from which an SVG holds their marks as pixels: it would grow too large."""


def draw(
    axis: Axes,
    trials: pd.DataFrame,
    *,
    limits: tuple[float, float, float, float],
    contours: bool,
) -> None:
    """Draws the trials of a cell in two dimensions, both logarithmic.

    Args:
        axis: an empty axis; the caller labels it.
        trials: one row per trial: x, y (positive), kind (a key of CLASSES), best.
        limits: least and greatest x, least and greatest y of all panels.
        contours: whether y is 1 - momentum and x the learning rate, so that lines of
            equal x / y are lines of equal effective learning rate.
    """
    axis.set_xscale("log")
    axis.set_yscale("log")
    for kind, style in CLASSES.items():
        rows = trials[trials["kind"] == kind]
        axis.plot(
            rows["x"],
            rows["y"],
            linestyle="none",
            zorder=3,
            rasterized=len(rows) > _RASTER,
            **style,
        )
    best = trials[trials["best"]]
    axis.plot(best["x"], best["y"], linestyle="none", zorder=5, **_BEST)
    axis.set_xlim(limits[0] / 1.6, limits[1] * 1.6)
    axis.set_ylim(limits[2] / 1.6, limits[3] * 1.6)
    log10_axis(axis, "x", most=4)
    log10_axis(axis, "y", most=6)
    if contours:
        _contours(axis)


def _contours(axis: Axes) -> None:
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    lowest = np.ceil(np.log10(left / top))
    highest = np.floor(np.log10(right / bottom))
    for power in np.arange(lowest, highest + 1):
        rate = 10.0**power
        ends = np.array([left, right])
        axis.plot(ends, ends / rate, color=MUTED, linewidth=0.7, zorder=1, alpha=0.7)
        # At the upper end of the line, inside the axes.
        x = min(right, rate * top) / 1.7
        if 6 * left < x:
            axis.annotate(
                spell(rate),
                (x, x / rate),
                fontsize=7.5,
                color=MUTED,
                ha="right",
                va="bottom",
                zorder=1,
            )
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, top)


def legend_handles(kinds: set[str], *, contours: bool) -> list[Any]:
    """Returns the legend of the kinds of trial that occur."""
    handles: list[Any] = [
        Line2D([], [], linestyle="none", label=kind, **style)
        for kind, style in CLASSES.items()
        if kind in kinds
    ]
    if "reached" in kinds:
        handles.append(Line2D([], [], linestyle="none", label="best trial", **_BEST))
    if contours:
        line: dict[str, Any] = {"color": MUTED, "linewidth": 0.7}
        handles.append(Line2D([], [], label="equal effective rate", **line))
    return handles
