"""How do one's own curves lie beside published ones?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dps_tf.analysis.law import LawFit
from dps_tf.analysis.published import fits
from dps_tf.analysis.regimes import TOLERANCE, ends
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    NOTHING,
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    constants,
    estimate_text,
    illustration,
    page_table,
)
from dps_tf.analysis.report.curves import Curves, fit_lines
from dps_tf.analysis.report.drawing import draw_steps_to_result
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.wording import and_list, count, percent, steps

_COLUMNS = (
    Column("curve", "Curve"),
    Column("goal", "Goal"),
    Column("points", "Points"),
    Column("c1", "c1, examples"),
    Column("c2", "c2, steps"),
    Column("critical", "c1/c2, examples"),
    Column("rms", "Residual, octaves", "Root mean square of log2(K* / fit)."),
    Column("perfect", "Perfect up to", f"On the fit, within {percent(TOLERANCE)}."),
    Column(
        "flat",
        "Flat from",
        f"On the fit, within {percent(TOLERANCE)}; only if the points are flat too.",
    ),
    Column("exponent", "Exponent a", "Of c1/B^a + c2; 1 is the law."),
)


def published_part(context: ReportContext) -> Part:
    """Returns overlay and fits of the published curves that the reader named."""
    if context.published is None:
        return Part()
    return beside_published(context.curves, context.published)


def beside_published(curves: Curves | None, published: pd.DataFrame) -> Part:
    """Returns overlay and fits of published curves.

    One's own curves, if there are any, are drawn with them. The table is that of
    `analysis.published.read_published`.
    """
    text = (
        f"{_error_text(published['relative_error'])} Workloads, goals and numbers of "
        "trials differ from those of this report unless they are the same in both "
        "tables: compare shapes before levels."
    )
    return Part((text,), (_figure(curves, published),), (_fits(published),))


def _error_text(errors: pd.Series) -> str:
    """Returns how far off the published K* may be, as far as their table says."""
    given = errors.dropna()
    text = f"The table of published K* gives an error for {len(given)} of "
    text += f"{count(len(errors), 'point')}"
    return (
        f"{text}, at most {percent(float(given.max()))}." if len(given) else f"{text}."
    )


def draw_published(
    axis: Axes, published: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws published curves behind one's own, on an axis that holds these."""
    for curve, rows in published.groupby("curve", sort=False):
        rows = rows.sort_values("batch_size")
        x, y = rows["batch_size"], rows["steps_to_result"]
        axis.plot(x, y, **_keywords(line_styles[str(curve)]))
    axis.relim()
    axis.autoscale(enable=True)


def _keywords(line_style: LineStyle) -> dict[str, Any]:
    hollow = style.mark_style(line_style, hollow=True)
    line = {"linestyle": line_style.line, "linewidth": 1.0, "markersize": 4.5}
    return {**hollow, **line, "zorder": 2}


def _figure(curves: Curves | None, table: pd.DataFrame) -> Illustration:
    names = list(dict.fromkeys(table["curve"]))
    own = [] if curves is None else [f"own: {n}" for n in curves.naming.line_styles]
    # Other line styles than those of one's own curves.
    every = style.assign_styles([*own, *names])
    line_styles = {name: every[name] for name in names}
    handles = [style.line_handle(n, **_keywords(s)) for n, s in line_styles.items()]
    with style.styled():
        figure = style.new_figure(6.9, 5.0 + 0.1 * len(handles))
        axis = figure.subplots()
        sizes = list(table["batch_size"])
        if curves is not None and len(curves.plot_rows):
            _draw_own(axis, curves)
            sizes += curves.plot_rows["batch_size"].tolist()
            handles = [*style.curve_handles(curves.naming.line_styles), *handles]
        style.log2_axis(axis, "x")
        style.log2_axis(axis, "y")
        draw_published(axis, table, line_styles)
        axis.set(xlabel="Batch size", ylabel="Steps to result")
        style.batch_ticks(axis, sizes)
        style.legend_below(figure, handles, columns=1 if len(handles) < 7 else 2)
    points = "; ".join(
        f"{name}: {steps(rows['steps_to_result'].iloc[0])} at "
        f"{rows['batch_size'].iloc[0]} to {steps(rows['steps_to_result'].iloc[-1])} at "
        f"{rows['batch_size'].iloc[-1]}"
        for name, rows in table.groupby("curve", sort=False)
    )
    figure_text = FigureText(
        name="published",
        title="Steps to result beside published curves",
        caption=(
            f"Hollow marks, thin lines: published curves ({and_list(names, 4)}). "
            "Filled marks: this report's."
            if curves is not None
            else f"Published curves: {and_list(names, 4)}."
        ),
        alt=f"Line chart of published steps to result against batch size. {points}.",
    )
    return illustration(figure, figure_text)


def _draw_own(axis: Axes, curves: Curves) -> None:
    for panel in curves.naming.panels:
        plot_rows = curves.panel(panel)
        if len(plot_rows):
            lines = fit_lines(curves, panel)
            draw_steps_to_result(axis, plot_rows, lines, curves.naming.line_styles)


def _fits(table: pd.DataFrame) -> PageTable:
    goals = table.drop_duplicates("curve").set_index("curve")["goal"]
    rows = [
        {
            "curve": curve,
            "goal": str(goals[curve]),
            "points": len(fit.observations),
            **constants(fit),
            "rms": SortableText(f"{fit.rms:.2f}", fit.rms),
            **_regimes_and_exponent(fit),
        }
        for curve, fit in fits(table).items()
    ]
    caption = "Fits of K* = c1/B + c2 to the published curves"
    return page_table("published-fits", caption, _COLUMNS, rows)


def _regimes_and_exponent(fit: LawFit) -> dict[str, SortableText]:
    found = ends(fit)
    flat = estimate_text(found.flat) if found.is_flat else NOTHING
    return {
        "perfect": estimate_text(found.perfect),
        "flat": flat,
        "exponent": estimate_text(fit.exponent),
    }
