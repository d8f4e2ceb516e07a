"""Draws the figures of Shallue et al. 2019 again, from what there is.

    python gin_configs/shallue2019/figures.py [--sweep_dir=D]... --out=F

writes a page (`figures.html`) with a section for each figure, the figures as SVG, and
the table behind them (`figures.csv`). Values come from the sweeps, one's own or the
public archive as a sweep, and else from the published figures, digitized. A panel
without values says what it would take.
"""

from __future__ import annotations

import argparse
import html
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from figure_panels import FIGURES, Figure, Panel, Series
from figure_points import (
    DIGITIZED,
    Sweeps,
    budget_name,
    digitized,
    points,
)

import dps_tf
from dps_tf.analysis.report import style
from dps_tf.core import UserError

PAGE, TABLE = "figures.html", "figures.csv"
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
    "scatter": "1 - momentum",
}
_LEGEND = {"goals": "goal", "smoothing_best": "label smoothing"}
_LEGEND["smoothing_steps"] = _LEGEND["smoothing_best"]
_DIGITIZED = "Digitized values are off by 5 % or, where they are hollow, by more."
_OF_STEPS = (
    "Steps of the best trial against batch size; goals are strict. Dashed: perfect "
    f"scaling from the smallest batch size, or from n. {_DIGITIZED}"
)
_OF_RATES = f"Dashed: the linear rule; dotted: the square-root rule. {_DIGITIZED}"
_OF_BEST = "Goals are strict; the best of all trials."
_CAPTIONS = {
    "steps": _OF_STEPS,
    "goals": f"{_OF_BEST} {_DIGITIZED}",
    "normalized": _OF_STEPS,
    "smoothing_best": _OF_BEST,
    "rates": _OF_RATES,
    "scatter": "Each mark is a trial; the best one met the goal first. A trial that "
    "was stopped before it could answer has a mark of its own. Lines: the same "
    "effective learning rate, a power of ten each.",
    "budgets": "The best of all trials of studies whose trials all ran on.",
}


def write_figures(tables: Any | None, out: Path) -> pd.DataFrame:
    """Writes the page, its figures and the table behind them into a directory.

    Returns the table: figure, panel, then the columns of `figure_points.points`.
    Without tables of sweeps, digitized values are drawn alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    sweeps = Sweeps(tables)
    sections, shown = [], []
    for figure in FIGURES:
        frames = [points(panel, sweeps) for panel in figure.panels]
        for panel, frame in zip(figure.panels, frames, strict=True):
            if len(frame):
                names = {"figure": figure.label, "panel": panel.title}
                front = pd.DataFrame(names, frame.index)
                shown.append(pd.concat([front, frame], axis=1))
        name = ""
        if any(map(len, frames)):
            name = f"figure{figure.number}"
            drawn = draw_figure(figure, frames)
            style.lay_out(drawn)
            (out / f"{name}.svg").write_bytes(style.svg(drawn))
        sections.append(_section(figure, frames, name))
    table = pd.concat(shown, ignore_index=True)
    table.to_csv(out / TABLE, index=False, lineterminator="\n")
    (out / PAGE).write_text(_page(sections), encoding="utf-8")
    return table


def _page(sections: list[str]) -> str:
    title = "Figures of Shallue et al. 2019"
    lead = (
        "Figures 1 to 11 from the sweeps that were given, and digitized from the "
        "published figures where these have nothing. What Figures 12 to 24 show is "
        "not known here."
    )
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    )
    look = "<style>body{max-width:70rem;margin:auto;font-family:sans-serif}</style>"
    return "\n".join(
        [head, look, f"<h1>{title}</h1><p>{lead}</p>", *sections, "</html>"]
    )


def _section(figure: Figure, frames: list[pd.DataFrame], name: str) -> str:
    """Returns a figure, its caption, and what is missing of it, as HTML."""
    title = f"{figure.label}: {figure.title}"
    lines = [f"<h2>{html.escape(title)}</h2>"]
    if name:
        caption = html.escape(_CAPTIONS[figure.kind])
        alt = html.escape(figure.title)
        lines.append(f'<img src="{name}.svg" alt="{alt}" style="max-width:100%">')
        lines.append(f"<p>{caption}</p>")
    texts = remarks(figure, frames)
    return "\n".join([*lines, *(f"<p>{html.escape(text)}</p>" for text in texts)])


def remarks(figure: Figure, frames: list[pd.DataFrame]) -> list[str]:
    """Returns what is missing of a figure, as sentences."""
    if all(frame.empty for frame in frames):
        every = {s.workload: None for panel in figure.panels for s in panel.series}
        return [
            f"None of its {len(frames)} panels has data. Sweeps of {', '.join(every)}, "
            "or the public archive, would show them."
        ]
    texts = []
    for panel, frame in zip(figure.panels, frames, strict=True):
        drawn = set(frame["series"])
        wanted = () if panel.kind == "budgets" and len(frame) else panel.series
        lacking = [s for s in wanted if s.label not in drawn]
        if lacking:
            smoothing = panel.kind.startswith("smoothing")
            names = [
                f"{s.workload} with {s.optimizer} ({s.goal})"
                + (f" and label smoothing {s.label}" if smoothing else "")
                for s in lacking
            ]
            at = f" at batch size {panel.first}, too," if panel.first else ""
            texts.append(
                f"{panel.title}: no data for {', '.join(names)}; a sweep of it{at} or "
                "the public archive would show it."
            )
    return texts


def figures_text(table: pd.DataFrame) -> str:
    """Returns how much each figure has, from the table behind them, as plain text."""
    lines = []
    for figure in FIGURES:
        rows = table[table["figure"] == figure.label]
        sources = " and ".join(sorted(rows["source"].unique()))
        behind = f", {len(rows)} points from {sources}" if sources else ""
        number = rows["panel"].nunique()
        lines.append(f"{figure.label}: {number} of {len(figure.panels)} panels{behind}")
    return "\n".join(lines)


def draw_figure(figure: Figure, frames: list[pd.DataFrame]) -> Any:
    """Returns a drawn figure, a frame of points for each of its panels."""
    rows = -(-len(figure.panels) // figure.columns)
    with style.styled():
        drawn = style.new_figure(3.4 * figure.columns, 0.6 + 2.9 * rows)
        axes = list(drawn.subplots(rows, figure.columns, squeeze=False).flat)
        for axis in axes[len(figure.panels) :]:
            axis.set_visible(False)
        axes = axes[: len(figure.panels)]
        for axis, panel, frame in zip(axes, figure.panels, frames, strict=True):
            axis.set_title(_title(panel), fontsize=9.5)
            axis.tick_params(labelsize=8)
            if frame.empty:
                names = dict.fromkeys(series.workload for series in panel.series)
                missing = "\n".join(["no data of", *names])
                where = {"transform": axis.transAxes, "ha": "center", "va": "center"}
                axis.text(0.5, 0.5, missing, fontsize=7, **where)
                axis.set(xticks=[], yticks=[])
            else:
                _draw(axis, panel, frame)
        if figure.kind == "scatter":
            # One for all panels, beside them: their marks may be anywhere.
            marked = [axis.get_legend_handles_labels() for axis in axes]
            look = {"loc": "outside lower center", "ncols": len(_STATUS), "fontsize": 8}
            drawn.legend(*max(marked, key=lambda entries: len(entries[0])), **look)
    return drawn


def _title(panel: Panel) -> str:
    """Returns the title of a panel, with its goal where that is one."""
    goals = dict.fromkeys(_short(series) for series in panel.series)
    elsewhere = panel.kind in ("goals", "smoothing_best", "smoothing_steps", "budgets")
    lines = [textwrap.fill(panel.title, 26)]
    return "\n".join(lines if elsewhere or len(goals) > 1 else [*lines, *goals])


def _short(series: Series) -> str:
    """Returns a goal without the split, which is that for validation or training."""
    metric = str(series.goal).partition("/")[2]
    return metric.replace("classification_error", "error").replace("_", " ")


def _draw(axis: Any, panel: Panel, frame: pd.DataFrame) -> None:
    if panel.kind == "scatter":
        _draw_scatter(axis, panel, frame)
        return
    style.log2_axis(axis, "x", 6)
    if panel.kind not in ("budgets", "smoothing_best"):
        style.log2_axis(axis, "y", 8)
    _draw_curves(axis, panel, frame)
    if panel.kind in ("steps", "normalized"):
        _draw_scaling(axis, panel, frame, -1.0, "--")
    if panel.kind == "rates":
        _draw_scaling(axis, panel, frame, 1.0, "--")
        _draw_scaling(axis, panel, frame, 0.5, ":")
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    axis.set_xlabel("Batch size", fontsize=9)
    axis.set_ylabel(_y_label(panel), fontsize=9)
    if len(panel.series) > 1 or panel.kind == "budgets":
        title = _LEGEND.get(panel.kind)
        if panel.kind == "budgets":
            title = "epochs" if panel.examples else "steps"
        columns = 2 if panel.kind == "budgets" else 1
        look = {"fontsize": 7, "title_fontsize": 7, "handlelength": 1.6}
        axis.legend(title=title, ncols=columns, **look)


def _y_label(panel: Panel) -> str:
    if panel.kind == "budgets":
        metric = panel.series[0].goal.metric
        return "Best " + metric.replace("/", " ").replace("_", " ")
    if panel.kind == "normalized":
        return f"Steps / (Steps at B={panel.first})"
    return _Y_LABEL.get(panel.kind, panel.title)


def _draw_curves(axis: Any, panel: Panel, frame: pd.DataFrame) -> None:
    """Draws a line for each curve, in the order of the panel."""
    sources = set(frame["source"])
    series = {s.label: s for s in panel.series}
    in_order = panel.kind in ("goals", "budgets")
    shows_goals = not in_order and len({_short(s) for s in panel.series}) > 1
    styles = style.sequential_styles if in_order else style.assign_styles
    for name, line_style in styles(_curves(panel)).items():
        rows = frame[frame["series"] == name]
        if rows.empty:
            continue
        is_digitized = DIGITIZED in set(rows["source"])
        marks = style.joined_marks(line_style, markersize=4)
        label = f"{name} ({DIGITIZED})" if len(sources) > 1 and is_digitized else name
        label += f", {_short(series[name])}" if shows_goals else ""
        line = _with_gaps(rows, series[name]) if is_digitized else rows
        axis.plot(line["batch_size"], line["value"], label=label, **marks)
        doubtful = rows[rows["note"] != ""]
        hollow = {**marks, "linestyle": "none", "markerfacecolor": "white"}
        hollow["markeredgecolor"] = line_style.color
        axis.plot(doubtful["batch_size"], doubtful["value"], **hollow)
    if sources == {DIGITIZED}:
        note = {"fontsize": 6.5, "color": style.MUTED, "transform": axis.transAxes}
        # Where rising curves are not.
        place = (0.98, "right") if panel.kind == "rates" else (0.02, "left")
        axis.text(place[0], 0.02, DIGITIZED, ha=place[1], **note)


def _with_gaps(rows: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Returns a digitized curve with NaN at published sizes that could not be read.

    So that no line leads over them.
    """
    sizes = digitized("published_studies", series).index
    between = sizes[(sizes > rows["batch_size"].min())]
    between = between[between < rows["batch_size"].max()]
    every = np.union1d(rows["batch_size"], between)
    return rows.set_index("batch_size").reindex(every).reset_index()


def _curves(panel: Panel) -> list[str]:
    """Returns the names of the curves that a panel may have, in their order."""
    if panel.kind == "budgets":
        return [budget_name(budget) for budget in panel.budgets]
    return [series.label for series in panel.series]


def _draw_scaling(
    axis: Any, panel: Panel, frame: pd.DataFrame, exponent: float, line: str
) -> None:
    """Draws v0 (B / B0)^exponent from the first point of the first curve."""
    drawn = set(frame["series"])
    first = next((s.label for s in panel.series if s.label in drawn), "")
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


def _draw_scatter(axis: Any, panel: Panel, frame: pd.DataFrame) -> None:
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


def main(words: list[str] | None = None) -> int:
    """Draws what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--sweep_dir", action="append", default=[], help="a sweep; may be repeated"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder of the page")
    given = parser.parse_args(words)
    try:
        tables = dps_tf.load(*given.sweep_dir) if given.sweep_dir else None
        for problem in () if tables is None else tables.problems:
            print(problem, file=sys.stderr)
        print(figures_text(write_figures(tables, given.out)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"error: {given.out} cannot be written: {error.strerror}.", file=sys.stderr
        )
        return 2
    print(f"\nfigures: {given.out / PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
