"""Do the curves have one shape? K* divided by K* at a common batch size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    FigureText,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.wording import number


def ratios(curves: Curves) -> pd.DataFrame:
    """Returns K*(B) / K*(B0), B0 the smallest batch size that all curves reached.

    Columns: curve (with the panel where there are several), batch_size, ratio, base.
    Empty with fewer than two curves or batch sizes, or without a common batch size.
    """
    exact = curves.plot_rows[curves.plot_rows["bound"] == ""]
    keys = ["panel", "curve"]
    number_of_curves = exact.drop_duplicates(keys).shape[0]
    counts = exact.groupby("batch_size").size()
    common = counts[counts == number_of_curves].index
    if number_of_curves < 2 or len(common) == 0 or len(counts) < 2:
        return exact.iloc[:0].assign(ratio=0.0, base=0)
    base = int(min(common))
    at_base = exact[exact["batch_size"] == base][[*keys, "steps_to_result"]]
    both = exact.merge(at_base, on=keys, suffixes=("", "_base"))
    both["ratio"] = both["steps_to_result"] / both["steps_to_result_base"]
    return both.assign(base=base, curve=curves.titles(both))


def draw_ratios(
    axis: Axes, table: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws a table of `ratios` on log2 axes, with perfect scaling from B0."""
    style.log2_axis(axis, "x")
    style.log2_axis(axis, "y")
    draw_curves(axis, table, ("batch_size", "ratio"), line_styles)
    low = float(table["ratio"].min()) / 1.5
    base = float(table["base"].iloc[0])
    sizes = table["batch_size"].to_numpy(float)
    grid = np.geomspace(sizes.min(), sizes.max(), 50)
    axis.plot(
        grid, base / grid, color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2.5))
    )
    axis.set_ylim(low, float(table["ratio"].max()) * 1.5)
    axis.set(xlabel="Batch size", ylabel=f"Steps relative to batch size {base:g}")
    style.batch_ticks(axis, table["batch_size"].tolist())


def normalized_part(context: ReportContext) -> Part:
    """Returns one figure with all curves, of all panels; none if they do not meet."""
    curves = context.curves
    table = ratios(curves)
    if table.empty:
        return Part()
    # Across panels the same name of a curve would have the same line style.
    several = len(curves.naming.panels) > 1
    line_styles = (
        style.assign_styles(table["curve"])
        if several
        else curves.naming.line_styles_of(table["curve"])
    )
    with style.one_axis(line_styles) as (figure, axis):
        draw_ratios(axis, table, line_styles)
    base = int(table["base"].iloc[0])
    told = "; ".join(
        f"{name}: {number(rows['ratio'].iloc[-1])} at {rows['batch_size'].iloc[-1]}"
        for name, rows in table.groupby("curve", sort=False)
    )
    figure_text = FigureText(
        name="normalized",
        title="Normalized curves",
        caption=(
            f"K* at each batch size over K* at {base}, the smallest batch size at "
            "which all curves have a K*. Dotted: perfect scaling. Curves that lie on "
            "one another have one shape; the lower one profits longer from larger "
            f"batches. {curves.best_of()}".rstrip()
        ),
        alt=f"Line chart of K* relative to batch size {base}. {told}.",
    )
    return Part(illustrations=(illustration(figure, figure_text),))
