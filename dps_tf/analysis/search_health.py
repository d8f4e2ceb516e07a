"""Whether the search behind a K* was wide, deep and fine enough to be believed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from dps_tf.analysis.order_statistics import is_lone_winner
from dps_tf.analysis.tables import Codes
from dps_tf.core.space import Space

BOUNDARY_TOLERANCE = 0.05
"""Share of a range, on its scale, within which a best value counts as at its end."""


def at_boundary(best: pd.DataFrame, studies: pd.DataFrame) -> list[str]:
    """Returns per cell the tuned names whose best value lies at an end of its range.

    Within BOUNDARY_TOLERANCE of an end, or outside of the range. The names are
    separated by commas; empty where nobody reached the goal. An optimum at an end calls
    for a wider range and a repetition.

    Args:
        best: one row per cell with the best trial's metaparameters and `best_trial`.
        studies: one row per cell, in the same order.
    """
    reached = best["best_trial"].notna().to_numpy(bool)
    texts = studies["space"].to_numpy(object)
    spaces = {text: Space.from_dict(json.loads(text)) for text in set(texts)}
    columns = {name for space in spaces.values() for name in space.names}
    values = {
        name: best[name].to_numpy(np.float64)
        for name in columns
        if name in best.columns
    }
    names = []
    for position, text in enumerate(texts):
        point = {name: float(column[position]) for name, column in values.items()}
        names.append(_ends(spaces[text], point) if reached[position] else "")
    return names


def _ends(space: Space, point: dict[str, float]) -> str:
    at_end = []
    for parameter in space.parameters:
        value = point.get(parameter.name, float("nan"))
        if parameter.scale == "discrete" or np.isnan(value):
            continue
        inside = parameter.low <= value <= parameter.high
        u = parameter.to_unit(value) if inside else 0.0
        if not BOUNDARY_TOLERANCE < u < 1 - BOUNDARY_TOLERANCE:
            at_end.append(parameter.name)
    return ",".join(at_end)


def search_health(
    studies: pd.DataFrame, trials: pd.DataFrame, codes: Codes
) -> pd.DataFrame:
    """Returns one row per cell, in the order of `studies`.

    Columns:
        infeasible_share: diverged trials / trials; NaN without trials.
        lone_winner: whether K_(2) lies far above K*
            (`order_statistics.is_lone_winner`); NA where the records cannot tell.
        first_evaluation: share of the trials that met the goal at the first evaluation
            of all; where it is large, an untrained network might meet it as well.
        interval_over_kstar: evaluation interval / K*, the relative resolution of K*;
            NaN without K* and for irregular evaluations.

    Args:
        studies: one row per cell.
        trials: one row per trial with `earliest` and `latest` of `with_bounds`.
        codes: position in `studies` of each trial's cell.
    """
    cells = len(studies)
    number = np.bincount(codes, minlength=cells).astype(np.float64)
    diverged = trials["outcome"].to_numpy(object) == "infeasible"
    infeasible = np.bincount(codes[diverged], minlength=cells)
    share = np.full(cells, np.nan)
    np.divide(infeasible, number, out=share, where=number > 0)
    earliest = trials["earliest"].to_numpy(np.float64)
    latest = trials["latest"].to_numpy(np.float64)
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(cells + 1))
    interval = studies["evaluation_interval"].to_numpy(np.int64)
    alone: list[bool | None] = []
    first = np.zeros(cells)
    resolution = np.full(cells, np.nan)
    for cell in range(cells):
        rows = order[edges[cell] : edges[cell + 1]]
        alone.append(is_lone_winner(earliest[rows], latest[rows], int(interval[cell])))
        if len(rows) and interval[cell] > 0:
            first[cell] = np.mean(latest[rows] <= interval[cell])
        best = latest[rows].min() if len(rows) else np.inf
        # An archive may hold an evaluation at step 0 that meets the goal.
        if 0 < best < np.inf and interval[cell] > 0:
            resolution[cell] = interval[cell] / best
    return pd.DataFrame(
        {
            "infeasible_share": share,
            "lone_winner": pd.array(alone, dtype="boolean"),
            "interval_over_kstar": resolution,
            "first_evaluation": first,
        }
    )
