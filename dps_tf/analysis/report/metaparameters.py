"""Where trials meet the goal in the space: a figure per curve, a mark per trial."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import groups
from dps_tf.analysis.report.drawing import small_axes
from dps_tf.analysis.report.style import Axes, Figure
from dps_tf.analysis.tables import RowsByCell

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
        "color": style.MUTED,
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
    "markeredgecolor": style.INK,
    "markeredgewidth": 0.9,
}
_CONTOUR: dict[str, Any] = {"color": style.MUTED, "linewidth": 0.7}
_RASTER = 300
"""Trials beyond which an SVG holds marks as pixels, as it would grow too large."""
_COLUMNS = 3
_MOST = 12
"""Most cells of one curve that are shown; the files have all of them."""
_KINDS = {
    "complete": "reached",
    "censored": "out-run",
    "incomplete": "not reached",
    "infeasible": "infeasible",
    "failed": "failed",
}


def metaparameters_part(context: ReportContext) -> Part:
    """Returns a figure per curve with a panel per cell; the first figure is open."""
    curves, trials = context.curves, context.tables.bounded
    figures: list[Illustration] = []
    if "learning_rate" not in trials:
        return Part()
    columns = ["trial", "outcome", "steps_to_result", "end_step", "learning_rate"]
    columns += ["momentum"] if "momentum" in trials else []
    rows_of = RowsByCell(trials, curves.cells, columns)
    for key, cells in groups(curves):
        of_cells = [(cell, rows_of.of(cell)) for cell in cells.to_dict("records")]
        momentum = "momentum" in columns and any(
            rows["momentum"].nunique() > 1 for _, rows in of_cells
        )
        tables = [(cell, _table(rows, cell, momentum)) for cell, rows in of_cells]
        shown = [(int(cell["batch_size"]), t) for cell, t in tables if len(t) > 1]
        if shown:
            where = curves.title(key)
            figures.append(
                illustration(
                    _figure(shown, momentum),
                    curves.file_name("metaparameters", key),
                    f"Metaparameters of the trials: {where}",
                    folded=bool(figures),
                    **_texts(where, momentum, len(shown)),
                )
            )
    return Part(illustrations=figures)


def _figure(shown: list[tuple[int, pd.DataFrame]], momentum: bool) -> Figure:
    """Returns a figure with a panel per batch size and table, with shared axes."""
    together = pd.concat([table for _, table in shown])
    x, y = together["x"], together["y"]
    limits = x.min(), x.max(), y.min(), y.max()
    number = min(len(shown), _MOST)
    rows = -(-number // _COLUMNS)
    columns = min(_COLUMNS, number)
    with style.styled():
        figure = style.new_figure(7.6 * max(columns, 2) / _COLUMNS, 0.9 + 2.35 * rows)
        axes = small_axes(figure, number, columns, sharex=True, sharey=True)
        for position, (axis, (size, table)) in enumerate(
            zip(axes, shown[:number], strict=True)
        ):
            draw_trials(axis, table, limits=limits, contours=momentum)
            axis.set_title(f"Batch size {size}")
            is_lowest = position + columns >= number
            axis.set_xlabel("Learning rate" if is_lowest else "")
            axis.tick_params(axis="x", labelbottom=is_lowest, labelsize=9.5)
            label = "1 - momentum" if momentum else "Step at the end"
            axis.set_ylabel(label if position % columns == 0 else "")
            axis.tick_params(axis="y", labelsize=9.5)
        handles = _handles(set(together["kind"]), contours=momentum)
        style.legend_below(figure, handles, columns=4)
    return figure


def _table(trials: pd.DataFrame, cell: dict[Any, Any], momentum: bool) -> pd.DataFrame:
    """Returns what is drawn of each trial: x, y, kind, best."""
    if momentum:
        y = 1 - trials["momentum"].to_numpy(float)
    else:
        ends = trials["steps_to_result"].fillna(trials["end_step"])
        y = np.maximum(ends.to_numpy(float), 1)
    best = -1 if pd.isna(cell["best_trial"]) else int(cell["best_trial"])
    columns = {
        "x": trials["learning_rate"].to_numpy(float),
        "y": y,
        "kind": trials["outcome"].map(_KINDS).to_numpy(object),
        "best": trials["trial"].to_numpy() == best,
    }
    table = pd.DataFrame(columns)
    return table[(table["x"] > 0) & (table["y"] > 0)]


def draw_trials(
    axis: Axes,
    trials: pd.DataFrame,
    *,
    limits: tuple[float, float, float, float],
    contours: bool,
) -> None:
    """Draws the trials of a cell, rows of `_table`, on two logarithmic axes.

    The limits are the least and greatest x and y of all panels. With contours, y is
    1 - momentum and x the learning rate: x / y is the effective learning rate.
    """
    axis.set_xscale("log")
    axis.set_yscale("log")
    for kind, marks in CLASSES.items():
        rows = trials[trials["kind"] == kind]
        axis.plot(
            rows["x"],
            rows["y"],
            linestyle="none",
            zorder=3,
            rasterized=len(rows) > _RASTER,
            **marks,
        )
    best = trials[trials["best"]]
    axis.plot(best["x"], best["y"], linestyle="none", zorder=5, **_BEST)
    axis.set_xlim(limits[0] / 1.6, limits[1] * 1.6)
    axis.set_ylim(limits[2] / 1.6, limits[3] * 1.6)
    style.log10_axis(axis, "x", most=4)
    style.log10_axis(axis, "y", most=6)
    if contours:
        _contours(axis)


def _contours(axis: Axes) -> None:
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    lowest = np.ceil(np.log10(left / top))
    highest = np.floor(np.log10(right / bottom))
    for power in np.arange(lowest, highest + 1):
        rate = 10.0**power
        ends = np.array([left, right])
        axis.plot(ends, ends / rate, zorder=1, alpha=0.7, **_CONTOUR)
        # At the upper end of the line, inside the axes.
        x = min(right, rate * top) / 1.7
        if 6 * left < x:
            axis.annotate(
                style.spell(rate),
                (x, x / rate),
                fontsize=7.5,
                color=style.MUTED,
                ha="right",
                va="bottom",
                zorder=1,
            )
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, top)


def _handles(kinds: set[str], *, contours: bool) -> list[Any]:
    """Returns the legend of the kinds of trial that occur."""
    handles: list[Any] = [
        style.line_handle(kind, linestyle="none", **marks)
        for kind, marks in CLASSES.items()
        if kind in kinds
    ]
    if "reached" in kinds:
        handles.append(style.line_handle("best trial", linestyle="none", **_BEST))
    if contours:
        handles.append(style.line_handle("equal effective rate", **_CONTOUR))
    return handles


def _texts(where: str, momentum: bool, cells: int) -> dict[str, str]:
    """Returns caption, definition and alt of the figure of a curve."""
    vertical = (
        "1 - momentum; thin lines join equal effective learning rates lr / (1 - "
        "momentum), whose values stand at their ends"
        if momentum
        else "the step at which the trial met the goal, or at which its record ends"
    )
    left_out = f" The {cells - _MOST} largest batch sizes are not shown."
    return {
        "caption": (
            f"One mark per trial, a panel per batch size. Vertical axis: {vertical}. "
            "A star near an end of an axis says that the range should be widened."
            + (left_out if cells > _MOST else "")
        ),
        "definition": (
            "Filled circle: the goal was met. Small open circle: out-run, stopped "
            "because enough others had met the goal before it could (in an open study: "
            "not decided yet). Open square: it spent the step budget. Cross: it "
            "diverged. Plus: it failed. Star: the best trial."
        ),
        "alt": (
            f"Scatter plots, one per batch size, for {where}: learning rate against "
            + ("1 - momentum" if momentum else "the step at the end")
            + " of each trial, by outcome, with the best trial marked."
        ),
    }
