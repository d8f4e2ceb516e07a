"""Numbers in documents: expressions over the tables of gin_configs/, shown as text.

An expression is one of Jinja's, with the names of `Records`. A study is a table without
its ending, `optimizers/delay`; a curve has the name that `dps_tf.fit` gives it.

    {{ end("optimizers/text_transformer", "optimizer sgd") }}        82.9 (71.3 to 95.9)
    {{ ratio("parallelism/delay", "delay 4", "delay 0").c2 }}        6.42 (4.98 to 8.85)
    {{ (k["sgd"][16] / k["sgd"][256]) | digits(1) }}                 4.7

An estimate shows itself with its interval. A number has to say how: `| digits(n)`
behind the point, `| whole`, or `| number` to three figures.

A verdict rests on comparisons, which are expressions too: `evidence.py` has the rule by
which each gets its word, `verdicts.py` makes the table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd
from evidence import (
    SIDES,
    Evidence,
    files,
    log2_of,
    of_distribution,
    of_t,
    over,
    pooled_error,
    quotient,
)
from noise_scales import TABLES, measured_curves, order
from noise_scales import Curve as MeasuredCurve
from recorded_tables import Tables
from workloads import estimate, plain_name, refuses_law

from dps_tf.analysis.heuristics import RULES, effective_learning_rate
from dps_tf.analysis.law import LEVEL, Estimate, Ratio
from dps_tf.analysis.paired_ratios import (
    PairedRatio,
    paired_ratio,
    with_theory_products,
)
from dps_tf.analysis.repeats import STATED_NOISE
from dps_tf.analysis.tables import Floats, study_key
from dps_tf.analysis.wording import and_list, number

_MARK = re.compile(r"<!--= (.*?) -->(.*?)<!--/-->", re.DOTALL)
_NOISE = STATED_NOISE[1]
"""Octaves: of one K*, where a study has neither seeds nor finishers to tell its own."""
Sizes = tuple[int, int]
_CONSTANTS = {"c1": "c1", "c2": "c2", "c1/c2": "critical_batch_size"}


class Records(Tables):
    """The recorded tables below a folder; public methods are names of expressions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._measured_with_products = functools.cache(self._measurements)
        self._curves_with_noise = functools.cache(self._with_noise)
        self._environment = jinja2.Environment(
            undefined=jinja2.StrictUndefined, autoescape=False, finalize=_shown
        )
        filters = {"digits": _digits, "means": _means, "number": number}
        self._environment.filters |= {**filters, "whole": _whole}
        names = [name for name in dir(self) if not name.startswith("_")]
        self._environment.globals |= {name: getattr(self, name) for name in names}
        self._environment.globals |= {"log2": np.log2, "sum": sum, "max": max}

    def text(self, template: str) -> str:
        """Returns a text whose expressions in double braces are filled in."""
        return self._environment.from_string(template).render()

    def evidence(self, comparison: str) -> Evidence:
        """Returns what a comparison found, such as `law(study, a, b, "c1/c2")`."""
        found = self._environment.compile_expression(comparison)()
        assert isinstance(found, Evidence), comparison
        return found

    def holds(self, condition: str) -> bool:
        """Returns whether a condition holds, such as `end(a, b).low > 100`."""
        return bool(self._environment.compile_expression(condition)())

    def with_numbers(self, document: str) -> str:
        """Returns a document whose marked numbers are computed again.

        A number stands between `<!--= EXPRESSION -->` and `<!--/-->`.
        """

        def renewed(match: re.Match[str]) -> str:
            found = self.text("{{ " + " ".join(match[1].split()) + " }}")
            # Where a line was broken it stays so.
            same = found.split() == match[2].split()
            return f"<!--= {match[1]} -->{match[2] if same else found}<!--/-->"

        return _MARK.sub(renewed, document)

    # Measurements and noise.

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

        Without tables they are those of `noise_scales.TABLES`. `statistic` is `rank` or
        `slope`, `geometry` is `optimizer` or `Euclidean`, `across` ranks the curves of
        all workloads together; see `noise_scales.associated`.
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

    def medians_of_repeats(self, study: str) -> pd.DataFrame:
        """Returns median steps of repeats, meaned over seeds: a column a sparsity."""
        table = self.table(study)
        again = table[table["repeat"].notna()]
        medians = again.groupby(["sparsity", "batch_size", "seed"])["steps_to_result"]
        return medians.median().groupby(["batch_size", "sparsity"]).mean().unstack()

    def _best(self, study: str, column: str) -> pd.Series:
        """Returns errors of the trials with the least validation error, one a study."""
        ordered = self.table(study).sort_values("least_validation")
        return ordered.groupby(["workload", "batch_size", "seed"])[column].first()

    def best_errors(
        self, study: str, workload: str, column: str = "test_at_least"
    ) -> list[str]:
        """Returns errors of the trials with the least validation error, by batch size.

        Means over seeds with their standard error, pooled over all cells of the study.
        """
        best = self._best(study, column)
        error = pooled_error(best)
        means = best[workload].groupby("batch_size").mean()
        return [f"{mean:.4f} ± {error:.4f}" for mean in means]

    def standard_error(self, first: pd.Series, second: pd.Series) -> float:
        """Returns the standard error of the difference of two means."""
        return float(np.hypot(first.sem(), second.sem()))

    # Comparisons.

    def law(
        self,
        study: str,
        curve: str,
        reference: str,
        quantity: str,
        averaged: bool = False,
    ) -> Evidence:
        """Returns c1, c2 or c1/c2 of a curve over a reference; see `ratio`.

        Where the exponent of one of the two leaves 1 out, c1/c2 is that of the fit of
        each alone, averaged over its exponent; `averaged` asks for that in any case.
        """
        pair = self.ratio(study, curve, reference)
        ratio: Ratio = getattr(pair, _CONSTANTS[quantity])
        about = f"{quantity} of {plain_name(curve)} / {plain_name(reference)}"
        found = Evidence(
            f"{about} {files([study])}",
            (study,),
            *(ratio.value, ratio.low, ratio.high),
            2 * min(ratio.probability, 1 - ratio.probability),
            ratio.within,
            refused=ratio.verdict.partition("refused: ")[2],
            is_small=ratio.p_adjusted < 1 - LEVEL and ratio.verdict not in SIDES,
            searches=pair.searches,
        )
        fits = [
            self.fit(study, name)
            for name in (curve, reference)
            if averaged or self.is_long(study, name)
        ]
        if averaged or (
            quantity == "c1/c2" and any(refuses_law(fit.exponent) for fit in fits)
        ):
            assert not any(fit.unresolved for fit in fits), f"{about}: an end is open"
            one, other = (fit.free.critical_batch_size for fit in fits)
            about = f"{about}, averaged over the exponent, {files([study])}"
            free = of_distribution(about, (study,), over(one, other), 1)
            flags = ("refused", "is_small", "searches")
            return replace(free, **{name: getattr(found, name) for name in flags})
        return found

    def law_of_tables(self, one: str, other: str, curve: str) -> Evidence:
        """Returns c1/c2 of a curve of one table over that of another.

        Each is that of the joint fit of its table, with that table's residual scale.
        """
        intervals, ends = [], []
        for study in (one, other):
            law = self.joint_law(study, curve)
            ends.append(law.posterior.critical_batch_size)
            rows = self._rows(study)[curve][["batch_size", "evaluation_interval"]]
            each = rows.drop_duplicates().sort_values([*rows], ignore_index=True)
            intervals.append(each)  # Of one seed as of several.
            assert not refuses_law(self.fit(study, curve).exponent), curve
        assert intervals[0].equals(intervals[1]), "unlike evaluation intervals"
        names = " / ".join(study.rpartition("/")[2] for study in (one, other))
        about = f"c1/c2 of {plain_name(curve)}, {names}, {files([one, other])}"
        return of_distribution(about, (one, other), over(*ends), 1)

    def steps_at(self, study: str, curve: str, reference: str, size: int) -> Evidence:
        """Returns K* of a curve over that of a reference at one batch size.

        The noise of each K* is the greatest that studies had, as this one has neither
        seeds nor finishers.

        Raises:
            ValueError: one of the two K* is a bound.
        """
        cells = [
            self.curve(study, name).set_index("batch_size").loc[size]
            for name in (curve, reference)
        ]
        if any(pd.notna(cell["at_boundary"]) for cell in cells):
            raise ValueError(f"a K* at {size} of {curve} or {reference} is a bound")
        octaves = np.log2(cells[0]["steps_to_result"] / cells[1]["steps_to_result"])
        names = f"{plain_name(curve)} / {plain_name(reference)}"
        about = (
            f"K\\* at {size}, {names}, {_NOISE} octaves of noise each, {files([study])}"
        )
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
        about = f"fall of K\\* from {sizes[0]} to {sizes[1]}, {one} / {other}, by "
        about += f"{len(differ)} seeds, {files(studies)}"
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
            f"{measured.max()}, {files(studies)}"
        )
        return of_t(about, studies, (power - of_rule, error, freedom), 0)

    def published_rate_power(self, workload: str = "") -> Evidence:
        """Returns that power of the rates in Figure 8 of Shallue et al. 2019."""
        rates = self.table("shallue2019/published_effective_learning_rates")
        rates = rates[rates["workload"].str.startswith(workload)]
        curves = [rates[n].to_numpy() for n in ("workload", "optimizer")]
        sizes = rates["batch_size"].to_numpy()
        best = rates["effective_learning_rate"].to_numpy()
        return of_t("", (), _common_power(sizes, best, curves), 0)

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
        """Returns the share of points in time for the goal, less that of another size.

        By the difference at each point, of all seeds; points are equal at all sizes
        (Shallue et al. 2019, Figure 9, shows the regions; the share is our own).
        """
        one, other = (self.reaches(study, s, within, unit) for s in (size, reference))
        differ = (one - other).dropna()
        assert len(differ) == len(one) == len(other), "points are equal at all sizes"
        about = (
            f"share of {len(differ)} points within {within:,} {unit}, at {size:,} less "
            f"at {reference}, {files([study])}"
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
        about = f"{quantity} at equal {matched}, {method} {names}, {files([study])}"
        return of_t(about, (study,), log2_of(found), 1)

    def product_over_constant(self, study: str, name: str, matched: str) -> Evidence:
        """Returns the ratio of a product of the theory over that of c1 or c2."""
        product = log2_of(self.paired(study, f"theory_{name}", matched))
        fits = "lee2021/mnist_reproduction"
        ratio = getattr(self.ratio(fits, "SGD, 0.9", "SGD, sparsity 0"), name)
        about = f"product over {name} at equal {matched} {files([study, fits])}"
        return of_distribution(about, (study, fits), quotient(product, ratio), 1)

    def repeated(self, study: str) -> Evidence:
        """Returns the median steps of repeats at sparsity 0.9 over dense, by seeds."""
        table = self.table(study)
        again = table[table["repeat"].notna()]
        cells = again.groupby(["seed", "batch_size", "sparsity"])["steps_to_result"]
        logs = np.log2(cells.median().unstack())
        by_seed = (logs[0.9] - logs[0.0]).groupby("seed").mean()
        about = f"median of repeats, 0.9 / dense {files([study])}"
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

    def seeds_apart(
        self, study: str, workload: str, size: int, reference: int
    ) -> Evidence:
        """Returns the difference that `errors` has, by the differences of seeds."""
        best = self._best(study, "test_at_least")
        apart = (best[workload, size] - best[workload, reference]).dropna()
        about = f"test error at {size} less at {reference}, by {len(apart)} seeds"
        mean = apart.mean(), apart.sem(), len(apart) - 1
        return of_t(f"{about} {files([study])}", (study,), mean, 0)

    def welch(
        self, about: str, study: str, first: pd.Series, second: pd.Series
    ) -> Evidence:
        """Returns the difference of two means, by Welch's t."""
        error = self.standard_error(first, second)
        parts = [
            (each.var() / len(each)) ** 2 / (len(each) - 1) for each in (first, second)
        ]
        found = first.mean() - second.mean(), error, error**4 / sum(parts)
        return of_t(f"{about} {files([study])}", (study,), found, 0)

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
        about = f"test error at K\\* from {least:,} on and up to {most}"
        if paired:
            means = [
                part.groupby("workload")["test_at_result"].mean()
                for part in (large, small)
            ]
            differ = means[0] - means[1]
            found = differ.mean(), differ.sem(), len(differ) - 1
            return of_t(f"{about} {files([study])}", (study,), found, 0)
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


def _shown(value: object) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, np.integer):
        return str(int(value))
    if isinstance(value, PairedRatio):
        value = Estimate(value.ratio, value.low, value.high)
    if isinstance(value, Evidence):
        value = Estimate(value.value, value.low, value.high)
    if isinstance(value, Estimate):
        return estimate(value)
    raise TypeError(f"{value!r} is a number: say how many digits are shown")


def _digits(value: float, behind_the_point: int) -> str:
    return f"{value:.{behind_the_point}f}"


def _means(errors: Sequence[str]) -> str:
    """Returns errors without their standard errors, as a list in a sentence."""
    return and_list([error.partition(" ")[0] for error in errors])


def _whole(value: float) -> str:
    return f"{value:,.0f}"
