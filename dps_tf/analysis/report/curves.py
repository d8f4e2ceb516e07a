"""Points, fits and searches of the curves, the tables behind the chart of K*."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law import MINIMUM_POINTS, LawFit, Observations, fit_law
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.repeats import spread_over_seeds
from dps_tf.analysis.report.naming import Naming
from dps_tf.analysis.searches import search_of_studies
from dps_tf.analysis.tables import axes_of, cell_codes, study_key, winner_at_end
from dps_tf.analysis.wording import and_list
from dps_tf.core import DENSE, Goal

Key = tuple[str, str]
"""(panel, curve)."""
_GRID = 24
"""Batch sizes at which a fitted curve is drawn."""


@dataclass(frozen=True)
class Curves:
    """The curves of a report, with their points and fits.

    Attributes:
        cells: the results table with panel and curve, in the order of the report.
        plot_rows: one row per curve and batch size, seeds taken together; see
            `plot_rows_of`.
        fits: fit of each (panel, curve) that has enough batch sizes.
        observations: what is known of each (panel, curve), but of open studies.
        searches: number of points and dimension of each (panel, curve), in words.
    """

    naming: Naming
    cells: pd.DataFrame
    plot_rows: pd.DataFrame
    fits: dict[Key, LawFit]
    observations: dict[Key, Observations] = field(default_factory=dict)
    searches: dict[Key, str] = field(default_factory=dict)

    @property
    def exact(self) -> pd.DataFrame:
        """The plotted rows that have a K*, without those that have only a bound."""
        return self.plot_rows[self.plot_rows["bound"] == ""]

    def best_of(self, pairs: Sequence[Key] | None = None) -> str:
        """Returns a sentence on the searches behind curves, by default all curves."""
        return searches_sentence(
            (self.title(*pair), search)
            for pair, search in self.searches.items()
            if pairs is None or pair in pairs
        )

    def panel(self, name: str) -> pd.DataFrame:
        """Returns the plotted rows of a panel."""
        return self.plot_rows[self.plot_rows["panel"] == name]

    def title(self, panel: object, curve: object) -> str:
        """Returns the name of a curve in titles, with its panel if several exist."""
        return f"{panel}: {curve}" if len(self.naming.panels) > 1 else str(curve)

    def titles(self, rows: pd.DataFrame) -> list[str]:
        """Returns the title of the curve of each row of a named table."""
        pairs = zip(rows["panel"], rows["curve"], strict=True)
        return [self.title(*pair) for pair in pairs]

    def panel_title(self, panel: object) -> str:
        """Returns the name of a panel where there are several, else nothing."""
        return str(panel) if len(self.naming.panels) > 1 else ""


def of_curve(table: pd.DataFrame, panel: object, curve: object) -> pd.DataFrame:
    """Returns the rows of one curve of a named table."""
    is_curve = (table["panel"] == panel) & (table["curve"] == curve)
    rows: pd.DataFrame = table[is_curve]
    return rows


def first_seed(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the least seed: small pictures show a single study."""
    rows: pd.DataFrame = table[table["seed"] == table["seed"].min()]
    return rows


def best_trials_of(cells: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Returns study, `trial` and further columns of the cells with a best trial."""
    best = cells[[*study_key(cells), "best_trial", *columns]]
    best = best.dropna(subset="best_trial").rename(columns={"best_trial": "trial"})
    return best.astype({"trial": np.int64})


def goals_of(tables: Tables) -> dict[tuple[Any, ...], Goal]:
    """Returns the goal of each study, by the values of `study_key`."""
    keys = tables.studies[study_key(tables.studies)]
    names = keys.itertuples(index=False, name=None)
    return dict(zip(names, tables.goals, strict=True))


def curves_of(
    results: pd.DataFrame, naming: Naming, studies: pd.DataFrame | None = None
) -> Curves:
    """Returns points and fits of all curves of a results table.

    Without the table of studies, `searches` is empty.
    """
    cells = naming.name(results)
    # K* of an open study may still fall: it is drawn, and fitted when closed.
    observations = {
        (str(panel), str(curve)): Observations.from_results(rows[rows["closed"]])
        for (panel, curve), rows in cells.groupby(["panel", "curve"], sort=False)
    }
    fits = {
        key: fit_law(points)
        for key, points in observations.items()
        if points.batch_sizes >= MINIMUM_POINTS
    }
    searches = {} if studies is None else searches_of(cells, studies)
    return Curves(naming, cells, plot_rows_of(cells), fits, observations, searches)


def plot_rows_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per curve and batch size, seeds taken together, as it is drawn.

    Columns: panel, curve, batch_size, steps_to_result, low, high, bound, repeats.
    For one seed the bar is the bracket, for several it runs from the least to the
    greatest K* and the point is their median. A K* whose best trial lies at an end of
    its range is a bound here, as it is in fits. Cells that have neither K* nor bound,
    and those with K* = 0, are left out.
    """
    rows = []
    keys = ["panel", "curve", "batch_size"]
    is_upper = cells["steps_bound"].ne("") | winner_at_end(cells)
    cells = cells.assign(is_upper=is_upper & cells["steps_to_result"].notna())
    for key, cell in cells.groupby(keys, sort=False):
        values = _one(cell.iloc[0]) if len(cell) == 1 else _several(cell)
        # K* = 0, a goal that is met untrained, has no place on an axis of logarithms.
        if values is not None and values[0] > 0:
            rows.append((*key, *values, len(cell)))
    columns = [*keys, "steps_to_result", "low", "high", "bound", "repeats"]
    return pd.DataFrame(rows, columns=columns)


def _one(row: pd.Series) -> tuple[float, float, float, str] | None:
    """Returns K*, low, high and bound of a cell; None without K* or bound."""
    steps = row["steps_to_result"]
    if pd.notna(steps):
        bound = "<=" if row["is_upper"] else ""
        return float(steps), float(row["bracket_low"]), float(steps), bound
    if row["steps_bound"] == "":
        return None
    least = row["steps_low"] if pd.notna(row["steps_low"]) else row["step_budget"]
    return float(least), float(least), float(least), ">="


def _several(cell: pd.DataFrame) -> tuple[float, float, float, str] | None:
    spread = spread_over_seeds(cell).iloc[0]
    if int(spread["reached"]) == 0:
        return _one(cell.iloc[0])
    low, high = float(spread["steps_min"]), float(spread["steps_max"])
    # Seeds without K* lie above those with one: the median of the rest is too low.
    missing = int(spread["repeats"]) > int(spread["reached"])
    # What falls with the K* that are bounds is a bound itself.
    steps = cell["steps_to_result"]
    is_upper = steps.mask(cell["is_upper"], 0).median() < steps.median()
    bound = ">=" if missing else "<=" if is_upper else ""
    return float(spread["steps_median"]), low, high, bound


def fit_lines(curves: Curves, panel: str) -> pd.DataFrame:
    """Returns the fitted curves of a panel on a grid.

    Columns: curve, batch_size, steps, low and high (ends of the fit's interval),
    further_low and further_high (of K* of a further study).
    """
    tables = []
    for (where, curve), fit in curves.fits.items():
        if where != panel:
            continue
        rows = curves.panel(panel)
        sizes = rows.loc[rows["curve"] == curve, "batch_size"].to_numpy(float)
        grid = np.geomspace(sizes.min(), sizes.max(), _GRID)
        low, high = fit.band(grid)
        further_low, further_high = fit.prediction(grid)
        table = pd.DataFrame({"batch_size": grid, "steps": fit.steps(grid)})
        table = table.assign(curve=curve, low=low, high=high)
        ends = {"further_low": further_low, "further_high": further_high}
        tables.append(table.assign(**ends))
    columns = ["batch_size", "steps", "curve", "low", "high"]
    empty = pd.DataFrame(columns=[*columns, "further_low", "further_high"])
    return pd.concat(tables) if tables else empty


def groups(curves: Curves) -> list[tuple[str, str, pd.DataFrame]]:
    """Returns panel, curve and cells of each curve, smallest batch size first.

    Cells of the least seed stand for repeats under other seeds.
    """
    return [
        (str(panel), str(curve), first_seed(cells).sort_values("batch_size"))
        for (panel, curve), cells in curves.cells.groupby(
            ["panel", "curve"], sort=False
        )
    ]


class RowsByCell:
    """The rows of a table by cell, grouped once."""

    def __init__(
        self, table: pd.DataFrame, cells: pd.DataFrame, columns: Sequence[str]
    ) -> None:
        """Groups the rows of a table; each must belong to one of the cells."""
        self._table = table[list(columns)]
        self._rows = self._table.groupby(cell_codes(table, cells)).indices
        self._key = study_key(cells)
        keys = cells[self._key].itertuples(index=False, name=None)
        self._place = {key: place for place, key in enumerate(keys)}

    def of(self, cell: Mapping[Any, Any]) -> pd.DataFrame:
        """Returns the rows of a cell, in their order in the table."""
        place = self._place[tuple(cell[name] for name in self._key)]
        return self._table.iloc[self._rows.get(place, [])]


def comparable(curves: Curves) -> dict[str, list[Key]]:
    """Returns (panel, curve) of the curves with the same workload and goal, by name.

    The steps of such curves may be compared, also across panels of optimizers.
    """
    keys = ["workload", "goal"]
    several = curves.cells.drop_duplicates(keys)["workload"].duplicated().any()
    by_name: dict[str, list[Key]] = {}
    for (workload, goal), cells in curves.cells.groupby(keys, sort=False):
        pairs = cells.drop_duplicates(["panel", "curve"])[["panel", "curve"]]
        name = f"{workload}, {goal}" if several else str(workload)
        by_name[name] = [(str(panel), str(curve)) for panel, curve in pairs.to_numpy()]
    return by_name


def searches_of(cells: pd.DataFrame, studies: pd.DataFrame) -> dict[Key, str]:
    """Returns the search of each curve in words; see `search_of_studies`."""
    names = study_key(studies)
    columns = [*names, "points", "count", "space"]
    both = cells[[*names, "panel", "curve"]].merge(studies[columns], on=names)
    return {
        (str(panel), str(curve)): search_of_studies(group)
        for (panel, curve), group in both.groupby(["panel", "curve"], sort=False)
    }


def searches_sentence(names: Iterable[tuple[str, str]]) -> str:
    """Returns a sentence on the searches of curves, given pairs (curve, search)."""
    by_search: dict[str, list[str]] = {}
    for name, search in names:
        by_search.setdefault(search, []).append(name)
    if not by_search:
        return ""
    if len(by_search) == 1:
        return f"Each K* is the best of {next(iter(by_search))}."
    texts = [f"of {search} for {and_list(who)}" for search, who in by_search.items()]
    return f"Each K* is the best {'; '.join(texts)}."


def effects(curves: Curves, keys: Sequence[Key]) -> list[tuple[str, str]]:
    """Returns pairs (curve, reference) of names that differ in one thing only.

    A sparser curve is compared with the least sparse one of the same optimizer (and
    method, or dense), then every other axis (optimizer, method, precision, further
    ones) with the first, all else equal. Where no two curves are alike enough, all are
    compared with the first. All curves have the same workload and goal.
    """
    named = curves.cells.drop_duplicates(["panel", "curve"])
    # Comparisons are listed in the order of the tables, those of precision last.
    axes = ["optimizer", "sparsity_method", *axes_of(named), "precision"]
    values_of = named.set_index(["panel", "curve"])[[*axes, "sparsity"]].to_dict(
        "index"
    )
    named_cells = [(curves.title(*key), values_of[key]) for key in keys]
    pairs = [
        (name, other)
        for name, cell in named_cells
        for other in _least_sparse(cell, named_cells)
    ]
    for axis in axes:
        same = [name for name in (*axes, "sparsity") if name != axis]
        for name, cell in named_cells:
            alike = [
                other
                for other, values in named_cells
                if all(values[n] == cell[n] for n in same)
            ]
            if alike[0] != name:
                pairs.append((name, alike[0]))
    return pairs or [(name, named_cells[0][0]) for name, _ in named_cells[1:]]


def _least_sparse(
    cell: Mapping[Any, Any], curves: Sequence[tuple[str, Mapping[Any, Any]]]
) -> list[str]:
    """Returns the least sparse curve that differs in sparsity alone, if any."""
    alike = [
        (other["sparsity"], name)
        for name, other in curves
        if all(other[n] == cell[n] for n in cell if not n.startswith("sparsity"))
        and other["sparsity"] < cell["sparsity"]
        and other["sparsity_method"] in (cell["sparsity_method"], DENSE)
    ]
    return [min(alike, key=lambda one: one[0])[1]] if alike else []
