"""How did the trials of each cell end, and would fewer have given the same K*?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.report.content import Column, PageTable, Part, ReportContext
from dps_tf.analysis.report.curves import Curves, cell_names
from dps_tf.analysis.search_health import (
    QUANTILES,
    best_of_n,
    exchangeable,
    probability_among_first,
)
from dps_tf.analysis.tables import study_key
from dps_tf.core import OUTCOMES

_MOST_DRAWS = 100


def health_part(context: ReportContext) -> Part:
    """Returns a table of the outcomes of all trials and the flags of each cell."""
    return Part(tables=(health_table(context.curves),))


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
        Column("trials", "Trials", "The sum of the five outcomes."),
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


def best_of_n_table(bounded: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns the distribution of the best of n for every cell of quasi-random points.

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
        draws = _draws(len(trials))
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


def _draws(trials: int) -> list[int]:
    """Returns 1 .. N, or _MOST_DRAWS numbers from 1 to N, evenly spaced in log n."""
    if trials <= _MOST_DRAWS:
        return list(range(1, trials + 1))
    return [int(n) for n in np.unique(np.geomspace(1, trials, _MOST_DRAWS).round())]
