"""Measurements on the replay of best trials, along training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import and_list, count, number, with_panel

_DEFINITIONS = {
    "smoothness": (
        "Local smoothness L",
        "L = max over g of |grad f(w + g d) - grad f(w)| / |g d| with d the next "
        "update and g = 0.1, ..., 0.9 (Lee et al. 2021)",
    ),
    "noise_scale": (
        "Gradient noise scale",
        "tr(Sigma) / |G|^2 from two batch sizes, without bias for each of the two "
        "(McCandlish et al. 2018); left out where |G|^2 comes out negative",
    ),
}
_AXES = {
    "smoothness": "Local smoothness L",
    "noise_scale": "Noise scale (examples)",
}


def measured_on_best(
    curves: Curves, measurements: pd.DataFrame, quantity: str
) -> pd.DataFrame:
    """Returns the measurements of a quantity on the best trial of each cell, named.

    Those past K*, which a replay past the goal gives, are left out.
    """
    rows = measurements[measurements["quantity"] == quantity]
    names = study_key(curves.cells)
    best = curves.cells[[*names, "best_trial", "steps_to_result"]]
    best = best.dropna(subset="best_trial")
    best = best.rename(columns={"best_trial": "trial"}).astype({"trial": np.int64})
    rows = rows.merge(best, on=[*names, "trial"])
    rows = rows[rows["step"] <= rows["steps_to_result"]]
    return curves.naming.name(rows.drop(columns="steps_to_result"))


def along_training(
    curves: Curves, measured: pd.DataFrame, quantity: str
) -> list[Illustration]:
    """Returns a figure per panel at the batch size that most curves were measured at.

    The middle one of several: neither the noisiest nor the one of fewest steps.

    Args:
        curves: of the report.
        measured: see `measured_on_best`.
        quantity: `smoothness` or `noise_scale`.
    """
    figures = []
    for panel, rows in measured.groupby("panel", sort=False):
        counts = rows.groupby("batch_size")["curve"].nunique()
        common = sorted(counts[counts == counts.max()].index)
        size = int(common[len(common) // 2])
        shown = rows[rows["batch_size"] == size]
        shown = shown[shown["seed"] == shown["seed"].min()]
        line_styles = curves.naming.line_styles_of(shown["curve"])
        with style.one_axis(line_styles) as (figure, axis):
            draw_along(axis, shown, quantity, line_styles)
        figure_text = _figure_text(shown, quantity, curves.panel_title(panel))
        figures.append(illustration(figure, figure_text))
    return figures


def draw_along(
    axis: Axes,
    measured: pd.DataFrame,
    quantity: str,
    line_styles: Mapping[str, LineStyle],
) -> None:
    """Draws a quantity against the step, a line per curve.

    Args:
        axis: an empty axis.
        measured: one row per curve and step: curve, step, value; NaN where the
            estimate is undefined.
        quantity: `smoothness` or `noise_scale`.
        line_styles: line style of each curve.
    """
    if quantity == "noise_scale":
        # Set before drawing, as the limits of an axis depend on its base.
        style.log2_axis(axis, "y")
    draw_curves(axis, measured, ("step", "value"), line_styles, markersize=4.5)
    style.log10_axis(axis, "x")
    if quantity == "smoothness":
        style.log10_axis(axis, "y")
    axis.set(xlabel="Step", ylabel=_AXES[quantity])


def _figure_text(shown: pd.DataFrame, quantity: str, panel: str) -> FigureText:
    title, definition = _DEFINITIONS[quantity]
    examples = and_list(sorted({f"{n:,}" for n in shown["examples"]}))
    size = int(shown["batch_size"].iloc[0])
    ends = "; ".join(
        f"{name}: {number(rows['value'].iloc[0])} to {number(rows['value'].iloc[-1])}"
        for name, rows in shown.sort_values("step").groupby("curve", sort=False)
    )
    return FigureText(
        name=file_name(quantity, "along_training", panel),
        title=with_panel(f"{title} along training", panel),
        caption=(
            f"{definition}, on {examples} examples, on a replay of the best trial at "
            f"batch size {size}, up to its K*."
        ),
        alt=(
            f"Line chart of {title.lower()} against the step at batch size {size} for "
            f"{count(shown['curve'].nunique(), 'curve')}, from first to last "
            f"measurement: {ends}."
        ),
    )
