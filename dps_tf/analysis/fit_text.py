"""A table's fits as text for a terminal."""

from __future__ import annotations

import numpy as np

from dps_tf.analysis.fit_table import CurveFit, TableFit
from dps_tf.analysis.law import (
    FEW_POINTS,
    Alternative,
    CriticalBatchSizes,
    Estimate,
    JointFit,
    LawFit,
)
from dps_tf.analysis.regimes import DEFINITIONS, Regime, sensitivity
from dps_tf.analysis.wording import number

_WORDS = {
    "both_free": "c1 and c2 differ",
    "c1_shared": "c1 is shared, c2 differs",
    "c2_shared": "c2 is shared, c1 differs",
    "both_shared": "c1 and c2 are shared",
}


def text(table: TableFit) -> str:
    """Returns everything that is said of a table, in lines of at most 88 characters."""
    lines: list[str] = []
    for curve in table.curves:
        lines += [*_curve(curve), ""]
    for name, points in table.too_short.items():
        lines += [f"{name}: {points} batch sizes are too few to fit", ""]
    if table.joint is not None:
        lines += _joint(table.joint)
    return "\n".join(lines).rstrip()


def _curve(curve: CurveFit) -> list[str]:
    fit = curve.fit
    sizes = fit.observations.batch_size
    head = (
        f"{curve.curve}: K* = c1/B + c2, {len(sizes)} steps-to-result, batch sizes "
        f"{sizes[0]:.12g} to {sizes[-1]:.12g}"
    )
    bounds = int(fit.observations.is_bound.sum())
    if bounds:
        head += f"; {bounds} of them bounds"
    if curve.left_out:
        head += f"; {curve.left_out} rows without a usable one"
    return [
        head,
        *_law(fit),
        *_residuals(fit),
        *_alternatives(curve.alternatives, curve.critical),
        *_regimes(curve),
    ]


def _law(fit: LawFit) -> list[str]:
    level = f"{100 * fit.level:g} % interval"
    rows: list[tuple[str, Estimate, str]] = [
        ("c1", fit.c1, "examples"),
        ("c2", fit.c2, "steps"),
        ("c1/c2", fit.critical_batch_size, "critical batch size"),
    ]
    lines = [
        f"  {name:<6}{number(e.value):>10}  {level} {number(e.low)} to "
        f"{number(e.high)}  ({unit})"
        for name, e, unit in rows
    ]
    lines.append(f"  prior: {fit.prior}")
    if fit.is_short:
        lines.append(
            f"  Fewer than {FEW_POINTS} batch sizes with more than a bound: the prior "
            "decides the ends."
        )
    if not fit.plateau_resolved:
        lines.append("  No plateau is resolved: c2 = 0 is not refused.")
    if not fit.slope_resolved:
        lines.append("  No slope is resolved: c1 = 0 is not refused.")
    return lines


def _residuals(fit: LawFit) -> list[str]:
    lines = [
        f"  residuals in octaves, rms {fit.rms:.2f}, scale {fit.scale:.2f} "
        f"(loss {fit.loss}):"
    ]
    pairs = zip(fit.observations.batch_size, fit.residuals, strict=True)
    cells = [f"{b:.12g}: {'bound' if np.isnan(r) else f'{r:+.2f}'}" for b, r in pairs]
    for start in range(0, len(cells), 6):
        lines.append("    " + "  ".join(cells[start : start + 6]))
    return lines


def _alternatives(
    forms: tuple[Alternative, ...], critical: CriticalBatchSizes | None
) -> list[str]:
    lines = ["  forms, by AICc (differences below about 2 decide nothing):"]
    for form in forms:
        value = f"{form.aicc:.1f}" if form.aicc is not None else form.reason
        lines.append(f"    {form.formula:<12} rms {form.rms:.2f} octaves, AICc {value}")
    if critical is None:
        return lines
    lines.append("  a power law is preferred; critical batch size, both terms equal:")
    for name, e in (
        ("c1/B + c2", critical.law),
        ("c / B^a + d", critical.power_law),
        ("averaged", critical.averaged),
    ):
        ends = f"{number(e.low)} to {number(e.high)}"
        lines.append(f"    {name:<12}{number(e.value):>10}  ({ends})")
    return lines


def _regimes(curve: CurveFit) -> list[str]:
    """Returns one line per definition, one column per tolerance t."""
    cells = {(r.name, f"{100 * r.tolerance:g} %"): _end(r) for r in curve.regimes}
    table = sensitivity(curve.regimes)
    columns = [str(name) for name in table.columns[1:-1]]
    head = "".join(f"{name:>10}" for name in columns)
    lines = [f"  ends of the regimes, in batch sizes, at t ={head[1:]}   octaves"]
    for _, row in table.iterrows():
        name = str(row["definition"])
        ends = "".join(f"{cells[name, column]:>10}" for column in columns)
        lines.append(f"    {DEFINITIONS[name]:<39}{ends}{row['octaves']:>10.1f}")
    lines.append("    (K0 at the smallest B0; B1 is --linear_from, else B0; >= may lie")
    lines.append("    beyond what was measured; octaves: how far t moves the end)")
    return lines


def _end(regime: Regime) -> str:
    value = regime.batch_size
    if value is None:
        return "infinity"
    if regime.low is not None:
        return number(value)
    return (">=" if regime.is_open else "") + f"{value:.12g}"


def _joint(joint: JointFit) -> list[str]:
    lines = [
        f"all curves together, one residual scale of {joint.scale:.2f} octaves; ratios "
        f"to {joint.reference}:"
    ]
    for ratio in joint.ratios:
        parts = (
            ("c1", ratio.c1),
            ("c2", ratio.c2),
            ("c1/c2", ratio.critical_batch_size),
        )
        lines.append(
            f"  {ratio.curve}: "
            + ", ".join(
                f"{name} x {number(e.value)} ({number(e.low)} to {number(e.high)})"
                for name, e in parts
            )
        )
        moves = " and ".join(ratio.moves) or "neither for sure"
        lines.append(f"    moves: {moves}")
    for _, row in joint.models.iterrows():
        lowest = row["model"] == joint.best_model and not np.isnan(row["aicc"])
        chosen = "  <- lowest" if lowest else ""
        test = "" if np.isnan(row["p_value"]) else f", p = {row['p_value']:.2g}"
        value = "not defined" if np.isnan(row["aicc"]) else f"{row['aicc']:.1f}"
        lines.append(f"  {_WORDS[str(row['model'])]}: AICc {value}{test}{chosen}")
    return lines
