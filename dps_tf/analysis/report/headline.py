"""The headline figure: K* against the batch size, with law and regimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from dps_tf.analysis.figures import saving
from dps_tf.analysis.figures import steps_to_result as drawing
from dps_tf.analysis.figures.style import legend_below, new_figure, styled
from dps_tf.analysis.report.content import (
    FigureText,
    Illustration,
    Tooltip,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, fit_lines
from dps_tf.analysis.report.wording import and_list, count, percent, steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "steps_to_result"
"""File name of the headline figure, without suffix."""

_WIDTH = 6.9
_NARROW = 4.6
"""Inches, shown on phones: text stays as large as that of the page."""
_ROW = 0.24
"""Inches per curve in the strip of regimes."""


def headline(curves: Curves, regimes: pd.DataFrame) -> Illustration:
    """Returns the headline figure of all panels.

    Args:
        curves: points and fits.
        regimes: see `regime_table.regimes_of`.
    """
    narrow, _ = _drawn(curves, regimes, 1, _NARROW)
    figure, axes = _drawn(curves, regimes, 2, _WIDTH)
    with styled():
        figure.canvas.draw()
    return illustration(
        figure,
        _words(curves, regimes),
        spots=_spots(figure, axes, curves),
        narrow=saving.svg(narrow),
    )


def _drawn(
    curves: Curves, regimes: pd.DataFrame, most_columns: int, width: float
) -> tuple[Figure, dict[str, Axes]]:
    """Returns the figure, and the axes of each panel.

    Args:
        curves: points and fits.
        regimes: see `regime_table.regimes_of`.
        most_columns: panels side by side.
        width: of a single panel, in inches.
    """
    panels = [name for name in curves.naming.panels if len(curves.panel(name))]
    panels = panels or curves.naming.panels[:1]
    columns = min(most_columns, len(panels))
    rows = -(-len(panels) // columns)
    deepest = int(regimes.groupby("panel").size().max()) if len(regimes) else 0
    height = 0.78 * width + (0.5 + _ROW * deepest if deepest else 0)
    handles = _handles(curves, regimes)
    axes = {}
    with styled():
        # Two panels share what a single one leaves free at its sides.
        figure = new_figure(width * (1 if columns == 1 else 1.7), height * rows)
        grid = figure.subfigures(rows, columns, squeeze=False).flat
        for panel, part in zip(panels, grid, strict=False):
            strip = regimes[regimes["panel"] == panel]
            axes[panel] = _panel(part, curves, panel, strip)
            if len(panels) > 1:
                axes[panel].set_title(panel)
        legend_below(figure, handles, columns=3 if width > _NARROW else 2)
    return figure, axes


def _panel(part: Figure, curves: Curves, panel: str, regimes: pd.DataFrame) -> Axes:
    points = curves.panel(panel)
    shown = curves.naming.looks
    if regimes.empty:
        axis = part.subplots()
    else:
        strip_height = 0.35 + _ROW * len(regimes)
        axis, strip = part.subplots(
            2, 1, sharex=True, height_ratios=[5.0, strip_height]
        )
    drawing.draw(axis, points, fit_lines(curves, panel), shown)
    if not regimes.empty:
        drawing.draw_regimes(strip, regimes, shown)
        axis.set_xlabel("")
    return axis


def _handles(curves: Curves, regimes: pd.DataFrame) -> list[object]:
    names = list(dict.fromkeys(curves.points["curve"]))
    return drawing.legend_handles(
        curves.naming.looks_of(names),
        scaled=is_scaled(curves),
        fitted=bool(curves.fits),
        bounded=bool((curves.points["bound"] != "").any()),
        regimes=not regimes.empty,
    )


def is_scaled(curves: Curves) -> bool:
    """Returns whether any curve has several batch sizes."""
    sizes = curves.points.groupby(["panel", "curve"])["batch_size"].nunique()
    return bool((sizes > 1).any())


def _spots(figure: Figure, axes: dict[str, Axes], curves: Curves) -> list[Tooltip]:
    """Returns a spot per point, where the point lies in the drawn figure."""
    size = figure.bbox
    spots = []
    for panel, axis in axes.items():
        for row in curves.panel(panel).to_dict("records"):
            place = (row["batch_size"], row["steps_to_result"])
            x, y = axis.transData.transform(place)
            left, top = x / size.width, 1 - y / size.height
            # Rounded, so that the page has the same bytes on every machine.
            spots.append(Tooltip(round(left, 4), round(top, 4), _told(pd.Series(row))))
    return spots


def _told(row: pd.Series) -> str:
    start = f"{row['curve']}, batch size {row['batch_size']}: "
    if row["bound"] == ">=":
        return f"{start}at least {steps(row['steps_to_result'])} steps"
    if row["bound"] == "<=":
        return f"{start}at most {steps(row['high'])} steps"
    if row["repeats"] > 1:
        ends = f"{steps(row['low'])} to {steps(row['high'])}"
        return (
            f"{start}median of {row['repeats']} seeds "
            f"{steps(row['steps_to_result'])} steps, {ends}"
        )
    ends = f"after {steps(row['low'])}, at or before {steps(row['high'])}"
    return f"{start}goal met {ends} steps"


def _words(curves: Curves, regimes: pd.DataFrame) -> FigureText:
    return FigureText(
        name=NAME,
        title="Steps to result against batch size",
        caption=_caption(curves, regimes),
        alt=_alt(curves),
    )


def _caption(curves: Curves, regimes: pd.DataFrame) -> str:
    goals = list(dict.fromkeys(curves.cells["goal"]))
    repeated = bool((curves.points["repeats"] > 1).any())
    bar = (
        "bars run from the least to the greatest K* over study seeds, the mark is "
        "their median"
        if repeated
        else "the bar below a mark is its bracket: the goal was met after the "
        "evaluation at its lower end and at or before the one at its upper end"
    )
    parts = [
        f"K*, the steps that the best of a study's trials needs to reach the goal "
        f"({and_list(goals)}), on log2 axes; {bar}.",
    ]
    parts.append(curves.best_of())
    if is_scaled(curves):
        parts.append(
            "Dotted lines: perfect scaling from each curve's smallest batch size "
            "(twice the batch, half the steps)."
        )
    if curves.fits:
        level = next(iter(curves.fits.values())).level
        parts.append(
            "Curves: c1/B + c2 fitted unweighted to log K*, each K* known to lie in "
            f"its bracket, with its {percent(level)} band."
        )
    if (curves.points["bound"] != "").any():
        parts.append(
            "Hollow marks with an arrow are bounds: the records do not say more."
        )
    if not regimes.empty:
        parts.append(str(regimes["definition"].iloc[0]))
    return " ".join(part for part in parts if part)


def _alt(curves: Curves) -> str:
    parts = []
    for (panel, curve), rows in curves.points.groupby(["panel", "curve"], sort=False):
        exact = rows[rows["bound"] == ""].sort_values("batch_size")
        where = f"{panel}, {curve}" if len(curves.naming.panels) > 1 else str(curve)
        if exact.empty:
            parts.append(f"{where}: only bounds are known")
            continue
        told = [
            f"{steps(row['steps_to_result'])} at {row['batch_size']}"
            for row in exact.to_dict("records")
        ]
        parts.append(f"{where}: {and_list(told)}")
    number = count(len(parts), "curve")
    return f"Line chart of steps to result against batch size, {number}. " + (
        "; ".join(parts) + "." if parts else "No cell has a result."
    )
