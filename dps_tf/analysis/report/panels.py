"""Small pictures side by side: one per cell of a curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dps_tf.analysis.figures.style import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
MOST = 12
"""Cells of one curve that are shown; further ones are left to the files."""
_WIDTH = 7.6
_ROW = 2.35

Table = TypeVar("Table")


def draw_panels(
    shown: Sequence[tuple[int, Table]],
    draw: Callable[[Axes, Table], Any],
    labels: tuple[str, str],
) -> Figure:
    """Returns a figure with a panel per batch size, all on the same axes.

    Args:
        shown: batch size and table of each panel, at most MOST.
        draw: draws a table onto an axis.
        labels: of the x and the y axis.
    """
    rows = -(-len(shown) // COLUMNS)
    columns = min(COLUMNS, len(shown))
    figure = new_figure(_WIDTH * max(columns, 2) / COLUMNS, 0.9 + _ROW * rows)
    axes = list(
        figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    )
    for axis, (size, table) in zip(axes, shown, strict=False):
        draw(axis, table)
        axis.set_title(f"Batch size {size}")
    for place, axis in enumerate(axes):
        is_lowest = place + columns >= len(shown)
        axis.set_xlabel(labels[0] if is_lowest else "")
        axis.tick_params(axis="x", labelbottom=is_lowest, labelsize=9.5)
        axis.set_ylabel(labels[1] if place % columns == 0 else "")
        axis.tick_params(axis="y", labelsize=9.5)
        axis.set_visible(place < len(shown))
    return figure


def left_out(number: int) -> str:
    """Returns the sentence about cells that are not shown, or nothing."""
    if number <= MOST:
        return ""
    return f" The {number - MOST} largest batch sizes are not shown."
