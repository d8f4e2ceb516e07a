"""Which layers does a pruning method thin out?"""

from __future__ import annotations

import json

import pandas as pd

from dps_tf.analysis.figures import layer_density as drawing
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import legend_below, looks, new_figure, styled
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.measured import SIZE
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.wording import number


def layer_figures(curves: Curves, trials: pd.DataFrame) -> list[Illustration]:
    """Returns a figure per workload that has pruned cells.

    Args:
        curves: of the report.
        trials: one row per trial.
    """
    pruned = trials[trials["layers"] != "[]"]
    figures = []
    for workload, rows in pruned.groupby("workload", sort=False):
        table = densities(rows)
        names = list(dict.fromkeys(table["curve"]))
        several = curves.cells["workload"].nunique() > 1
        with styled():
            figure = new_figure(*SIZE)
            shown = looks(names)
            drawing.draw(figure.subplots(), table, shown)
            legend_below(figure, curve_handles(shown), columns=2)
        figures.append(
            illustration(figure, _words(table, str(workload) if several else ""))
        )
    return figures


def densities(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the fraction that each layer keeps, by method and sparsity.

    Columns: curve, layer (in the order of the network), density (mean over the initial
    points), low, high (least and greatest).

    Args:
        trials: pruned trials of one workload.
    """
    # Masks depend on the initial point, and on neither batch size nor optimizer.
    points = trials.drop_duplicates(["sparsity_method", "sparsity", "initial_seed"])
    rows = [
        {
            "curve": f"{trial.sparsity_method}, sparsity {trial.sparsity:g}",
            "sparsity": trial.sparsity,
            "layer": layer["name"],
            "density": layer["kept"] / max(layer["parameters"], 1),
        }
        for trial in points.itertuples()
        for layer in json.loads(str(trial.layers))
    ]
    table = pd.DataFrame(rows)
    grouped = table.groupby(["curve", "layer"], sort=False)["density"]
    return grouped.agg(density="mean", low="min", high="max").reset_index()


def _words(table: pd.DataFrame, workload: str) -> FigureText:
    told = "; ".join(
        f"{curve}: "
        + ", ".join(
            f"{row['layer']} {number(row['density'], 2)}"
            for row in rows.to_dict("records")
        )
        for curve, rows in table.groupby("curve", sort=False)
    )
    return FigureText(
        name=file_name("layer_density", workload),
        title=f"Fraction kept of each layer{f': {workload}' if workload else ''}",
        caption=(
            "Kept over all prunable parameters of each layer, in the order of the "
            "network, on a logarithmic axis. Mark: mean over the initial points; bar: "
            "least and greatest. A mark on the floor of the axis is a layer that "
            "keeps nothing."
        ),
        alt=f"Line chart of the fraction kept by layer. {told}.",
    )
