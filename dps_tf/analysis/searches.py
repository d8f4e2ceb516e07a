"""Describes the search of a curve: its numbers of points and of dimensions."""

from __future__ import annotations

import json
from collections.abc import Collection

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


def search_of_results(results: pd.DataFrame) -> str:
    """Returns the search of a curve in words, from its rows of a results table.

    A metaparameter counts as tuned if the best trials have more than one value of it.
    Where cells differ in their numbers of trials, diverged trials were replaced, and do
    not count. The text is empty for a table without numbers of trials.
    """
    if not {"trials", "infeasible"} <= set(results.columns):
        return ""
    fixed = {*study_key(results), *entries("results"), "curve", "batch_size"}
    tuned = [
        name
        for name in results.select_dtypes("number").columns
        if name not in fixed and not str(name).endswith("_at_result")
    ]
    size = int((results[tuned].nunique() > 1).sum())
    trials = results["trials"]
    if trials.nunique() > 1:
        trials = trials - results["infeasible"]
    return _text(trials, {size} - {0}, "trial")


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
