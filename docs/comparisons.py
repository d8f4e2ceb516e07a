"""Comparisons that a verdict can name, over the recorded tables of gin_configs/.

`comparisons.csv` holds each as a call, for example `law("a/table", "x", "y", "c2")`.
The public methods of `Comparisons` are the names of calls. `evidence.py` has the rule
by which each comparison gets its word.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from evidence import (
    SIDES,
    Evidence,
    log2_of,
    of_distribution,
    of_t,
    over,
    quotient,
)
from noise_scales import TABLES, MeasuredCurve, measured_curves, order
from records import LAW_TABLES, Tables, refuses_law
from scipy import stats

from dps_tf.analysis.heuristics import RULES, effective_learning_rate
from dps_tf.analysis.law import LEVEL, Ratio
from dps_tf.analysis.paired_ratios import (
    PairedRatio,
    paired_ratio,
    with_theory_products,
)
from dps_tf.analysis.repeats import STATED_NOISE
from dps_tf.analysis.tables import Floats, study_key
from dps_tf.analysis.wording import and_list

_NOISE = STATED_NOISE[1]
"""Octaves: of one K*, where a study has neither seeds nor finishers to tell its own."""
Sizes = tuple[int, int]
_CONSTANTS = {"c1": "c1", "c2": "c2", "c1/c2": "critical_batch_size"}


class Comparisons(Tables):
    """The recorded tables below a folder, compared."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._measured_with_products = functools.cache(self._measurements)
        self._curves_with_noise = functools.cache(self._with_noise)

    def evidence(self, call: str) -> Evidence:
        """Returns what a comparison found; its arguments are plain values.

        Raises:
            ValueError: the call is none of a public method with plain values.
        """
        node = ast.parse(call, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError(f"{call!r} is no comparison: write name(values)")
        values = [ast.literal_eval(each) for each in node.args]
        named = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
        if node.func.id.startswith("_"):
            raise ValueError(f"{node.func.id!r} is no comparison")
        found = getattr(self, node.func.id)(*values, **named)
        assert isinstance(found, Evidence), call
        return found

    def _measurements(self, study: str) -> pd.DataFrame:
        return with_theory_products(self._measured(study))

    def _measured(self, study: str) -> pd.DataFrame:
        wide = self.table(study)
        names = [*study_key(wide), "trial", "step", "examples"]
        return wide.melt(names, var_name="quantity", value_name="value")

    def _with_noise(self, study: str, prefix: str) -> list[MeasuredCurve]:
        measured = self._measured(f"{study}_measurements")
        return measured_curves(study, self.table(study), measured, prefix)

    def noise_order(
        self,
        statistic: str,
        *studies: str,
        geometry: str = "optimizer",
        across: bool = False,
    ) -> Evidence:
        """Returns how noise scale and c1/c2 go together over the curves of tables.

        By default the tables are `noise_scales.TABLES`. `statistic` is `rank` or
        `slope`, and `geometry` is `optimizer` or `Euclidean`. `across` ranks the curves
        of all workloads together; see `noise_scales.associated`.
        """
        studies = studies or TABLES
        prefix = {"optimizer": "optimizer_", "Euclidean": ""}[geometry]
        curves = [
            c for study in studies for c in self._curves_with_noise(study, prefix)
        ]
        return order(statistic, studies, curves, f"{geometry} noise scale", across)

    def paired(
        self,
        study: str,
        quantity: str,
        matched: str,
        method: str = "snip",
        levels: tuple[float, float] = (0.9, 0.0),
    ) -> PairedRatio:
        """Returns a quantity at one sparsity over that at another; 0 is dense.

        `matched` is `step` or `loss`.
        """
        measured = self._measured_with_products(study)
        is_one = measured["sparsity_method"].isin([method, "none"])
        one, other = (measured[is_one & (measured["sparsity"] == s)] for s in levels)
        return paired_ratio(one, other, quantity, matched)

    def _best(self, study: str, column: str) -> pd.Series:
        """Returns errors of the trials with the least validation error, one a study."""
        ordered = self.table(study).sort_values("least_validation")
        return ordered.groupby(["workload", "batch_size", "seed"])[column].first()

    def law(self, study: str, curve: str, reference: str, quantity: str) -> Evidence:
        """Returns c1, c2 or c1/c2 of a curve over a reference, by a joint fit.

        Where the exponent of a curve leaves 1 out, c1/c2 of both comes from the fits
        of each alone, averaged over the exponent.
        """
        pair = self.ratio(study, curve, reference)
        ratio: Ratio = getattr(pair, _CONSTANTS[quantity])
        about = f"{quantity} of {curve} / {reference}"
        found = Evidence(
            about,
            (study,),
            *(ratio.value, ratio.low, ratio.high),
            2 * min(ratio.probability, 1 - ratio.probability),
            ratio.within,
            refused=ratio.verdict.partition("refused: ")[2],
            is_small=ratio.p_adjusted < 1 - LEVEL and ratio.verdict not in SIDES,
            searches=pair.searches,
        )
        both = (curve, reference)
        fits = [self.fit(study, name) for name in both if self.is_long(study, name)]
        if quantity != "c1/c2" or not any(refuses_law(fit.exponent) for fit in fits):
            return found
        assert not any(fit.unresolved for fit in fits), f"{about}: an end is open"
        one, other = (fit.free.critical_batch_size for fit in fits)
        about = f"{about}, averaged over the exponent"
        free = of_distribution(about, (study,), over(one, other), 1)
        flags = ("refused", "is_small", "searches")
        return replace(free, **{name: getattr(found, name) for name in flags})

    def exponent(self) -> Evidence:
        """Returns how far the exponent that recorded curves share lies from 1."""
        found = self.shared_exponent()
        return of_distribution("exponent less 1", LAW_TABLES, found, 0)

    def law_of_tables(self, one: str, other: str, curve: str) -> Evidence:
        """Returns c1/c2 of a curve in one table over c1/c2 in another table.

        Each comes from the joint fit of its table, with the residual scale of that fit.
        """
        intervals, ends = [], []
        for study in (one, other):
            law = self.joint_law(study, curve)
            ends.append(law.posterior.critical_batch_size)
            rows = self.rows(study)[curve][["batch_size", "evaluation_interval"]]
            each = rows.drop_duplicates().sort_values([*rows], ignore_index=True)
            intervals.append(each)  # Of one seed as of several.
            assert not refuses_law(self.fit(study, curve).exponent), curve
        assert intervals[0].equals(intervals[1]), "unlike evaluation intervals"
        names = " / ".join(study.rpartition("/")[2] for study in (one, other))
        about = f"c1/c2 of {curve}, {names}"
        return of_distribution(about, (one, other), over(*ends), 1)

    def steps_at(self, study: str, curve: str, reference: str, size: int) -> Evidence:
        """Returns K* of a curve over K* of a reference at one batch size.

        The noise of each K* is the greatest that studies had, as this one has neither
        seeds nor finishers.

        Raises:
            ValueError: one of the two K* is a bound.
        """
        cells = [
            self.rows(study)[name].set_index("batch_size").loc[size]
            for name in (curve, reference)
        ]
        if any(pd.notna(cell["at_boundary"]) for cell in cells):
            raise ValueError(f"a K* at {size} of {curve} or {reference} is a bound")
        octaves = np.log2(cells[0]["steps_to_result"] / cells[1]["steps_to_result"])
        about = f"K* at {size} of {curve} / {reference}, {_NOISE} octaves of noise each"
        found = of_t(about, (study,), (octaves, _NOISE * np.sqrt(2), np.inf), 1)
        return replace(found, searches=self.unlike_searches(study, curve, reference))

    def fall(
        self, studies: Sequence[str], columns: str, one: str, other: str, sizes: Sizes
    ) -> Evidence:
        """Returns how often K* of one curve falls between batch sizes over another's.

        A fall is K* at the first of two batch sizes over that at the second; falls of
        the seeds that both curves have are compared. The first study has all cells, and
        another goes on with the search of some beyond the end at which their winners
        lie: K* is the least of both.
        """
        cells = pd.concat([self.table(study) for study in studies])
        key = ["seed", columns, "batch_size"]
        least = cells.groupby(key)["steps_to_result"].min()
        k = least.unstack()
        falls = np.log2(k[sizes[0]] / k[sizes[1]]).unstack().dropna()
        differ = falls[one] - falls[other]
        about = f"fall of K* from {sizes[0]} to {sizes[1]}, {one} / {other}, by "
        about += f"{len(differ)} seeds"
        mean = differ.mean(), differ.sem(), len(differ) - 1
        # Of a cell that was searched again, only the last search can stop at an end.
        last = cells.drop_duplicates(key, keep="last").set_index(key)
        is_best = last["steps_to_result"].eq(least)
        ends = set(last["at_boundary"].where(is_best).dropna())
        refused = f"winners lie at an end of {and_list(sorted(ends))}" if ends else ""
        curves = f"{columns} {one}", f"{columns} {other}"
        searches = self.unlike_searches(studies[0], *curves)
        found = of_t(about, studies, mean, 1)
        flags = {"refused": refused, "searches": searches, "seeds": len(differ)}
        return replace(found, **flags)

    def rate_power(
        self,
        studies: Sequence[str],
        optimizers: Sequence[str],
        sizes: Sizes,
        rule: str = "",
    ) -> Evidence:
        """Returns the power of the batch size that best rates go with, less a rule's.

        Effective rates of winners, lr / (1 - momentum), between two batch sizes, by
        least squares: one power for all curves, each with a rate of its own. Winners
        at an end of their space are left out. `rule` is `linear`,
        `square_root` or nothing (Shallue et al. 2019, Figure 8, shows the rules beside
        winning rates; the power is our own).
        """
        cells = pd.concat([self.table(study).assign(study=study) for study in studies])
        cells = cells[cells["optimizer"].isin(optimizers) & cells["at_boundary"].isna()]
        cells = cells[cells["batch_size"].between(*sizes)]
        # One cell says nothing of a power.
        curve = ["study", "optimizer", "sparsity"]
        cells = cells[cells.groupby(curve)["batch_size"].transform("size") > 1]
        curves = [cells[n].to_numpy() for n in curve]
        of_rule = RULES[rule] if rule else 0.0
        measured = cells["batch_size"].to_numpy()
        rates = effective_learning_rate(cells)
        power, error, freedom = _common_power(measured, rates, curves)
        about = (
            f"power of the best rate, less {of_rule:g}, of {len(cells)} cells in "
            f"{len(cells) - freedom - 1} curves at batch sizes {measured.min()} to "
            f"{measured.max()}"
        )
        return of_t(about, studies, (power - of_rule, error, freedom), 0)

    def reaches(self, study: str, size: int, within: float, unit: str) -> pd.Series:
        """Returns which trials reach the goal within so many steps or epochs, 0 or 1.

        Rows are seeds and numbers of trials. `unit` is `steps` or `epochs`.
        """
        [examples] = self.table(study)["training_examples"].unique()
        steps = within if unit == "steps" else within * examples / size
        trials = self.table(f"{study}_trials").query("batch_size == @size")
        reached = trials.set_index(["seed", "trial"])["steps_to_result"] <= steps
        return reached.astype(float)

    def region(
        self, study: str, size: int, reference: int, within: float, unit: str
    ) -> Evidence:
        """Returns the share of points in time for the goal, less that share elsewhere.

        By the difference at each point, of all seeds; points are equal at all sizes
        (Shallue et al. 2019, Figure 9, shows the regions; the share is our own).
        """
        one, other = (self.reaches(study, s, within, unit) for s in (size, reference))
        differ = (one - other).dropna()
        assert len(differ) == len(one) == len(other), "points are equal at all sizes"
        about = (
            f"share of {len(differ)} points within {within:,} {unit}, at {size:,} less "
            f"at {reference}"
        )
        mean = differ.mean(), differ.sem(), len(differ) - 1
        found = of_t(about, (study,), mean, 0)
        return replace(found, seeds=len(differ), replicates="points")

    def networks(
        self,
        study: str,
        quantity: str,
        matched: str,
        method: str = "snip",
        levels: tuple[float, float] = (0.9, 0.0),
    ) -> Evidence:
        """Returns a quantity at one sparsity over that at another, by seeds."""
        found = self.paired(study, quantity, matched, method, levels)
        names = " / ".join(f"{level:g}" if level else "dense" for level in levels)
        about = f"{quantity} at equal {matched}, {method} {names}"
        return of_t(about, (study,), log2_of(found), 1)

    def product_over_constant(self, study: str, name: str, matched: str) -> Evidence:
        """Returns the ratio of a product of the theory, over the ratio of c1 or c2."""
        product = log2_of(self.paired(study, f"theory_{name}", matched))
        fits = "lee2021/mnist_reproduction"
        ratio = getattr(self.ratio(fits, "SGD, 0.9", "SGD, sparsity 0"), name)
        about = f"product over {name} at equal {matched}"
        return of_distribution(about, (study, fits), quotient(product, ratio), 1)

    def repeated(self, study: str) -> Evidence:
        """Returns the median steps of repeats at sparsity 0.9 over dense, by seeds."""
        table = self.table(study)
        again = table[table["repeat"].notna()]
        cells = again.groupby(["seed", "batch_size", "sparsity"])["steps_to_result"]
        logs = np.log2(cells.median().unstack())
        by_seed = (logs[0.9] - logs[0.0]).groupby("seed").mean()
        about = "median of repeats, 0.9 / dense"
        found = by_seed.mean(), by_seed.sem(), len(by_seed) - 1
        return of_t(about, (study,), found, 1)

    def errors(
        self, study: str, workload: str, size: int, reference: int, other: str = ""
    ) -> Evidence:
        """Returns the test error at one batch size less that at another, by seeds.

        Of the trials with the least validation error; `other` is another workload.
        """
        best = self._best(study, "test_at_least")
        first, second = best[workload, size], best[other or workload, reference]
        names = f"{size} and {reference} of {workload}"
        if other:
            names = f"{size} of {workload} and of {other}"
        return self.welch(f"test error at {names}", study, first, second)

    def welch(
        self, about: str, study: str, first: pd.Series, second: pd.Series
    ) -> Evidence:
        """Returns the difference of two means, by Welch's t."""
        error = float(np.hypot(first.sem(), second.sem()))
        test = stats.ttest_ind(first, second, equal_var=False)
        found = first.mean() - second.mean(), error, float(test.df)
        return of_t(about, (study,), found, 0)

    def errors_at_result(
        self, study: str, least: int, most: int, paired: bool = False
    ) -> Evidence:
        """Returns the test error at K* from a batch size on less that up to another.

        Cells of one seed and several networks are taken as replicates, or networks are,
        by the difference of the means of each (`paired`).
        """
        table = self.table(study)
        large = table[table["batch_size"] >= least]
        small = table[table["batch_size"] <= most]
        about = f"test error at K* from {least:,} on and up to {most}"
        if paired:
            means = [
                part.groupby("workload")["test_at_result"].mean()
                for part in (large, small)
            ]
            differ = means[0] - means[1]
            found = differ.mean(), differ.sem(), len(differ) - 1
            return of_t(f"{about}", (study,), found, 0)
        ends = large["test_at_result"], small["test_at_result"]
        return self.welch(about, study, *ends)


def _common_power(
    sizes: Floats, values: Floats, curves: Sequence[Floats]
) -> tuple[float, float, int]:
    """Returns the power of sizes that values of several curves have in common.

    By least squares of logarithms, each curve with a level of its own: the power, its
    standard error and the degrees of freedom that are left.
    """
    logs = pd.DataFrame({"size": np.log2(sizes), "value": np.log2(values)})
    by_curve = logs.groupby(list(curves))
    size, value = (logs - by_curve.transform("mean")).to_numpy().T
    power = (size @ value) / (size @ size)
    freedom = len(logs) - by_curve.ngroups - 1
    variance = np.square(value - power * size).sum() / freedom
    return power, np.sqrt(variance / (size @ size)), freedom
