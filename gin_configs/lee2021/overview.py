"""Draws K* against batch size, and c1 and c2 against sparsity, as measured.

    python gin_configs/lee2021/overview.py

reads tables beside this file and writes three figures. From `*_curves.csv`:
`overview.png` has a panel for each data set and optimizer (as figure 3 of Lee et al.
2021) and a curve for each sparsity; lines are c1/B + c2 by a joint fit of each data
set, dotted ones perfect scaling. `constants.png` has the ratios of c1 and c2 of SGD to
the dense network, by that fit, with 95 % intervals.
`hollow_marks.csv` has why each hollow mark of the overview is a bound. From
`causes_measurements.csv`: `causes_sparsity.png` has what may be the causes, as ratios
to the dense network, at equal steps and at equal training loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.fit_table import observations_by_curve
from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import LawFit, Observations, compare, joinable, joint_fit
from dps_tf.analysis.paired_ratios import paired_ratios, with_theory_products
from dps_tf.analysis.report import style
from dps_tf.analysis.report.curves import fit_lines, labelled, labels_of, plot_rows_of
from dps_tf.analysis.report.drawing import draw_steps_to_result, small_axes
from dps_tf.analysis.tables import study_key
from dps_tf.core import Curve

HERE = Path(__file__).parent
DATA_SETS = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
OPTIMIZERS = {"sgd": "SGD", "momentum": "momentum", "nesterov": "Nesterov"}
SPARSITIES = (0.0, 0.5, 0.7, 0.9)
SHIFTS = (-0.03, -0.01, 0.01, 0.03)
"""By which marks at one sparsity are set apart."""
CAUSES = {
    "smoothness": "local smoothness L",
    "largest_eigenvalue": "largest eigenvalue",
    "theory_c1": "Δ L β / ε²",
    "theory_c2": "Δ / (η ε)",
}


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Returns the measured cells of each data set that has some."""
    files = {name: folder / f"{name}_curves.csv" for name in DATA_SETS}
    return {name: read_csv(file) for name, file in files.items() if file.exists()}


def observations(cells: pd.DataFrame) -> dict[tuple[str, float], Observations]:
    """Returns what the joint fit of a data set has, by optimizer and sparsity."""
    return joinable(
        {
            (str(optimizer), float(sparsity)): curve
            for (optimizer, sparsity), rows in cells.groupby(["optimizer", "sparsity"])
            for curve in observations_by_curve(rows, seeds_together=True).values()
        }
    )


def hollow_marks(folder: Path = HERE) -> pd.DataFrame:
    """Returns a row for each cell whose K* is an upper bound, with the reason.

    Columns: data_set, optimizer, sparsity, seed, batch_size, at_most (steps), winner
    (the metaparameter at an end of its range, with its value) and reason.
    """
    rows = []
    for name, cells in tables(folder).items():
        for cell in cells[cells["at_boundary"].notna()].to_dict("records"):
            names = str(cell["at_boundary"]).split(", ")
            winner = ", ".join(f"{n} {cell[n]:.4g}" for n in names)
            rows.append(
                {
                    "data_set": DATA_SETS[name],
                    "optimizer": cell["optimizer"],
                    "sparsity": cell["sparsity"],
                    "seed": cell["seed"],
                    "batch_size": cell["batch_size"],
                    "at_most": cell["steps_to_result"],
                    "winner": winner,
                    "reason": f"the best trial lies at the end of the published range "
                    f"of {cell['at_boundary']}: beyond it fewer steps may do",
                }
            )
    return pd.DataFrame(rows)


def curves_by_sparsity(
    cells: pd.DataFrame, fits: Mapping[tuple[str, float], LawFit]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns what is drawn of the curves of an optimizer, and their fits."""
    labels = labels_of(map(Curve.of, cells.to_dict("records")))
    rows = plot_rows_of(labelled(cells, labels))
    rows["curve"] = [f"{key.sparsity:g}" for key in rows["key"]]
    by_curve = {key: fits.get((key.optimizer, key.sparsity)) for key in labels}
    return rows, fit_lines(rows, {k: fit for k, fit in by_curve.items() if fit})


def draw(folder: Path = HERE) -> style.Figure:
    """Returns the figure: a row for each data set, a column for each optimizer."""
    measured = tables(folder)
    line_styles = style.sequential_styles(f"{s:g}" for s in SPARSITIES)
    seeds: set[int] = set()
    with style.styled():
        figure = style.new_figure(11.4, 0.4 + 3.4 * len(measured))
        axes = small_axes(figure, 3 * len(measured), 3)
        for row, (name, cells) in enumerate(measured.items()):
            sizes = sorted(cells["batch_size"].unique())
            points = observations(cells)
            fits = joint_fit(points) if points else {}
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
                rows, lines = curves_by_sparsity(of_panel, fits)
                draw_steps_to_result(axis, rows, lines, line_styles)
                seeds.update(lines["seeds"])
            drawn = [axis.get_ylim() for axis in of_row if axis.has_data()]
            ends = {"xlim": (0.75 * sizes[0], 1.3 * sizes[-1])}
            for axis in of_row:
                axis.set(ylim=(np.min(drawn), np.max(drawn)), **ends)
                style.batch_ticks(axis, sizes)
        handles = style.curve_handles(
            {f"sparsity {s}": line_style for s, line_style in line_styles.items()}
        )
        handles += style.band_handles(seeds)
        style.legend_below(figure, handles, columns=len(handles))
    return figure


def constants(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the ratios of c1 and c2 of SGD to the dense network.

    The tables in README.md have them too, by the joint fit of a data set. Columns:
    sparsity, quantity, ratio, low, high; one row for each sparsity and quantity, and
    none without two such curves.
    """
    curves = observations(cells)
    dense = "sgd", 0.0
    pairs = [(("sgd", s), dense) for s in SPARSITIES[1:] if ("sgd", s) in curves]
    if dense not in curves or not pairs:
        return pd.DataFrame()
    ratios = compare(curves, pairs=pairs).to_frame()
    kept = ratios[ratios["quantity"].isin(["c1", "c2"])]
    sparsity = [sparsity for _, sparsity in kept["curve"]]
    return kept.assign(sparsity=sparsity)[
        ["sparsity", "quantity", "ratio", "low", "high"]
    ]


def draw_constants(folder: Path = HERE) -> style.Figure:
    """Returns the figure: a panel for c1 and one for c2, a mark for each sparsity."""
    measured = [
        constants(cells).assign(name=DATA_SETS[name])
        for name, cells in tables(folder).items()
    ]
    ratios = pd.concat(measured).rename(columns={"quantity": "panel"})
    return _against_sparsity(
        ratios.assign(panel=ratios["panel"] + " over that of dense")
    )


def causes(measured: pd.DataFrame) -> pd.DataFrame:
    """Returns the ratios of the CAUSES in networks pruned by SNIP to dense networks.

    Columns: sparsity, name, panel, ratio, low, high. Intervals are of a t distribution
    over the seeds.
    """
    names = [*study_key(measured), "trial", "step", "examples"]
    of_snip = measured[measured["sparsity_method"] != "random"]
    long = of_snip.melt(names, var_name="quantity", value_name="value")
    ratios = paired_ratios(with_theory_products(long), tuple(CAUSES))
    panels = {"step": "Ratio at equal steps", "loss": "Ratio at equal training loss"}
    ratios["name"] = ratios["quantity"].map(CAUSES)
    ratios["panel"] = ratios["matched"].map(panels)
    return ratios[["sparsity", "name", "panel", "ratio", "low", "high"]]


def draw_causes(folder: Path = HERE) -> style.Figure:
    """Returns the figure: a panel for each way to match networks."""
    return _against_sparsity(causes(read_csv(folder / "causes_measurements.csv")))


def _against_sparsity(ratios: pd.DataFrame) -> style.Figure:
    names, panels = ratios["name"].unique(), ratios["panel"].unique()
    line_styles = style.assign_styles(names)
    with style.styled():
        figure = style.new_figure(7.6, 3.4)
        axes = small_axes(figure, len(panels), len(panels), sharey=True)
        for axis, panel in zip(axes, panels, strict=True):
            style.log2_axis(axis, "y")
            axis.axhline(1, color=style.MUTED, linewidth=0.8)
            for shift, name in zip(SHIFTS, names, strict=False):
                line_style = line_styles[name]
                rows = ratios[(ratios["panel"] == panel) & (ratios["name"] == name)]
                at = rows["sparsity"] + shift
                axis.vlines(at, rows["low"], rows["high"], color=line_style.color)
                axis.plot(at, rows["ratio"], **style.mark_style(line_style))
            axis.set(xticks=SPARSITIES, xlim=(-0.05, 1))
            axis.set(xlabel="Sparsity", ylabel=panel)
        style.legend_below(figure, style.curve_handles(line_styles))
    return figure


if __name__ == "__main__":
    hollow_marks().to_csv(HERE / "hollow_marks.csv", index=False)
    draw().savefig(HERE / "overview.png", dpi=90)
    draw_constants().savefig(HERE / "constants.png", dpi=90)
    draw_causes().savefig(HERE / "causes_sparsity.png", dpi=90)
