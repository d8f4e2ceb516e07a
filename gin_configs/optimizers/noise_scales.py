"""Draws c1/c2 against the gradient noise scale: a point a curve, a panel a geometry.

    python gin_configs/optimizers/noise_scales.py

reads the tables beside this file whose winners were measured with `--optimizer_noise`,
`STEM_measurements.csv`, and writes `noise_scales.png`: on the left the Euclidean noise
scale, on the right that in the geometry of the optimizer. Bars of c1/c2 are its
intervals, bars of a noise scale run from its least to its greatest single measurement;
on the dotted line both are equal. A color for each optimizer, a mark for each table.
"""

from __future__ import annotations

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
GEOMETRIES = {
    "": "Euclidean noise scale",
    "optimizer_": "Noise scale in the geometry of the optimizer",
}
TICKS = tuple(4**n for n in range(10))


def compared(folder: Path) -> pd.DataFrame:
    """Returns a row a curve and geometry: prefix, table, curve, noise and c1/c2."""
    found = []
    for path in sorted(folder.glob("*_measurements.csv")):
        wide = read_csv(path)
        if "optimizer_noise_scale" not in wide:
            continue
        stem = path.name.removesuffix("_measurements.csv")
        cells = read_csv(folder / f"{stem}.csv")
        names = [*study_key(wide), "trial", "step", "examples"]
        long = wide.melt(names, var_name="quantity", value_name="value")
        curves = curves_of(cells, naming(cells))
        for prefix in GEOMETRIES:
            single = measured_on_best(curves, long, f"{prefix}noise_scale")
            rows = beside_critical(
                curves, single[single["value"] > 0], averaged(curves, long, prefix)
            )
            found.append(rows.assign(prefix=prefix, table=stem))
    return pd.concat(found, ignore_index=True)


def draw(folder: Path = HERE) -> style.Figure:
    """Returns the figure: a panel for each geometry."""
    points = compared(folder)
    colors = style.assign_styles(sorted(points["curve"].unique()))
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
                color = colors[row["curve"]].color
                x, y = row["noise"], row["critical"]
                # An open end runs off the axis.
                high = min(row["critical_high"], 2 * ends[1])
                low = np.nan_to_num(row["critical_low"], nan=ends[0] / 2)
                axis.plot([x, x], [low, high], color=color, linewidth=1.3)
                across = [row["noise_low"], row["noise_high"]]
                axis.plot(across, [y, y], color=color, linewidth=0.6)
                axis.plot([x], [y], marks[row["table"]], color=color, markersize=7)
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
