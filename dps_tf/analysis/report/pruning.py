"""What does pruning do to the smoothness of the loss?

Trials of equal seed, number and metaparameters are compared, at equal steps and at
equal training loss. Measured trials without such a partner appear only in the section's
other figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.paired_ratios import FIRST_STEP, paired_measurements, paired_ratios
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    illustration,
    page_table,
)
from dps_tf.analysis.report.drawing import draw_curves
from dps_tf.analysis.report.style import Axes, LineStyle, file_name
from dps_tf.analysis.tables import study_key
from dps_tf.analysis.wording import interval, number, with_panel

QUANTITIES = {
    "smoothness": "local smoothness L",
    "largest_eigenvalue": "largest eigenvalue of the Hessian",
    "gradient_curvature": "curvature along the gradient",
    "gradient_square": "squared norm of the gradient",
    "noise_trace": "trace of the gradients' covariance",
}
_DRAWN = ("smoothness", "largest_eigenvalue")
_HOW = (
    "A pruned and the dense network of a pair have equal seed, trial and "
    f"metaparameters. They are compared at equal steps from {FIRST_STEP} on, and at "
    "equal training loss, which networks may reach at different steps. "
    "Intervals are 95 % ones of a t distribution over seeds. A pruned network "
    "is less smooth only if both intervals lie above 1."
)


def pairs_part(context: ReportContext) -> Part:
    """Returns ratios of pruned to dense networks, and their curves."""
    paired = paired_measurements(context.tables.measurements, context.tables.trials)
    if paired.empty:
        return Part()
    measured = [name for name in QUANTITIES if name in set(paired["quantity"])]
    named = context.curves.name(paired)
    figures = [
        _pairs_figure(rows, quantity, context.curves.panel_title(panel))
        for (panel, _), rows in named.groupby(["panel", "batch_size"], sort=False)
        for quantity in _DRAWN
        if quantity in set(rows["quantity"]) and "loss" in set(rows["quantity"])
    ]
    return Part((_HOW,), figures, (_table(paired_ratios(paired, measured)),))


def means_along(measured: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Returns geometric means over seeds and trials: curve, step, loss, value."""
    wanted = measured[measured["quantity"].isin(("loss", quantity))]
    logs = wanted.assign(value=np.log(wanted["value"].where(wanted["value"] > 0)))
    means = logs.groupby(["curve", "step", "quantity"], sort=False)["value"].mean()
    wide = means.map(np.exp).unstack("quantity").reset_index()
    renamed: pd.DataFrame = wide.rename(columns={quantity: "value"})
    return renamed[["curve", "step", "loss", "value"]]


def draw_means(
    axis: Axes, means: pd.DataFrame, x: str, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws a table of `means_along` against `step`, or `loss`, which falls rightwards.

    Measurements at step 0 are not drawn.
    """
    shown = means[means["step"] > 0]
    draw_curves(axis, shown, (x, "value"), line_styles, markersize=4.5)
    style.log10_axis(axis, "x", 5)
    style.log10_axis(axis, "y")
    if x == "loss":
        axis.invert_xaxis()
    axis.set_xlabel({"step": "Step", "loss": "Training loss"}[x])


def _pairs_figure(measured: pd.DataFrame, quantity: str, panel: str) -> Illustration:
    means = means_along(measured, quantity)
    size = int(measured["batch_size"].iloc[0])
    what = QUANTITIES[quantity]
    line_styles = style.assign_styles(means["curve"].unique())
    with style.styled():
        figure = style.new_figure(8.6, 4.2)
        left, right = figure.subplots(1, 2, sharey=True)
        draw_means(left, means, "step", line_styles)
        draw_means(right, means, "loss", line_styles)
        left.set_ylabel(what[0].upper() + what[1:])
        style.legend_below(figure, style.curve_handles(line_styles))
    last = means[means["step"] == means["step"].max()]
    ends = "; ".join(
        f"{row['curve']}: {number(row['value'])} at loss {number(row['loss'])}"
        for row in last.to_dict("records")
    )
    where = f"{panel}, batch size {size}" if panel else f"batch size {size}"
    return illustration(
        figure,
        file_name("pairs", quantity, where),
        with_panel(f"Pruned and dense: {what}", where),
        caption=(
            f"{what[0].upper()}{what[1:]} of networks of equal seeds and "
            "metaparameters against the step, and against the training loss. Geometric "
            "means over seeds and trials; initialization is left out."
        ),
        alt=f"Two line charts of the {what}. At the last step, {ends}.",
    )


def _table(ratios: pd.DataFrame) -> PageTable:
    columns = (
        Column("network", "pruned network"),
        Column("batch_size", "batch size"),
        Column("quantity", "quantity"),
        Column("step", "at equal steps"),
        Column("loss", "at equal training loss"),
        Column("seeds", "seeds"),
    )
    names = [n for n in study_key(ratios) if n in ratios]
    rows = []
    for _, both in ratios.groupby([*names, "quantity"], sort=False, dropna=False):
        first = both.iloc[0]
        by_match = {row["matched"]: row for row in both.to_dict("records")}
        rows.append(
            {
                "network": f"{first['sparsity_method']} {first['sparsity']:.12g}",
                "batch_size": first["batch_size"],
                "quantity": QUANTITIES[first["quantity"]],
                **{how: _ratio(by_match[how]) for how in ("step", "loss")},
                "seeds": first["seeds"],
            }
        )
    caption = "Ratios of a pruned network to the dense one."
    return page_table("pairs", caption, columns, rows)


def _ratio(row: Mapping[Any, Any]) -> SortableText:
    if not row["seeds"]:
        return SortableText("not known", float("nan"))
    text = f"{number(row['ratio'])} ({interval(row['low'], row['high'])})"
    return SortableText(text, float(row["ratio"]))
