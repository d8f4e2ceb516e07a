"""Numbers in documents: expressions over the tables of gin_configs/, shown as text.

An expression is one of Jinja's, with the names of `Records`. A study is a table without
its ending, `optimizers/delay`; a curve has the name that `dps_tf.fit` gives it.

    {{ end("optimizers/text_transformer", "optimizer sgd") }}        82.9 (71.3 to 95.9)
    {{ ratio("parallelism/delay", "delay 4", "delay 0").c2 }}        6.42 (4.98 to 8.85)
    {{ (k["sgd"][16] / k["sgd"][256]) | digits(1) }}                 4.7

An estimate shows itself with its interval. A number has to say how: `| digits(n)`
behind the point, `| whole`, or `| number` to three figures.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from scipy.stats import studentized_range

from dps_tf.analysis.fit_table import (
    curves_of_table,
    observations_by_curve,
    read_table,
)
from dps_tf.analysis.law import (
    Comparison,
    CurveRatio,
    Estimate,
    LawFit,
    compare,
    fit_law,
)
from dps_tf.analysis.paired_ratios import (
    PairedRatio,
    paired_ratio,
    with_theory_products,
)
from dps_tf.analysis.published import read_published
from dps_tf.analysis.tables import read_csv, study_key
from dps_tf.analysis.wording import and_list, number

_MARK = re.compile(r"<!--= (.*?) -->(.*?)<!--/-->", re.DOTALL)
_NOISE = 0.16
"""Octaves: standard deviation of K* of a search, as lee2021/mnist_repeats measured."""


class Records:
    """The recorded tables below a folder; public methods are names of expressions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fits = functools.cache(self._fit)
        self._joint_fits = functools.cache(self._joint_fit)
        self._measured_with_products = functools.cache(self._measurements)
        self._environment = jinja2.Environment(
            undefined=jinja2.StrictUndefined, autoescape=False, finalize=_shown
        )
        filters = {"digits": _digits, "means": _means, "number": number}
        self._environment.filters |= {**filters, "whole": _whole}
        names = [name for name in vars(Records) if not name.startswith("_")]
        self._environment.globals |= {name: getattr(self, name) for name in names}
        self._environment.globals |= {"log2": np.log2, "sum": sum, "max": max}

    def text(self, template: str) -> str:
        """Returns a text whose expressions in double braces are filled in."""
        return self._environment.from_string(template).render()

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

    # Tables.

    def table(self, study: str) -> pd.DataFrame:
        """Returns a recorded table."""
        return read_csv(self._folder / f"{study}.csv")

    def curve(self, study: str, curve: str) -> pd.DataFrame:
        """Returns the rows of one curve."""
        return curves_of_table(read_table(self._folder / f"{study}.csv"))[curve]

    def steps(
        self, study: str, columns: str, value: str = "steps_to_result"
    ) -> pd.DataFrame:
        """Returns K*, or another column, a row a batch size."""
        table = self.table(study)
        return table.pivot(index="batch_size", columns=columns, values=value)

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

    # Fits.

    def _fit(self, study: str, curve: str) -> LawFit:
        path = self._folder / f"{study}.csv"
        return fit_law(observations_by_curve(read_table(path))[curve])

    def end(self, study: str, curve: str) -> Estimate:
        """Returns c1/c2, where perfect scaling ends, of one curve."""
        return self._fits(study, curve).critical_batch_size

    def misfits(self, study: str) -> list[float]:
        """Returns the root mean square of the residuals of each curve, in octaves."""
        curves = observations_by_curve(read_table(self._folder / f"{study}.csv"))
        return [self._fits(study, curve).rms for curve in curves]

    def _joint_fit(self, study: str, reference: str) -> Comparison:
        curves = observations_by_curve(read_table(self._folder / f"{study}.csv"))
        return compare(curves, reference)

    def ratio(self, study: str, curve: str, reference: str) -> CurveRatio:
        """Returns c1 and c2 of a curve over those of a reference, by a joint fit."""
        ratios = self._joint_fits(study, reference).ratios
        (found,) = [ratio for ratio in ratios if ratio.curve == curve]
        return found

    # Measurements and noise.

    def _measurements(self, study: str) -> pd.DataFrame:
        wide = self.table(study)
        names = [*study_key(wide), "trial", "step", "examples"]
        long = wide.melt(names, var_name="quantity", value_name="value")
        return with_theory_products(long)

    def paired(self, study: str, quantity: str, matched: str) -> PairedRatio:
        """Returns a quantity in networks pruned by SNIP over that in dense ones.

        `matched` is `step` or `loss`.
        """
        measured = self._measured_with_products(study)
        snip = measured[measured["sparsity_method"] == "snip"]
        dense = measured[measured["sparsity"] == 0]
        return paired_ratio(snip, dense, quantity, matched)

    def medians_of_repeats(self, study: str) -> pd.DataFrame:
        """Returns median steps of repeats, meaned over seeds: a column a sparsity."""
        table = self.table(study)
        again = table[table["repeat"].notna()]
        medians = again.groupby(["sparsity", "batch_size", "seed"])["steps_to_result"]
        return medians.median().groupby(["batch_size", "sparsity"]).mean().unstack()

    def best_errors(
        self, study: str, workload: str, column: str = "test_at_least"
    ) -> list[str]:
        """Returns errors of the trials with the least validation error, by batch size.

        Means over seeds with their standard errors.
        """
        table = self.table(study)
        table = table[table["workload"] == workload]
        shown = []
        for _, cells in table.groupby("batch_size"):
            ordered = cells.sort_values("least_validation")
            errors = ordered.groupby("seed")[column].first()
            shown.append(f"{errors.mean():.4f} ± {errors.sem():.4f}")
        return shown

    def chance_of_range(self, octaves: float, searches: int) -> float:
        """Returns the probability that K* of searches lie so far apart by chance."""
        return float(studentized_range.sf(octaves / _NOISE, searches, np.inf))

    def standard_error(self, first: pd.Series, second: pd.Series) -> float:
        """Returns the standard error of the difference of two means."""
        return float(np.hypot(first.sem(), second.sem()))


def verdicts(path: Path, records: Records) -> list[Sequence[str]]:
    """Returns claim, what was found, trials, verdict and command of each verdict.

    Raises:
        ValueError: what a verdict's words rely on does not hold.
    """
    rows: list[Sequence[str]] = []
    for row in _tables_of(path):
        for condition in row.get("holds", ()):
            if not records.holds(condition):
                raise ValueError(f"{row['claim']!r}: {condition} does not hold")
        texts = (row[name] for name in ("claim", "found", "trials", "verdict"))
        command = (
            f"`python -m dps_tf.train --gin_file={row['study']} --sweep_dir=D "
            "--data_dir=P`"
        )
        shown = (records.text(" ".join(str(text).split())) for text in texts)
        rows.append((*shown, command))
    return rows


def _tables_of(path: Path) -> list[dict[str, Any]]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    with path.open("rb") as file:
        return tomllib.load(file)["verdict"]


def _shown(value: object) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, np.integer):
        return str(int(value))
    if isinstance(value, (Estimate, PairedRatio)):
        middle = value.ratio if isinstance(value, PairedRatio) else value.value
        return f"{number(middle)} ({number(value.low)} to {number(value.high)})"
    raise TypeError(f"{value!r} is a number: say how many digits are shown")


def _digits(value: float, behind_the_point: int) -> str:
    return f"{value:.{behind_the_point}f}"


def _means(errors: Sequence[str]) -> str:
    """Returns errors without their standard errors, as a list in a sentence."""
    return and_list([error.partition(" ")[0] for error in errors])


def _whole(value: float) -> str:
    return f"{value:,.0f}"
