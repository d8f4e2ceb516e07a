"""Fits of any table of steps-to-result, from a CSV file to their text.

`dps_tf.fit` names the columns. A results table of this package is such a table too: its
curves are named by the columns of the cell that vary.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import law, regimes
from dps_tf.analysis.interchange.foreign_files import numbers_of, read_csv
from dps_tf.analysis.searches import searches_of_results
from dps_tf.analysis.tables import curve_key, curve_label, require
from dps_tf.analysis.wording import number, p_text, with_interval
from dps_tf.core import UserError, check_positive, printable

_LABELS = dict(zip(law.QUANTITIES, ("c1", "c2", "c1/c2"), strict=True))


@dataclass(frozen=True)
class FitSettings:
    """How curves are fitted; see `law.fit_law` and `regimes`."""

    level: float = law.LEVEL
    margin: float = law.MARGIN
    tolerances: tuple[float, ...] = regimes.TOLERANCES
    linear_from: float | None = None

    def __post_init__(self) -> None:
        if not self.tolerances:
            raise UserError("at least one tolerance is needed, for example 0.2.")
        values = [("tolerance, a share,", share) for share in self.tolerances]
        if self.linear_from is not None:
            values.append(("linear_from, a batch size,", self.linear_from))
        for name, value in values:
            check_positive(name, value)


@dataclass(frozen=True)
class CurveFit:
    """The law of a curve with a name, and regimes on the fit and on measured points.

    `left_out` counts the rows of the table without a usable steps-to-result.
    """

    curve: str
    fit: law.LawFit
    regimes: tuple[regimes.Regime, ...]
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON; None stands for infinity and for NaN."""
        points = self.fit.observations
        low, high = points.low.tolist(), points.high.tolist()
        return {
            "curve": self.curve,
            "batch_size": points.batch_size.tolist(),
            "steps_to_result": [None if np.isinf(k) else k for k in high],
            "bracket_low": [None if np.isnan(k) else k for k in low],
            "rows_left_out": self.left_out,
            "fit": self.fit.to_json(),
            "regimes": [regime.to_json() for regime in self.regimes],
        }


@dataclass(frozen=True)
class TableFit:
    """The fits of the curves of a table.

    Attributes:
        curves: those that can be fitted alone.
        too_short: number of usable batch sizes of those that cannot, by name.
        comparison: ratios in a joint fit, if two or more curves are `law.joinable`.
        exponent: a of c1/B^a + c2 that the curves of `curves` have in common.
    """

    curves: tuple[CurveFit, ...]
    too_short: dict[str, int]
    comparison: law.Comparison | None = None
    exponent: law.Estimate | None = None

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
            "common_exponent": self.exponent and self.exponent.to_json(),
        }

    def __repr__(self) -> str:
        """Returns what `python -m dps_tf.fit` prints."""
        return text_of(self)

    @property
    def joined(self) -> dict[str, law.LawFit]:
        """The curves that are too short alone, as the joint fit has them."""
        fits = self.comparison.fits if self.comparison else {}
        return {name: fits[name] for name in self.too_short if name in fits}


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
    curves = tuple(
        _fit(name, curve, settings, len(parts[name]) - len(curve))
        for name, curve in usable.items()
        if name not in too_short
    )
    if len(usable) > 1:
        level, margin = settings.level, settings.margin
        searches = searches_of_results(parts)
        comparison = law.compare(
            usable, reference, margin=margin, level=level, searches=searches
        )
        alone = {curve.curve: curve.fit.observations for curve in curves}
        exponent = law.Estimate.of(law.exponent_of(alone), level)
        return TableFit(curves, too_short, comparison, exponent)
    if reference is not None and reference not in usable:
        raise UserError(f"--reference={reference!r} is not a curve that can be fitted.")
    return TableFit(curves, too_short)


def observations_by_curve(
    frame: pd.DataFrame, seeds_together: bool = False
) -> dict[str, law.Observations]:
    """Returns the observations of each curve of a table; see `curves_of_table`."""
    parts = curves_of_table(frame, seeds_together)
    return {name: law.Observations.from_results(rows) for name, rows in parts.items()}


def _fit(
    name: str, observations: law.Observations, settings: FitSettings, left_out: int
) -> CurveFit:
    fit = law.fit_law(observations, settings.level)
    tolerances, start = settings.tolerances, settings.linear_from
    # The fitted curve answers for a batch size that this curve has not measured.
    measured = start if start in observations.batch_size else None
    ends = (
        *regimes.fitted_regimes(fit, tolerances, start),
        *regimes.measured_regimes(observations, tolerances, measured),
    )
    return CurveFit(name, fit, ends, left_out)


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
        present = [name for name in curve_key(frame) if name in frame.columns]
        if "goal" in frame.columns:
            goals = frame.groupby([*present, "batch_size"], dropna=False)["goal"]
            present += ["goal"] if goals.nunique().max() > 1 else []
        varying = [n for n in present if frame[n].nunique(dropna=False) > 1]
        if seeds_together:
            varying = [name for name in varying if name != "seed"]
        names = pd.Series([curve_label(row, varying) for _, row in frame.iterrows()])
    groups = frame.groupby(names.to_numpy(object), sort=False)
    return {str(name): part for name, part in groups}


def text_of(table: TableFit) -> str:
    """Returns the fits and ratios of a table as lines for a terminal."""
    lines: list[str] = []
    for curve in table.curves:
        lines += [*_curve(curve), ""]
    for name, points in table.too_short.items():
        lines.append(f"{name}: {points} batch sizes are too few to fit")
        if fit := table.joined.get(name):
            lines[-1] += " alone; by the fit of all curves together:"
            constants = {text: getattr(fit, q) for q, text in _LABELS.items()}
            lines += [f"  {text:<8}{_estimate(c)}" for text, c in constants.items()]
        lines.append("")
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


def _estimate(estimate: law.Estimate) -> str:
    return with_interval(estimate.value, estimate.low, estimate.high, digits=3)


def _law(fit: law.LawFit) -> list[str]:
    lines = [
        f"  {name:<8}{_estimate(estimate):<28}  {meaning}"
        for name, estimate, meaning in (
            ("c1", fit.c1, "examples"),
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


def _wrapped(*texts: str) -> list[str]:
    lines = [line for text in texts for line in textwrap.wrap(text, 84)]
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


def _regimes(curve: CurveFit) -> list[str]:
    """Returns one line per definition, one column per tolerance t."""
    cells = pd.Series(
        {
            (regimes.DEFINITIONS[r.name], f"{100 * r.tolerance:g} %"): _end(r, curve)
            for r in curve.regimes
        }
    ).unstack(sort=False)
    octaves = regimes.sensitivity(curve.regimes)["octaves"]
    cells["octaves"] = [f"{value:.1f}" for value in octaves]
    return [
        "  ends of the regimes, in batch sizes, by tolerance t:",
        *(f"    {line}" for line in cells.to_string().splitlines()),
        "    (K0 at the smallest B0; B1 is --linear_from, else B0; >= may lie",
        "    beyond what was measured, < below it; octaves: how far t moves the end)",
    ]


def _end(regime: regimes.Regime, curve: CurveFit) -> str:
    """Returns the end of a regime, or its bound where an end of c1/c2 is open."""
    if regime.low is None:
        return (">=" if regime.is_open else "") + f"{regime.batch_size:.12g}"
    is_open = curve.fit.critical_batch_size.low == 0
    if regime.high is None:
        return "unknown" if is_open else f">{number(regime.low)}"
    smallest = curve.fit.observations.batch_size[0]
    if is_open or regime.batch_size < smallest:
        return f"<{number(max(regime.high if is_open else 0, smallest))}"
    return number(regime.batch_size)


def _comparison(comparison: law.Comparison, exponent: law.Estimate) -> list[str]:
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
        "  (p: twice that of the less likely side of 1, adjusted (Holm); factors",
        f"  beyond that of `within` are excluded at {100 * comparison.level:g} %)",
    ]
