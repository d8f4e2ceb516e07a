"""Measurements on the replay of best trials, along training."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import noise_scale, smoothness
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import legend_below, new_figure, styled
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.wording import and_list, count, number
from dps_tf.analysis.tables import STUDY_KEY

SIZE = (6.2, 4.2)
"""Of a figure with one axis, in inches."""


def measured_on_best(
    curves: Curves, measurements: pd.DataFrame, quantity: str
) -> pd.DataFrame:
    """Returns the measurements of a quantity on the best trial of each cell, named."""
    rows = measurements[measurements["quantity"] == quantity]
    best = curves.cells[[*STUDY_KEY, "best_trial"]].dropna(subset="best_trial")
    best = best.rename(columns={"best_trial": "trial"}).astype({"trial": np.int64})
    return curves.naming.name(rows.merge(best, on=[*STUDY_KEY, "trial"]))


def along_training(
    curves: Curves, measured: pd.DataFrame, quantity: str
) -> list[Illustration]:
    """Returns a figure per panel at the batch size that most curves were measured at.

    The middle one of several: neither the noisiest nor the one of fewest steps.
    """
    draw = {
        "smoothness": smoothness.draw_along_training,
        "noise_scale": noise_scale.draw_along_training,
    }[quantity]
    figures = []
    for panel, rows in measured.groupby("panel", sort=False):
        counts = rows.groupby("batch_size")["curve"].nunique()
        common = sorted(counts[counts == counts.max()].index)
        size = int(common[len(common) // 2])
        shown = rows[rows["batch_size"] == size]
        shown = shown[shown["seed"] == shown["seed"].min()]
        handles = curve_handles(curves.naming.looks_of(shown["curve"]))
        with styled():
            figure = new_figure(*SIZE)
            draw(figure.subplots(), shown, curves.naming.looks)
            legend_below(figure, handles, columns=2)
        words = _along_words(curves, str(panel), shown, quantity)
        figures.append(illustration(figure, words))
    return figures


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


def _along_words(
    curves: Curves, panel: str, shown: pd.DataFrame, quantity: str
) -> FigureText:
    title, definition = _DEFINITIONS[quantity]
    several = len(curves.naming.panels) > 1
    names = list(dict.fromkeys(shown["curve"]))
    examples = and_list(sorted({f"{n:,}" for n in shown["examples"]}))
    size = int(shown["batch_size"].iloc[0])
    ends = "; ".join(
        f"{name}: {number(rows['value'].iloc[0])} to {number(rows['value'].iloc[-1])}"
        for name, rows in shown.sort_values("step").groupby("curve", sort=False)
    )
    return FigureText(
        name=file_name(quantity, "along_training", panel if several else ""),
        title=f"{title} along training{f': {panel}' if several else ''}",
        caption=(
            f"{definition}, on {examples} examples, on a replay of the best trial at "
            f"batch size {size}, up to its K*."
        ),
        alt=(
            f"Line chart of {title.lower()} against the step at batch size {size} for "
            f"{count(len(names), 'curve')}, from first to last measurement: {ends}."
        ),
    )
