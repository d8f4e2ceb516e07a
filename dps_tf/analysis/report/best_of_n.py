"""Would fewer trials have found the same K*? A figure per panel, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    FigureText,
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, RowsByCell, groups
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.search_health import (
    best_of_n,
    exchangeable,
    mass_on_minimum,
)
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import percent, with_panel

_QUANTILES = (0.1, 0.5, 0.9)
_MOST_DRAWS = 60
"""Values of n that are drawn: more lie closer than a line is wide."""
_SIZES = 3
"""Batch sizes drawn of each curve: the ends and the middle of those with a K*."""

Quantiles = list[tuple[int, pd.DataFrame]]
"""Batch sizes of one curve, each with a table of `_quantiles`."""


def best_of_n_part(context: ReportContext) -> Part:
    """Returns a figure per panel: a row per curve, three of its batch sizes."""
    curves, tables = context.curves, context.tables
    bounded = exchangeable(tables.bounded, tables.studies)
    adaptive = len(bounded) < len(tables.bounded)
    figures: list[Illustration] = []
    rows_of = RowsByCell(bounded, curves.cells, ["earliest", "latest"])
    for panel in curves.naming.panels:
        rows: list[tuple[str, Quantiles]] = []
        trials = 0
        for where, curve, cells in groups(curves):
            if where != panel:
                continue
            reached = cells[cells["steps_to_result"].notna()]
            shown = []
            for cell in reached.iloc[_ends_and_middle(len(reached))].to_dict("records"):
                mine = rows_of.of(cell)
                if len(mine) > 1:
                    shown.append((int(cell["batch_size"]), _quantiles(mine)))
                    trials = max(trials, len(mine))
            if shown:
                rows.append((curve, shown))
        if rows:
            figures.append(_figure(curves, panel, rows, trials))
    text = (
        "Trials that an oracle chose after those before them are no sample that could "
        "be redrawn: the best of n is not shown for them.",
    )
    return Part(paragraphs=text if adaptive else (), illustrations=figures)


def best_of_n_table(bounded: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns the distribution of the best of n for every cell without an oracle.

    Columns: those of `study_key` and of `BestOfN.to_frame`. n runs over 1 .. N, or for
    more than a hundred trials over a hundred numbers that are evenly spaced in log n.

    Args:
        bounded: trials with `earliest` and `latest` of `reduce.with_bounds`.
        studies: one row per cell.
    """
    tables = []
    drawn = exchangeable(bounded, studies)
    names = study_key(bounded)
    for cell, trials in drawn.groupby(names, sort=False):
        found = best_of_n(
            trials["earliest"], trials["latest"], _draws(len(trials), 100)
        ).to_frame()
        identity: dict[str, Any] = dict(zip(names, cell, strict=True))
        named = found.assign(**identity)
        tables.append(named[[*names, *found.columns]])
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _ends_and_middle(number: int) -> list[int]:
    """Returns at most three positions of so many, evenly spread."""
    last = number - 1
    return sorted({round(i * last / (_SIZES - 1)) for i in range(_SIZES) if number})


def _draws(trials: int, most: int) -> list[int]:
    """Returns 1 .. N, or as many numbers from 1 to N as are wanted at most."""
    if trials <= most:
        return list(range(1, trials + 1))
    return [int(n) for n in np.unique(np.geomspace(1, trials, most).round())]


def _quantiles(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns n, median, low, high as multiples of K*."""
    earliest = trials["earliest"].to_numpy(float)
    latest = trials["latest"].to_numpy(float)
    draws = _draws(len(trials), _MOST_DRAWS)
    found = best_of_n(earliest, latest, draws, quantiles=_QUANTILES)
    # A quantile of which only a lower bound is known is open, not a number.
    known = np.where(found.low < found.high, np.inf, found.low) / latest.min()
    low, median, high = known.T
    return pd.DataFrame({"n": found.draws, "low": low, "median": median, "high": high})


def draw_quantiles(
    axis: Axes, quantiles: pd.DataFrame, *, line_style: LineStyle, top: float
) -> None:
    """Draws the median and the interval of the best of n trials of one cell.

    Where a quantile lies beyond the last trial that is known to have met the goal, it
    is open: the median is not drawn there, and the band runs off the axis.

    Args:
        axis: an empty axis.
        quantiles: one row per n: n, median, low, high (multiples of K*); infinite
            where open.
        line_style: of the curve that the cell belongs to.
        top: upper end of the axis, at least 1.
    """
    style.log2_axis(axis, "x")
    rows = quantiles.sort_values("n")
    n = rows["n"].to_numpy(float)
    values = rows[["low", "median", "high"]].to_numpy(float)
    low, median, high = np.minimum(values, 8 * top).T
    axis.fill_between(
        n, low, high, step="post", color=line_style.color, alpha=0.18, linewidth=0
    )
    # The edges carry the band in print, where its tint may be lost.
    for edge in (low, high):
        axis.step(n, edge, where="post", color=line_style.color, linewidth=0.7)
    drawn = np.where(np.isfinite(values[:, 1]), median, np.nan)
    axis.step(n, drawn, where="post", color=line_style.color, linewidth=2.2, zorder=3)
    axis.axhline(1.0, color=style.MUTED, linewidth=0.8)
    axis.set_xlim(1, max(2.0, n.max()))
    axis.set_ylim(0.93, top)
    style.log10_axis(axis, "y", most=5)


def _figure(
    curves: Curves, panel: str, rows: Sequence[tuple[str, Quantiles]], trials: int
) -> Illustration:
    columns = max(len(shown) for _, shown in rows)
    top = _top([table for _, shown in rows for _, table in shown])
    with style.styled():
        figure = style.new_figure(7.6 * max(columns, 2) / _SIZES, 0.5 + 2.1 * len(rows))
        axes = figure.subplots(
            len(rows), columns, sharex=True, sharey=True, squeeze=False
        )
        for row, (curve, shown) in zip(axes, rows, strict=True):
            line_style = style.line_style_of(curves.naming.line_styles, curve)
            for axis, (size, table) in zip(row, shown, strict=False):
                draw_quantiles(axis, table, line_style=line_style, top=top)
                axis.set_title(f"{curve}\nbatch size {size}", fontsize=9.5)
                axis.set(xlabel="", ylabel="")
            for axis in row[len(shown) :]:
                axis.set_visible(False)
            row[0].set_ylabel("Best of n / K*")
        for axis in axes[-1]:
            axis.set_xlabel("Trials n")
    panel = curves.panel_title(panel)
    return illustration(figure, _figure_text(panel, len(rows), trials))


def _top(tables: Sequence[pd.DataFrame]) -> float:
    """Returns the upper end of the axis of all pictures."""
    columns = ["low", "median", "high"]
    values = np.concatenate([table[columns].to_numpy().ravel() for table in tables])
    return max(1.5, 1.2 * float(values[np.isfinite(values)].max(initial=1.0)))


def _figure_text(panel: str, curves: int, trials: int) -> FigureText:
    mass = mass_on_minimum(trials)
    return FigureText(
        name=file_name("best_of_n", panel),
        title=with_panel("Best of n trials", panel),
        caption=(
            "Steps to result of the best of n trials, redrawn with replacement from "
            "each study's own trials, relative to K*; smallest, middle and largest "
            "batch size with a K* (best_of_n.csv holds all). Line: median; band: 10 % "
            "to 90 %. Where the line is missing or the band runs off, fewer trials are "
            "known to have met the goal than the quantile asks for. A line that is "
            "flat well before n = N says that fewer trials would have found nearly "
            "the same K*. This is no confidence interval and no weight for a fit: it "
            "is one-sided, since no redraw can beat the observed minimum, which alone "
            f"keeps {percent(mass)} of the distribution at n = N = {trials}."
        ),
        alt=(
            f"Small step charts, one row for each of {curves} curves: the median of "
            "the best of n trials, relative to K*, falls to 1 as n grows to N."
        ),
    )
