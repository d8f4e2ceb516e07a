"""The figure of a recommendation: time to the goal against what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from dps_tf.analysis.recommend import Recommendation
from dps_tf.analysis.report import style
from dps_tf.analysis.report.style import Axes


def write_figure(found: Mapping[str, Recommendation], path: Path) -> None:
    """Writes the figure of the recommendations of some curves as a PNG file.

    One line per curve and number of devices joins its batch sizes; the band holds the
    time at each cost over the posterior. The fastest batch size on the most devices is
    ringed and named.
    """
    tables = [
        each.candidates.assign(curve=name)
        for name, each in found.items()
        if not each.candidates.empty
    ]
    if not tables:
        return
    table = pd.concat(tables, ignore_index=True)
    counts = table["devices"].astype(int).astype(str)
    table["line"] = table["curve"] + ", " + counts + " device(s)"
    line_styles = style.assign_styles(dict.fromkeys(table["line"]))
    with style.one_axis(line_styles) as (figure, axis):
        draw_frontiers(axis, table, line_styles)
        for name, each in found.items():
            _mark(axis, name, each)
        path.write_bytes(style.png(figure))


def draw_frontiers(
    axis: Axes, table: pd.DataFrame, line_styles: Mapping[str, style.LineStyle]
) -> None:
    """Draws candidates of `Recommendation`, with a column `line`, on log axes."""
    for name, rows in table.groupby("line", sort=False):
        rows = rows.sort_values("batch_size")
        line_style = style.line_style_of(line_styles, str(name))
        axis.fill_between(
            rows["cost"],
            rows["time_low"],
            rows["time_high"],
            color=line_style.color,
            alpha=0.15,
            linewidth=0,
        )
        axis.plot(rows["cost"], rows["time_seconds"], **style.joined_marks(line_style))
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set(xlabel="Cost of reaching the goal", ylabel="Seconds to the goal")
    style.log10_axis(axis, "x")
    style.log10_axis(axis, "y")


def _mark(axis: Axes, curve: str, found: Recommendation) -> None:
    """Rings the fastest batch size and writes its number beside it."""
    if found.choices.empty:
        return
    best = found.choices.set_index("choice").loc["fastest"]
    place = (best["cost"], best["time_seconds"])
    axis.plot(*place, marker="o", markersize=14, color=style.INK, fillstyle="none")
    axis.annotate(
        f"{best['batch_size']:,.0f} on {best['devices']:.0f}",
        place,
        textcoords="offset points",
        xytext=(10, -12),
    )
