"""Draws c1/c2 against the gradient noise scale: a point a curve, a panel a geometry.

    python gin_configs/optimizers/noise_scales.py

reads TABLES and the measurements beside them and writes `noise_scales.png`: on the left
the Euclidean noise scale, on the right that in the geometry of the optimizer, where it
was measured. Bars are the intervals of c1/c2; on the dotted line both are equal. Each
optimizer has a color and each table a mark, hollow where the interval of c1/c2 has an
open end; beside the mark stands the sparsity of a pruned network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.report import style
from dps_tf.analysis.report.curves import curves_of
from dps_tf.analysis.report.law import fits_of
from dps_tf.analysis.report.measurements import (
    averaged,
    beside_critical,
    measured_on_best,
)
from dps_tf.analysis.tables import study_key

HERE = Path(__file__).parent
TABLES = (
    HERE / "fashion_mnist_fc",
    HERE / "text_transformer",
    HERE.parent / "lee2021" / "cifar10_curves",
    HERE.parent / "lee2021" / "fashion_mnist_curves",
    HERE.parent / "lee2021" / "mnist_curves",
    HERE.parent / "shallue2019" / "mnist_fc_ghosts",
    HERE.parent / "shallue2019" / "mnist_fc_sizes",
    HERE.parent / "shallue2019" / "mnist_optimizers",
    HERE.parent / "shallue2019" / "text_networks",
)
GEOMETRIES = {
    "": "Euclidean noise scale",
    "optimizer_": "Noise scale in the geometry of the optimizer",
}
TICKS = tuple(2**n for n in range(20))


def compared(tables: Sequence[Path]) -> pd.DataFrame:
    """Returns a row a curve and geometry, as `beside_critical`, and what it is of.

    Further columns: prefix, table, optimizer, sparsity.
    """
    found = []
    for path in tables:
        wide = read_csv(path.with_name(f"{path.name}_measurements.csv"))
        cells = read_csv(path.with_name(f"{path.name}.csv"))
        names = [*study_key(wide), "trial", "step", "examples"]
        long = wide.melt(names, var_name="quantity", value_name="value")
        curves = curves_of(cells)
        fits = fits_of(curves)
        for prefix in GEOMETRIES:
            if f"{prefix}noise_scale" not in wide:
                continue
            single = measured_on_best(curves, long, f"{prefix}noise_scale")
            rows = beside_critical(
                curves,
                single[single["value"] > 0],
                averaged(curves, long, prefix),
                fits,
            )
            for name in ("optimizer", "sparsity"):
                rows[name] = [getattr(key, name) for key in rows["key"]]
            found.append(rows.assign(prefix=prefix, table=path.name))
    return pd.concat(found, ignore_index=True)


def draw(tables: Sequence[Path] = TABLES) -> style.Figure:
    """Returns the figure: a panel for each geometry."""
    points = compared(tables)
    colors = style.assign_styles(sorted(points["optimizer"].unique()))
    marks = dict(zip(sorted(points["table"].unique()), style.MARKERS, strict=False))
    across = points["noise"].min() / 1.6, points["noise"].max() * 1.6
    numbers = points.filter(regex="^critical").to_numpy(float)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    ends = float(numbers.min()) / 1.3, float(numbers.max()) * 1.3
    with style.styled():
        figure = style.new_figure(9.6, 6.0)
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (prefix, geometry) in zip(axes, GEOMETRIES.items(), strict=True):
            style.log2_axis(axis, "x")
            style.log2_axis(axis, "y")
            axis.plot(across, across, ":", color=style.MUTED, linewidth=1)
            for row in points[points["prefix"] == prefix].to_dict("records"):
                x, y = row["noise"], row["critical"]
                low, high = row["critical_low"], row["critical_high"]
                look: dict[str, Any] = {"color": colors[row["optimizer"]].color}
                # An open end runs off the axis.
                bar = np.nan_to_num(low, nan=ends[0] / 2), min(high, 2 * ends[1])
                axis.plot([x, x], bar, linewidth=1.3, **look)
                if not (np.isfinite(low) and np.isfinite(high)):
                    look["markerfacecolor"] = "white"
                axis.plot([x], [y], marks[row["table"]], markersize=7, **look)
                if row["sparsity"] > 0:
                    axis.annotate(
                        f"{row['sparsity']:g}",
                        (x, y),
                        (5, 4),
                        textcoords="offset points",
                        fontsize=8,
                    )
            axis.set(xlim=across, ylim=ends, xlabel=f"{geometry} (examples)")
            style.batch_ticks(axis, [n for n in TICKS if across[0] < n < across[1]])
        axes[0].set_ylabel("c1/c2 (examples)")
        handles = [
            style.line_handle(name, color=line_style.color, marker="o", linestyle="")
            for name, line_style in colors.items()
        ]
        shapes = [
            style.line_handle(name, color=style.INK, marker=mark, linestyle="")
            for name, mark in marks.items()
        ]
        # Each kind fills two of four columns.
        half = 2 * -(-max(len(handles), len(shapes)) // 2)
        for kind in (handles, shapes):
            empty = style.line_handle("", linestyle="")
            kind += [empty] * (half - len(kind))
        style.legend_below(figure, handles + shapes, columns=4)
    return figure


if __name__ == "__main__":
    draw().savefig(HERE / "noise_scales.png", dpi=90)
