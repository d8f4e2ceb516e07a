"""Does the gradient noise scale foretell the critical batch size c1/c2?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dps_tf.analysis.figures.style import (
    INK,
    LineStyle,
    fallback,
    log2_axis,
    log10_axis,
    mark_style,
)


def draw_along_training(
    axis: Axes, measured: pd.DataFrame, looks: Mapping[str, LineStyle]
) -> None:
    """Draws tr(Sigma) / |G|^2 against the step, a line per curve.

    Args:
        axis: an empty axis.
        measured: one row per curve and step: curve, step, value; NaN where the
            estimate is undefined.
        looks: look of each curve.
    """
    log2_axis(axis, "y")
    for curve, rows in measured.groupby("curve", sort=False):
        look = fallback(looks, str(curve))
        rows = rows.sort_values("step")
        style = {**mark_style(look), "linestyle": look.line, "markersize": 4.5}
        axis.plot(rows["step"], rows["value"], **style)
    log10_axis(axis, "x")
    axis.set(xlabel="Step", ylabel="Noise scale (examples)")


def draw_beside_critical(
    axis: Axes, compared: pd.DataFrame, looks: Mapping[str, LineStyle]
) -> None:
    """Draws, a row per curve, the noise scale over training beside c1/c2.

    Args:
        axis: an empty axis.
        compared: one row per curve: curve, label, noise, noise_low, noise_high (mean,
            least and greatest over training), critical, critical_low, critical_high.
        looks: look of each curve.
    """
    log2_axis(axis, "x")
    values = compared.filter(regex="^(noise|critical)").to_numpy(float)
    known = values[np.isfinite(values) & (values > 0)]
    limits = float(known.min()) / 1.6, float(known.max()) * 1.6
    for place, row in enumerate(compared.to_dict("records")):
        look = fallback(looks, str(row["curve"]))
        diamond = {"marker": "d", "color": INK, "linestyle": "none"}
        for name, shift, style in (
            ("noise", -0.14, mark_style(look)),
            ("critical", 0.14, diamond),
        ):
            # An open end runs off the axis.
            ends = np.nan_to_num([row[f"{name}_low"], row[f"{name}_high"]], nan=0.0)
            line = {"color": style["color"], "linewidth": 1.3}
            ends = np.clip(ends, limits[0] / 2, limits[1] * 2)
            axis.plot(ends, [place + shift] * 2, **line)
            axis.plot([row[name]], [place + shift], **style)
    axis.set_xlim(*limits)
    axis.set_ylim(len(compared) - 0.5, -0.5)
    axis.set_yticks(
        range(len(compared)), labels=[str(name) for name in compared["label"]]
    )
    axis.grid(visible=False, axis="y")
    axis.set(xlabel="Examples")


def legend_handles(looks: Mapping[str, LineStyle]) -> list[Any]:
    """Returns the legend: the curves, and the mark of c1/c2."""
    handles: list[Any] = [
        Line2D([], [], **{**mark_style(look), "linestyle": look.line}, label=name)
        for name, look in looks.items()
    ]
    diamond: dict[str, Any] = {"marker": "d", "color": INK, "linestyle": "none"}
    return [*handles, Line2D([], [], **diamond, label="c1/c2 with interval")]
