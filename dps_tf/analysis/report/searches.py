"""How hard was a minimum looked for? A minimum falls with the number of points."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pandas as pd

from dps_tf.analysis.report.wording import and_list, count
from dps_tf.analysis.tables import STUDY_KEY

Key = tuple[str, str]
"""(panel, curve)."""


def searches_of(cells: pd.DataFrame, studies: pd.DataFrame) -> dict[Key, str]:
    """Returns number of points and dimension of the search of each curve, in words.

    Args:
        cells: one row per cell: STUDY_KEY, panel, curve.
        studies: one row per cell.
    """
    columns = [*STUDY_KEY, "points", "count", "space"]
    both = cells[[*STUDY_KEY, "panel", "curve"]].merge(studies[columns], on=STUDY_KEY)
    found = {}
    for (panel, curve), mine in both.groupby(["panel", "curve"], sort=False):
        least, most = int(mine["points"].min()), int(mine["points"].max())
        kind = "feasible point" if (mine["count"] == "feasible").all() else "point"
        points = count(most, kind)
        if least != most:
            points = f"{least:,} to {points}"
        spaces = sorted({len(json.loads(text)) for text in mine["space"]})
        # Explicit points come from no space.
        where = and_list([str(size) for size in spaces if size])
        if where:
            plural = "" if where == "1" else "s"
            points += f" in {where} dimension{plural}"
        found[str(panel), str(curve)] = points
    return found


def searches_sentence(names: Iterable[tuple[str, str]]) -> str:
    """Returns what each of some curves is the best of, as one sentence.

    Args:
        names: (name of a curve, its search), in order.
    """
    by_search: dict[str, list[str]] = {}
    for name, search in names:
        by_search.setdefault(search, []).append(name)
    if not by_search:
        return ""
    if len(by_search) == 1:
        return f"Each K* is the best of {next(iter(by_search))}."
    told = [f"of {search} for {and_list(who)}" for search, who in by_search.items()]
    return f"Each K* is the best {'; '.join(told)}."
