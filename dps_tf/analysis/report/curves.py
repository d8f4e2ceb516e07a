"""The tables behind the headline figure: what is known of each curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law import MINIMUM_POINTS, LawFit, Observations, fit_law
from dps_tf.analysis.order_statistics import repeats
from dps_tf.analysis.report.naming import Naming
from dps_tf.analysis.report.searches import searches_of, searches_sentence
from dps_tf.analysis.tables import STUDY_KEY, cell_codes

_GRID = 60
"""Batch sizes at which a fitted curve is drawn."""


@dataclass(frozen=True)
class Curves:
    """What the sections share.

    Attributes:
        naming: names of curves and panels.
        cells: the results table with panel and curve, in the order of the report.
        points: one row per curve and batch size, seeds taken together; see `points_of`.
        fits: fit of each (panel, curve) that has enough batch sizes.
        searches: number of points and dimension of each (panel, curve), in words.
    """

    naming: Naming
    cells: pd.DataFrame
    points: pd.DataFrame
    fits: dict[tuple[str, str], LawFit]
    searches: dict[tuple[str, str], str] = field(default_factory=dict)

    def best_of(self, pairs: Sequence[tuple[str, str]] | None = None) -> str:
        """Returns what curves, all by default, are the best of, as one sentence."""
        return searches_sentence(
            (place_of(self, *pair), search)
            for pair, search in self.searches.items()
            if pairs is None or pair in pairs
        )

    def panel(self, name: str) -> pd.DataFrame:
        """Returns the points of a panel."""
        return self.points[self.points["panel"] == name]


def curves_of(
    results: pd.DataFrame, naming: Naming, studies: pd.DataFrame | None = None
) -> Curves:
    """Returns points and fits of all curves of a results table.

    Args:
        results: one row per cell.
        naming: names of curves and panels.
        studies: one row per cell; without, nothing is said of the searches.
    """
    cells = naming.name(results)
    fits = {}
    for (panel, curve), rows in cells.groupby(["panel", "curve"], sort=False):
        # K* of an open study may still fall: it is drawn, and fitted when closed.
        observations = Observations.from_results(rows[rows["closed"]])
        if observations.batch_sizes >= MINIMUM_POINTS:
            fits[str(panel), str(curve)] = fit_law(observations)
    searches = {} if studies is None else searches_of(cells, studies)
    return Curves(naming, cells, points_of(cells), fits, searches)


def points_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns what is drawn of each cell, repeats under other seeds taken together.

    Columns: panel, curve, batch_size, steps_to_result, low, high, bound, repeats.
    For one seed the bar is the bracket, for several it runs from the least to the
    greatest K* and the point is their median. Cells of which nothing is known are left
    out.
    """
    rows = []
    keys = ["panel", "curve", "batch_size"]
    for (panel, curve, size), cell in cells.groupby(keys, sort=False):
        known = _one(cell.iloc[0]) if len(cell) == 1 else _several(cell)
        if known is not None:
            identity = {"panel": panel, "curve": curve, "batch_size": size}
            rows.append({**identity, **known, "repeats": len(cell)})
    columns = [*keys, "steps_to_result", "low", "high", "bound", "repeats"]
    return pd.DataFrame(rows, columns=columns)


def _one(row: pd.Series) -> dict[str, Any] | None:
    steps = row["steps_to_result"]
    if row["steps_bound"] == "":
        if pd.isna(steps):
            return None
        low = float(row["bracket_low"])
        return _point(float(steps), low, float(steps), "")
    if pd.notna(steps):
        low = float(row["bracket_low"])
        return _point(float(steps), low, float(steps), "<=")
    least = row["steps_low"] if pd.notna(row["steps_low"]) else row["step_budget"]
    return _point(float(least), float(least), float(least), ">=")


def _several(cell: pd.DataFrame) -> dict[str, Any] | None:
    spread = repeats(cell).iloc[0]
    if int(spread["reached"]) == 0:
        return _one(cell.iloc[0])
    low, middle, high = (
        float(spread[name]) for name in ("steps_min", "steps_median", "steps_max")
    )
    # Seeds without K* lie above those with one: the median of the rest is too low.
    missing = int(spread["repeats"]) > int(spread["reached"])
    return _point(middle, low, high, ">=" if missing else "")


def _point(steps: float, low: float, high: float, bound: str) -> dict[str, Any]:
    return {"steps_to_result": steps, "low": low, "high": high, "bound": bound}


def fit_lines(curves: Curves, panel: str) -> pd.DataFrame:
    """Returns the fitted curves of a panel on a grid.

    Columns: curve, batch_size, steps, low and high (ends of the fit's interval).
    """
    tables = []
    for (where, curve), fit in curves.fits.items():
        if where != panel:
            continue
        rows = curves.panel(panel)
        sizes = rows.loc[rows["curve"] == curve, "batch_size"].to_numpy(float)
        grid = np.geomspace(sizes.min(), sizes.max(), _GRID)
        low, high = fit.band(grid)
        table = pd.DataFrame({"batch_size": grid, "steps": fit.steps(grid)})
        tables.append(table.assign(curve=curve, low=low, high=high))
    if not tables:
        return pd.DataFrame(columns=["curve", "batch_size", "steps", "low", "high"])
    return pd.concat(tables)


def groups(curves: Curves) -> list[tuple[str, str, pd.DataFrame]]:
    """Returns panel, curve and cells of each curve, smallest batch size first.

    Of repeats under other seeds the first is taken: small pictures of single studies
    show one of them.
    """
    found = []
    for (panel, curve), cells in curves.cells.groupby(["panel", "curve"], sort=False):
        first = cells[cells["seed"] == cells["seed"].min()]
        found.append((str(panel), str(curve), first.sort_values("batch_size")))
    return found


class RowsByCell:
    """The rows of a table, found by their cell without a search through all of them."""

    def __init__(
        self, table: pd.DataFrame, cells: pd.DataFrame, columns: Sequence[str]
    ) -> None:
        """Sorts the rows by cell, once.

        Args:
            table: any table with the columns STUDY_KEY, of these cells only.
            cells: table with one row per cell.
            columns: those that are wanted.
        """
        codes = cell_codes(table, cells)
        self._table = table[list(columns)]
        self._order = np.argsort(codes, kind="stable")
        self._edges = np.searchsorted(codes[self._order], np.arange(len(cells) + 1))
        keys = cells[STUDY_KEY].itertuples(index=False, name=None)
        self._place = {key: place for place, key in enumerate(keys)}

    def of(self, cell: Mapping[Any, Any]) -> pd.DataFrame:
        """Returns the rows of a cell, in their order in the table."""
        place = self._place[tuple(cell[name] for name in STUDY_KEY)]
        rows = self._order[self._edges[place] : self._edges[place + 1]]
        return self._table.iloc[rows]


def place_of(curves: Curves, panel: str, curve: str) -> str:
    """Returns how a title names a curve: with its panel where there are several."""
    return f"{panel}: {curve}" if len(curves.naming.panels) > 1 else curve


def comparable(curves: Curves) -> dict[str, list[tuple[str, str]]]:
    """Returns (panel, curve) of the curves with the same workload and goal, by name.

    Their steps may be compared, also where optimizers have panels of their own.
    """
    keys = ["workload", "goal"]
    several = curves.cells.drop_duplicates(keys)["workload"].duplicated().any()
    found: dict[str, list[tuple[str, str]]] = {}
    for (workload, goal), cells in curves.cells.groupby(keys, sort=False):
        pairs = cells.drop_duplicates(["panel", "curve"])[["panel", "curve"]]
        name = f"{workload}, {goal}" if several else str(workload)
        found[name] = [(str(panel), str(curve)) for panel, curve in pairs.to_numpy()]
    return found
