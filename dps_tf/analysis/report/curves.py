"""The curves of a report: their cells, points, fits and searches, and their labels.

A curve is K* against the batch size with all else fixed; repeats under other seeds
belong to it. Tables join curves by the column `key`, a `core.Curve`. The columns
`panel` and `curve` hold its label, for drawings: what distinguishes it from the other
curves of its panel. Curves with different goals or workloads never share a panel: their
steps are not comparable.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law import MINIMUM_POINTS, LawFit, Observations, fit_law
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.regimes import Ends, ends
from dps_tf.analysis.report.style import LineStyle, assign_styles, file_name
from dps_tf.analysis.searches import search_of_studies
from dps_tf.analysis.tables import curve_key, study_key, winner_at_end
from dps_tf.analysis.wording import and_list
from dps_tf.core import DENSE, Curve, Goal

CROWD = 6
"""Most curves of one panel; with more, each optimizer gets a panel of its own."""
_PLAIN_FIRST = ("sgd", "momentum", "nesterov")
"""Optimizers from plain to elaborate; all others follow by name."""
_LABELS = ["key", "panel", "curve"]
_GRID = 24
"""Batch sizes at which a fitted curve is drawn."""


@dataclass(frozen=True)
class Label:
    """The texts that name a curve where it is drawn.

    Attributes:
        group: its workload, with the goal where a workload has several.
        optimizer: where each optimizer has a panel of its own; else empty.
        name: what distinguishes it from the other curves of its panel.
    """

    group: str
    optimizer: str
    name: str

    @property
    def panel(self) -> str:
        """The name of its panel."""
        return f"{self.group}, {self.optimizer}" if self.optimizer else self.group

    @property
    def in_group(self) -> str:
        """The name of the curve among the curves of its group."""
        return f"{self.optimizer}: {self.name}" if self.optimizer else self.name


@dataclass(frozen=True)
class Curves:
    """The curves of a report, with their points and fits.

    Attributes:
        labels: of each curve, in the order of the report.
        cells: the results table with key, panel and curve, in the order of the report.
        fits: the fit of each curve that has enough batch sizes.
        observations: what is known of each curve; open studies are left out.
        searches: number of points and dimension of each curve, in words.
    """

    labels: Mapping[Curve, Label]
    cells: pd.DataFrame
    fits: Mapping[Curve, LawFit]
    observations: Mapping[Curve, Observations] = field(default_factory=dict)
    searches: Mapping[Curve, str] = field(default_factory=dict)

    @cached_property
    def ends(self) -> dict[Curve, Ends]:
        """The ends of the regimes of each curve that has a fit."""
        return {key: ends(fit) for key, fit in self.fits.items()}

    def ends_in(self, panel: str) -> dict[str, Ends]:
        """Returns the ends of the curves of a panel, by the name of the curve."""
        return {
            self.labels[key].name: found
            for key, found in self.ends.items()
            if self.labels[key].panel == panel
        }

    @cached_property
    def plot_rows(self) -> pd.DataFrame:
        """One row per curve and batch size, seeds together; see `plot_rows_of`."""
        return plot_rows_of(self.cells)

    @property
    def exact(self) -> pd.DataFrame:
        """The plotted rows that have a K* and not only a bound."""
        return self.plot_rows[self.plot_rows["bound"] == ""]

    @cached_property
    def panels(self) -> list[str]:
        """Names of the panels in their order."""
        return list(dict.fromkeys(label.panel for label in self.labels.values()))

    @cached_property
    def line_styles(self) -> dict[str, LineStyle]:
        """The line style of each name of a curve, in the order of the report."""
        return assign_styles(label.name for label in self.labels.values())

    def line_styles_of(self, names: Iterable[str]) -> dict[str, LineStyle]:
        """Returns the line styles of some names, in the order of the report."""
        wanted = set(names)
        return {name: one for name, one in self.line_styles.items() if name in wanted}

    def name(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns a table of studies with the further columns key, panel and curve.

        Rows are in the order of the report: by panel and curve; rows of one cell keep
        their order.
        """
        key = study_key(self.cells)
        place = self.cells[[*key, *_LABELS]].assign(place=range(len(self.cells)))
        named = frame.merge(place, on=key, how="inner")
        return named.sort_values("place", kind="stable").drop(columns="place")

    def best_of(self, keys: Iterable[Curve] | None = None) -> str:
        """Returns a sentence on the searches behind curves, by default all curves."""
        by_search: dict[str, list[str]] = {}
        for key in self.searches if keys is None else keys:
            if key in self.searches:
                by_search.setdefault(self.searches[key], []).append(self.title(key))
        if not by_search:
            return ""
        if len(by_search) == 1:
            return f"Each K* is the best of {next(iter(by_search))}."
        texts = [f"of {search} for {and_list(w)}" for search, w in by_search.items()]
        return f"Each K* is the best {'; '.join(texts)}."

    def panel(self, name: str) -> pd.DataFrame:
        """Returns the plotted rows of a panel."""
        return self.plot_rows[self.plot_rows["panel"] == name]

    def title(self, key: Curve) -> str:
        """Returns the name of a curve in titles, with its panel if several exist."""
        label = self.labels[key]
        return f"{label.panel}: {label.name}" if len(self.panels) > 1 else label.name

    def titles(self, rows: pd.DataFrame) -> list[str]:
        """Returns the title of the curve of each row of a named table."""
        return [self.title(key) for key in rows["key"]]

    def file_name(self, start: str, key: Curve) -> str:
        """Returns the file name, without suffix, of a figure of one curve."""
        label = self.labels[key]
        return file_name(start, self.panel_title(label.panel), label.name)

    def panel_title(self, panel: object) -> str:
        """Returns the name of a panel where there are several, else nothing."""
        return str(panel) if len(self.panels) > 1 else ""


def curves_of(results: pd.DataFrame, studies: pd.DataFrame | None = None) -> Curves:
    """Returns points and fits of all curves of a results table.

    Without the table of studies, `searches` is empty.
    """
    labels = labels_of(map(Curve.of, results.to_dict("records")))
    cells = labelled(results, labels)
    # K* of an open study may still fall: it is drawn, and fitted when closed.
    observations = {
        key: Observations.from_results(rows[rows["closed"]])
        for key, rows in by_curve(cells).items()
    }
    fits = {
        key: fit_law(points)
        for key, points in observations.items()
        if points.batch_sizes >= MINIMUM_POINTS
    }
    searches = {} if studies is None else searches_of(cells, studies)
    return Curves(labels, cells, fits, observations, searches)


def labels_of(curves: Iterable[Curve]) -> dict[Curve, Label]:
    """Returns the label of each curve, in the order of the report.

    The plain optimizer comes first, as others are compared with it; dense networks come
    before pruned ones.
    """
    known = list(dict.fromkeys(curves))
    groups = Counter((curve.workload, curve.goal) for curve in known)
    goals = Counter(workload for workload, _ in groups)
    optimizers = sorted({curve.optimizer for curve in known}, key=_optimizer_order)
    by_optimizer = len(optimizers) > 1 and max(groups.values()) > CROWD
    names = _names(known, not by_optimizer and len(optimizers) > 1)
    labels = {
        curve: Label(
            f"{curve.workload}, {curve.goal}"
            if max(goals.values()) > 1
            else curve.workload,
            curve.optimizer if by_optimizer else "",
            name,
        )
        for curve, name in zip(known, names, strict=True)
    }
    known.sort(key=lambda curve: optimizers.index(curve.optimizer))
    panels = list(dict.fromkeys(labels[curve].panel for curve in known))
    axes = sorted({name for curve in known for name, _ in curve.axes})
    order = {a: axis_order(dict(c.axes).get(a, "") for c in known) for a in axes}

    def place(curve: Curve) -> tuple[Any, ...]:
        return (
            panels.index(labels[curve].panel),
            optimizers.index(curve.optimizer),
            curve.is_pruned,
            curve.sparsity_method,
            *(order[axis][dict(curve.axes).get(axis, "")] for axis in axes),
            curve.sparsity,
            curve.precision,
        )

    return {curve: labels[curve] for curve in sorted(known, key=place)}


def labelled(results: pd.DataFrame, labels: Mapping[Curve, Label]) -> pd.DataFrame:
    """Returns results with key, panel and curve, in the order of the report."""
    keys = [Curve.of(row) for row in results.to_dict("records")]
    places = {key: place for place, key in enumerate(labels)}
    cells = results.assign(
        key=pd.Series(keys, results.index, dtype=object),
        panel=[labels[key].panel for key in keys],
        curve=[labels[key].name for key in keys],
        place=[places[key] for key in keys],
    )
    cells = cells.sort_values(["place", "batch_size", "seed"], kind="stable")
    return cells.drop(columns="place").reset_index(drop=True)


def _optimizer_order(name: str) -> tuple[int, str]:
    is_plain = name in _PLAIN_FIRST
    return (_PLAIN_FIRST.index(name) if is_plain else len(_PLAIN_FIRST), name)


def _names(curves: Sequence[Curve], optimizer: bool) -> list[str]:
    sparsity = len({curve.sparsity for curve in curves}) > 1
    methods = {curve.sparsity_method for curve in curves} - {DENSE}
    precisions = len({curve.precision for curve in curves}) > 1
    axes = sorted({name for curve in curves for name, _ in curve.axes})
    values = [{axis: dict(c.axes).get(axis, "") for axis in axes} for c in curves]
    varying = [axis for axis in axes if len({each[axis] for each in values}) > 1]
    names = []
    for curve, each in zip(curves, values, strict=True):
        parts = [curve.optimizer] if optimizer else []
        if sparsity or curve.sparsity:
            parts.append(f"sparsity {curve.sparsity:.12g}")
        if len(methods) > 1 and curve.is_pruned:
            parts.append(curve.sparsity_method)
        parts += axis_texts(each, varying)
        if precisions:
            parts.append(curve.precision)
        names.append(", ".join(parts) or curve.optimizer)
    return names


def axis_texts(row: Mapping[Any, Any] | pd.Series, axes: Sequence[str]) -> list[str]:
    """Returns `width 32` for each of some axes that a cell has.

    The label of an axis is the last part of its name, or its name if others share it.
    """
    short = [axis.rpartition(".")[2] for axis in axes]
    labels = [s if short.count(s) == 1 else a for s, a in zip(short, axes, strict=True)]
    texts = zip(labels, (str(row[axis]) for axis in axes), strict=True)
    return [f"{name} {text}" for name, text in texts if text]


def axis_order(texts: Iterable[str], base: str = "") -> dict[str, int]:
    """Returns the position of each value of an axis in the order of all values.

    Cells without the axis come first, numbers by their size, then texts, `base` first.

    >>> [*axis_order(["0.9", "0.5", "0"])], [*axis_order(["b", "a", "sgd"], "sgd")]
    (['0', '0.5', '0.9'], ['sgd', 'a', 'b'])
    """

    def key(text: str) -> tuple[float, bool, str]:
        try:
            return float(text or -math.inf), False, text
        except ValueError:
            return math.inf, text != base, text

    return {text: place for place, text in enumerate(sorted(set(texts), key=key))}


def cell_names(named: pd.DataFrame) -> list[str]:
    """Returns a short name per row of a table of cells that has curve names.

    The seed is part of it where there are several.
    """
    several = named["seed"].nunique() > 1
    panels = named["panel"].nunique() > 1
    names = []
    for row in named.to_dict("records"):
        start = f"{row['panel']}, " if panels else ""
        end = f", seed {row['seed']}" if several else ""
        names.append(f"{start}{row['curve']}, batch size {row['batch_size']}{end}")
    return names


def by_curve(table: pd.DataFrame) -> dict[Curve, pd.DataFrame]:
    """Returns the rows of each curve of a named table, in the order of the table."""
    groups: Iterable[tuple[Any, pd.DataFrame]] = table.groupby("key", sort=False)
    return {key: rows for key, rows in groups}


def of_curve(table: pd.DataFrame, key: Curve) -> pd.DataFrame:
    """Returns the rows of one curve of a named table."""
    rows: pd.DataFrame = table[table["key"] == key]
    return rows


def first_seed(table: pd.DataFrame) -> pd.DataFrame:
    """Returns rows of each curve's least seed: small pictures show a single study."""
    names = [name for name in curve_key(table) if name != "seed"]
    least = table.groupby(names)["seed"].transform("min")
    rows: pd.DataFrame = table[table["seed"] == least]
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


def plot_rows_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per curve and batch size, seeds taken together, as it is drawn.

    Columns: key, panel, curve, batch_size, steps_to_result, low, high, bound, repeats.
    For one seed the bar is the bracket, for several it runs from the least to the
    greatest K* and the point is their median. A K* whose best trial lies at an end of
    its range is a bound here, as it is in fits. Cells that have neither K* nor bound,
    and cells with K* = 0, are left out.
    """
    rows = []
    keys = [*_LABELS, "batch_size"]
    is_upper = cells["steps_bound"].ne("") | winner_at_end(cells)
    cells = cells.assign(is_upper=is_upper & cells["steps_to_result"].notna())
    for _, cell in cells.groupby(["key", "batch_size"], sort=False):
        values = _one(cell.iloc[0]) if len(cell) == 1 else _several(cell)
        # K* = 0, a goal that is met untrained, has no place on an axis of logarithms.
        if values is not None and values[0] > 0:
            rows.append((*cell.iloc[0][keys], *values, len(cell)))
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
    """Returns median, least and greatest K* of the seeds of a cell, and the bound."""
    steps = cell["steps_to_result"]
    known = steps.dropna()
    if known.empty:
        return _one(cell.iloc[0])
    # Nothing is known of how far K* lie below what bounds them.
    median, least = known.median(), known.mask(cell["is_upper"], 0).median()
    bound = "<=" if least < median else ""
    if len(known) < len(cell):
        # Seeds without K* lie above the others, whose median is too low.
        median, bound = least, ">="
    return float(median), float(known.min()), float(known.max()), bound


def fit_lines(rows: pd.DataFrame, fits: Mapping[Curve, LawFit]) -> pd.DataFrame:
    """Returns the fits of the curves of plotted rows on a grid of their batch sizes.

    Columns: curve, seeds (number of studies behind it), batch_size, steps, low and high
    (ends of the fit's interval), further_low and further_high (of K* of a further
    study).
    """
    tables = []
    for key, points in by_curve(rows).items():
        if (fit := fits.get(key)) is None:
            continue
        sizes = points["batch_size"].to_numpy(float)
        grid = np.geomspace(sizes.min(), sizes.max(), _GRID)
        low, high = fit.band(grid)
        further_low, further_high = fit.prediction(grid)
        table = pd.DataFrame({"batch_size": grid, "steps": fit.steps(grid)})
        table = table.assign(curve=points["curve"].iloc[0], low=low, high=high)
        ends = {"further_low": further_low, "further_high": further_high}
        tables.append(table.assign(**ends, seeds=fit.observations.seeds))
    columns = ["batch_size", "steps", "curve", "low", "high", "seeds"]
    empty = pd.DataFrame(columns=[*columns, "further_low", "further_high"])
    return pd.concat(tables) if tables else empty


def groups(curves: Curves) -> list[tuple[Curve, pd.DataFrame]]:
    """Returns the cells of each curve, smallest batch size first.

    Cells of the least seed stand for repeats under other seeds.
    """
    return [
        (key, first_seed(cells).sort_values("batch_size"))
        for key, cells in by_curve(curves.cells).items()
    ]


def comparable(curves: Curves) -> list[list[Curve]]:
    """Returns groups of the curves with the same workload and goal.

    The steps of such curves may be compared, also across panels of optimizers.
    """
    by_goal: dict[tuple[str, str], list[Curve]] = {}
    for key in curves.labels:
        by_goal.setdefault((key.workload, key.goal), []).append(key)
    return list(by_goal.values())


def searches_of(cells: pd.DataFrame, studies: pd.DataFrame) -> dict[Curve, str]:
    """Returns the search of each curve in words; see `search_of_studies`."""
    names = study_key(studies)
    columns = [*names, "points", "count", "space"]
    both = cells[[*names, "key"]].merge(studies[columns], on=names)
    return {key: search_of_studies(group) for key, group in by_curve(both).items()}


def effects(keys: Sequence[Curve]) -> list[tuple[Curve, Curve]]:
    """Returns pairs (curve, reference) that differ in one thing only.

    A sparser curve is compared with the least sparse one of the same optimizer and of
    the same method, or dense. Along every other axis (optimizer, method, precision,
    further ones) a curve is compared with the first, all else equal. Where no two
    curves are alike enough, all are compared with the first. All curves have the same
    workload and goal.
    """
    further = sorted({name for key in keys for name, _ in key.axes})
    # Comparisons are in the order of the tables; precision comes last.
    axes = ["optimizer", "sparsity_method", *further, "precision"]
    pairs = [(key, other) for key in keys for other in _least_sparse(key, keys)]
    for axis in axes:
        for key in keys:
            first = next(other for other in keys if not differing(key, other) - {axis})
            if first != key:
                pairs.append((key, first))
    return pairs or [(key, keys[0]) for key in keys[1:]]


def differing(one: Curve, other: Curve) -> set[str]:
    """Returns the names of the attributes and axes in which two curves differ."""
    a, b = one.values, other.values
    return {name for name in {**a, **b} if a.get(name, "") != b.get(name, "")}


def _least_sparse(key: Curve, keys: Sequence[Curve]) -> list[Curve]:
    """Returns the least sparse curve that differs in sparsity alone, if any."""
    alike = [
        other
        for other in keys
        if differing(key, other) <= {"sparsity", "sparsity_method"}
        and other.sparsity < key.sparsity
        and other.sparsity_method in (key.sparsity_method, DENSE)
    ]
    return [min(alike, key=lambda other: other.sparsity)] if alike else []
