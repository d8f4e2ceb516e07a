"""Describes the search of a curve: its numbers of points and of dimensions."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import pandas as pd

from dps_tf.analysis.tables import entries, study_key
from dps_tf.analysis.wording import and_list, count


def search_of_studies(studies: pd.DataFrame) -> str:
    """Returns the search of a curve in words, from its rows of the table of studies.

    An example is `24 to 48 feasible points in 2 dimensions`.
    """
    kind = "feasible point" if (studies["count"] == "feasible").all() else "point"
    # Explicit points come from no space.
    sizes = {len(json.loads(text)) for text in studies["space"]} - {0}
    return _text(studies["points"], sizes, kind)


def searches_of_results(curves: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Returns the search of each curve in words, from its rows of a results table.

    A metaparameter counts as tuned if best trials have more than one value of it in any
    curve of that workload and optimizer. Where cells differ in their numbers of trials,
    diverged trials were replaced, and do not count. The text is empty for a table
    without numbers of trials.
    """
    tuned: dict[tuple[str, ...], set[str]] = {}
    for rows in curves.values():
        tuned.setdefault(_family(rows), set()).update(_varied(rows))
    return {name: _search(rows, tuned[_family(rows)]) for name, rows in curves.items()}


def _family(results: pd.DataFrame) -> tuple[str, ...]:
    names = [name for name in ("workload", "optimizer") if name in results]
    return tuple(map(str, results[names].iloc[0]))


def _varied(results: pd.DataFrame) -> list[str]:
    fixed = {*study_key(results), *entries("results"), "curve", "batch_size"}
    numbers = results.select_dtypes("number")
    counts = numbers.drop(columns=[*fixed], errors="ignore").nunique()
    return [n for n in counts[counts > 1].index if not n.endswith("_at_result")]


def _search(results: pd.DataFrame, tuned: Collection[str]) -> str:
    if not {"trials", "infeasible"} <= set(results.columns):
        return ""
    trials = results["trials"]
    if trials.nunique() > 1:
        trials = trials - results["infeasible"]
    return _text(trials, {len(tuned)} - {0}, "trial")


def _text(points: pd.Series, sizes: Collection[int], kind: str) -> str:
    least, most = int(points.min()), int(points.max())
    text = count(most, kind)
    if least != most:
        text = f"{least:,} to {text}"
    if sizes:
        plural = "" if sizes == {1} else "s"
        where = and_list([str(size) for size in sorted(sizes)])
        text += f" in {where} dimension{plural}"
    return text
