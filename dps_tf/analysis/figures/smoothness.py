"""Are sparse networks harder to train because their loss is less smooth?

L is the local Lipschitz constant of the gradient along the direction of an update.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from dps_tf.analysis.figures.style import (
    MUTED,
    LineStyle,
    fallback,
    log2_axis,
    log10_axis,
    looks,
    mark_style,
)


def draw_along_training(
    axis: Axes, measured: pd.DataFrame, looks_of: Mapping[str, LineStyle]
) -> None:
    """Draws L against the step, a line per curve.

    Args:
        axis: an empty axis.
        measured: one row per curve and step: curve, step, value.
        looks_of: look of each curve.
    """
    for curve, rows in measured.groupby("curve", sort=False):
        look = fallback(looks_of, str(curve))
        rows = rows.sort_values("step")
        style = {**mark_style(look), "linestyle": look.line, "markersize": 4.5}
        axis.plot(rows["step"], rows["value"], **style)
    log10_axis(axis, "x")
    log10_axis(axis, "y")
    axis.set(xlabel="Step", ylabel="Local smoothness L")


def draw_means(
    axis: Axes, means: pd.DataFrame, looks_of: Mapping[str, LineStyle]
) -> None:
    """Draws the mean of L over training against the sparsity.

    Args:
        axis: an empty axis.
        means: one row per group and sparsity: group, sparsity, mean, low, high (least
            and greatest mean over the batch sizes of the group).
        looks_of: look of each group.
    """
    for group, rows in means.groupby("group", sort=False):
        look = fallback(looks_of, str(group))
        rows = rows.sort_values("sparsity")
        axis.vlines(
            rows["sparsity"], rows["low"], rows["high"], color=look.color, alpha=0.6
        )
        style = {**mark_style(look), "linestyle": look.line}
        axis.plot(rows["sparsity"], rows["mean"], **style, label=str(group))
    log10_axis(axis, "y")
    axis.set(xlabel="Sparsity", ylabel="Mean of L over training")


def draw_ratios(axis: Axes, ratios: pd.DataFrame) -> None:
    """Draws L(s) / L(0) beside c1(s) / c1(0), which the theory says are equal.

    Args:
        axis: an empty axis.
        ratios: one row per quantity and sparsity: quantity (its label), sparsity,
            ratio, low, high.
    """
    log2_axis(axis, "y")
    shown = looks([str(name) for name in ratios["quantity"]])
    for name, rows in ratios.groupby("quantity", sort=False):
        look = fallback(shown, str(name))
        rows = rows.sort_values("sparsity")
        axis.errorbar(
            rows["sparsity"],
            rows["ratio"],
            yerr=[rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]],
            **{**mark_style(look), "linestyle": look.line},
            elinewidth=1.0,
            capsize=3,
            label=str(name),
        )
    axis.axhline(1.0, linewidth=0.8, color=MUTED)
    axis.set(xlabel="Sparsity", ylabel="Ratio to the dense network")
    axis.legend()
