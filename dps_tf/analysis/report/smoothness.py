"""Does the loss grow less smooth with sparsity, and does c1 follow?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import smoothness as drawing
from dps_tf.analysis.figures.steps_to_result import curve_handles
from dps_tf.analysis.figures.style import legend_below, looks, new_figure, styled
from dps_tf.analysis.law import Estimate, fit_joint
from dps_tf.analysis.report.content import (
    Column,
    FigureText,
    Illustration,
    PageTable,
    SortableText,
    illustration,
)
from dps_tf.analysis.report.curves import Curves
from dps_tf.analysis.report.measured import SIZE, along_training, measured_on_best
from dps_tf.analysis.report.wording import interval, number
from dps_tf.core.cell import DENSE


def smoothness_figures(
    curves: Curves, measurements: pd.DataFrame
) -> list[Illustration]:
    """Returns L along training, its mean against sparsity, and the ratios to dense.

    Args:
        curves: of the report.
        measurements: one row per measurement.
    """
    measured = measured_on_best(curves, measurements, "smoothness")
    if measured.empty:
        return []
    figures = along_training(curves, measured, "smoothness")
    per_cell = _means_of_cells(measured)
    if per_cell["sparsity"].nunique() < 2:
        return figures
    figures.append(_mean_figure(means_by_sparsity(per_cell)))
    ratios = ratios_to_dense(curves, per_cell)
    if len(ratios):
        figures.append(_ratio_figure(ratios))
    return figures


def smoothness_table(curves: Curves, measurements: pd.DataFrame) -> PageTable | None:
    """Returns L(s) / L(0) beside c1(s) / c1(0), or None where neither is known."""
    measured = measured_on_best(curves, measurements, "smoothness")
    if measured.empty:
        return None
    ratios = ratios_to_dense(curves, _means_of_cells(measured))
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
    frame = pd.DataFrame(rows, columns=[column.name for column in columns])
    caption = "Smoothness and c1, relative to the dense network"
    return PageTable("smoothness", caption, columns, frame)


def _means_of_cells(measured: pd.DataFrame) -> pd.DataFrame:
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
    high. Of L: geometric mean, least and
    greatest over the batch sizes that were measured both dense and pruned. Of c1: of
    the joint fit of the group's curves, with its interval.

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


def _mean_figure(means: pd.DataFrame) -> Illustration:
    names = list(dict.fromkeys(means["group"]))
    with styled():
        figure = new_figure(*SIZE)
        shown = looks(names)
        drawing.draw_means(figure.subplots(), means, shown)
        if len(names) > 1:
            legend_below(figure, curve_handles(shown), columns=2)
    told = "; ".join(
        f"{row['group']} at sparsity {row['sparsity']:g}: {number(row['mean'])}"
        for row in means.to_dict("records")
    )
    words = FigureText(
        name="smoothness_mean",
        title="Mean smoothness against sparsity",
        caption=(
            "Mean of the local smoothness L over the measurements of a replay, which "
            "are spaced evenly in the logarithm of the step. Mark: geometric mean over "
            "batch sizes; bar: least and greatest of them."
        ),
        alt=f"Line chart of the mean of L against sparsity. {told}.",
    )
    return illustration(figure, words)


def _ratio_figure(ratios: pd.DataFrame) -> Illustration:
    with styled():
        figure = new_figure(*SIZE)
        drawing.draw_ratios(figure.subplots(), ratios)
    told = "; ".join(
        f"{row['quantity']} at sparsity {row['sparsity']:g}: {number(row['ratio'])}"
        for row in ratios[ratios["sparsity"] > 0].to_dict("records")
    )
    words = FigureText(
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
    return illustration(figure, words)
