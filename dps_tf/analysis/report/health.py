"""How did the trials of each cell end, and would fewer have found the same K*?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, RowsByCell, groups
from dps_tf.analysis.report.drawing import two_abreast
from dps_tf.analysis.report.naming import cell_names, file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.search_health import (
    QUANTILES,
    best_of_n,
    exchangeable,
    mass_on_minimum,
    probability_among_first,
)
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import count, percent, with_panel

# Hatches differ, so that no outcome depends on its colour.
OUTCOMES: dict[str, dict[str, Any]] = {
    "complete": {"facecolor": "#0072B2"},
    "censored": {"facecolor": "#BFDDF0"},
    "incomplete": {"facecolor": "#FFFFFF", "hatch": "...."},
    "infeasible": {"facecolor": "#F3C9AC", "hatch": "xxxx"},
    "failed": {"facecolor": "#000000"},
}
_EDGE: dict[str, Any] = {"edgecolor": style.INK, "linewidth": 0.5}
_QUANTILES = (0.1, 0.5, 0.9)
_MOST_DRAWS = 60
"""Values of n that are drawn: more lie closer than a line is wide."""
_SIZES = 3
"""Batch sizes drawn of each curve: the ends and the middle of those with a K*."""

Quantiles = list[tuple[int, pd.DataFrame]]
"""Batch sizes of one curve, each with a table of `_quantiles`."""


def health_part(context: ReportContext) -> Part:
    """Returns a figure per panel, a picture per curve and a bar per cell; a table."""
    curves = context.curves
    figures = []
    for panel, cells in curves.cells.groupby("panel", sort=False):
        parts = [rows for _, rows in cells.groupby("curve", sort=False)]
        bars = max(len(rows) for rows in parts)
        with style.styled():
            figure, axes = two_abreast(len(parts), 0.9 + 0.24 * bars, sharex=True)
            for axis, rows in zip(axes, parts, strict=True):
                draw_outcomes(axis, _bars(rows))
                axis.set_title(str(rows["curve"].iloc[0]))
            handles = [style.patch_handle(k, **_EDGE, **v) for k, v in OUTCOMES.items()]
            style.legend_below(figure, handles, columns=5)
        figure_text = _outcomes_text(curves.panel_title(panel), cells)
        figures.append(illustration(figure, figure_text))
    return Part(illustrations=figures, tables=(health_table(curves),))


def draw_outcomes(axis: Axes, cells: pd.DataFrame) -> None:
    """Draws one stacked bar per cell, top to bottom: its trials by outcome.

    Columns of the table: label, note, and the number of trials of each of OUTCOMES.
    """
    heights = np.arange(len(cells))
    start = np.zeros(len(cells))
    for outcome, marks in OUTCOMES.items():
        counts = cells[outcome].to_numpy(float)
        some = counts > 0
        bars = {"left": start[some], "height": 0.72, **_EDGE, **marks}
        axis.barh(heights[some], counts[some], **bars)
        start = start + counts
    axis.set_yticks(heights, labels=[str(label) for label in cells["label"]])
    for height, total, note in zip(heights, start, cells["note"], strict=True):
        axis.annotate(
            str(note),
            (total, height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            fontweight="bold",
        )
    axis.set_ylim(len(cells) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="Trials", ylabel="Batch size")


def _bars(cells: pd.DataFrame) -> pd.DataFrame:
    several = cells["seed"].nunique() > 1
    labels = [
        f"{row['batch_size']}" + (f", seed {row['seed']}" if several else "")
        for row in cells.to_dict("records")
    ]
    return cells.assign(label=labels, note=[_flags(row) for _, row in cells.iterrows()])


def _flags(row: pd.Series) -> str:
    flags = "B" if row["at_boundary"] else ""
    # The column is nullable: NA is no False.
    if pd.notna(row["lone_winner"]) and row["lone_winner"]:
        flags += "L"
    return flags + ("" if row["closed"] else "O")


def _outcomes_text(panel: str, cells: pd.DataFrame) -> FigureText:
    totals = ", ".join(f"{int(cells[outcome].sum())} {outcome}" for outcome in OUTCOMES)
    return FigureText(
        name=file_name("search_health", panel),
        title=with_panel("Outcomes of all trials", panel),
        caption=(
            "One bar per batch size. Complete: met the goal. Censored: stopped because "
            "enough others had met it before. Incomplete: spent its step budget. "
            "Infeasible: diverged. Failed: an error. B: a best value lies at an end of "
            "its range. L: the winner is alone. O: still open."
        ),
        alt=(
            f"Stacked bars, one for each of {count(len(cells), 'cell')}, of the "
            f"trials by outcome; in total {totals}."
        ),
    )


def health_table(curves: Curves) -> PageTable:
    """Returns the table of the search: one row per cell."""
    cells = curves.cells
    alone = cells["lone_winner"].map({True: "yes", False: "no"}).fillna("unknown")
    frame = cells.assign(
        cell=cell_names(cells),
        infeasible_share=cells["infeasible_share"].round(3),
        lone_winner=alone,
        interval_over_kstar=cells["interval_over_kstar"].round(3),
        closed=cells["closed"].map({True: "closed", False: "open"}),
    )
    columns = (
        Column("cell", "Cell"),
        Column("trials", "Trials", "The five outcomes add up to it."),
        *(Column(name, name.capitalize()) for name in OUTCOMES),
        Column("infeasible_share", "Infeasible share", "Diverged trials over trials."),
        Column(
            "lone_winner",
            "Winner alone",
            "Whether K_(2) is more than 10 % and one evaluation interval above K*.",
        ),
        Column(
            "interval_over_kstar",
            "Interval / K*",
            "Steps between evaluations over K*: the relative resolution of K*.",
        ),
        Column("at_boundary", "At boundary", "Best value within 5 % of an end."),
        Column("closed", "Study"),
    )
    return PageTable("health", "Health of the search, one row per cell", columns, frame)


def best_of_n_part(context: ReportContext) -> Part:
    """Returns a figure per panel: a row per curve, three of its batch sizes."""
    curves, tables = context.curves, context.tables
    bounded = exchangeable(tables.bounded, tables.studies)
    adaptive = len(bounded) < len(tables.bounded)
    figures: list[Illustration] = []
    rows_of = RowsByCell(bounded, curves.cells, ["earliest", "latest"])
    for panel in curves.naming.panels:
        rows = [
            (curve, _shown(cells, rows_of))
            for where, curve, cells in groups(curves)
            if where == panel
        ]
        rows = [(curve, shown) for curve, shown in rows if shown]
        if rows:
            figures.append(_best_of_n_figure(curves, panel, rows))
    text = (
        "Trials that an oracle chose after those before them are no sample that could "
        "be redrawn: the best of n is not shown for them.",
    )
    return Part(paragraphs=text if adaptive else (), illustrations=figures)


def _shown(cells: pd.DataFrame, rows_of: RowsByCell) -> Quantiles:
    """Returns what is drawn of a curve: at most three batch sizes, evenly spread."""
    reached = cells[cells["steps_to_result"] > 0]  # multiples of K* are shown
    last = len(reached) - 1
    places = {round(i * last / (_SIZES - 1)) for i in range(_SIZES) if len(reached)}
    trials = [
        (int(cell["batch_size"]), rows_of.of(cell))
        for cell in reached.iloc[sorted(places)].to_dict("records")
    ]
    return [(size, _quantiles(group)) for size, group in trials if len(group) > 1]


def best_of_n_table(bounded: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns the distribution of the best of n for every cell without an oracle.

    Columns: those of `study_key`, draws (n), mass_on_minimum (share of the distribution
    on the observed minimum), and for each quantile `q05`, its least value (NaN: not
    reached within the budget), and `q05_open`, true where this is a lower bound only. n
    runs over 1 .. N, or for more than a hundred trials over a hundred numbers that are
    evenly spaced in log n.
    """
    tables = []
    drawn = exchangeable(bounded, studies)
    names = study_key(bounded)
    for cell, trials in drawn.groupby(names, sort=False):
        draws = _draws(len(trials), 100)
        low, high = best_of_n(trials["earliest"], trials["latest"], draws)
        columns: dict[str, Any] = dict(zip(names, cell, strict=True))
        columns["draws"] = draws
        columns["mass_on_minimum"] = probability_among_first(len(trials), draws)[:, 1]
        for level, least, greatest in zip(QUANTILES, low.T, high.T, strict=True):
            name = f"q{round(100 * level):02d}"
            columns[name] = np.where(np.isinf(least), np.nan, least)
            columns[f"{name}_open"] = least < greatest
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


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
    least, greatest = best_of_n(earliest, latest, draws, quantiles=_QUANTILES)
    # A quantile of which only a lower bound is known is open, not a number.
    known = np.where(least < greatest, np.inf, least) / latest.min()
    low, median, high = known.T
    return pd.DataFrame({"n": draws, "low": low, "median": median, "high": high})


def draw_quantiles(
    axis: Axes, quantiles: pd.DataFrame, *, line_style: LineStyle, top: float
) -> None:
    """Draws the median and the interval of the best of n trials of one cell.

    Where a quantile lies beyond the last trial that is known to have met the goal, it
    is open: the median is not drawn there, and the band runs off the axis, which ends
    at `top`. Columns of the table: n, median, low, high (multiples of K*, or infinite).
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


def _best_of_n_figure(
    curves: Curves, panel: str, rows: Sequence[tuple[str, Quantiles]]
) -> Illustration:
    columns = max(len(shown) for _, shown in rows)
    tables = pd.concat([table for _, shown in rows for _, table in shown])
    values = tables[["low", "median", "high"]].to_numpy()
    top = max(1.5, 1.2 * float(values[np.isfinite(values)].max(initial=1.0)))
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
    trials = int(tables["n"].max())
    text = _best_of_n_text(curves.panel_title(panel), len(rows), trials)
    return illustration(figure, text)


def _best_of_n_text(panel: str, curves: int, trials: int) -> FigureText:
    mass = mass_on_minimum(trials)
    return FigureText(
        name=file_name("best_of_n", panel),
        title=with_panel("Best of n trials", panel),
        caption=(
            "Steps to result of the best of n trials, redrawn from each study's own, "
            "relative to K*; smallest, middle and largest batch size. Line: median; "
            "band: 10 % to 90 %. Where the line is flat well before n = N, fewer "
            "trials would have found nearly the same K*."
        ),
        alt=(
            f"Small step charts, one row for each of {curves} curves: the median of "
            "the best of n trials, relative to K*, falls to 1 as n grows to N."
        ),
        definition=(
            "Trials are redrawn with replacement; best_of_n.csv holds all batch sizes. "
            "Where the line is missing or the band runs off, fewer trials are known to "
            "have met the goal than the quantile asks for. This is no confidence "
            "interval and no weight for a fit: it is one-sided, since no redraw can "
            f"beat the observed minimum, which alone keeps {percent(mass)} of the "
            f"distribution at n = N = {trials}."
        ),
    )
