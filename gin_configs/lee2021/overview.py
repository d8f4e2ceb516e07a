"""Draws K* against batch size as measured: a panel for each data set and optimizer.

    python gin_configs/lee2021/overview.py

reads the tables `*_curves.csv` beside this file and writes `overview.png` (figure 3 of
Lee et al. 2021 has the same panels). A curve for each sparsity; lines are fits of
c1/B + c2 where four batch sizes or more were measured, dotted ones perfect scaling.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.report import style
from dps_tf.analysis.report.curves import Curves, curves_of, fit_lines
from dps_tf.analysis.report.drawing import draw_steps_to_result, small_axes
from dps_tf.analysis.report.naming import naming

HERE = Path(__file__).parent
DATA_SETS = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
OPTIMIZERS = {"sgd": "SGD", "momentum": "momentum", "nesterov": "Nesterov"}
BATCH_SIZES = (8, 32, 128, 512, 2048)
SPARSITIES = (0.0, 0.5, 0.7, 0.9)
FITTED = 4
"""Batch sizes of a curve from which on its fit is drawn."""


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Returns the measured cells of each data set that has some."""
    files = {name: folder / f"{name}_curves.csv" for name in DATA_SETS}
    return {name: read_csv(file) for name, file in files.items() if file.exists()}


def curves_by_sparsity(cells: pd.DataFrame) -> Curves:
    """Returns the curves of one panel, each with the name of its sparsity."""
    named = naming(cells)
    curves = curves_of(cells, named)
    sizes = curves.cells.groupby(["panel", "curve"])["batch_size"].nunique()
    fits = {key: fit for key, fit in curves.fits.items() if sizes[key] >= FITTED}
    names = curves.cells.groupby("curve")["sparsity"].first().map("{:g}".format)
    rows = curves.plot_rows.assign(curve=curves.plot_rows["curve"].map(names))
    renamed = {(panel, names[curve]): fit for (panel, curve), fit in fits.items()}
    return Curves(named, curves.cells, rows, renamed)


def draw(folder: Path = HERE) -> style.Figure:
    """Returns the figure: a row for each data set, a column for each optimizer."""
    measured = tables(folder)
    line_styles = style.sequential_styles(f"{s:g}" for s in SPARSITIES)
    with style.styled():
        figure = style.new_figure(11.4, 0.4 + 3.4 * len(measured))
        axes = small_axes(figure, 3 * len(measured), 3)
        for row, (name, cells) in enumerate(measured.items()):
            [goal] = cells["goal"].unique()
            to_goal = f"{DATA_SETS[name]} to {goal.split()[-1]}"
            of_row = axes[3 * row : 3 * row + 3]
            for axis, (optimizer, title) in zip(
                of_row, OPTIMIZERS.items(), strict=True
            ):
                axis.set_title(f"{to_goal}, {title}")
                of_panel = cells[cells["optimizer"] == optimizer]
                if of_panel.empty:
                    style.log2_axis(axis, "x")
                    style.log2_axis(axis, "y")
                    axis.text(0.4, 0.5, "not measured", transform=axis.transAxes)
                    continue
                curves = curves_by_sparsity(of_panel)
                [panel] = curves.plot_rows["panel"].unique()
                lines = fit_lines(curves, panel)
                draw_steps_to_result(axis, curves.plot_rows, lines, line_styles)
            drawn = [axis.get_ylim() for axis in of_row if axis.has_data()]
            for axis in of_row:
                axis.set(ylim=(np.min(drawn), np.max(drawn)), xlim=(6, 2700))
                style.batch_ticks(axis, BATCH_SIZES)
        handles = style.curve_handles(
            {f"sparsity {s}": line_style for s, line_style in line_styles.items()}
        )
        style.legend_below(figure, handles, columns=len(handles))
    return figure


if __name__ == "__main__":
    draw().savefig(HERE / "overview.png", dpi=90)
