"""Names of the curves of a report, and the panels that they share.

A curve is K* against the batch size with all other axes of its cells fixed; repeats
under other seeds belong to it. Its name holds only what distinguishes it from the other
curves of its panel. Curves with different goals or workloads never share a panel:
their steps are not comparable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dps_tf.analysis.report.style import LineStyle, assign_styles
from dps_tf.analysis.tables import axes_of, study_key
from dps_tf.core import DENSE

CROWD = 6
"""Most curves of one panel; with more, each optimizer gets a panel of its own."""

_PLAIN_FIRST = ("sgd", "momentum", "nesterov")
"""Optimizers from plain to elaborate; all others follow by name."""


@dataclass(frozen=True)
class Naming:
    """The names of all curves.

    Attributes:
        cells: one row per cell: the columns of `study_key`, panel, curve; in the order
            of the report.
        line_styles: of each curve name.
    """

    cells: pd.DataFrame
    line_styles: dict[str, LineStyle]

    @property
    def panels(self) -> list[str]:
        """Names of the panels in their order."""
        return list(dict.fromkeys(self.cells["panel"]))

    def name(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns a table of studies with the further columns panel and curve.

        Rows are in the order of the report: by panel and curve; rows of one cell keep
        their order.
        """
        place = self.cells.assign(place=range(len(self.cells)))
        named = frame.merge(place, on=study_key(self.cells), how="inner")
        return named.sort_values("place", kind="stable").drop(columns="place")

    def line_styles_of(self, curves: Iterable[str]) -> dict[str, LineStyle]:
        """Returns the line styles of some curves, in the order of the report."""
        wanted = set(curves)
        return {name: one for name, one in self.line_styles.items() if name in wanted}


def naming(results: pd.DataFrame) -> Naming:
    """Returns the names of the curves of a results table."""
    frame = results[[*study_key(results), "goal"]].copy()
    by_optimizer = _is_crowded(frame)
    frame["panel"] = _panel_names(frame, by_optimizer)
    frame["curve"] = _curve_names(frame, by_optimizer)
    # The plain optimizer first: others are compared with it. Dense before pruned.
    optimizers = sorted(frame["optimizer"].unique(), key=_optimizer_order)
    frame["optimizer_order"] = frame["optimizer"].map(optimizers.index)
    panels = list(frame.sort_values("optimizer_order", kind="stable")["panel"].unique())
    frame["panel_order"] = frame["panel"].map(panels.index)
    frame["is_pruned"] = frame["sparsity_method"] != DENSE
    keys = ["panel_order", "optimizer_order", "is_pruned", "sparsity_method"]
    for axis in axes_of(frame):
        frame[f"{axis}_order"] = axis_order(frame[axis])
        keys.append(f"{axis}_order")
    keys += ["sparsity", "precision", "batch_size", "seed"]
    frame = frame.sort_values(keys, kind="stable")
    cells = frame[[*study_key(results), "panel", "curve"]].reset_index(drop=True)
    return Naming(cells, assign_styles([str(name) for name in cells["curve"]]))


def _optimizer_order(name: str) -> tuple[int, str]:
    is_plain = name in _PLAIN_FIRST
    return (_PLAIN_FIRST.index(name) if is_plain else len(_PLAIN_FIRST), name)


def _is_crowded(frame: pd.DataFrame) -> bool:
    if frame["optimizer"].nunique() < 2:
        return False
    apart = [n for n in study_key(frame) if n not in ("batch_size", "seed")]
    curves = frame.drop_duplicates([*apart, "goal"])
    return bool(curves.groupby(["workload", "goal"]).size().max() > CROWD)


def _panel_names(frame: pd.DataFrame, by_optimizer: bool) -> pd.Series:
    """Returns the name of each panel: its workload, goal and optimizer if they vary."""
    goals = frame.groupby("workload")["goal"].nunique()
    shown = ["workload"]
    if len(goals) and int(goals.max()) > 1:
        shown.append("goal")
    if by_optimizer:
        shown.append("optimizer")
    return frame[shown].astype(str).agg(", ".join, axis=1)


def _curve_names(frame: pd.DataFrame, by_optimizer: bool) -> list[str]:
    optimizer = not by_optimizer and frame["optimizer"].nunique() > 1
    sparsity = frame["sparsity"].nunique() > 1
    methods = set(frame["sparsity_method"]) - {DENSE}
    precisions = frame["precision"].nunique() > 1
    varying = [axis for axis in axes_of(frame) if frame[axis].nunique() > 1]
    names = []
    for row in frame.to_dict("records"):
        parts = [str(row["optimizer"])] if optimizer else []
        if sparsity or row["sparsity"]:
            parts.append(f"sparsity {row['sparsity']:g}")
        if len(methods) > 1 and row["sparsity_method"] != DENSE:
            parts.append(str(row["sparsity_method"]))
        parts += axis_texts(row, varying)
        if precisions:
            parts.append(str(row["precision"]))
        names.append(", ".join(parts) or str(row["optimizer"]))
    return names


def axis_texts(row: Mapping[Any, Any] | pd.Series, axes: Sequence[str]) -> list[str]:
    """Returns `width 32` for each of some axes that a cell has.

    The label of an axis is the last part of its name, or its name if others share it.
    """
    short = [axis.rpartition(".")[2] for axis in axes]
    labels = [s if short.count(s) == 1 else a for s, a in zip(short, axes, strict=True)]
    texts = zip(labels, (str(row[axis]) for axis in axes), strict=True)
    return [f"{name} {text}" for name, text in texts if text]


def axis_order(values: pd.Series) -> pd.Series:
    """Returns the position of each value of an axis in the order of all values.

    Cells without the axis come first, numbers by their size, then texts.
    """

    def key(text: str) -> tuple[float, str]:
        try:
            return float(text or -math.inf), text
        except ValueError:
            return math.inf, text

    return values.map(sorted(values.unique(), key=key).index)


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
