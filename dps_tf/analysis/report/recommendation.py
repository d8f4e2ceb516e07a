"""The tables of recommendations, and the figure of time against cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from dps_tf.analysis.fit_table import curves_of_table
from dps_tf.analysis.law import Observations
from dps_tf.analysis.recommend import (
    MINIMUM_SIZES,
    Recommendation,
    recommend,
    times_of,
)
from dps_tf.analysis.report import style
from dps_tf.analysis.report.content import ReportContext
from dps_tf.analysis.step_times import measured_devices, recorded_step_times

RECORDED = (
    "Step times are of this sweep, evaluations included; trials in lanes share the "
    "time of their program."
)
MEASURE = (
    "Which batch size to train with depends on the seconds of a step. Measure them "
    "where you train: the command of the sweep with --plan --step_times=step_times.csv "
    "writes them for python -m dps_tf.recommend."
)


def recommendations_of(context: ReportContext) -> tuple[str, ...]:
    """Returns what to train each curve of four K* with, or MEASURE as the last."""
    tables = context.tables
    work = tables.work
    times = None if work.empty else recorded_step_times(work)
    found, unknown = [], []
    for name, rows in curves_of_table(tables.results).items():
        points = Observations.from_results(rows)
        if points.batch_sizes >= MINIMUM_SIZES:
            own = None if times is None else times_of(times, rows)
            if own is not None and measured_devices(own):
                advice = recommend(points, own, 1)
                found.append(f"{name}: {replace(advice, assumption=RECORDED)}")
            else:
                unknown = [MEASURE]
    return (*found, *unknown)


def write_tables(recommendations: Mapping[str, Recommendation], folder: Path) -> None:
    """Writes candidates.csv, choices.csv and recommendation.png of some curves.

    Each curve of the figure is a line with one point per number of devices, at the
    fastest batch size; the label of a point gives both. The band is the interval of the
    time over the posterior. No figure is written where no curve has candidates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {}
    for name in ("candidates", "choices"):
        parts = [
            getattr(recommendation, name).assign(
                cost_unit=recommendation.unit, curve=curve
            )
            for curve, recommendation in recommendations.items()
        ]
        tables[name] = pd.concat(parts, ignore_index=True)
        tables[name].to_csv(folder / f"{name}.csv", index=False)
    candidates = tables["candidates"]
    if candidates.empty:
        return
    times = candidates.groupby(["curve", "devices"], sort=False)["time_seconds"]
    table = candidates.loc[times.idxmin()]
    line_styles = style.assign_styles(table["curve"])
    with style.one_axis(line_styles) as (figure, axis):
        for name, rows in table.groupby("curve", sort=False):
            look = line_styles[str(name)]
            ends = rows["time_low"], rows["time_high"]
            axis.fill_between(rows["cost"], *ends, color=look.color, alpha=0.15)
            axis.plot(rows["cost"], rows["time_seconds"], **style.joined_marks(look))
            for row in rows.to_dict("records"):
                axis.annotate(
                    f"{row['devices']:.0f}: {row['batch_size']:,.0f}",
                    (row["cost"], row["time_seconds"]),
                    textcoords="offset points",
                    xytext=(6, 6),
                    fontsize=9,
                )
        axis.set(
            xlabel=f"Cost of reaching the goal, {table['cost_unit'].iloc[0]}",
            ylabel="Seconds to the goal",
            title="Devices: fastest batch size",
        )
        axis.margins(x=0.15)
        style.log10_axis(axis, "x")
        style.log10_axis(axis, "y")
        (folder / "recommendation.png").write_bytes(style.png(figure))
