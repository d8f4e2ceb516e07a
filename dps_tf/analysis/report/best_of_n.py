"""Would fewer trials have found the same K*? A figure per curve."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import best_of_n as drawing
from dps_tf.analysis.figures.style import fallback, styled
from dps_tf.analysis.order_statistics import best_of_n, mass_on_minimum
from dps_tf.analysis.report.content import Illustration, Words, illustration
from dps_tf.analysis.report.curves import Curves, groups, of_cell, place_of
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.panels import MOST, draw_panels, left_out
from dps_tf.analysis.report.wording import percent

_QUANTILES = (0.1, 0.5, 0.9)
_MOST_DRAWS = 60
"""Values of n that are drawn: more lie closer than a line is wide."""


def best_of_n_figures(curves: Curves, bounded: pd.DataFrame) -> list[Illustration]:
    """Returns a figure per curve, the first one open, a panel per cell with a K*.

    Args:
        curves: of the report.
        bounded: trials with `earliest` and `latest` of `trial_bounds.with_bounds`.
    """
    figures: list[Illustration] = []
    for panel, curve, cells in groups(curves):
        shown = []
        trials = 0
        for cell in cells.to_dict("records"):
            mine = of_cell(bounded, cell)
            table = _quantiles(mine)
            if len(table) > 1:
                shown.append((int(cell["batch_size"]), table))
                trials = max(trials, len(mine))
        if not shown:
            continue
        look = fallback(curves.naming.looks, curve)
        with styled():
            figure = draw_panels(
                shown[:MOST],
                partial(drawing.draw, look=look, top=_top(shown)),
                ("Trials n", "Best of n / K*"),
            )
        words = _words(curves, panel, curve, trials, len(shown))
        figures.append(illustration(figure, words, folded=bool(figures)))
    return figures


def _quantiles(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns n, median, low, high as multiples of K*; empty without a K*."""
    earliest = trials["earliest"].to_numpy(float)
    latest = trials["latest"].to_numpy(float)
    if len(trials) == 0 or not np.isfinite(latest.min()):
        return pd.DataFrame()
    draws = np.unique(np.geomspace(1, len(trials), _MOST_DRAWS).round().astype(int))
    found = best_of_n(earliest, latest, draws.tolist(), quantiles=_QUANTILES)
    # A quantile of which only a lower bound is known is open, not a number.
    known = np.where(found.low < found.high, np.inf, found.low) / latest.min()
    low, median, high = known.T
    return pd.DataFrame({"n": found.draws, "low": low, "median": median, "high": high})


def _top(shown: list[tuple[int, pd.DataFrame]]) -> float:
    """Returns the upper end of the axis of all panels."""
    columns = ["low", "median", "high"]
    values = np.concatenate([table[columns].to_numpy().ravel() for _, table in shown])
    return max(1.5, 1.2 * float(values[np.isfinite(values)].max(initial=1.0)))


def _words(curves: Curves, panel: str, curve: str, trials: int, cells: int) -> Words:
    where = place_of(curves, panel, curve)
    mass = mass_on_minimum(trials)
    return Words(
        name=file_name("best_of_n", panel if panel in where else "", curve),
        title=f"Best of n trials: {where}",
        caption=(
            "Steps to result of the best of n trials, redrawn with replacement from "
            "each study's own trials, relative to K*. Line: median; band: 10 % to "
            "90 %. Where the line is missing or the band runs off, fewer trials are "
            "known to have met the goal than the quantile asks for. A line that is "
            "flat well before n = N says that fewer trials would have found nearly "
            "the same K*. This is no confidence interval and no weight for a fit: it "
            "is one-sided, since no redraw can beat the observed minimum, which alone "
            f"keeps {percent(mass)} of the distribution at n = N = {trials}."
            + left_out(cells)
        ),
        alt=(
            f"Small line charts, one per batch size, for {where}: the median of the "
            "best of n trials, relative to K*, falls to 1 as n grows to N."
        ),
    )
