"""The recorded tables of gin_configs/, the fits of their curves, and their exponent."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from evidence import Evidence, files, of_distribution
from workloads import (
    DENSE,
    Curve,
    averaged,
    estimate,
    fitted_curves,
    independent,
    is_dense,
    plain_name,
    refuses_law,
)

from dps_tf.analysis.fit_table import curves_of_table, read_table
from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import (
    FEW_POINTS,
    LEVEL,
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
    joint_fit,
)
from dps_tf.analysis.published import read_published
from dps_tf.analysis.searches import searches_of_results
from dps_tf.analysis.wording import and_list, number

_UNSTATED = ("16 trials in 1 dimension", "48 trials in 2 dimensions")
"""Searches of curves of SGD and of Nesterov momentum in tables without that column."""

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
"""Recorded searches with curves of FEW_POINTS or more K* that are no bounds. Unfinished
ones, and those whose K* are those of another table, are left out."""


class Tables:
    """The recorded tables below a folder; public methods are names of expressions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fit = functools.cache(self._fit)
        self.joint_law = functools.cache(self._joint_law)
        self.ratio = functools.cache(self._ratio)
        self._rows = functools.cache(self._curves_of_table)
        self._curves = functools.cache(self._observations)
        self._searches = functools.cache(self._searches_of_table)
        self._exponent_of = functools.cache(lambda curves: exponent_of(dict(curves)))

    def table(self, study: str) -> pd.DataFrame:
        """Returns a recorded table."""
        return read_csv(self._folder / f"{study}.csv")

    def curve(self, study: str, curve: str) -> pd.DataFrame:
        """Returns the rows of one curve, those of all its seeds."""
        return self._rows(study)[curve]

    def steps(
        self, study: str, columns: str, value: str = "steps_to_result"
    ) -> pd.DataFrame:
        """Returns K*, or another column, a row a batch size: medians over seeds."""
        table = self.table(study)
        how = "median" if pd.api.types.is_numeric_dtype(table[value]) else "first"
        return table.groupby(["batch_size", columns])[value].agg(how).unstack()

    def published_steps(self, pattern: str) -> pd.DataFrame:
        """Returns K* as Shallue et al. 2019 published it, a column an optimizer."""
        table = read_published(
            self._folder / "shallue2019" / "published.csv", [pattern]
        )
        return table.pivot(
            index="batch_size", columns="optimizer", values="steps_to_result"
        )

    def reached(self, study: str) -> Mapping[tuple[str, int], int]:
        """Returns how many seeds met the goal, by workload and batch size."""
        cells = self.table(study).groupby(["workload", "batch_size"])
        return cells["steps_to_result"].count().to_dict()

    def times(
        self, study: str, columns: str, one: tuple[str, int], other: tuple[str, int]
    ) -> str:
        """Returns K* of a curve at a batch size over another, bounds as such."""
        k = self.steps(study, columns)
        at_end = self.steps(study, columns, "at_boundary").notna()
        bounds = [bool(at_end[curve][size]) for curve, size in (one, other)]
        assert not all(bounds), f"both K* are bounds: {one} and {other}"
        word = "at most " * bounds[0] + "at least " * bounds[1]
        return word + number(k[one[0]][one[1]] / k[other[0]][other[1]])

    def _fit(self, study: str, curve: str) -> LawFit:
        """Returns the law of one curve."""
        return fit_law(self._curves(study)[curve])

    def is_long(self, study: str, curve: str) -> bool:
        """Returns whether a curve has batch sizes enough for a fit of its own."""
        return self._curves(study)[curve].batch_sizes >= MINIMUM_POINTS

    def _joint_law(self, study: str, curve: str) -> LawFit:
        """Returns the law of one curve in the joint fit of its table."""
        return joint_fit(independent(study, self._curves(study), curve))[curve]

    def end(self, study: str, curve: str) -> Estimate:
        """Returns c1/c2, the critical batch size, of one curve."""
        return self.fit(study, curve).critical_batch_size

    def _trials(self, study: str, curve: str) -> int:
        rows = self._rows(study)[curve]
        each = int(self._searches(study)[curve].partition(" ")[0])
        return int(rows["trials"].sum()) if "trials" in rows else each * len(rows)

    def trials(self, *studies: str) -> int:
        """Returns the number of trials of tables; a curve in two tables counts once."""
        found: dict[object, int] = {}
        for study in dict.fromkeys(studies):
            stem = re.sub("_(trials|measurements)$", "", study)
            if stem != study:
                found[stem] = len(self.table(f"{stem}_trials"))
                continue
            for name, rows in self._rows(study).items():
                k = rows["steps_to_result"].to_numpy()
                found[(*k[:4],)] = self._trials(study, name)
        return sum(found.values())

    def not_kept(self, *studies: str) -> str:
        """Returns which of these tables have no trials beside them, as a sentence."""
        stems = dict.fromkeys(re.sub("_(trials|measurements)$", "", s) for s in studies)
        bare = [s for s in stems if not (self._folder / f"{s}_trials.csv").is_file()]
        names = and_list([f"{stem.rpartition('/')[2]}.csv" for stem in bare])
        return f"no trials of {names} were kept" if bare else ""

    def seed_count(self, study: str) -> int:
        """Returns the number of seeds of a table; one that has none says of one."""
        table = self.table(study)
        return table["seed"].nunique() if "seed" in table else 1

    def seeds(self, *studies: str) -> str:
        """Returns under how many seeds the cells of tables were studied."""
        by_count: dict[int, list[str]] = {}
        for study in dict.fromkeys(studies):
            count = self.seed_count(study)
            by_count.setdefault(count, []).append(study.rpartition("/")[2])
        words = [
            f"{n} seed{'s' * (n > 1)} in {and_list(names)}"
            for n, names in sorted(by_count.items())
        ]
        return "; ".join(words)

    def dense(self) -> list[Curve]:
        """Returns all recorded curves of dense networks that can be fitted."""
        return [
            Curve(
                f"{plain_name(name)} of [{study.rpartition('/')[2]}]({study}.csv)",
                self.end(study, name),
                (points.batch_size[0], points.batch_size[-1]),
                averaged(self.fit(study, name)),
            )
            for study in DENSE
            for name, points in self._curves(study).items()
            if is_dense(study, name) and self.is_long(study, name)
        ]

    def dense_trials(self) -> int:
        """Returns the number of their trials."""
        return sum(
            self._trials(study, name)
            for study in DENSE
            for name in self._curves(study)
            if is_dense(study, name) and self.is_long(study, name)
        )

    def misfits(self, study: str) -> list[float]:
        """Returns the root mean square of the residuals of each curve, in octaves."""
        curves = self._curves(study)
        return [self.fit(study, c).rms for c in curves if self.is_long(study, c)]

    def _curves_of_table(self, study: str) -> dict[str, pd.DataFrame]:
        table = read_table(self._folder / f"{study}.csv")
        return curves_of_table(table, seeds_together=True)

    def _searches_of_table(self, study: str) -> dict[str, str]:
        """Returns what K* of each curve are the best of; see `_UNSTATED`."""
        return {
            name: text or _UNSTATED[name.startswith("Nesterov")]
            for name, text in searches_of_results(self._rows(study)).items()
        }

    def unlike_searches(self, study: str, curve: str, other: str) -> str:
        """Returns the searches of two curves where these are unlike."""
        both = [self._searches(study)[name] for name in (curve, other)]
        return " against ".join(both) if both[0] != both[1] else ""

    def _observations(self, study: str) -> dict[str, Observations]:
        return fitted_curves(self._folder / f"{study}.csv")

    def _ratio(
        self,
        study: str,
        curve: str,
        reference: str,
        level: float = LEVEL,
        every_goal: bool = False,
    ) -> CurveRatio:
        """Returns c1 and c2 of a curve over those of a reference, by a joint fit.

        Curves of the same trials to other goals are in it where `every_goal` is true.
        """
        curves = self._curves(study)
        if not every_goal:
            curves = independent(study, curves, reference)
        pairs, searches = [(curve, reference)], self._searches(study)
        [found] = compare(curves, pairs=pairs, level=level, searches=searches).ratios
        return found

    def shared_trials(self, one: str, where: str, other: str) -> int:
        """Returns how many trials of a table, those `where`, another table has too."""
        key = ["optimizer", "batch_size", "seed", "trial", "learning_rate"]
        return len(self.table(one).query(where)[key].merge(self.table(other)[key]))

    # The exponent of c1/B^a + c2 that recorded curves have in common.

    def exponent(self, goal: str = "") -> Evidence:
        """Returns how far the exponent that recorded curves share lies from 1."""
        about = f"exponent less 1 {files(LAW_TABLES)}"
        return of_distribution(about, LAW_TABLES, self._shared(LAW_TABLES, goal), 0)

    def shared_exponent(self, *without: str, goal: str | None = "") -> Estimate:
        """Returns a of c1/B^a + c2, one for the long curves of LAW_TABLES.

        A residual scale each table; `without` some of them. Of the same trials to
        several goals, curves to a `goal` are taken, or all as if independent (None).
        """
        kept = [study for study in LAW_TABLES if study not in without]
        return Estimate.of(self._shared(kept, goal))

    def exponent_of_table(self, study: str, goal: str | None = "") -> Estimate:
        """Returns that of the long curves of one table."""
        return Estimate.of(self._exponent(study, goal))

    def refusing(self) -> str:
        """Returns the tables whose own exponent excludes 1, with it."""
        found = {study: self.exponent_of_table(study) for study in LAW_TABLES}
        return and_list(
            [
                f"{study.rpartition('/')[2]}, {estimate(each)},"
                for study, each in found.items()
                if refuses_law(each)
            ]
        )

    def curves(self) -> int:
        """Returns how many curves these are."""
        return sum(len(self._long(study)) for study in LAW_TABLES)

    def _shared(self, studies: Sequence[str], goal: str | None) -> Distribution:
        return exponent_of_all([self._exponent(study, goal) for study in studies])

    def _exponent(self, study: str, goal: str | None) -> Distribution:
        # Most tables have the same curves for every goal.
        return self._exponent_of(tuple(self._long(study, goal).items()))

    def _long(self, study: str, goal: str | None = "") -> dict[str, Observations]:
        """Returns the long curves of a table, but those that an earlier table has."""
        earlier = {
            start
            for other in LAW_TABLES[: LAW_TABLES.index(study)]
            for curve in self._curves(other).values()
            for start in _starts(curve)
        }
        curves = self._curves(study)
        kept = curves if goal is None else independent(study, curves, goal)
        return {
            name: curve
            for name, curve in kept.items()
            if curve.batch_sizes >= FEW_POINTS and _starts(curve).isdisjoint(earlier)
        }


def _starts(curve: Observations) -> set[tuple[float, ...]]:
    """Returns the first three K* of each seed, by which the same trials are known."""
    return {(*curve.high[curve.seed == seed][:3],) for seed in np.unique(curve.seed)}
