"""Does the loss grow less smooth with sparsity, and does c1 follow?

L is the local Lipschitz constant of the gradient along the direction of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.law import Estimate, fit_joint
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    illustration,
    page_table,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.measurements import along_training, measured_on_best
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.report.wording import interval, number
from dps_tf.core.cell import DENSE


def smoothness_part(context: ReportContext) -> Part:
    """Returns L along training, its mean against sparsity, and the ratios to dense."""
    curves = context.curves
    measured = measured_on_best(curves, context.tables.measurements, "smoothness")
    if measured.empty:
        return Part()
    figures = along_training(curves, measured, "smoothness")
    cells = means_of_cells(measured)
    if cells["sparsity"].nunique() < 2:
        return Part(illustrations=figures)
    figures.append(_mean_figure(means_by_sparsity(cells)))
    ratios = ratios_to_dense(curves, cells)
    if len(ratios):
        figures.append(_ratio_figure(ratios))
    table = smoothness_table(ratios)
    return Part(illustrations=figures, tables=() if table is None else (table,))


def smoothness_table(ratios: pd.DataFrame) -> PageTable | None:
    """Returns a table of `ratios_to_dense` for the page, or None if it is empty."""
    rows = []
    pruned = ratios[ratios["sparsity"] > 0]
    for key, mine in pruned.groupby(["group", "sparsity"], sort=False):
        group, sparsity = str(key[0]), float(mine["sparsity"].iloc[0])
        row: dict[str, Any] = {
            "group": group,
            "sparsity": SortableText(f"{sparsity:g}", sparsity),
        }
        for name in ("L", "c1"):
            found = mine[mine["of"] == name]
            row[name] = SortableText("", float("nan"))
            if len(found):
                ends = found.iloc[0]
                text = (
                    f"{number(ends['ratio'])} ({interval(ends['low'], ends['high'])})"
                )
                row[name] = SortableText(text, float(ends["ratio"]))
        rows.append(row)
    if not rows:
        return None
    columns = (
        Column("group", "Curves"),
        Column("sparsity", "Sparsity"),
        Column("L", "L(s) / L(0)", "Measured: least to greatest over batch sizes."),
        Column("c1", "c1(s) / c1(0)", "Of the joint fit, with its interval."),
    )
    caption = "Smoothness and c1, relative to the dense network"
    return page_table("smoothness", caption, columns, rows)


def means_of_cells(measured: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean of L over the measurements of each cell, as `mean`."""
    keys = ["panel", "curve", "optimizer", "sparsity_method", "sparsity", "precision"]
    keys.append("batch_size")
    means = measured.groupby(keys, sort=False)["value"].mean()
    return means.rename("mean").reset_index()


def means_by_sparsity(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean of L against the sparsity.

    Columns: group, sparsity, mean (geometric over batch sizes), low, high (least and
    greatest over them).

    Args:
        cells: one row per cell: panel, optimizer, sparsity_method, sparsity,
            precision, mean.
    """
    rows = []
    for group, mine in _groups(cells):
        for sparsity, values in mine.groupby("sparsity")["mean"]:
            ends = {"low": values.min(), "high": values.max()}
            mean = float(np.exp(np.log(values).mean()))
            rows.append({"group": group, "sparsity": sparsity, "mean": mean, **ends})
    return pd.DataFrame(rows)


def _groups(cells: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Returns the cells of each panel, optimizer, precision and method.

    Dense cells are in the group of each method.
    """
    several_panels = cells["panel"].nunique() > 1
    several_precisions = cells["precision"].nunique() > 1
    found = []
    keys = ["panel", "optimizer", "precision"]
    for (panel, optimizer, precision), mine in cells.groupby(keys, sort=False):
        methods = [m for m in mine["sparsity_method"].unique() if m != DENSE]
        for method in methods or [DENSE]:
            parts = [str(panel)] if several_panels else []
            parts += [str(optimizer)] if str(optimizer) not in str(panel) else []
            parts += [method] if len(methods) > 1 else []
            parts += [str(precision)] if several_precisions else []
            rows = mine[mine["sparsity_method"].isin([method, DENSE])]
            found.append((", ".join(parts), rows))
    return found


def ratios_to_dense(curves: Curves, cells: pd.DataFrame) -> pd.DataFrame:
    """Returns L(s) / L(0) and the fitted c1(s) / c1(0) of each group.

    Columns: group, of (`L` or `c1`), quantity (both in words), sparsity, ratio, low,
    high. Of L: geometric mean, least and greatest over the batch sizes that were
    measured both dense and pruned. Of c1: of the joint fit of the group's curves, with
    its interval.

    Args:
        curves: of the report.
        cells: one row per cell: panel, curve, optimizer, sparsity_method, sparsity,
            precision, batch_size, mean.
    """
    rows: list[dict[str, Any]] = []
    groups = _groups(cells)
    for group, mine in groups:
        name = f" ({group})" if len(groups) > 1 else ""
        dense = mine[mine["sparsity"] == 0]
        for sparsity, pruned in mine.groupby("sparsity"):
            both = pruned.merge(dense, on="batch_size", suffixes=("", "_dense"))
            if both.empty:
                continue
            found = _ratio_of_l(both["mean"] / both["mean_dense"])
            label = f"measured L(s)/L(0){name}"
            about = {"group": group, "of": "L", "quantity": label}
            rows.append({**about, "sparsity": sparsity, **found})
        if len(dense):
            label = f"fitted c1(s)/c1(0){name}"
            about = {"group": group, "of": "c1", "quantity": label}
            rows += [{**about, **row} for row in _ratios_of_c1(curves, mine)]
    columns = ["group", "of", "quantity", "sparsity", "ratio", "low", "high"]
    table = pd.DataFrame(rows, columns=columns)
    known = table.groupby("quantity")["sparsity"].nunique()
    return table[table["quantity"].isin(known[known > 1].index)]


def _ratio_of_l(ratios: pd.Series) -> dict[str, float]:
    mean = float(np.exp(np.log(ratios).mean()))
    return {"ratio": mean, "low": float(ratios.min()), "high": float(ratios.max())}


def _ratios_of_c1(curves: Curves, cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns the ratios of a joint fit of the curves of a group, dense first."""
    ordered = cells.sort_values("sparsity").drop_duplicates("curve")
    keys = [(str(row.panel), str(row.curve)) for row in ordered.itertuples()]
    fits = {key[1]: curves.fits[key] for key in keys if key in curves.fits}
    dense = keys[0][1]
    if dense not in fits or len(fits) < 2:
        return []
    joint = fit_joint({name: f.observations for name, f in fits.items()}, dense)
    ratios = {ratio.curve: ratio.c1 for ratio in joint.ratios}
    ratios[dense] = Estimate(1.0, 1.0, 1.0)
    return [
        {
            "sparsity": float(row["sparsity"]),
            "ratio": ratios[row["curve"]].value,
            "low": ratios[row["curve"]].low,
            "high": ratios[row["curve"]].high,
        }
        for row in ordered.to_dict("records")
        if row["curve"] in ratios
    ]


def draw_means(
    axis: Axes, means: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws the mean of L over training against the sparsity.

    Args:
        axis: an empty axis.
        means: one row per group and sparsity: group, sparsity, mean, low, high (least
            and greatest mean over the batch sizes of the group).
        line_styles: line style of each group.
    """
    for group, rows in means.groupby("group", sort=False):
        line_style = style.line_style_of(line_styles, group)
        rows = rows.sort_values("sparsity")
        ends = rows["low"], rows["high"]
        axis.vlines(rows["sparsity"], *ends, color=line_style.color, alpha=0.6)
        axis.plot(rows["sparsity"], rows["mean"], **style.joined_marks(line_style))
    style.log10_axis(axis, "y")
    axis.set(xlabel="Sparsity", ylabel="Mean of L over training")


def _mean_figure(means: pd.DataFrame) -> Illustration:
    line_styles = style.assign_styles(means["group"])
    with style.one_axis(line_styles if len(line_styles) > 1 else {}) as (figure, axis):
        draw_means(axis, means, line_styles)
    told = "; ".join(
        f"{row['group']} at sparsity {row['sparsity']:g}: {number(row['mean'])}"
        for row in means.to_dict("records")
    )
    figure_text = FigureText(
        name="smoothness_mean",
        title="Mean smoothness against sparsity",
        caption=(
            "Mean of the local smoothness L over the measurements of a replay, which "
            "are spaced evenly in the logarithm of the step. Mark: geometric mean over "
            "batch sizes; bar: least and greatest of them."
        ),
        alt=f"Line chart of the mean of L against sparsity. {told}.",
    )
    return illustration(figure, figure_text)


def draw_ratios(axis: Axes, ratios: pd.DataFrame) -> None:
    """Draws L(s) / L(0) beside c1(s) / c1(0), which the theory says are equal.

    Args:
        axis: an empty axis.
        ratios: one row per quantity and sparsity: quantity (its label), sparsity,
            ratio, low, high.
    """
    style.log2_axis(axis, "y")
    line_styles = style.assign_styles(ratios["quantity"])
    for name, rows in ratios.groupby("quantity", sort=False):
        rows = rows.sort_values("sparsity")
        axis.errorbar(
            rows["sparsity"],
            rows["ratio"],
            yerr=[rows["ratio"] - rows["low"], rows["high"] - rows["ratio"]],
            **style.joined_marks(style.line_style_of(line_styles, name)),
            elinewidth=1.0,
            capsize=3,
            label=str(name),
        )
    axis.axhline(1.0, linewidth=0.8, color=style.MUTED)
    axis.set(xlabel="Sparsity", ylabel="Ratio to the dense network")
    axis.legend()


def _ratio_figure(ratios: pd.DataFrame) -> Illustration:
    with style.one_axis({}) as (figure, axis):
        draw_ratios(axis, ratios)
    told = "; ".join(
        f"{row['quantity']} at sparsity {row['sparsity']:g}: {number(row['ratio'])}"
        for row in ratios[ratios["sparsity"] > 0].to_dict("records")
    )
    figure_text = FigureText(
        name="smoothness_ratio",
        title="Smoothness and c1, relative to the dense network",
        caption=(
            "The theory of Lee et al. 2021 has c1 = (f(w1) - f*) 2 L beta / (mu^2 "
            "eps^2): what sparsity does to L it should do to c1. L: geometric mean, "
            "least and greatest ratio over the batch sizes measured both dense and "
            "pruned. c1: of a joint fit of the curves, with its interval."
        ),
        alt=f"Line chart of ratios to the dense network. {told}.",
    )
    return illustration(figure, figure_text)
