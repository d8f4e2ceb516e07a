"""Steps against examples: what does a faster result cost?

McCandlish et al. 2018 ("An Empirical Model of Large-Batch Training", section 2.3)
expect the steps S and the examples E = S B of all batch sizes to lie on
(S/Smin - 1)(E/Emin - 1) = 1. With Smin = c2 and Emin = c1 this is K* = c1/B + c2, so
that the frontier of the fit is drawn, and their critical batch size Emin/Smin is c1/c2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    PageTable,
    Part,
    ReportContext,
    estimate_text,
    illustration,
    number_text,
    page_table,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.noise import averaged
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.wording import listed, number, steps

_REACH = 64.0
"""Factor from c1/c2 to the batch sizes at the ends of a frontier that is drawn."""


def frontier_part(context: ReportContext) -> Part:
    """Returns steps against examples of all curves, and a table of their ends.

    Nothing without a fit.
    """
    curves = context.curves
    table = examples(curves)
    if table.empty or not curves.fits:
        return Part()
    line_styles = (
        style.assign_styles(table["curve"])
        if len(curves.naming.panels) > 1
        else curves.naming.line_styles_of(table["curve"])
    )
    with style.one_axis(line_styles) as (figure, axis):
        draw_frontier(axis, table, frontiers(curves), line_styles)
    told = listed(
        table,
        "curve",
        lambda row: f"{steps(row['steps'])} steps, {number(row['examples'])} examples",
    )
    figure_text = FigureText(
        name="steps_and_examples",
        title="Steps against examples",
        caption=(
            "One mark per batch size, the smallest on the right: examples processed, "
            "K* B, against steps, K*. Line: the frontier (S/c2 - 1)(E/c1 - 1) = 1 of "
            "the fit, the form of McCandlish et al. 2018. Dotted: its ends, the fewest "
            "steps c2 and the fewest examples c1; at c1/c2 both are twice the least."
        ),
        alt=f"Line chart of examples against steps. {told}.",
    )
    return Part(
        illustrations=(illustration(figure, figure_text),),
        tables=(frontier_table(context),),
    )


def examples(curves: Curves) -> pd.DataFrame:
    """Returns one row per curve and batch size with a K*: curve, steps, examples."""
    rows = curves.plot_rows[curves.plot_rows["bound"] == ""]
    return pd.DataFrame(
        {
            "curve": curves.titles(rows),
            "steps": rows["steps_to_result"].to_numpy(float),
            "examples": (rows["steps_to_result"] * rows["batch_size"]).to_numpy(float),
        }
    )


def frontiers(curves: Curves) -> pd.DataFrame:
    """Returns the frontier of each fit with a plateau and a slope.

    Columns: curve, steps, examples, c1, c2.
    """
    tables = []
    for (panel, curve), fit in curves.fits.items():
        if not (fit.plateau_resolved and fit.slope_resolved):
            continue
        critical = fit.c1.value / fit.c2.value
        sizes = critical * np.geomspace(1 / _REACH, _REACH, 80)
        table = pd.DataFrame({"steps": fit.steps(sizes)})
        table = table.assign(examples=table["steps"] * sizes, c1=fit.c1.value)
        title = curves.title(panel, curve)
        tables.append(table.assign(c2=fit.c2.value, curve=title))
    columns = ["curve", "steps", "examples", "c1", "c2"]
    return pd.concat(tables) if tables else pd.DataFrame(columns=columns)


def draw_frontier(
    axis: Axes,
    table: pd.DataFrame,
    lines: pd.DataFrame,
    line_styles: Mapping[str, LineStyle],
) -> None:
    """Draws examples against steps, both logarithmic.

    Args:
        axis: an empty axis.
        table: see `examples`.
        lines: see `frontiers`.
        line_styles: line style of each curve.
    """
    axis.set_xscale("log")
    axis.set_yscale("log")
    for curve, rows in table.groupby("curve", sort=False):
        line_style = style.line_style_of(line_styles, curve)
        axis.plot(rows["steps"], rows["examples"], **style.mark_style(line_style))
        mine = lines[lines["curve"] == curve]
        if len(mine):
            color = line_style.color
            axis.plot(mine["steps"], mine["examples"], color=color, zorder=1.8)
            ends = {"color": color, "linewidth": 0.9, "linestyle": (0, (1, 2.5))}
            axis.axvline(mine["c2"].iloc[0], **ends)
            axis.axhline(mine["c1"].iloc[0], **ends)
    for name, limit in (("steps", axis.set_xlim), ("examples", axis.set_ylim)):
        limit(table[name].min() / 1.8, table[name].max() * 1.8)
    axis.set(xlabel="Steps to result", ylabel="Examples processed")
    style.log10_axis(axis, "x")
    style.log10_axis(axis, "y")


def frontier_table(context: ReportContext) -> PageTable:
    """Returns the ends of each frontier, c1/c2, and the noise scale beside it."""
    curves = context.curves
    scales = averaged(curves, context.tables.measurements)
    rows = []
    for (panel, curve), fit in curves.fits.items():
        mine = scales[(scales["panel"] == panel) & (scales["curve"] == curve)]
        values = mine.loc[mine["scale"] > 0, "scale"].to_numpy(float)
        scale = float(np.exp(np.log(values).mean())) if len(values) else np.nan
        rows.append(
            {
                "curve": curves.title(panel, curve),
                "steps": estimate_text(fit.c2),
                "examples": estimate_text(fit.c1),
                "critical": estimate_text(fit.critical_batch_size),
                "noise": number_text(scale),
            }
        )
    columns = (
        Column("curve", "Curve"),
        Column("steps", "Fewest steps, c2"),
        Column("examples", "Fewest examples, c1"),
        Column("critical", "c1/c2, examples"),
        Column(
            "noise",
            "Noise scale, examples",
            "tr(Sigma) and |G|^2 each averaged over steps up to K*, then divided; "
            "geometric mean over the cells of the curve. Empty where not measured.",
        ),
    )
    caption = "The ends of the frontier of steps and examples"
    return page_table("frontier", caption, columns, rows)
