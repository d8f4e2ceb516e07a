"""Figures of Shallue et al. 2019, drawn again from what there is.

One page with a section for each figure: 1 to 11, and those further ones that the
archive allows, by what they show. A panel of which nothing is known says what it would
take.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis import published
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.report import style
from dps_tf.analysis.report.assembly import (
    PAGE,
    csv_bytes,
    made_folder,
    write_files,
)
from dps_tf.analysis.report.content import (
    FigureText,
    Illustration,
    Part,
    Report,
    illustration,
    section_of,
)
from dps_tf.analysis.report.drawing import small_axes
from dps_tf.analysis.report.page import render
from dps_tf.analysis.report.shallue2019_panels import FIGURES, FURTHER
from dps_tf.analysis.report.shallue2019_points import (
    DIGITIZED,
    SWEEP,
    TRIALS,
    Panel,
    PublishedFigure,
    budget_name,
    of_series,
    points,
    trials_name,
)
from dps_tf.analysis.report.shallue2019_runs import Runs, Series
from dps_tf.analysis.report.style import Axes
from dps_tf.analysis.wording import and_list, count
from dps_tf.core import Goal

TABLE = "figures.csv"
_STATUS = {
    "not achieved": ("^", style.PALETTE[1], 22.0),
    "stopped before": ("v", style.GRID, 18.0),
    "infeasible": ("x", style.MUTED, 22.0),
    "achieved": ("o", style.PALETTE[0], 22.0),
    "best": ("*", style.PALETTE[5], 140.0),
}
_Y_LABEL = {
    "steps": "Steps",
    "goals": "Steps",
    "rates": "lr / (1 - momentum)",
    "learning_rate": "Learning rate",
    "momentum": "1 - momentum",
    "trials": "Steps",
    "scatter": "1 - momentum",
}
_LEGEND = {"goals": "goal", "smoothing": "label smoothing"}
_DIGITIZED = "Digitized values are off by 5 % or, where they are hollow, by more."
_OF_STEPS = (
    "Steps of the best trial against batch size; goals are strict. Dashed: perfect "
    f"scaling from the smallest batch size, or from n. {_DIGITIZED}"
)
_OF_RATES = f"Dashed: the linear rule; dotted: that of the square root. {_DIGITIZED}"
_OF_BEST = "Goals are strict; the best of all trials."
_CAPTIONS = {
    "steps": _OF_STEPS,
    "goals": f"{_OF_BEST} {_DIGITIZED}",
    "normalized": _OF_STEPS,
    "smoothing": _OF_BEST,
    "rates": _OF_RATES,
    "learning_rate": _OF_RATES,
    "momentum": "1 - momentum of the best trial.",
    "scatter": "Each mark is a trial; the best one met the goal first, and what a race "
    "stopped before the budget is told apart. Lines: the same effective learning rate, "
    "a power of ten each. Of the published batch sizes of Figure 9 the first and last "
    "are known; those between are powers of two.",
    "budgets": "The best of all trials of studies whose trials all ran on. Of the "
    "published budgets the first and last are known; between them stand 1, 2 and 5 in "
    "each decade.",
    "trials": "Median and 90 % band of the best of so many trials, redrawn from those "
    "that there are; none where a twentieth misses the goal. Goals are strict.",
}
_EVERY = (*FIGURES, *FURTHER)
_OWN_SERIES = ("budgets", "trials")
"""Kinds whose curves are not those of workloads."""


def write_figures(tables: Tables | None, out: str | Path) -> pd.DataFrame:
    """Writes the page with all figures and the table behind them into a directory.

    Returns the table: figure, panel, then the columns of `shallue2019_points.points`.
    Without tables of sweeps, digitized values are drawn alone.

    Raises:
        UserError: the directory cannot be written.
    """
    folder = made_folder(Path(out))
    report, table = figures_report(tables)
    contents = {PAGE: render(report, None).encode(), TABLE: csv_bytes(table)}
    write_files(contents, report, folder)
    return table


def figures_text(table: pd.DataFrame) -> str:
    """Returns how much each figure has, from the table behind them, as plain text."""
    lines = []
    for figure in _EVERY:
        rows = table[table["figure"] == figure.key]
        sources = and_list(sorted(rows["source"].unique()))
        has = f", {count(len(rows), 'point')} from {sources}" if sources else ""
        lines.append(
            f"{figure.label}: {rows['panel'].nunique()} of "
            f"{len(figure.panels)} panels{has}"
        )
    return "\n".join(lines) + "\n"


def figures_report(tables: Tables | None) -> tuple[Report, pd.DataFrame]:
    """Returns the report of all figures, and the table behind them."""
    runs = Runs(tables)
    sections, shown = [], []
    with_data: dict[bool, list[bool]] = {True: [], False: []}
    for figure in _EVERY:
        found = [points(figure, panel, runs) for panel in figure.panels]
        for panel, frame in zip(figure.panels, found, strict=True):
            front = pd.DataFrame(
                {"figure": figure.key, "panel": panel.title}, frame.index
            )
            shown.append(pd.concat([front, frame], axis=1))
        numbered = figure.number is not None
        with_data[numbered] += [not frame.empty for frame in found]
        has_data = any(len(frame) for frame in found)
        drawings = [_illustrated(figure, found)] if has_data else []
        part = Part(_remarks(figure, found), drawings)
        title = f"{figure.label}: {figure.title}" if numbered else figure.title
        sections.append(section_of(_file_name(figure), title, [part]))
    table = pd.concat([frame for frame in shown if len(frame)], ignore_index=True)
    report = Report(
        title="Figures of Shallue et al. 2019",
        lead=(
            f"{_share(with_data[True])} panels of Figures 1 to 11 have data: from the "
            "sweeps that were given, and digitized from the published figures where "
            f"these have nothing. Behind them, {_share(with_data[False])} panels of "
            "what the archive has beyond; what Figures 12 to 24 show is not known here."
        ),
        state="",
        summary=(),
        sections=tuple(sections),
        cautions=(),
        sweeps=() if tables is None else tables.sweeps,
        results=table,
        files={TABLE: "every point of every panel, with its source"},
    )
    return report, table


def _file_name(figure: PublishedFigure) -> str:
    return re.sub(r"\W+", "_", figure.label.lower().replace("figure ", "figure"))


def _share(with_data: list[bool]) -> str:
    return f"{sum(with_data)} of {len(with_data)}"


def _remarks(figure: PublishedFigure, found: list[pd.DataFrame]) -> list[str]:
    """Returns what is missing, and where the rest comes from."""
    if all(frame.empty for frame in found):
        every = {s.workload: None for panel in figure.panels for s in panel.series}
        return [
            f"None of its {len(found)} panels has data. Sweeps of "
            f"{and_list([*every])}, or the public archive, would show them."
        ]
    remarks = []
    for panel, frame in zip(figure.panels, found, strict=True):
        known = set(frame["series"])
        wanted = () if figure.kind in _OWN_SERIES and len(frame) else panel.series
        lacking = [s for s in wanted if s.label not in known]
        if lacking:
            smoothing = figure.kind == "smoothing"
            names = [
                f"{s.workload} with {s.optimizer} ({s.goal})"
                + (f" and label smoothing {s.label}" if smoothing else "")
                for s in lacking
            ]
            at = f" at batch size {panel.first}, too," if panel.first else ""
            if figure.kind == "trials":
                at = " whose trials all run to their end"
            remarks.append(
                f"{panel.title}: no data for {and_list(names)}; a sweep of it{at} or "
                "the public archive would show it."
            )
    sources = sorted({s for frame in found for s in frame["source"].unique()})
    if sources:
        words = ["sweeps" if s == SWEEP else "digitized values" for s in sources]
        remarks.append(f"Drawn from {and_list(words)}.")
    return remarks


def _illustrated(figure: PublishedFigure, found: list[pd.DataFrame]) -> Illustration:
    rows = -(-len(figure.panels) // figure.columns)
    with style.styled():
        drawn = style.new_figure(3.4 * figure.columns, 0.6 + 2.9 * rows)
        axes = small_axes(drawn, len(figure.panels), figure.columns)
        for axis, panel, frame in zip(axes, figure.panels, found, strict=True):
            axis.set_title(_title(figure, panel), fontsize=9.5)
            axis.tick_params(labelsize=8)
            if frame.empty:
                names = dict.fromkeys(series.workload for series in panel.series)
                missing = "\n".join(["no data of", *names])
                where = {"transform": axis.transAxes, "ha": "center", "va": "center"}
                axis.text(0.5, 0.5, missing, fontsize=7, **where)
                axis.set(xticks=[], yticks=[])
            else:
                _draw(axis, figure, panel, frame)
        if figure.kind == "scatter":
            # One for all panels, beside them: their marks may be anywhere.
            marked = [axis.get_legend_handles_labels() for axis in axes]
            look = {"loc": "outside lower center", "ncols": len(_STATUS), "fontsize": 8}
            drawn.legend(*max(marked, key=lambda found: len(found[0])), **look)
    filled = sum(not frame.empty for frame in found)
    text = FigureText(
        _file_name(figure),
        figure.title,
        _CAPTIONS[figure.kind],
        f"{count(filled, 'panel')} of {len(found)} with data: "
        + and_list(
            [p.title for p, f in zip(figure.panels, found, strict=True) if len(f)], 6
        ),
    )
    return illustration(drawn, text)


def _title(figure: PublishedFigure, panel: Panel) -> str:
    """Returns the title of a panel, with its goal where that is one."""
    goals = dict.fromkeys(_short(series.goal) for series in panel.series)
    told = figure.kind in ("goals", "smoothing", "budgets") or len(goals) > 1
    lines = [textwrap.fill(panel.title, 26)]
    return "\n".join(lines if told else [*lines, *goals])


def _short(goal: Goal) -> str:
    """Returns a goal without the split, which is that for validation or training."""
    metric = str(goal).partition("/")[2].replace("classification_error", "error")
    return metric.replace("_", " ")


def _draw(
    axis: Axes, figure: PublishedFigure, panel: Panel, frame: pd.DataFrame
) -> None:
    if figure.kind == "scatter":
        _draw_scatter(axis, panel, frame)
        return
    style.log2_axis(axis, "x", 6)
    linear = figure.kind == "budgets" or (
        figure.kind == "smoothing" and panel is figure.panels[0]
    )
    if not linear:
        style.log2_axis(axis, "y", 8)
    _draw_curves(axis, figure, panel, frame)
    if figure.kind in ("steps", "normalized"):
        _draw_scaling(axis, panel, frame, -1.0, "--")
    if figure.kind in ("rates", "learning_rate"):
        _draw_scaling(axis, panel, frame, 1.0, "--")
        _draw_scaling(axis, panel, frame, 0.5, ":")
    _set_limits(axis, panel)
    label = _Y_LABEL.get(figure.kind, panel.title)
    if figure.kind == "budgets":
        label = "Best " + panel.series[0].goal.metric.replace("/", " ").replace(
            "_", " "
        )
    if figure.kind == "normalized":
        label = f"Steps / (Steps at B={panel.first})"
    axis.set_xlabel("Batch size", fontsize=9)
    axis.set_ylabel(label, fontsize=9)
    if len(panel.series) > 1 or figure.kind in _OWN_SERIES:
        title = _LEGEND.get(figure.kind)
        if figure.kind == "budgets":
            title = "epochs" if panel.epochs else "steps"
        columns = 2 if figure.kind == "budgets" else 1
        look = {"fontsize": 7, "title_fontsize": 7, "handlelength": 1.6}
        axis.legend(title=title, ncols=columns, **look)


def _draw_curves(
    axis: Axes, figure: PublishedFigure, panel: Panel, frame: pd.DataFrame
) -> None:
    """Draws a line for each curve, in the order of the panel."""
    sources = set(frame["source"])
    series = {s.label: s for s in panel.series}
    goals = {label: _short(s.goal) for label, s in series.items()}
    in_order = figure.kind in ("goals", *_OWN_SERIES)
    tells_goals = not in_order and len(set(goals.values())) > 1
    styles = style.sequential_styles if in_order else style.assign_styles
    for name, line_style in styles(_curves(figure, panel)).items():
        rows = frame[frame["series"] == name]
        if rows.empty:
            continue
        digitized = DIGITIZED in set(rows["source"])
        mixed = len(sources) > 1 and digitized
        marks = style.joined_marks(line_style, markersize=4)
        label = f"{name} ({DIGITIZED})" if mixed else name
        label += f", {goals[name]}" if tells_goals else ""
        line = _with_gaps(rows, series[name]) if digitized else rows
        axis.plot(line["batch_size"], line["value"], label=label, **marks)
        doubtful = rows[rows["note"] != ""]
        hollow = {**marks, "linestyle": "none", "markerfacecolor": "white"}
        hollow["markeredgecolor"] = line_style.color
        axis.plot(doubtful["batch_size"], doubtful["value"], **hollow)
        if figure.kind == "trials":
            ends = (rows["low"], rows["high"].replace(np.inf, np.nan))
            tint = {"color": line_style.color, "alpha": 0.15}
            axis.fill_between(rows["batch_size"], *ends, **tint)
    if sources == {DIGITIZED}:
        note = {"fontsize": 6.5, "color": style.MUTED, "transform": axis.transAxes}
        # Where rising curves are not.
        place = (0.98, "right") if figure.kind == "rates" else (0.02, "left")
        axis.text(place[0], 0.02, DIGITIZED, ha=place[1], **note)


def _with_gaps(rows: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Returns a digitized curve with NaN at published sizes that could not be read.

    So that no line leads over them.
    """
    there = of_series(published.studies(), series)["batch_size"]
    between = there[there.between(rows["batch_size"].min(), rows["batch_size"].max())]
    sizes = np.union1d(rows["batch_size"], between)
    return rows.set_index("batch_size").reindex(sizes).reset_index()


def _curves(figure: PublishedFigure, panel: Panel) -> list[str]:
    """Returns the names of the curves that a panel may have, in their order."""
    if figure.kind == "budgets":
        return [budget_name(budget) for budget in panel.budgets]
    if figure.kind == "trials":
        return [trials_name(number) for number in TRIALS]
    return [series.label for series in panel.series]


def _set_limits(axis: Axes, panel: Panel) -> None:
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    if panel.low is not None:
        axis.set_ylim(bottom=2.0**panel.low)
    if panel.high is not None:
        axis.set_ylim(top=2.0**panel.high)


def _draw_scaling(
    axis: Axes, panel: Panel, frame: pd.DataFrame, exponent: float, line: str
) -> None:
    """Draws v0 (B / B0)^exponent from the first point of the first curve."""
    first = next((s.label for s in panel.series if s.label in set(frame["series"])), "")
    rows = frame[frame["series"] == first].sort_values("batch_size")
    if panel.first is not None:
        rows = rows[rows["batch_size"] >= panel.first]
    if rows.empty:
        return
    base, value = float(rows["batch_size"].iloc[0]), float(rows["value"].iloc[0])
    sizes = np.array([base, float(frame["batch_size"].max())])
    bottom, top = axis.get_ylim()
    look = {"color": style.MUTED, "linewidth": 0.9, "linestyle": line, "zorder": 1.5}
    axis.plot(sizes, value * (sizes / base) ** exponent, **look)
    # The line may leave the picture.
    axis.set_ylim(bottom, top)


def _draw_scatter(axis: Axes, panel: Panel, frame: pd.DataFrame) -> None:
    low, high = panel.limits or (10**-4.5, 10**-0.5)
    bottom, top = panel.limits or (1e-6, 10.0)
    rates = np.geomspace(low, high, 2)
    for effective in 10.0 ** np.arange(-6, 7):
        axis.plot(rates, rates / effective, color=style.MUTED, linewidth=0.5, zorder=1)
    for status, (marker, color, size) in _STATUS.items():
        rows = frame[frame["status"] == status]
        axis.scatter(
            rows["x"], rows["value"], s=size, marker=marker, c=color, label=status
        )
    axis.set(xlim=(low, high), ylim=(bottom, top))
    style.log10_axis(axis, "x", 5)
    style.log10_axis(axis, "y", 8)
    axis.set_xlabel("Learning rate", fontsize=9)
    axis.set_ylabel(_Y_LABEL["scatter"], fontsize=9)
