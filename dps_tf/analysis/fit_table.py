"""Fits of any table of steps-to-result, from a CSV file to their text.

`dps_tf.fit` names the columns. A results table of this package is such a table too: its
curves are named by the columns of the cell that vary.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype

from dps_tf.analysis import law
from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.regimes import Ends, ends
from dps_tf.analysis.searches import searches_of_results
from dps_tf.analysis.tables import (
    curve_key,
    curve_label,
    numbers,
    refuse_first,
    require,
    row_number,
    unit_of,
    with_index,
)
from dps_tf.analysis.wording import and_list, number, p_text, with_interval
from dps_tf.core import UserError, check_known, near_matches, printable

_LABELS = dict(zip(law.QUANTITIES, ("c1", "c2", "c1/c2"), strict=True))
MANY = 3
"""Curves from whose number on, exclusive, a text is one table."""
WIDTH = 100
"""Columns of that table at most."""
_LARGEST = {
    **dict.fromkeys(("batch_size", "steps_to_result", "bracket_low"), 1e15),
    "noise": 64.0,
}
"""Largest number of a column, in octaves for noise, that anybody can have measured."""


@dataclass(frozen=True)
class FitSettings:
    """How curves are fitted: coverage of intervals, and what counts as equal.

    Attributes:
        level: nominal coverage of the intervals.
        margin: factor within which two curves count as equal.
    """

    level: float = law.LEVEL
    margin: float = law.MARGIN


@dataclass(frozen=True)
class CurveFit:
    """The law of a curve with a name, and the ends of its regimes.

    `left_out` counts the K* of the table that are not usable. K* is the median of
    several runs, whose least and greatest number `runs` has; None without a column
    `run`. `unit` is what a batch size counts.
    """

    curve: str
    fit: law.LawFit
    ends: Ends
    left_out: int
    runs: tuple[int, int] | None = None
    unit: str = "examples"

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON; None stands for infinity and for NaN."""
        points = self.fit.observations
        low, high = points.low.tolist(), points.high.tolist()
        return {
            "curve": self.curve,
            "unit": self.unit,
            "batch_size": points.batch_size.tolist(),
            "steps_to_result": [None if np.isinf(k) else k for k in high],
            "bracket_low": [None if np.isnan(k) else k for k in low],
            "rows_left_out": self.left_out,
            "fit": self.fit.to_json(),
            "regimes": self.ends.to_json(),
        }

    def to_row(self) -> dict[str, Any]:
        """Returns the row of `TableFit.to_frame`."""
        fit, sizes = self.fit, self.fit.observations.distinct[0]
        estimates = {q.removesuffix("_batch_size"): q for q in law.QUANTITIES}
        estimates |= {"exponent": "exponent", "averaged": "critical_averaged"}
        ends = {"": "value", "_low": "low", "_high": "high"}
        return {
            **{name: getattr(self, name) for name in ("curve", "unit")},
            **{"batch_sizes": len(sizes), "smallest": sizes[0], "largest": sizes[-1]},
            **dict(zip(("runs_least", "runs_most"), self.runs or (1, 1), strict=True)),
            **{
                name + end: getattr(getattr(fit, of), ends[end])
                for name, of in estimates.items()
                for end in ends
            },
            "scale": fit.scale.value,
            "doubts": " ".join(law.misfits(fit)),
        }


@dataclass(frozen=True)
class TableFit:
    """The fits of the curves of a table.

    Attributes:
        curves: the curves that can be fitted alone.
        too_short: number of usable batch sizes of each other curve, by name.
        joinable: what is known of the curves of the joint fit.
        settings: how curves were fitted.
        reference: the curve of `joinable` that ratios are taken to.
        searches: what K* of each curve are the best of.
    """

    curves: tuple[CurveFit, ...]
    too_short: dict[str, int]
    joinable: Mapping[str, law.Observations]
    settings: FitSettings
    reference: str | None = None
    searches: Mapping[str, str] | None = None

    @cached_property
    def comparison(self) -> law.Comparison[str] | None:
        """Ratios in a joint fit, if two or more curves are `joinable`."""
        return self.compare() if len(self.joinable) > 1 else None

    def compare(
        self, pairs: list[tuple[str, str]] | None = None
    ) -> law.Comparison[str]:
        """Returns ratios of (curve, reference) in a joint fit of the curves of pairs.

        Without pairs every curve is compared with the reference. Each p is adjusted
        for all pairs of the call.
        """
        named = self.joinable if pairs is None else [n for pair in pairs for n in pair]
        return law.compare(
            {n: self.joinable[n] for n in named if n in self.joinable},
            None if pairs else self.reference,
            pairs=pairs,
            margin=self.settings.margin,
            level=self.settings.level,
            searches=self.searches,
        )

    @cached_property
    def exponent(self) -> law.Estimate:
        """The exponent that `curves` have in common, with a residual scale each."""
        each = [curve.fit.free.exponent for curve in self.curves]
        return law.Estimate.of(law.exponent_of_all(each), self.settings.level)

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON; None stands for infinity and for NaN."""
        return {
            "curves": [curve.to_json() for curve in self.curves],
            "curves_too_short": self.too_short,
            "constants_in_joint_fit": {
                name: {q: getattr(fit, q).to_json() for q in law.QUANTITIES}
                for name, fit in self.joined.items()
            },
            "comparison": self.comparison and self.comparison.to_json(),
            "common_exponent": self.exponent.to_json(),
        }

    def __repr__(self) -> str:
        """Returns what `python -m dps_tf.fit` prints."""
        return text_of(self)

    def to_frame(self) -> pd.DataFrame:
        """Returns one row per curve of `curves`, in their order.

        Columns: curve, unit, batch_sizes, smallest, largest, runs_least, runs_most; c1,
        c2, critical (c1/c2), exponent and averaged (c1/c2, over the exponent), each
        with `_low` and `_high`, where 0 and infinity are open ends; scale, in octaves;
        doubts, the names of `law.misfits`.
        """
        return pd.DataFrame([curve.to_row() for curve in self.curves])

    @property
    def joined(self) -> dict[str, law.LawFit]:
        """The curves that are too short alone, as the joint fit has them."""
        fits = self.comparison.fits if self.too_short and self.comparison else {}
        return {name: fits[name] for name in self.too_short if name in fits}


def read_table(path: str | Path) -> pd.DataFrame:
    """Returns a CSV file as a table of numbers, NaN if empty; UserError if none."""
    frame, table = read_csv(path), f"--csv={str(path)!r}"
    require(frame, ["batch_size", "steps_to_result"], table)
    for name in frame.columns.intersection([*_LARGEST]):
        column, largest = frame[name], _LARGEST[name]
        frame[name] = values = numbers(column)
        wrong = (values.isna() | is_bool_dtype(column)) & column.notna()
        refuse_first(wrong, column, table, "a number")
        size = values.abs().mask(np.isinf(values))
        least = 0 if name == "noise" else 1 / largest
        absurd = (size > largest) | ((size > 0) & (size < least))
        refuse_first(absurd, column, table, f"from {least:g} to {largest:g}")
    return frame


def fit_table(
    frame: pd.DataFrame,
    settings: FitSettings | None = None,
    reference: str | None = None,
) -> TableFit:
    """Returns the fits of every curve of a table, and their joint fit.

    Its ratios are taken to the curve `reference`, by default the first.

    Raises:
        UserError: no curve has three usable batch sizes, or a value cannot be.
    """
    settings = settings or FitSettings()
    parts = curves_of_table(frame, seeds_together=True)
    points = {name: law.Observations.from_results(rows) for name, rows in parts.items()}
    sizes = {name: curve.batch_sizes for name, curve in points.items()}
    too_short = {n: size for n, size in sizes.items() if size < law.MINIMUM_POINTS}
    usable = law.joinable(points)
    if not usable:
        raise UserError(
            f"a fit needs K* at {law.MINIMUM_POINTS} or more batch sizes of a curve; "
            f"the table has at most {max(sizes.values(), default=0)}; a bound, such as "
            "a bracket_low of 0, is no K*."
        )
    if reference is not None and reference not in usable:
        raise UserError(
            f"--reference={reference!r} is not a curve that can be fitted: "
            f"{near_matches(reference, usable)}."
        )
    curves = tuple(
        _fit(name, curve, settings, parts[name])
        for name, curve in usable.items()
        if name not in too_short
    )
    searches = searches_of_results(parts)
    return TableFit(curves, too_short, usable, settings, reference, searches)


def observations_by_curve(
    frame: pd.DataFrame, seeds_together: bool = False
) -> dict[str, law.Observations]:
    """Returns the observations of each curve of a table; see `curves_of_table`."""
    parts = curves_of_table(frame, seeds_together)
    return {name: law.Observations.from_results(rows) for name, rows in parts.items()}


def _fit(
    name: str, observations: law.Observations, settings: FitSettings, rows: pd.DataFrame
) -> CurveFit:
    fit = law.fit_law(observations, settings.level)
    left_out = len(rows) - len(observations)
    runs = (min(rows["runs"]), max(rows["runs"])) if "runs" in rows else None
    return CurveFit(name, fit, ends(fit), left_out, runs, unit_of(rows))


def curves_of_table(
    frame: pd.DataFrame, seeds_together: bool = False
) -> dict[str, pd.DataFrame]:
    """Returns the rows of each curve, in the order of the table.

    Seeds are curves of their own, or belong together: a fit then has an effect of the
    seed. Several runs give one row, their median; see `median_of_runs`.
    """
    require(frame, ("batch_size",), "of curves")
    frame = with_index(frame)
    if "curve" in frame.columns:
        if frame["curve"].isna().any():
            row = row_number(frame, int(np.argmax(frame["curve"].isna())))
            raise UserError(f"curve is empty in row {row}; name it or drop the column.")
        names = frame["curve"].astype(str)
    else:
        present = [name for name in curve_key(frame) if name in frame.columns]
        if seeds_together:
            present = [name for name in present if name != "seed"]
        if "goal" in frame.columns:
            # A goal that only follows from other columns names nothing.
            goals = frame.groupby(present, dropna=False) if present else [("", frame)]
            several = any(rows["goal"].nunique() > 1 for _, rows in goals)
            present += ["goal"] if several else []
        varying = [n for n in present if frame[n].nunique(dropna=False) > 1]
        names = pd.Series([curve_label(row, varying) for _, row in frame.iterrows()])
    groups = frame.groupby(names.to_numpy(object), sort=False)
    for name, part in groups if "unit" in frame.columns else ():
        units = part["unit"].unique()
        if len(units) > 1:
            found = and_list([*map(str, units)])
            raise UserError(f"curve {name!r} has the units {found}.")
    if "run" not in frame.columns:
        return {str(name): part for name, part in groups}
    return {str(name): median_of_runs(part) for name, part in groups}


def median_of_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per batch size and seed of the runs of a curve: their median.

    Runs are trainings that only chance tells apart. Their median lies between the
    medians of both ends of their brackets; a run without steps_to_result is as long as
    any. `noise` is the standard error of a median without an assumed distribution: half
    the octaves between the quantiles 0.5 - 0.5/sqrt(n) and 0.5 + 0.5/sqrt(n) of n runs.
    The noise that rows have is added. `runs` is n; further columns are of the first
    run.
    """
    law.Observations.from_results(rows.drop(columns="seed", errors="ignore"))
    medians, first = [], []
    keys = ["batch_size", *(["seed"] if "seed" in rows else [])]
    for _, part in rows.groupby(keys, sort=False, dropna=False):
        if part["run"].duplicated().any():
            run, size = part["run"].mode()[0], part["batch_size"].iloc[0]
            raise UserError(
                f"run {run} of batch size {size:g} comes twice: number the runs of "
                "each batch size."
            )
        columns = part.reindex(columns=["steps_to_result", "bracket_low", "noise"])
        high, low, noise = columns.to_numpy(np.float64).T
        low = np.where(np.isnan(high) & ~(low > 0), np.inf, low)
        high = np.nan_to_num(high, nan=np.inf)
        ends = 0.5 + 0.5 * np.array([-1, 1]) / len(high) ** 0.5
        middle = np.where(np.isnan(low), high, (low + high) / 2)
        middle = np.where(np.isinf(high), low, middle)
        # What is as long as any scatters as the longest that is known.
        longest = middle[np.isfinite(middle)].max(initial=1)
        middle = np.log2(np.minimum(middle, longest))
        spread = np.diff(np.quantile(middle, ends))[0] / 2
        top, bottom = np.median(high), np.median(low)
        first.append(part.index[0])
        medians.append(
            {
                **part.iloc[0],
                "steps_to_result": np.nan if np.isinf(top) else top,
                "bracket_low": np.nan if np.isinf(bottom) else bottom,
                "noise": np.hypot(spread, np.nan_to_num(noise[0])),
                "runs": len(high),
            }
        )
    return pd.DataFrame(medians, index=first)


def text_of(table: TableFit, named: Collection[str] = ()) -> str:
    """Returns the fits and ratios of a table as lines for a terminal.

    More than MANY curves are one table, with ratios only to a reference that was asked
    for. Curves that are named are shown in full, alone.
    """
    curves = {curve.curve: curve for curve in table.curves}
    for name in named:
        check_known("--curve", name, curves)
    if not named and len(curves) > MANY:
        return printable("\n".join(_table(table)))
    lines: list[str] = []
    for name in named or curves:
        lines += [*_curve(curves[name]), ""]
    if named:
        return printable("\n".join(lines).rstrip())
    for name, points in table.too_short.items():
        lines.append(f"{name}: {points} batch sizes are too few to fit")
        if fit := table.joined.get(name):
            lines[-1] += " alone; by the fit of all curves together:"
            constants = {text: getattr(fit, q) for q, text in _LABELS.items()}
            lines += [f"  {text:<8}{_estimate(c)}" for text, c in constants.items()]
        lines.append("")
    lines += _comparison(table)
    return printable("\n".join(lines).rstrip())


def _table(table: TableFit) -> list[str]:
    """Returns a line per curve, and what its columns are, in WIDTH columns."""
    units = {curve.unit for curve in table.curves}
    unit = min(units) if len(units) == 1 else "units"
    rows: list[tuple[str, ...]]
    rows = [("unit", "B", "runs", "c1", "c2", "c1/c2", "a", "")]
    rows += [_cells(curve) for curve in table.curves]
    rows = [row[len(units) == 1 :] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    room = max(8, WIDTH - sum(widths) - len(widths))
    names, lines = ["curve", *(curve.curve for curve in table.curves)], []
    for name, row in zip(names, rows, strict=True):
        cells = [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        first, *others = textwrap.wrap(name, room)
        lines += [f"{first.ljust(room)} {' '.join(cells)}".rstrip(), *others]
    short = and_list([*table.too_short], 99)
    lines += _wrapped(
        "B: batch sizes with more than a bound; K* is the median of the runs of each. "
        f"c1 in {unit}, c2 in steps, c1/c2 in {unit} a step: medians, with "
        f"{100 * table.settings.level:g} % intervals. a: the exponent of B; in common "
        f"{_a(table.exponent)}, each curve with a residual scale of its own. "
        "*: the law is doubtful; --curve=NAME prints why, and all else on a curve. "
        "--reference=NAME prints ratios.",
        *[f"Too few batch sizes for a fit: {short}."] * bool(short),
        width=WIDTH - 2,
    )
    return lines + (_comparison(table) if table.reference else [])


def _cells(curve: CurveFit) -> tuple[str, ...]:
    fit, runs = curve.fit, sorted({*(curve.runs or ())})
    return (
        *(curve.unit, str(fit.observations.batch_sizes), "-".join(map(str, runs))),
        *(number(fit.c1.value, 2), number(fit.c2.value, 2)),
        *(_estimate(fit.critical_batch_size, None), _a(fit.exponent)),
        "*" * bool(law.misfits(fit)),
    )


def _a(a: law.Estimate) -> str:
    return f"{a.value:.2f} ({a.low:.2f} to {a.high:.2f})"


def _curve(curve: CurveFit) -> list[str]:
    fit = curve.fit
    sizes = fit.observations.batch_size
    head = (
        f"{curve.curve}: K* = c1/B + c2, {len(sizes)} steps-to-result, batch sizes "
        f"{sizes[0]:.12g} to {sizes[-1]:.12g}"
    )
    if fit.observations.is_bound.any():
        head += f"; {fit.observations.is_bound.sum()} of them bounds"
    if curve.runs:
        head += f"; medians of {curve.runs[0]} to {curve.runs[1]} runs"
    if curve.left_out:
        head += f"; {curve.left_out} rows without a usable one"
    other = "Within another share t they are t c1/c2 and c1/c2 / t."
    return [head, *_law(curve), *_residuals(fit), *_wrapped(curve.ends.sentence, other)]


def _estimate(estimate: law.Estimate, digits: int | None = 3) -> str:
    return with_interval(estimate.value, estimate.low, estimate.high, digits)


def _law(curve: CurveFit) -> list[str]:
    fit = curve.fit
    lines = [
        f"  {name:<8}{_estimate(estimate):<28}  {meaning}"
        for name, estimate, meaning in (
            ("c1", fit.c1, curve.unit),
            ("c2", fit.c2, "steps"),
            ("c1/c2", fit.critical_batch_size, "critical batch size"),
            ("", fit.critical_averaged, "the same, averaged over a"),
            ("a", fit.exponent, "exponent, if the law is c1/B^a + c2"),
        )
    ]
    lines += [
        f"  medians and {100 * fit.level:g} % intervals; prior:",
        f"    {law.PRIOR};",
        f"    {law.EXPONENT_PRIOR}",
    ]
    few = f"Fewer than {law.FEW_POINTS} batch sizes with more than a bound: the prior "
    cautions = {
        few + "decides the ends.": fit.is_short,
        "No plateau is resolved: c2 = 0 is not refused.": not fit.plateau_resolved,
        "No slope is resolved: c1 = 0 is not refused.": not fit.slope_resolved,
        law.SCALE_CAUTION: fit.rests_on_scale,
    }
    texts = [text for text, applies in cautions.items() if applies]
    return [*lines, *_wrapped(*texts, *law.misfits(fit).values())]


def _wrapped(*texts: str, width: int = 84) -> list[str]:
    lines = [line for text in texts for line in textwrap.wrap(text, width)]
    return [f"  {line}" for line in lines]


def _residuals(fit: law.LawFit) -> list[str]:
    scale = fit.scale
    lines = [
        f"  residuals in octaves, rms {fit.rms:.2f}; residual scale {scale.value:.2f} "
        f"({scale.low:.2f} to {scale.high:.2f}):"
    ]
    pairs = zip(fit.observations.batch_size, fit.residuals, strict=True)
    cells = [f"{b:.12g}: {'bound' if np.isnan(r) else f'{r:+.2f}'}" for b, r in pairs]
    for start in range(0, len(cells), 6):
        lines.append("    " + "  ".join(cells[start : start + 6]))
    return lines


def _comparison(table: TableFit) -> list[str]:
    if not (comparison := table.comparison):
        return []
    scale = comparison.scale
    lines = [
        f"all curves together, one residual scale of {scale.value:.2f} octaves "
        f"({scale.low:.2f} to {scale.high:.2f});",
        f"exponent a in common, with one of each, {_a(table.exponent)}. Ratios:",
    ]
    for pair in comparison.ratios:
        lines.append(f"  {pair.curve} / {pair.reference}")
        if pair.searches:
            lines.append(f"    unlike searches: {pair.searches}")
        for name, label in _LABELS.items():
            ratio = getattr(pair, name)
            test = "" if np.isnan(p := ratio.p_adjusted) else f"p {p_text(p)}, "
            within = f"within a factor of {number(ratio.within)}"
            within = within if np.isfinite(ratio.within) else "no factor excluded"
            lines.append(
                f"    {label:<6} x {_estimate(ratio)}  {test}{within}: {ratio.verdict}"
            )
    if any(pair.searches for pair in comparison.ratios):
        lines += _wrapped(law.UNLIKE_SEARCHES)
    return [
        *lines,
        "  (p: twice the probability of the less likely side of 1, adjusted (Holm);",
        f"  factors beyond `within` are excluded at {100 * comparison.level:g} %)",
    ]
