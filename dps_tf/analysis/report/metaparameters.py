"""Where in the space do trials meet the goal? A figure per curve."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.figures import metaparameters as drawing
from dps_tf.analysis.figures.style import legend_below, styled
from dps_tf.analysis.report.content import FigureText, Illustration, illustration
from dps_tf.analysis.report.curves import Curves, RowsByCell, groups, place_of
from dps_tf.analysis.report.naming import file_name
from dps_tf.analysis.report.panels import MOST, draw_panels, left_out

_KINDS = {
    "complete": "reached",
    "censored": "out-run",
    "incomplete": "not reached",
    "infeasible": "infeasible",
    "failed": "failed",
}


def metaparameter_figures(curves: Curves, trials: pd.DataFrame) -> list[Illustration]:
    """Returns a figure per curve, the first one open, a panel per cell.

    Args:
        curves: of the report.
        trials: one row per trial, with the outcomes under the report's goal.
    """
    figures: list[Illustration] = []
    if "learning_rate" not in trials:
        return figures
    columns = ["trial", "outcome", "steps_to_result", "end_step", "learning_rate"]
    columns += ["momentum"] if "momentum" in trials else []
    rows_of = RowsByCell(trials, curves.cells, columns)
    for panel, curve, cells in groups(curves):
        mine = [(cell, rows_of.of(cell)) for cell in cells.to_dict("records")]
        momentum = any(_is_tuned(rows, "momentum") for _, rows in mine)
        tables = [(cell, _table(rows, cell, momentum)) for cell, rows in mine]
        shown = [(int(cell["batch_size"]), t) for cell, t in tables if len(t) > 1]
        if not shown:
            continue
        with styled():
            figure = draw_panels(
                shown[:MOST],
                partial(drawing.draw, limits=_limits(shown), contours=momentum),
                ("Learning rate", "1 - momentum" if momentum else "Step at the end"),
            )
            kinds = {str(kind) for _, table in shown for kind in table["kind"]}
            handles = drawing.legend_handles(kinds, contours=momentum)
            legend_below(figure, handles, columns=4)
        words = _words(curves, panel, curve, momentum, len(shown))
        figures.append(illustration(figure, words, folded=bool(figures)))
    return figures


def _is_tuned(trials: pd.DataFrame, name: str) -> bool:
    return name in trials and bool(trials[name].nunique() > 1)


def _table(trials: pd.DataFrame, cell: dict[Any, Any], momentum: bool) -> pd.DataFrame:
    """Returns what is drawn of each trial: x, y, kind, best."""
    if momentum:
        y = 1 - trials["momentum"].to_numpy(float)
    else:
        ends = trials["steps_to_result"].fillna(trials["end_step"])
        y = np.maximum(ends.to_numpy(float), 1)
    best = -1 if pd.isna(cell["best_trial"]) else int(cell["best_trial"])
    columns = {
        "x": trials["learning_rate"].to_numpy(float),
        "y": y,
        "kind": trials["outcome"].map(_KINDS).to_numpy(object),
        "best": trials["trial"].to_numpy() == best,
    }
    table = pd.DataFrame(columns)
    return table[(table["x"] > 0) & (table["y"] > 0)]


def _limits(
    shown: list[tuple[int, pd.DataFrame]],
) -> tuple[float, float, float, float]:
    """Returns the ends of x and of y over all panels."""
    together = pd.concat([table for _, table in shown])
    x, y = together["x"], together["y"]
    return float(x.min()), float(x.max()), float(y.min()), float(y.max())


def _words(
    curves: Curves, panel: str, curve: str, momentum: bool, cells: int
) -> FigureText:
    where = place_of(curves, panel, curve)
    vertical = (
        "1 - momentum; thin lines join equal effective learning rates lr / (1 - "
        "momentum), whose values stand at their ends"
        if momentum
        else "the step at which the trial met the goal, or at which its record ends"
    )
    return FigureText(
        name=file_name("metaparameters", panel if panel in where else "", curve),
        title=f"Metaparameters of the trials: {where}",
        caption=(
            f"One mark per trial, a panel per batch size. Vertical axis: {vertical}. "
            "Filled circle: met the goal. Small open circle: out-run, stopped because "
            "enough others had met the goal before it could (in an open study: not "
            "decided yet). Open square: spent the "
            "step budget. Cross: diverged. Plus: failed. Star: the best trial. A star "
            "near an end of an axis says that the range should be widened."
            + left_out(cells)
        ),
        alt=(
            f"Scatter plots, one per batch size, for {where}: learning rate against "
            + ("1 - momentum" if momentum else "the step at the end")
            + " of each trial, by outcome, with the best trial marked."
        ),
    )
