"""What the curves say, in plain sentences."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dps_tf.analysis.law import LawFit
from dps_tf.analysis.report.curves import Curves, comparable, groups
from dps_tf.analysis.wording import count, interval, number, percent, steps


def summary(curves: Curves, regimes: pd.DataFrame) -> tuple[str, ...]:
    """Returns a sentence or three per curve, then how curves compare.

    Args:
        curves: of the report.
        regimes: see `regimes.regimes_of`.
    """
    found = []
    for panel, curve, cells in groups(curves):
        plot_rows = curves.panel(panel)
        plot_rows = plot_rows[
            (plot_rows["curve"] == curve) & (plot_rows["bound"] == "")
        ]
        parts = [_range(curves.title(panel, curve), plot_rows, cells)]
        fit = curves.fits.get((panel, curve))
        if fit is not None:
            parts.append(_law(fit))
        mine = regimes[(regimes["panel"] == panel) & (regimes["curve"] == curve)]
        if len(mine):
            parts.append(_regimes(mine.iloc[0]))
        found.append(" ".join(part for part in parts if part))
    return (*found, *_comparisons(curves))


def _range(name: str, plot_rows: pd.DataFrame, cells: pd.DataFrame) -> str:
    missing = int(cells["steps_to_result"].isna().sum())
    end = f" {count(missing, 'batch size')} without a K*." if missing else ""
    if plot_rows.empty:
        return f"{name}: no K* is known exactly.{end}"
    plot_rows = plot_rows.sort_values("batch_size")
    first, last = plot_rows.iloc[0], plot_rows.iloc[-1]
    start = (
        f"{name}: {steps(first['steps_to_result'])} steps to result at batch size "
        f"{first['batch_size']:,}"
    )
    if len(plot_rows) == 1:
        return f"{start}.{end}"
    batch = last["batch_size"] / first["batch_size"]
    fewer = first["steps_to_result"] / last["steps_to_result"]
    change = (
        f"{number(fewer)} times fewer steps"
        if fewer >= 1
        else f"{number(1 / fewer)} times more steps"
    )
    return (
        f"{start}, {steps(last['steps_to_result'])} at {last['batch_size']:,}: "
        f"{_whole(batch)} times the batch, {change}.{end}"
    )


def _whole(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else number(value)


def _law(fit: LawFit) -> str:
    critical = fit.critical_batch_size
    text = f"The fit is K* = {number(fit.c1.value)}/B + {number(fit.c2.value)}"
    if not fit.plateau_resolved:
        return f"{text}; no plateau is resolved: " + (
            f"c1/c2 is {interval(critical.low, critical.high)}."
            if critical.low > 0
            else "these K* do not bound c1/c2."
        )
    if not fit.slope_resolved:
        return f"{text}; the curve is flat within its scatter."
    return (
        f"{text}, with the critical batch size c1/c2 at {number(critical.value)} "
        f"({interval(critical.low, critical.high)})."
    )


def _regimes(row: pd.Series) -> str:
    seen = f"up to {row['points_perfect']:g}"
    if pd.notna(row["points_useful"]):
        seen += f" and from {row['points_useful']:g}"
    within = f"Within {percent(row['tolerance'])},"
    if row["perfect_end_low"] == 0 and np.isinf(row["perfect_end_high"]):
        return f"{within} the fit tells no ends of regimes; by single points, {seen}."
    perfect, useful = (
        f"{number(row[name])} ({interval(row[f'{name}_low'], row[f'{name}_high'])})"
        for name in ("perfect_end", "useful_end")
    )
    flat = (
        f"the curve is flat from {useful}"
        if row["is_flat"]
        else f"the curve is not seen to become flat up to {row['largest']:g}"
    )
    return (
        f"{within} perfect scaling holds up to batch size {perfect} and {flat}, by the "
        f"fit; by single points, {seen}."
    )


def _comparisons(curves: Curves) -> list[str]:
    """Returns how curves lie beside the first of their workload, at equal batches."""
    found = []
    exact = curves.plot_rows[curves.plot_rows["bound"] == ""]
    together = comparable(curves)
    for name, pairs in together.items():
        steps_of = {
            _within(name, curves.title(panel, curve)): exact[
                (exact["panel"] == panel) & (exact["curve"] == curve)
            ].set_index("batch_size")["steps_to_result"]
            for panel, curve in pairs
        }
        reference, *others = steps_of
        told = []
        for curve in others:
            ratios = (steps_of[curve] / steps_of[reference]).dropna().to_numpy(float)
            if len(ratios):
                told.append(f"{_times(ratios)} for {curve}")
        if told:
            start = f"{name}: " if len(together) > 1 else ""
            found.append(
                f"{start}Steps at equal batch size, relative to {reference}: "
                f"{'; '.join(told)}. {curves.best_of(pairs)}".rstrip()
            )
    return found


def _within(workload: str, name: str) -> str:
    """Returns the name of a curve without that of its workload."""
    return name.removeprefix(f"{workload}, ").removeprefix(f"{workload}: ")


def _times(ratios: np.ndarray) -> str:
    low, high = float(ratios.min()), float(ratios.max())
    if number(low, 2) == number(high, 2):
        return f"{number(low, 2)} times"
    return f"{number(low, 2)} to {number(high, 2)} times"
