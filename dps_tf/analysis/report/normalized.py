"""Do the curves have one shape?"""

from __future__ import annotations

import pandas as pd

from dps_tf.analysis.figures import normalized as drawing
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import legend_below, looks, new_figure, styled
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves, place_of
from dps_tf.analysis.report.measured import SIZE
from dps_tf.analysis.report.wording import number


def ratios(curves: Curves) -> pd.DataFrame:
    """Returns K*(B) / K*(B0), B0 the smallest batch size that all curves reached.

    Columns: panel, curve, name (with the panel where there are several), batch_size,
    ratio, base. Empty with fewer than two curves or batch sizes, or without a common
    batch size.
    """
    exact = curves.points[curves.points["bound"] == ""]
    keys = ["panel", "curve"]
    number_of_curves = exact.drop_duplicates(keys).shape[0]
    counts = exact.groupby("batch_size").size()
    common = counts[counts == number_of_curves].index
    if number_of_curves < 2 or len(common) == 0 or len(counts) < 2:
        return exact.iloc[:0].assign(name="", ratio=0.0, base=0)
    base = int(min(common))
    at_base = exact[exact["batch_size"] == base][[*keys, "steps_to_result"]]
    both = exact.merge(at_base, on=keys, suffixes=("", "_base"))
    both["ratio"] = both["steps_to_result"] / both["steps_to_result_base"]
    both["name"] = [
        place_of(curves, str(row.panel), str(row.curve)) for row in both.itertuples()
    ]
    return both.assign(base=base)


def normalized_figures(curves: Curves) -> list[Illustration]:
    """Returns one figure with all curves, of all panels; none if they do not meet."""
    table = ratios(curves)
    if table.empty:
        return []
    names = [str(name) for name in table["name"]]
    # Across panels the same name of a curve would have the same look.
    several = len(curves.naming.panels) > 1
    shown = looks(names) if several else curves.naming.looks_of(names)
    with styled():
        figure = new_figure(*SIZE)
        drawing.draw(figure.subplots(), table.assign(curve=table["name"]), shown)
        legend_below(figure, curve_handles(shown), columns=2)
    base = int(table["base"].iloc[0])
    told = "; ".join(
        f"{name}: {number(rows['ratio'].iloc[-1])} at {rows['batch_size'].iloc[-1]}"
        for name, rows in table.groupby("name", sort=False)
    )
    words = FigureText(
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
    return [illustration(figure, words)]
