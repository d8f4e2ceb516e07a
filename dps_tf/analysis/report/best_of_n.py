"""Would fewer trials have found the same K*? A figure per panel, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import best_of_n as drawing
from dps_tf.analysis.figures.style import fallback, new_figure, styled
from dps_tf.analysis.order_statistics import best_of_n, mass_on_minimum
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves, RowsByCell, groups
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.wording import percent
from dps_tf.analysis.tables import STUDY_KEY

_QUANTILES = (0.1, 0.5, 0.9)
_MOST_DRAWS = 60
"""Values of n that are drawn: more lie closer than a line is wide."""
_SIZES = 3
"""Batch sizes drawn of each curve: the ends and the middle of those with a K*."""

Shown = list[tuple[int, pd.DataFrame]]


def best_of_n_table(bounded: pd.DataFrame) -> pd.DataFrame:
    """Returns the distribution of the best of n for every cell.

    Columns: STUDY_KEY and those of `BestOfN.to_frame`. n runs over 1 .. N, or for more
    than a hundred trials over a hundred numbers that are evenly spaced in log n.

    Args:
        bounded: trials with `earliest` and `latest` of `trial_bounds.with_bounds`.
    """
    tables = []
    for cell, trials in bounded.groupby(STUDY_KEY, sort=False):
        found = best_of_n(
            trials["earliest"], trials["latest"], _draws(len(trials), 100)
        ).to_frame()
        identity: dict[str, Any] = dict(zip(STUDY_KEY, cell, strict=True))
        named = found.assign(**identity)
        tables.append(named[[*STUDY_KEY, *found.columns]])
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def best_of_n_figures(curves: Curves, bounded: pd.DataFrame) -> list[Illustration]:
    """Returns a figure per panel: a row per curve, three of its batch sizes.

    Args:
        curves: of the report.
        bounded: trials with `earliest` and `latest` of `trial_bounds.with_bounds`.
    """
    figures: list[Illustration] = []
    rows_of = RowsByCell(bounded, curves.cells, ["earliest", "latest"])
    for panel in curves.naming.panels:
        rows: list[tuple[str, Shown]] = []
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
    return figures


def _ends_and_middle(number: int) -> list[int]:
    """Returns at most three places of so many, evenly spread."""
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


def _figure(
    curves: Curves, panel: str, rows: Sequence[tuple[str, Shown]], trials: int
) -> Illustration:
    columns = max(len(shown) for _, shown in rows)
    top = _top([table for _, shown in rows for _, table in shown])
    with styled():
        figure = new_figure(7.6 * max(columns, 2) / _SIZES, 0.5 + 2.1 * len(rows))
        axes = figure.subplots(
            len(rows), columns, sharex=True, sharey=True, squeeze=False
        )
        for row, (curve, shown) in zip(axes, rows, strict=True):
            look = fallback(curves.naming.looks, curve)
            for axis, (size, table) in zip(row, shown, strict=False):
                drawing.draw(axis, table, look=look, top=top)
                axis.set_title(f"{curve}\nbatch size {size}", fontsize=9.5)
                axis.set(xlabel="", ylabel="")
            for axis in row[len(shown) :]:
                axis.set_visible(False)
            row[0].set_ylabel("Best of n / K*")
        for axis in axes[-1]:
            axis.set_xlabel("Trials n")
    several = len(curves.naming.panels) > 1
    return illustration(figure, _words(panel if several else "", len(rows), trials))


def _top(tables: Sequence[pd.DataFrame]) -> float:
    """Returns the upper end of the axis of all pictures."""
    columns = ["low", "median", "high"]
    values = np.concatenate([table[columns].to_numpy().ravel() for table in tables])
    return max(1.5, 1.2 * float(values[np.isfinite(values)].max(initial=1.0)))


def _words(panel: str, curves: int, trials: int) -> FigureText:
    mass = mass_on_minimum(trials)
    return FigureText(
        name=file_name("best_of_n", panel),
        title=f"Best of n trials{f': {panel}' if panel else ''}",
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
