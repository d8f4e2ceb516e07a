"""Draws c1/c2 against the gradient noise scale: a point a curve, a panel a geometry.

    python gin_configs/optimizers/noise_scales.py

reads TABLES and the measurements beside them and writes `noise_scales.png`: on the left
the Euclidean noise scale, on the right that in the geometry of the optimizer, where it
was measured. Bars of c1/c2 are its intervals, bars of a noise scale run from its least
to its greatest single measurement; on the dotted line both are equal. A color for each
optimizer, a mark for each table, and beside the mark the sparsity of a pruned network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.report import style
from dps_tf.analysis.report.curves import curves_of
from dps_tf.analysis.report.measurements import (
    averaged,
    beside_critical,
    measured_on_best,
)
from dps_tf.analysis.report.naming import naming
from dps_tf.analysis.tables import study_key

HERE = Path(__file__).parent
TABLES = (
    HERE / "fashion_mnist_fc",
    HERE / "text_transformer",
    HERE.parent / "lee2021" / "fashion_mnist_curves",
    HERE.parent / "lee2021" / "mnist_curves",
)
GEOMETRIES = {
    "": "Euclidean noise scale",
    "optimizer_": "Noise scale in the geometry of the optimizer",
}
TICKS = tuple(4**n for n in range(10))


def compared(tables: Sequence[Path]) -> pd.DataFrame:
    """Returns a row a curve and geometry: prefix, table, curve, noise and c1/c2."""
    found = []
    for path in tables:
        wide = read_csv(path.with_name(f"{path.name}_measurements.csv"))
        cells = read_csv(path.with_name(f"{path.name}.csv"))
        names = [*study_key(wide), "trial", "step", "examples"]
        long = wide.melt(names, var_name="quantity", value_name="value")
        curves = curves_of(cells, naming(cells))
        for prefix in GEOMETRIES:
            if f"{prefix}noise_scale" not in wide:
                continue
            single = measured_on_best(curves, long, f"{prefix}noise_scale")
            rows = beside_critical(
                curves, single[single["value"] > 0], averaged(curves, long, prefix)
            )
            found.append(rows.assign(prefix=prefix, table=path.name))
    points = pd.concat(found, ignore_index=True)
    # Curves of sparsities are labelled "WORKLOAD, OPTIMIZER: sparsity S".
    named = points["label"].str.extract(r"^(?:.*, )?(\w+)(?:: sparsity (.*))?$")
    return points.assign(optimizer=named[0], sparsity=named[1].astype(float))


def draw(tables: Sequence[Path] = TABLES) -> style.Figure:
    """Returns the figure: a panel for each geometry."""
    points = compared(tables)
    colors = style.assign_styles(sorted(points["optimizer"].unique()))
    marks = dict(zip(sorted(points["table"].unique()), style.MARKERS, strict=False))
    numbers = points.filter(regex="^(noise|critical)").to_numpy(float)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    ends = float(numbers.min()) / 1.3, float(numbers.max()) * 1.3
    with style.styled():
        figure = style.new_figure(9.6, 5.2)
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (prefix, geometry) in zip(axes, GEOMETRIES.items(), strict=True):
            style.log2_axis(axis, "x")
            style.log2_axis(axis, "y")
            axis.plot(ends, ends, ":", color=style.MUTED, linewidth=1)
            for row in points[points["prefix"] == prefix].to_dict("records"):
                color = colors[row["optimizer"]].color
                x, y = row["noise"], row["critical"]
                # An open end runs off the axis.
                high = min(row["critical_high"], 2 * ends[1])
                low = np.nan_to_num(row["critical_low"], nan=ends[0] / 2)
                axis.plot([x, x], [low, high], color=color, linewidth=1.3)
                across = [row["noise_low"], row["noise_high"]]
                axis.plot(across, [y, y], color=color, linewidth=0.6)
                axis.plot([x], [y], marks[row["table"]], color=color, markersize=7)
                if row["sparsity"] > 0:
                    axis.annotate(
                        f"{row['sparsity']:g}",
                        (x, y),
                        (5, 4),
                        textcoords="offset points",
                        fontsize=8,
                    )
            axis.set(xlim=ends, ylim=ends, xlabel=f"{geometry} (examples)")
            style.batch_ticks(axis, [n for n in TICKS if ends[0] < n < ends[1]])
        axes[0].set_ylabel("c1/c2 (examples)")
        handles = [
            style.line_handle(name, color=line_style.color, marker="o", linestyle="")
            for name, line_style in colors.items()
        ]
        handles += [
            style.line_handle(name, color=style.INK, marker=mark, linestyle="")
            for name, mark in marks.items()
        ]
        style.legend_below(figure, handles, columns=4)
    return figure


if __name__ == "__main__":
    draw().savefig(HERE / "noise_scales.png", dpi=90)
