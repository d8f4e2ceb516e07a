"""How far K* depends on how often trials were evaluated.

The table is computed from records alone, so that where trials were stopped before they
could answer, an answer is a range from `low` to `high` (infinity: nothing bounds it).

Brackets. That the goal was met in (previous evaluation, K*] holds for a metric that
only improves. A validation error goes up and down: a step that was not evaluated may
have met the goal earlier. K* at twice and at four times the interval shows how much the
grid of evaluations matters for the curves at hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dps_tf.analysis import reduce
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.tables import (
    GOAL_COLUMNS,
    Bools,
    Floats,
    belongs,
    cell_codes,
    has_rows,
    study_key,
)
from dps_tf.core import Goal

INTERVALS = (2, 4)
"""Multiples of the evaluation interval at which K* is found again."""
_RANGE = ["steps_to_result", "low", "high"]


def by_interval(tables: Tables) -> pd.DataFrame:
    """Returns K* had trials been evaluated less often, one row per cell and multiple.

    Columns: those of `study_key`, multiple (of INTERVALS), evaluation_interval,
    steps_to_result (as recorded), low, high. Studies whose evaluations are irregular
    are left out, as are those without an evaluation at that interval.
    """
    columns = [*study_key(tables.studies), "multiple", "evaluation_interval", *_RANGE]
    found = []
    for studies, goal in _by_goal(tables):
        regular = studies[studies["evaluation_interval"] > 0]
        if regular.empty:
            continue
        curves = _of(tables.curves, regular)
        interval = regular["evaluation_interval"].to_numpy(np.int64)
        own = interval[cell_codes(curves, regular)]
        for multiple in INTERVALS:
            kept = curves[curves["step"].to_numpy(np.int64) % (multiple * own) == 0]
            coarser = regular.assign(evaluation_interval=multiple * interval)
            # Without any such evaluation nothing is known.
            coarser = coarser[_has_values(coarser, kept, goal)]
            if coarser.empty:
                continue
            trials = _of(tables.trials, coarser)
            cells = reduce.results(coarser, trials, kept, goal, from_curves=True)
            low, high = _ends(cells)
            steps = _recorded(tables, cells)
            ranges = cells.assign(steps_to_result=steps, low=low, high=high)
            found.append(ranges.assign(multiple=multiple)[columns])
    if not found:
        return pd.DataFrame(columns=columns)
    return pd.concat(found, ignore_index=True)


def _by_goal(tables: Tables) -> Iterator[tuple[pd.DataFrame, Goal]]:
    """Yields the studies that have evaluations of their goal, goal by goal."""
    for _, studies in tables.studies.groupby(GOAL_COLUMNS, sort=False):
        # Of what the report is about, which may be another goal than the study's own.
        goal = tables.goals[studies.index[0]]
        known = studies[_has_values(studies, tables.curves, goal)]
        if len(known):
            yield known, goal


def _has_values(studies: pd.DataFrame, curves: pd.DataFrame, goal: Goal) -> Bools:
    """Returns for each study whether any row of the curves has the goal's metric."""
    if goal.metric not in curves:
        return np.zeros(len(studies), bool)
    return has_rows(studies, curves[curves[goal.metric].notna()])


def _of(table: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    return table[belongs(table, studies)]


def _ends(cells: pd.DataFrame) -> tuple[Floats, Floats]:
    low, high = (
        cells[name].astype("Float64").to_numpy(np.float64, na_value=np.inf)
        for name in ("steps_low", "steps_high")
    )
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def _recorded(tables: Tables, cells: pd.DataFrame) -> Floats:
    """Returns the recorded K* of some cells, in their order."""
    steps = tables.results["steps_to_result"].astype("Float64")
    found = steps.to_numpy(np.float64, na_value=np.nan)
    return np.asarray(found[cell_codes(cells, tables.results)], np.float64)
