"""How do one's own curves lie beside published ones?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dps_tf.analysis import published
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    estimate_text,
    illustration,
    page_table,
)
from dps_tf.analysis.report.curves import Curves, fit_lines
from dps_tf.analysis.report.drawing import draw_steps_to_result
from dps_tf.analysis.report.style import Axes
from dps_tf.analysis.report.wording import and_list, steps

_COLUMNS = (
    Column("curve", "Curve"),
    Column("goal", "Goal"),
    Column("points", "Points"),
    Column("c1", "c1, examples"),
    Column("c2", "c2, steps"),
    Column("critical", "c1/c2, examples"),
    Column("rms", "Residual, octaves", "Root mean square of log2(K* / fit)."),
)


def published_part(context: ReportContext) -> Part:
    """Returns overlay and fits of the published curves that the reader named."""
    if not context.options.published:
        return Part()
    return beside_published(context.curves, context.options.published)


def beside_published(curves: Curves | None, names: Sequence[str]) -> Part:
    """Returns overlay and fits of published curves.

    Args:
        curves: one's own; None if there are none.
        names: see `published.steps_to_result`; `all` for all of them.
    """
    wanted = None if "all" in names else list(names)
    table = published.steps_to_result(wanted)
    text = (
        "Published K* were read off the figures of the public notebook of Shallue et "
        "al. 2019, within about 5 %; each is the best of 50 or 100 trials under a "
        "strict goal. Workloads, goals and numbers of trials differ from one's own "
        "unless they are the same in the table: compare shapes before levels."
    )
    return Part((text,), (_figure(curves, table),), (_fits(table, wanted),))


def _short(name: str) -> str:
    return name.removeprefix(f"{published.PREFIX}-")


def draw_published(axis: Axes, published: pd.DataFrame) -> None:
    """Draws published curves in grey behind one's own, on the same axes.

    Args:
        axis: an axis that holds K* against the batch size.
        published: one row per curve and batch size: curve, batch_size,
            steps_to_result.
    """
    for position, (_, rows) in enumerate(published.groupby("curve", sort=False)):
        rows = rows.sort_values("batch_size")
        axis.plot(rows["batch_size"], rows["steps_to_result"], **_style(position))
    axis.relim()
    axis.autoscale(enable=True)


def _style(position: int) -> dict[str, Any]:
    # From the far end of the lists, so that they differ from the curves in front.
    return {
        "color": style.MUTED,
        "linewidth": 1.0,
        "linestyle": style.LINES[::-1][position % len(style.LINES)],
        "marker": style.MARKERS[::-1][position % len(style.MARKERS)],
        "markersize": 4.5,
        "markerfacecolor": "white",
        "zorder": 2,
    }


def _figure(curves: Curves | None, table: pd.DataFrame) -> Illustration:
    shown = table.assign(curve=[_short(str(name)) for name in table["curve"]])
    names = list(dict.fromkeys(shown["curve"]))
    handles = [style.line_handle(str(n), **_style(i)) for i, n in enumerate(names)]
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
        draw_published(axis, shown)
        axis.set(xlabel="Batch size", ylabel="Steps to result")
        style.batch_ticks(axis, sizes)
        style.legend_below(figure, handles, columns=1 if len(handles) < 7 else 2)
    told = "; ".join(
        f"{name}: {steps(rows['steps_to_result'].iloc[0])} at "
        f"{rows['batch_size'].iloc[0]} to {steps(rows['steps_to_result'].iloc[-1])} at "
        f"{rows['batch_size'].iloc[-1]}"
        for name, rows in shown.groupby("curve", sort=False)
    )
    figure_text = FigureText(
        name="published",
        title="Steps to result beside published curves",
        caption=(
            f"Grey: published curves ({and_list(names, 4)}), digitized. Coloured: "
            "this report's."
            if curves is not None
            else f"Published curves, digitized: {and_list(names, 4)}."
        ),
        alt=f"Line chart of published steps to result against batch size. {told}.",
    )
    return illustration(figure, figure_text)


def _draw_own(axis: Axes, curves: Curves) -> None:
    for panel in curves.naming.panels:
        plot_rows = curves.panel(panel)
        if len(plot_rows):
            lines = fit_lines(curves, panel)
            draw_steps_to_result(axis, plot_rows, lines, curves.naming.line_styles)


def _fits(table: pd.DataFrame, wanted: list[str] | None) -> PageTable:
    goals = table.drop_duplicates("curve").set_index("curve")["goal"]
    rows = [
        {
            "curve": _short(curve),
            "goal": str(goals[curve]),
            "points": len(fit.observations),
            "c1": estimate_text(fit.c1),
            "c2": estimate_text(fit.c2),
            "critical": estimate_text(fit.critical_batch_size),
            "rms": SortableText(f"{fit.rms:.2f}", fit.rms),
        }
        for curve, fit in published.fits(wanted).items()
    ]
    caption = "Fits of K* = c1/B + c2 to the published curves, by a robust loss"
    return page_table("published-fits", caption, _COLUMNS, rows)
