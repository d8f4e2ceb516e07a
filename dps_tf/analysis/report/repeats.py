"""How noisy is K*? The best points of cells, trained again under new seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.repeats import noise_of_search, pooled_noise, summary
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import (
    Column,
    Illustration,
    PageTable,
    Part,
    ReportContext,
    SortableText,
    illustration,
    number_text,
)
from dps_tf.analysis.report.curves import Curves, cell_names
from dps_tf.analysis.report.style import Axes, LineStyle
from dps_tf.analysis.wording import interval, listed, number, percent, steps

_COLUMNS = (
    Column("cell", "Cell"),
    Column("trial", "Trial", "Whose point was trained again."),
    Column("recorded", "K*", "Of the best trial in the search."),
    Column("repeats", "Repeats"),
    Column("reached", "Reached", "Repeats that met the goal within the budget."),
    Column("median", "Median", "Steps to result of the repeats."),
    Column("range", "Range", "Least to greatest of the repeats."),
    Column(
        "optimism", "Median / K*", "Above 1, K* is lower than its point is on average."
    ),
    Column("noise", "Noise, octaves", "Standard deviation of log2 steps."),
)


def repeats_part(context: ReportContext) -> Part:
    """Returns a figure and a table of repeats; an empty part without repeats."""
    curves, repeated = context.curves, context.tables.repeats
    if repeated.empty:
        return Part()
    summarized = curves.name(summary(repeated, context.tables.results))
    best = summarized[summarized["is_best"]]
    figures = [_figure(curves, best)] if len(best) else []
    text = _noises(pooled_noise(summarized), *noise_of_search(context.tables.results))
    return Part((text,), figures, (repeats_table(summarized),))


def _noises(training: float, search: float, shared: float) -> str:
    """Returns a paragraph on the noise of training and of the search."""
    text = (
        "Two noises add up in K*. Repeats have the metaparameters of a trial, other "
        "initial weights and another order of the examples: the noise of training, "
        f"here a standard deviation of {_share(training)} of the steps. Whole studies "
        "under other seeds have other points too, and take the least of them all: the "
        f"noise of the search, here {_share(search)}. The least of many noisy trials "
        "looks better than it is."
    )
    if np.isnan(shared):
        return text
    return (
        f"{text} Between the batch sizes of a curve, K* of the same seed have a "
        f"correlation of {shared:.2f}: the noise that they share moves c1 and c2 "
        "together, and is in no interval."
    )


def _share(octaves: float) -> str:
    return percent(2**octaves - 1) if octaves > 0 else "not known"


def draw_repeats(
    axis: Axes, best: pd.DataFrame, line_styles: Mapping[str, LineStyle]
) -> None:
    """Draws the repeats of each cell's best point beside its K*.

    Columns of the table: curve, seed, batch_size, recorded (K*), median, least and
    greatest (of the repeats; infinite where one did not reach the goal).
    """
    style.log2_axis(axis, "x")
    style.log2_axis(axis, "y")
    ends = best[["recorded", "median", "least", "greatest"]].to_numpy(float)
    top = 2.0 * ends[np.isfinite(ends)].max()
    for curve, cells in best.groupby("curve", sort=False):
        line_style = style.line_style_of(line_styles, curve)
        seeds = [rows for _, rows in cells.groupby("seed")]
        # Of one seed the medians are a curve; of several they stand side by side.
        joined = {} if len(seeds) == 1 else {"linestyle": "none"}
        for place, rows in enumerate(seeds):
            rows = rows.sort_values("batch_size")
            sizes = rows["batch_size"] * 1.08 ** (place - (len(seeds) - 1) / 2)
            high = np.minimum(rows["greatest"], 2 * top)
            axis.vlines(sizes, rows["least"], high, color=line_style.color, alpha=0.6)
            medians = rows["median"].where(np.isfinite(rows["median"]))
            axis.plot(sizes, medians, **style.joined_marks(line_style, **joined))
            hollow = style.mark_style(line_style, hollow=True)
            axis.plot(sizes, rows["recorded"], **hollow)
    axis.set_ylim(top=top)
    axis.set(xlabel="Batch size", ylabel="Steps to result")
    style.batch_ticks(axis, best["batch_size"].tolist())


def _figure(curves: Curves, best: pd.DataFrame) -> Illustration:
    named = best.assign(curve=curves.titles(best))
    line_styles = style.assign_styles(named["curve"])
    with style.one_axis(line_styles) as (figure, axis):
        draw_repeats(axis, named, line_styles)
    listing = listed(
        named,
        lambda row: (
            f"{number(row['median'])} at {row['batch_size']}, "
            f"K* {number(row['recorded'])}"
        ),
    )
    return illustration(
        figure,
        "repeats",
        "Best points trained again",
        caption=(
            "Filled marks: median of the repeats of each cell's best point; bars: "
            "least to greatest, off the axis where a repeat did not reach the goal. "
            "Hollow: K* of the search. Study seeds stand side by side."
        ),
        alt=f"Line chart of medians of repeats. {listing}.",
    )


def repeats_table(summarized: pd.DataFrame) -> PageTable:
    """Returns a table with one row per repeated point, rows of `repeats.summary`."""
    spans: list[Any] = [
        SortableText("not reached" if np.isinf(low) else interval(low, high), low)
        for low, high in zip(summarized["least"], summarized["greatest"], strict=True)
    ]
    frame = summarized.assign(
        cell=cell_names(summarized),
        recorded=summarized["recorded"].map(lambda value: number_text(value, steps)),
        median=summarized["median"].map(lambda value: number_text(value, steps)),
        range=spans,
        optimism=summarized["optimism"].map(number_text),
        noise=summarized["noise"].map(number_text),
    )
    return PageTable("repeats-table", "Best points trained again", _COLUMNS, frame)
