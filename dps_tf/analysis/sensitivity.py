"""How far K* depends on what nobody measures: evaluation interval, points, and goal.

Each table is computed from records alone, so that where trials were stopped before they
could answer, an answer is a range from `low` to `high` (infinity: nothing bounds it).

Brackets. That the goal was met in (previous evaluation, K*] holds for a metric that
only improves. A validation error goes up and down: a step that was not evaluated may
have met the goal earlier. K* at twice and at four times the interval shows how much the
grid of evaluations matters for the curves at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dps_tf.analysis import reduce
from dps_tf.analysis.law import MINIMUM_POINTS, Observations, fit_law
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.tables import (
    GOAL_COLUMNS,
    Bools,
    Floats,
    belongs,
    cell_codes,
    curve_key,
    has_rows,
    study_key,
)
from dps_tf.core import Goal

INTERVALS = (2, 4)
"""Multiples of the evaluation interval at which K* is found again."""
GOALS = (1.0, 1.25, 1.5, 2.0, 3.0)
"""Multiples of the distance of the threshold from a perfect value."""
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


def by_points(tables: Tables) -> pd.DataFrame:
    """Returns K* of the first half of the trials, one row per cell with two or more.

    Columns: those of `study_key`, points (of the half), steps_to_result (of all), low,
    high. Trials that an oracle chose after those before them are no sample of the
    whole, and their first half is the first half of that search.
    """
    bounded, studies = tables.bounded, tables.studies
    codes = cell_codes(bounded, studies)
    half = np.bincount(codes, minlength=len(studies)) // 2
    first = bounded["trial"].to_numpy(np.int64) < half[codes]
    low, high = np.full(len(studies), np.inf), np.full(len(studies), np.inf)
    np.minimum.at(low, codes[first], bounded["earliest"].to_numpy(np.float64)[first])
    np.minimum.at(high, codes[first], bounded["latest"].to_numpy(np.float64)[first])
    steps = _recorded(tables, studies)
    frame = studies[study_key(studies)].assign(
        points=half, steps_to_result=steps, low=low, high=high
    )
    return frame[half > 0].reset_index(drop=True)


def by_goal(tables: Tables, multiples: Sequence[float] = GOALS) -> pd.DataFrame:
    """Returns K* for looser goals, one row per cell and goal.

    Columns: multiple, threshold, low, high, and those of `reduce.results`. A threshold
    is that of the study's own goal with its distance from a perfect value
    multiplied: 0 for errors and losses, 1 for an accuracy or another metric that is
    maximized. Source: Shallue et al. 2019, Figure 2, there over several goals.
    """
    found = []
    for multiple in multiples:
        for studies, goal in _by_goal(tables):
            wanted = _looser(goal, multiple)
            trials, curves = _of(tables.trials, studies), _of(tables.curves, studies)
            cells = reduce.results(studies, trials, curves, wanted)
            low, high = _ends(cells)
            frame = cells.assign(multiple=multiple, threshold=wanted.threshold)
            found.append(frame.assign(low=low, high=high))
    if not found:
        return tables.results.iloc[:0].assign(multiple=0.0, threshold=0.0, low=0.0)
    return pd.concat(found, ignore_index=True)


def law_by_goal(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns c1 and c2 against the goal, one row per curve and goal with a fit.

    Columns: those of `curve_key`, multiple, threshold, goal, and for c1, c2 and
    critical_batch_size the value, `_low` and `_high`. `cells` are those of `by_goal`.
    """
    rows = []
    keys = [*curve_key(cells), "multiple", "threshold", "goal"]
    for key, mine in cells.groupby(keys, sort=False):
        observations = Observations.from_results(mine[mine["closed"]])
        if observations.batch_sizes < MINIMUM_POINTS:
            continue
        fit = fit_law(observations)
        row = dict(zip(keys, key, strict=True))
        for name in ("c1", "c2", "critical_batch_size"):
            estimate = getattr(fit, name)
            row[name] = estimate.value
            row[f"{name}_low"], row[f"{name}_high"] = estimate.low, estimate.high
        rows.append(row)
    return pd.DataFrame(rows)


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


def _looser(goal: Goal, multiple: float) -> Goal:
    perfect = 0.0 if goal.direction == "minimize" else 1.0
    threshold = perfect + multiple * (goal.threshold - perfect)
    return replace(goal, threshold=round(threshold, 12))


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
