"""What are the curves of a report called, and which belong into one picture?

A curve is K* against the batch size with workload, goal, optimizer, sparsity method,
sparsity and precision fixed; repeats under other seeds belong to it. Its name holds
what tells it from the other curves of its panel, and no more. Curves with different
goals or workloads never share a panel: their steps are not comparable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from dps_tf.analysis.report.style import LineStyle, assign_styles
from dps_tf.analysis.tables import STUDY_KEY
from dps_tf.core.cell import DENSE

CROWD = 6
"""Curves that one panel may hold before optimizers get panels of their own."""

_PLAIN_FIRST = ("sgd", "momentum", "nesterov")
"""Optimizers in the order in which the papers add to them."""


@dataclass(frozen=True)
class Naming:
    """The names of all curves.

    Attributes:
        cells: one row per cell: STUDY_KEY, panel, curve; in the order of the report.
        line_styles: line style of each curve name.
    """

    cells: pd.DataFrame
    line_styles: dict[str, LineStyle]

    @property
    def panels(self) -> list[str]:
        """Names of the panels in their order."""
        return list(dict.fromkeys(self.cells["panel"]))

    def name(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns a table that has STUDY_KEY with the columns panel and curve.

        Rows are in the order of the report: by panel, curve, and within a curve as
        before.
        """
        place = self.cells.assign(place=range(len(self.cells)))
        named = frame.merge(place, on=STUDY_KEY, how="inner")
        return named.sort_values("place", kind="stable").drop(columns="place")

    def line_styles_of(self, curves: Iterable[str]) -> dict[str, LineStyle]:
        """Returns the line styles of some curves, in the order of the report."""
        wanted = set(curves)
        return {
            name: line_style
            for name, line_style in self.line_styles.items()
            if name in wanted
        }


def naming(results: pd.DataFrame) -> Naming:
    """Returns the names of the curves of a results table."""
    frame = results[[*STUDY_KEY, "goal"]].copy()
    by_optimizer = _is_crowded(frame)
    panel_columns = ["workload", "goal", *(["optimizer"] if by_optimizer else [])]
    frame["panel"] = _panel_names(frame, panel_columns)
    frame["curve"] = _curve_names(frame, [] if by_optimizer else ["optimizer"])
    # The plain optimizer first: others are compared with it. Dense before pruned.
    optimizers = sorted(frame["optimizer"].unique(), key=_optimizer_order)
    frame["optimizer_order"] = frame["optimizer"].map(optimizers.index)
    panels = list(frame.sort_values("optimizer_order", kind="stable")["panel"].unique())
    frame["panel_order"] = frame["panel"].map(panels.index)
    frame["is_pruned"] = frame["sparsity_method"] != DENSE
    keys = ["panel_order", "optimizer_order", "is_pruned", "sparsity_method"]
    keys += ["sparsity", "precision", "batch_size", "seed"]
    frame = frame.sort_values(keys, kind="stable")
    cells = frame[[*STUDY_KEY, "panel", "curve"]].reset_index(drop=True)
    return Naming(cells, assign_styles([str(name) for name in cells["curve"]]))


def _optimizer_order(name: str) -> tuple[int, str]:
    known = name in _PLAIN_FIRST
    return (_PLAIN_FIRST.index(name) if known else len(_PLAIN_FIRST), name)


def _is_crowded(frame: pd.DataFrame) -> bool:
    if frame["optimizer"].nunique() < 2:
        return False
    curves = frame.drop_duplicates(
        ["workload", "goal", "optimizer", "sparsity_method", "sparsity", "precision"]
    )
    return bool(curves.groupby(["workload", "goal"]).size().max() > CROWD)


def _panel_names(frame: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Returns what tells panels apart; the goal only where workloads have several."""
    goals = frame.groupby("workload")["goal"].nunique()
    told = ["workload"]
    if len(goals) and int(goals.max()) > 1:
        told.append("goal")
    told += [name for name in columns if name == "optimizer"]
    return frame[told].astype(str).agg(", ".join, axis=1)


def _curve_names(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    optimizer = "optimizer" in columns and frame["optimizer"].nunique() > 1
    sparsity = frame["sparsity"].nunique() > 1
    methods = set(frame["sparsity_method"]) - {DENSE}
    precisions = frame["precision"].nunique() > 1
    names = []
    for row in frame.to_dict("records"):
        parts = [str(row["optimizer"])] if optimizer else []
        if sparsity or row["sparsity"]:
            parts.append(f"sparsity {row['sparsity']:g}")
        if len(methods) > 1 and row["sparsity_method"] != DENSE:
            parts.append(str(row["sparsity_method"]))
        if precisions:
            parts.append(str(row["precision"]))
        names.append(", ".join(parts) or str(row["optimizer"]))
    return names


def cell_names(named: pd.DataFrame) -> list[str]:
    """Returns a short name per row of a table of cells that has curve names.

    The seed is part of it where there are several.
    """
    several = named["seed"].nunique() > 1
    panels = named["panel"].nunique() > 1
    names = []
    for row in named.to_dict("records"):
        start = f"{row['panel']}, " if panels else ""
        end = f", seed {row['seed']}" if several else ""
        names.append(f"{start}{row['curve']}, batch size {row['batch_size']}{end}")
    return names


def file_name(*parts: str) -> str:
    """Returns a file name without suffix for some names.

    >>> file_name("steps", "nesterov, sparsity 0.9")
    'steps_nesterov_sparsity_0.9'
    """
    joined = "_".join(part for part in parts if part)
    return re.sub(r"[^A-Za-z0-9.]+", "_", joined).strip("_.") or "figure"
