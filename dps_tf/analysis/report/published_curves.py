"""How do one's own curves lie beside published ones?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dps_tf.analysis import published
from dps_tf.analysis.figures import published as drawing
from dps_tf.analysis.figures import steps_to_result
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import (
    batch_ticks,
    legend_below,
    log2_axis,
    new_figure,
    styled,
)
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Section,
    SortableText,
    illustration,
)
from dps_tf.analysis.report.curves import Curves, fit_lines
from dps_tf.analysis.report.law_tables import estimate_text
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


def published_section(curves: Curves | None, names: Sequence[str]) -> Section:
    """Returns overlay and fits of published curves; empty if none is named.

    Args:
        curves: one's own; None if there are none.
        names: see `published.steps_to_result`; `all` for all of them.
    """
    title = "Beside published curves"
    if not names:
        return Section("published", title)
    wanted = None if "all" in names else list(names)
    table = published.steps_to_result(wanted)
    text = (
        "Published K* were read off the figures of the public notebook of Shallue et "
        "al. 2019, within about 5 %; each is the best of 50 or 100 trials under a "
        "strict goal. Workloads, goals and numbers of trials differ from one's own "
        "unless they are the same in the table: compare shapes before levels."
    )
    return Section(
        "published", title, (text,), (_figure(curves, table),), (_fits(table, wanted),)
    )


def _short(name: str) -> str:
    return name.removeprefix(f"{published.PREFIX}-")


def _figure(curves: Curves | None, table: pd.DataFrame) -> Illustration:
    shown = table.assign(curve=[_short(str(name)) for name in table["curve"]])
    handles = drawing.legend_handles(shown)
    with styled():
        figure = new_figure(6.9, 5.0 + 0.1 * len(handles))
        axis = figure.subplots()
        sizes = list(table["batch_size"])
        if curves is not None and len(curves.points):
            for panel in curves.naming.panels:
                points = curves.panel(panel)
                if len(points):
                    lines = fit_lines(curves, panel)
                    steps_to_result.draw(axis, points, lines, curves.naming.looks)
                    sizes += points["batch_size"].tolist()
            handles = [*curve_handles(curves.naming.looks), *handles]
        log2_axis(axis, "x")
        log2_axis(axis, "y")
        drawing.draw(axis, shown)
        axis.set(xlabel="Batch size", ylabel="Steps to result")
        batch_ticks(axis, sizes)
        legend_below(figure, handles, columns=1 if len(handles) < 7 else 2)
    names = list(dict.fromkeys(shown["curve"]))
    told = "; ".join(
        f"{name}: {steps(rows['steps_to_result'].iloc[0])} at "
        f"{rows['batch_size'].iloc[0]} to {steps(rows['steps_to_result'].iloc[-1])} at "
        f"{rows['batch_size'].iloc[-1]}"
        for name, rows in shown.groupby("curve", sort=False)
    )
    words = FigureText(
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
    return illustration(figure, words)


def _fits(table: pd.DataFrame, wanted: list[str] | None) -> PageTable:
    goals = table.drop_duplicates("curve").set_index("curve")["goal"]
    rows = [
        {
            "curve": _short(curve),
            "goal": str(goals[curve]),
            "points": len(fit.observations),
            "c1": SortableText(estimate_text(fit.c1), fit.c1.value),
            "c2": SortableText(estimate_text(fit.c2), fit.c2.value),
            "critical": SortableText(
                estimate_text(fit.critical_batch_size), fit.critical_batch_size.value
            ),
            "rms": SortableText(f"{fit.rms:.2f}", fit.rms),
        }
        for curve, fit in published.fits(wanted).items()
    ]
    frame = pd.DataFrame(rows, columns=[column.name for column in _COLUMNS])
    caption = "Fits of K* = c1/B + c2 to the published curves, by a robust loss"
    return PageTable("published-fits", caption, _COLUMNS, frame)
