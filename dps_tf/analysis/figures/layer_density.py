"""Which layers does a pruning method thin out?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dps_tf.analysis.figures.style import LineStyle, fallback, log10_axis, mark_style


def draw(axis: Axes, layers: pd.DataFrame, looks: Mapping[str, LineStyle]) -> None:
    """Draws the kept fraction of each layer, a line per method and sparsity.

    Args:
        axis: an empty axis.
        layers: one row per curve and layer, layers in the order of the network: curve,
            layer, density (kept over parameters, in [0, 1]), low, high (over trials).
        looks: look of each curve.
    """
    names = list(dict.fromkeys(layers["layer"]))
    places = {name: place for place, name in enumerate(names)}
    positive = layers.loc[layers["density"] > 0, "density"]
    # An emptied layer has no place on a logarithmic axis: it is drawn on its floor.
    floor = float(positive.min()) / 3 if len(positive) else 1e-3
    for curve, rows in layers.groupby("curve", sort=False):
        look = fallback(looks, str(curve))
        x = rows["layer"].map(places).to_numpy(float)
        y = np.maximum(rows["density"].to_numpy(float), floor)
        low = np.maximum(rows["low"].to_numpy(float), floor)
        axis.vlines(x, low, rows["high"], color=look.color, alpha=0.6)
        axis.plot(x, y, **{**mark_style(look), "linestyle": look.line})
    axis.set_yscale("log")
    axis.set_ylim(floor, 1.3)
    log10_axis(axis, "y")
    axis.set_xticks(range(len(names)), labels=names)
    if len(names) > 6:
        axis.tick_params(axis="x", labelrotation=60, labelsize=8)
    axis.set(xlabel="Layer", ylabel="Fraction kept")
