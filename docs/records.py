"""The recorded tables of gin_configs/: curves, fits, ratios, seeds and trials.

A study is a table without its ending, `optimizers/delay`; a curve has the name that
`dps_tf.fit` gives it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from dps_tf.analysis.fit_table import curves_of_table, observations_by_curve, read_table
from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import (
    FEW_POINTS,
    MINIMUM_POINTS,
    CurveRatio,
    Distribution,
    Estimate,
    LawFit,
    Observations,
    compare,
    exponent_of,
    exponent_of_all,
    fit_law,
    joinable,
    joint_fit,
    misfits,
)
from dps_tf.analysis.searches import searches_of_results

T = TypeVar("T")

DENSE = {
    "lee2021/mnist_reproduction": "SGD, sparsity 0|Nesterov, 0$",
    "lee2021/mnist_sgd_sparsity": "sparsity 0$",
    "lee2021/rivals": "dense, goal 0.17",
    "optimizers/fashion_mnist_fc": "",
    "optimizers/text_transformer": "",
    "shallue2019/cifar_10_optimizers": "",
    "shallue2019/mnist_fc_ghosts": "search",
    "shallue2019/mnist_fc_sizes": "",
    "shallue2019/mnist_optimizers": "",
    "shallue2019/mnist_subsets": "",
    "shallue2019/text_networks": "",
}
"""Finished searches, and which of their curves are of dense, plainly updated networks.

Curves made of the trials of another table are left out (no delay, H = 1)."""
TOLERANCE = 0.2
"""Of K* beside c1/B, or c2, within which a regime holds."""
LAW_TABLES = (
    "lee2021/mnist_reproduction",
    "lee2021/rivals",
    "optimizers/fashion_mnist_fc",
    "optimizers/text_transformer",
    "parallelism/delay",
    "parallelism/local_sgd",
    "shallue2019/mnist_fc_sizes",
    "shallue2019/text_networks",
)
"""Finished searches with curves of FEW_POINTS or more K* that are no bounds."""
_SAME_TRIALS = {"lee2021/rivals": "goal 0.1[59]"}
"""Curves of trials that other curves of the table have, to another goal."""
_UNSTATED = ("16 trials in 1 dimension", "48 trials in 2 dimensions")
"""Searches of SGD and of Nesterov momentum in tables without that column."""


class Tables:
    """The recorded tables below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fit = functools.cache(self._fit)
        self.joint_law = functools.cache(self._joint_law)
        self.ratio = functools.cache(self._ratio)
        self.rows = functools.cache(self._curves_of_table)
        self.curves = functools.cache(self._observations)
        self._searches = functools.cache(self._searches_of_table)
        self._exponent_of = functools.cache(lambda curves: exponent_of(dict(curves)))

    def table(self, study: str) -> pd.DataFrame:
        """Returns a recorded table."""
        return read_csv(self._folder / f"{study}.csv")

    def is_long(self, study: str, curve: str) -> bool:
        """Returns whether a curve has batch sizes enough for a fit of its own."""
        return self.curves(study)[curve].batch_sizes >= MINIMUM_POINTS

    def law_of(self, study: str, curve: str) -> LawFit:
        """Returns the law of a curve: its own, or of the joint fit if it is short."""
        fit = self.fit if self.is_long(study, curve) else self.joint_law
        return fit(study, curve)

    def trials(self, *studies: str) -> int:
        """Returns the number of trials of tables; a curve in two tables counts once."""
        found: dict[object, int] = {}
        for study in dict.fromkeys(studies):
            stem = re.sub("_(trials|measurements)$", "", study)
            if stem != study:
                found[stem] = len(self.table(f"{stem}_trials"))
                continue
            for name, rows in self.rows(study).items():
                each = int(self._searches(study)[name].partition(" ")[0])
                stated = "trials" in rows
                count = int(rows["trials"].sum()) if stated else each * len(rows)
                found[(*rows["steps_to_result"].to_numpy()[:4],)] = count
        return sum(found.values())

    def seed_count(self, study: str) -> int:
        """Returns the number of seeds of a table; one that has none says of one."""
        table = self.table(study)
        return table["seed"].nunique() if "seed" in table else 1

    def unlike_searches(self, study: str, curve: str, other: str) -> str:
        """Returns the searches of two curves where these are unlike."""
        both = [self._searches(study)[name] for name in (curve, other)]
        return " against ".join(both) if both[0] != both[1] else ""

    def three_regimes(self, study: str, curve: str) -> bool:
        """Returns whether a curve was measured within TOLERANCE of c1/B and of c2.

        That holds at both ends of the interval of c1/c2.
        """
        end, sizes = self.fit(study, curve).critical_batch_size, self.curves(study)
        least, largest = sizes[curve].batch_size[0], sizes[curve].batch_size[-1]
        return TOLERANCE * end.low > least and end.high / TOLERANCE < largest

    def exponent_of_table(self, study: str) -> Distribution:
        """Returns the exponent that the long curves of a table share."""
        return self._exponent_of(tuple(self._long(study).items()))

    def shared_exponent(self) -> Distribution:
        """Returns the exponent that the long curves of LAW_TABLES share."""
        return exponent_of_all([self.exponent_of_table(study) for study in LAW_TABLES])

    def _fit(self, study: str, curve: str) -> LawFit:
        return fit_law(self.curves(study)[curve])

    def _joint_law(self, study: str, curve: str) -> LawFit:
        """Returns the law of one curve in the joint fit of its table."""
        return joint_fit(independent(study, self.curves(study), curve))[curve]

    def _ratio(self, study: str, curve: str, reference: str) -> CurveRatio[str]:
        """Returns c1, c2 and c1/c2 of a curve over a reference, by a joint fit."""
        curves = independent(study, self.curves(study), reference)
        pairs, searches = [(curve, reference)], self._searches(study)
        [found] = compare(curves, pairs=pairs, searches=searches).ratios
        return found

    def _curves_of_table(self, study: str) -> dict[str, pd.DataFrame]:
        table = read_table(self._folder / f"{study}.csv")
        return curves_of_table(table, seeds_together=True)

    def _observations(self, study: str) -> dict[str, Observations]:
        table = read_table(self._folder / f"{study}.csv")
        return joinable(observations_by_curve(table, seeds_together=True))

    def _searches_of_table(self, study: str) -> dict[str, str]:
        """Returns what K* of each curve are the best of; see `_UNSTATED`."""
        return {
            name: text or _UNSTATED[name.startswith("Nesterov")]
            for name, text in searches_of_results(self.rows(study)).items()
        }

    def _long(self, study: str) -> dict[str, Observations]:
        """Returns the long curves of a table that no earlier table has."""
        earlier = {
            start
            for other in LAW_TABLES[: LAW_TABLES.index(study)]
            for curve in self.curves(other).values()
            for start in _starts(curve)
        }
        return {
            name: curve
            for name, curve in independent(study, self.curves(study), "").items()
            if curve.batch_sizes >= FEW_POINTS and _starts(curve).isdisjoint(earlier)
        }


def independent(study: str, curves: Mapping[str, T], of: str) -> dict[str, T]:
    """Returns the curves that can be in one fit with curves of a name such as `of`."""
    same = re.compile(_SAME_TRIALS.get(study, "(?!)"))
    is_same = bool(same.search(of))
    return {n: c for n, c in curves.items() if bool(same.search(n)) == is_same}


def _starts(curve: Observations) -> set[tuple[float, ...]]:
    """Returns the first three K* of each seed, by which the same trials are known."""
    return {(*curve.high[curve.seed == seed][:3],) for seed in np.unique(curve.seed)}


def refuses_law(exponent: Estimate) -> bool:
    """Returns whether the interval of an exponent leaves 1 out."""
    return not exponent.low <= 1 <= exponent.high


def columns(name: str, shown: Estimate | None) -> dict[str, object]:
    """Returns an estimate as columns; what is open is empty, and so is its value."""
    if shown is None:
        return {}
    ends = {f"{name}_low": shown.low, f"{name}_high": shown.high}
    closed = {end: x if 0 < x < np.inf else np.nan for end, x in ends.items()}
    value = np.nan if any(np.isnan(x) for x in closed.values()) else shown.value
    return {name: value, **closed}


def fits(records: Tables, studies: Sequence[str]) -> pd.DataFrame:
    """Returns the law of every curve of tables, a row each.

    Columns: table, curve, by (`alone` or `joint`), c1 (examples), c2 (steps),
    critical_batch_size and exponent with their 95 % ends; averaged, c1/c2 averaged over
    the exponent where `fit` says to take that; rms of residuals in octaves;
    rests_on_scale; dense and three_regimes, of finished searches.
    """
    found = []
    for study in studies:
        for curve in records.curves(study):
            law, is_long = records.law_of(study, curve), records.is_long(study, curve)
            is_dense = bool(
                is_long and study in DENSE and re.search(DENSE[study], curve)
            )
            row = {
                "table": study,
                "curve": curve,
                "by": "alone" if is_long else "joint",
            }
            row |= columns("c1", law.c1) | columns("c2", law.c2)
            row |= columns("critical_batch_size", law.critical_batch_size)
            if is_long:
                advised = law.critical_averaged if "exponent" in misfits(law) else None
                row |= columns("exponent", law.exponent) | columns("averaged", advised)
                row |= {"rms": law.rms, "rests_on_scale": law.rests_on_scale}
            row["dense"] = is_dense
            row["three_regimes"] = is_dense and records.three_regimes(study, curve)
            found.append(row)
    return pd.DataFrame(found)


def ratios(records: Tables, pairs: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Returns the ratios of pairs of curves, a row each, by joint fits of tables."""
    found = []
    for study, curve, reference in pairs:
        pair = records.ratio(study, curve, reference)
        row: dict[str, object] = {"table": study, "curve": curve}
        row["reference"] = reference
        for name in ("c1", "c2", "critical_batch_size"):
            ratio = getattr(pair, name)
            row |= columns(name, Estimate(ratio.value, ratio.low, ratio.high))
        row["searches"] = pair.searches
        found.append(row)
    return pd.DataFrame(found)
