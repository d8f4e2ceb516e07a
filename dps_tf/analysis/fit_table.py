"""Anybody's table of steps-to-result, fitted: from a CSV file to fits and their text.

`dps_tf.fit` lists the columns. The curves of a results table are named by the columns
of the cell that vary, and its bounds are treated as bounds.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.foreign_files import numbers_of, read_csv
from dps_tf.analysis.law import (
    EXPONENT_PRIOR,
    FEW_POINTS,
    LEVEL,
    MARGIN,
    MINIMUM_POINTS,
    PRIOR,
    UNLIKE_SEARCHES,
    Comparison,
    Estimate,
    LawFit,
    Observations,
    compare,
    exponent_of,
    fit_law,
    misfits,
)
from dps_tf.analysis.regimes import (
    DEFINITIONS,
    TOLERANCES,
    Regime,
    fitted_regimes,
    measured_regimes,
    sensitivity,
)
from dps_tf.analysis.searches import search_of_results
from dps_tf.analysis.tables import curve_key, curve_label, require
from dps_tf.analysis.wording import interval, number
from dps_tf.core import UserError, printable

_NAMES = {"c1": "c1", "c2": "c2", "critical_batch_size": "c1/c2"}


@dataclass(frozen=True)
class FitSettings:
    """How curves are fitted; see `law.fit_law` and `regimes`."""

    level: float = LEVEL
    margin: float = MARGIN
    tolerances: tuple[float, ...] = TOLERANCES
    linear_from: float | None = None

    def __post_init__(self) -> None:
        for tolerance in self.tolerances:
            if not 0 < tolerance < float("inf"):
                raise UserError(
                    f"tolerance is {tolerance!r}; it must be a positive number, for "
                    "example 0.2 for 20 %."
                )
        if not self.tolerances:
            raise UserError("at least one tolerance is needed, for example 0.2.")
        start = self.linear_from
        if start is not None and not 0 < start < float("inf"):
            raise UserError(
                f"linear_from is {start!r}; it must be a batch size, for example 32."
            )


@dataclass(frozen=True)
class CurveFit:
    """The law and the regimes of one curve.

    The regimes are those on the fit, then those on the measured points; `left_out`
    counts the rows of the table without a usable steps-to-result.
    """

    curve: str
    fit: LawFit
    regimes: tuple[Regime, ...]
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON; None stands for infinity and for NaN."""
        points = self.fit.observations
        low = [None if np.isnan(x) else float(x) for x in points.low]
        high = [None if np.isinf(x) else float(x) for x in points.high]
        return {
            "curve": self.curve,
            "batch_size": [float(b) for b in points.batch_size],
            "steps_to_result": high,
            "bracket_low": low,
            "rows_left_out": self.left_out,
            "fit": self.fit.to_json(),
            "regimes": [regime.to_json() for regime in self.regimes],
        }


@dataclass(frozen=True)
class TableFit:
    """The fits of the curves of a table, and their comparison.

    Attributes:
        curves: those that can be fitted.
        too_short: number of usable batch sizes of those that cannot, by name.
        comparison: their ratios in a joint fit, if there are two or more.
        exponent: a of c1/B^a + c2 that they have in common, likewise.
    """

    curves: tuple[CurveFit, ...]
    too_short: dict[str, int]
    comparison: Comparison | None
    exponent: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON; None stands for infinity and for NaN."""
        return {
            "curves": [curve.to_json() for curve in self.curves],
            "curves_too_short": self.too_short,
            "comparison": self.comparison and self.comparison.to_json(),
            "common_exponent": self.exponent and self.exponent.to_json(),
        }


def read_table(path: str | Path) -> pd.DataFrame:
    """Returns a CSV file as a table with numbers, NaN if empty, where these belong.

    Raises:
        UserError: no such file, no CSV, a missing column, or a cell that is no number.
    """
    frame = read_csv(path)
    require(frame, ["batch_size", "steps_to_result"], f"--csv={str(path)!r}")
    for name in ("batch_size", "steps_to_result", "bracket_low", "noise"):
        if name in frame.columns:
            frame[name] = numbers_of(frame[name])
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
    observed = observations_by_curve(frame, seeds_together=True)
    sizes = {name: points.batch_sizes for name, points in observed.items()}
    too_short = {name: size for name, size in sizes.items() if size < MINIMUM_POINTS}
    usable = {n: points for n, points in observed.items() if n not in too_short}
    if not usable:
        most = max(too_short.values(), default=0)
        raise UserError(
            f"a fit needs K* at {MINIMUM_POINTS} or more batch sizes of a curve; the "
            f"table has at most {most}; a bound, such as a bracket_low of 0, is no K*."
        )
    curves = tuple(
        _fit(name, points, settings, len(parts[name]) - len(points))
        for name, points in usable.items()
    )
    comparison = exponent = None
    if len(usable) > 1:
        level, margin = settings.level, settings.margin
        searches = {name: search_of_results(parts[name]) for name in usable}
        comparison = compare(
            usable, reference, margin=margin, level=level, searches=searches
        )
        exponent = Estimate.of(exponent_of(usable), level)
    elif reference is not None and reference not in usable:
        raise UserError(f"--reference={reference!r} is not a curve that can be fitted.")
    return TableFit(curves, too_short, comparison, exponent)


def observations_by_curve(
    frame: pd.DataFrame, seeds_together: bool = False
) -> dict[str, Observations]:
    """Returns the observations of each curve of a table; see `curves_of_table`."""
    parts = curves_of_table(frame, seeds_together)
    return {name: _observations(part) for name, part in parts.items()}


def _fit(
    name: str, observations: Observations, settings: FitSettings, left_out: int
) -> CurveFit:
    fit = fit_law(observations, settings.level)
    tolerances, start = settings.tolerances, settings.linear_from
    # The fitted curve answers for a batch size that this curve has not measured.
    measured = start if start in observations.batch_size else None
    regimes = (
        *fitted_regimes(fit, tolerances, start),
        *measured_regimes(observations, tolerances, measured),
    )
    return CurveFit(name, fit, regimes, left_out)


def curves_of_table(
    frame: pd.DataFrame, seeds_together: bool = False
) -> dict[str, pd.DataFrame]:
    """Returns the rows of each curve, in the order of the table.

    Seeds are curves of their own, or belong together: a fit then has an effect of them.
    """
    if "curve" in frame.columns:
        if frame["curve"].isna().any():
            row = int(np.argmax(frame["curve"].isna())) + 1
            raise UserError(f"curve is empty in row {row}; name it or drop the column.")
        names = frame["curve"].astype(str)
    else:
        apart = set(frame.columns) - ({"seed"} if seeds_together else set())
        present = [name for name in curve_key(frame) if name in apart]
        varying = [name for name in present if frame[name].nunique() > 1]
        names = pd.Series([curve_label(row, varying) for _, row in frame.iterrows()])
    groups = frame.groupby(names.to_numpy(object), sort=False)
    return {str(name): part for name, part in groups}


def _observations(rows: pd.DataFrame) -> Observations:
    if {"bracket_low", "steps_bound"} <= set(rows.columns):
        return Observations.from_results(rows)
    columns = ["batch_size", "steps_to_result", "bracket_low", "noise"]
    table = rows.reindex(columns=columns).astype(np.float64)
    table["seed"] = rows["seed"].to_numpy() if "seed" in rows.columns else 0
    is_beyond = table["steps_to_result"].isna() & (table["bracket_low"] > 0)
    table.loc[is_beyond, "steps_to_result"] = np.inf
    table = table[table["steps_to_result"].notna()]
    return Observations.of(*(table[name].to_numpy() for name in [*columns, "seed"]))


def text_of(table: TableFit) -> str:
    """Returns the fits and ratios of a table as lines for a terminal."""
    lines: list[str] = []
    for curve in table.curves:
        lines += [*_curve(curve), ""]
    for name, points in table.too_short.items():
        lines += [f"{name}: {points} batch sizes are too few to fit", ""]
    if table.comparison and table.exponent:
        lines += _comparison(table.comparison, table.exponent)
    return printable("\n".join(lines).rstrip())


def _curve(curve: CurveFit) -> list[str]:
    fit = curve.fit
    sizes = fit.observations.batch_size
    head = (
        f"{curve.curve}: K* = c1/B + c2, {len(sizes)} steps-to-result, batch sizes "
        f"{sizes[0]:.12g} to {sizes[-1]:.12g}"
    )
    if fit.observations.is_bound.any():
        head += f"; {fit.observations.is_bound.sum()} of them bounds"
    if curve.left_out:
        head += f"; {curve.left_out} rows without a usable one"
    return [head, *_law(fit), *_residuals(fit), *_regimes(curve)]


def _span(e: Estimate) -> str:
    ends = interval(e.low, e.high)
    if e.low > 0 and np.isfinite(e.high):
        return f"{number(e.value):>10}  ({ends})"
    return f"{'':>10}  {ends}"


def _law(fit: LawFit) -> list[str]:
    lines = [
        f"  {name:<6}{_span(e)}  {unit}"
        for name, e, unit in (
            ("c1", fit.c1, "examples"),
            ("c2", fit.c2, "steps"),
            ("c1/c2", fit.critical_batch_size, "critical batch size"),
            ("", fit.critical_averaged, "the same, averaged over a"),
            ("a", fit.exponent, "exponent, if the law is c1/B^a + c2"),
        )
    ]
    lines += [
        f"  medians and {100 * fit.level:g} % intervals; prior:",
        f"    {PRIOR};",
        f"    {EXPONENT_PRIOR}",
    ]
    few = f"Fewer than {FEW_POINTS} batch sizes with more than a bound: the prior "
    said = {
        few + "decides the ends.": fit.is_short,
        "No plateau is resolved: c2 = 0 is not refused.": not fit.plateau_resolved,
        "No slope is resolved: c1 = 0 is not refused.": not fit.slope_resolved,
    }
    for text in (*(text for text, applies in said.items() if applies), *misfits(fit)):
        lines += _wrapped(text)
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 86, initial_indent="  ", subsequent_indent="  ")


def _residuals(fit: LawFit) -> list[str]:
    scale = fit.scale
    lines = [
        f"  residuals in octaves, rms {fit.rms:.2f}; residual scale {scale.value:.2f} "
        f"({scale.low:.2f} to {scale.high:.2f}):"
    ]
    pairs = zip(fit.observations.batch_size, fit.residuals, strict=True)
    cells = [f"{b:.12g}: {'bound' if np.isnan(r) else f'{r:+.2f}'}" for b, r in pairs]
    rows = [cells[start : start + 6] for start in range(0, len(cells), 6)]
    return lines + ["    " + "  ".join(row) for row in rows]


def _regimes(curve: CurveFit) -> list[str]:
    """Returns one line per definition, one column per tolerance t."""
    smallest = float(curve.fit.observations.batch_size[0])
    cells = {
        (r.name, f"{100 * r.tolerance:g} %"): _end(r, smallest) for r in curve.regimes
    }
    table = sensitivity(curve.regimes)
    columns = [str(name) for name in table.columns[1:-1]]
    head = "".join(f"{name:>10}" for name in columns)
    lines = [f"  ends of the regimes, in batch sizes, at t ={head[1:]}   octaves"]
    for _, row in table.iterrows():
        name = str(row["definition"])
        ends = "".join(f"{cells[name, column]:>10}" for column in columns)
        lines.append(f"    {DEFINITIONS[name]:<39}{ends}{row['octaves']:>10.1f}")
    return [
        *lines,
        "    (K0 at the smallest B0; B1 is --linear_from, else B0; >= may lie",
        "    beyond what was measured, < below it; octaves: how far t moves the end)",
    ]


def _end(regime: Regime, smallest: float) -> str:
    if regime.low is None:
        return (">=" if regime.is_open else "") + f"{regime.batch_size:.12g}"
    if regime.high is None:
        return f">{number(regime.low)}"
    below = regime.batch_size < smallest
    return f"<{smallest:.12g}" if below else number(regime.batch_size)


def _comparison(comparison: Comparison, exponent: Estimate) -> list[str]:
    scale = comparison.scale
    lines = [
        f"all curves together, one residual scale of {scale.value:.2f} octaves "
        f"({scale.low:.2f} to {scale.high:.2f});",
        f"exponent a in common {exponent.value:.2f} ({exponent.low:.2f} to "
        f"{exponent.high:.2f}). Ratios:",
    ]
    for pair in comparison.ratios:
        lines.append(f"  {pair.curve} / {pair.reference}")
        if pair.searches:
            lines.append(f"    unlike searches: {pair.searches}")
        for name, label in _NAMES.items():
            ratio = getattr(pair, name)
            p_value = ratio.p_adjusted
            test = "" if np.isnan(p_value) else f"p {p_value:.2g}, "
            within = f"within a factor of {number(ratio.within)}"
            if np.isinf(ratio.within):
                within = "no factor excluded"
            lines.append(
                f"    {label:<6} x {_span(ratio).lstrip()}  {test}{within}: "
                f"{ratio.verdict}"
            )
    if any(pair.searches for pair in comparison.ratios):
        lines += _wrapped(UNLIKE_SEARCHES)
    return [
        *lines,
        "  (p: twice that of the less likely side of 1, adjusted (Holm); factors",
        f"  beyond that of `within` are excluded at {100 * comparison.level:g} %)",
    ]
