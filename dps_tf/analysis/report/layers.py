"""Which layers does a pruning method thin out?"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    FigureText,
    Illustration,
    Part,
    ReportContext,
    illustration,
)
from dps_tf.analysis.report.naming import axis_texts, file_name
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.tables import axes_of
from dps_tf.analysis.wording import listed, number, with_panel


def layers_part(context: ReportContext) -> Part:
    """Returns a figure per workload that has pruned cells."""
    trials = context.tables.trials
    several = context.curves.cells["workload"].nunique() > 1
    pruned = trials[trials["layers"] != "[]"]
    return Part(
        illustrations=[
            _figure(densities(rows), str(workload) if several else "")
            for workload, rows in pruned.groupby("workload", sort=False)
        ]
    )


def densities(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the fraction that each layer keeps, by method and sparsity.

    Columns: curve, layer (in the order of the network), density (mean over the initial
    weights), low, high (least and greatest).

    Args:
        trials: pruned trials of one workload.
    """
    # Masks depend on the initial weights, and on neither batch size nor optimizer.
    axes = axes_of(trials)
    keys = ["sparsity_method", "sparsity", *axes, "initial_seed"]
    rows = [
        {
            "curve": ", ".join(
                [
                    str(trial["sparsity_method"]),
                    f"sparsity {trial['sparsity']:g}",
                    *axis_texts(trial, axes),
                ]
            ),
            "sparsity": trial["sparsity"],
            "layer": layer["name"],
            "density": layer["kept"] / max(layer["parameters"], 1),
        }
        for trial in trials.drop_duplicates(keys).to_dict("records")
        for layer in json.loads(str(trial["layers"]))
    ]
    table = pd.DataFrame(rows)
    grouped = table.groupby(["curve", "layer"], sort=False)["density"]
    return grouped.agg(density="mean", low="min", high="max").reset_index()


def draw_densities(
    axis: Axes, layers: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws a table of `densities`, a line per method and sparsity."""
    names = list(dict.fromkeys(layers["layer"]))
    positive = layers.loc[layers["density"] > 0, "density"]
    # An emptied layer has no place on a logarithmic axis: it is drawn on its floor.
    floor = float(positive.min()) / 3 if len(positive) else 1e-3
    for curve, rows in layers.groupby("curve", sort=False):
        line_style = style.line_style_of(line_styles, curve)
        x = rows["layer"].map(names.index).to_numpy(float)
        y = np.maximum(rows["density"].to_numpy(float), floor)
        low = np.maximum(rows["low"].to_numpy(float), floor)
        axis.vlines(x, low, rows["high"], color=line_style.color, alpha=0.6)
        axis.plot(x, y, **style.joined_marks(line_style))
    axis.set_yscale("log")
    axis.set_ylim(floor, 1.3)
    style.log10_axis(axis, "y")
    axis.set_xticks(range(len(names)), labels=names)
    if len(names) > 6:
        axis.tick_params(axis="x", labelrotation=60, labelsize=8)
    axis.set(xlabel="Layer", ylabel="Fraction kept")


def _figure(table: pd.DataFrame, workload: str) -> Illustration:
    line_styles = style.assign_styles(table["curve"])
    with style.one_axis(line_styles) as (figure, axis):
        draw_densities(axis, table, line_styles)
    told = listed(
        table,
        "curve",
        lambda row: f"{row['layer']} {number(row['density'], 2)}",
    )
    figure_text = FigureText(
        name=file_name("layer_density", workload),
        title=with_panel("Fraction kept of each layer", workload),
        caption=(
            "Kept over all prunable parameters of each layer, in the order of the "
            "network, on a logarithmic axis. Mark: mean over the initial points; bar: "
            "least and greatest. A mark on the floor of the axis is a layer that "
            "keeps nothing."
        ),
        alt=f"Line chart of the fraction kept by layer. {told}.",
    )
    return illustration(figure, figure_text)
