"""The shortfall of a study from a goal that none of its trials reached."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dps_tf.core import Goal, GoalWatch, Nearest, Space, advice, nearest_of


@dataclass(frozen=True)
class Shortfall:
    """The evaluation that came nearest to a goal, and what to change.

    Attributes:
        best: the evaluation in words.
        advice: what to change, as one sentence.
    """

    best: str
    advice: str


def shortfall(
    goal: Goal, study: Mapping[Any, Any], trials: pd.DataFrame, curves: pd.DataFrame
) -> Shortfall | None:
    """Returns how far the trials of one study fell short, or None without evaluations.

    Args:
        goal: the goal that no trial reached.
        study: row of the study in the table `studies`.
        trials: rows of the study in `trials`.
        curves: rows of the study in `curves`.
    """
    near = _nearest(goal, curves)
    if near is None:
        return None
    interval, budget = int(study["evaluation_interval"]), int(study["step_budget"])
    # Evaluations of imported runs may be irregular: their interval is 0.
    last = budget // interval * interval if interval else int(curves["step"].max())
    row = trials[trials["trial"] == near.trial].iloc[0]
    space = Space.from_dict(json.loads(str(study["space"])))
    point = {name: float(row.get(name, math.nan)) for name in space.names}
    # Points of imported runs may lie outside of the space that is named.
    inside = tuple(p for p in space.parameters if p.low <= point[p.name] <= p.high)
    outcomes = [str(outcome) for outcome in trials["outcome"]]
    told = advice(goal, near, last, outcomes, Space(inside), point)
    return Shortfall(near.in_words(goal), told)


def _nearest(goal: Goal, curves: pd.DataFrame) -> Nearest | None:
    if goal.metric not in curves:
        return None
    rows = curves.sort_values(["trial", "step"])
    values = rows[goal.metric].where(~rows["is_bound"].astype(bool), math.nan)
    nearest = []
    for trial, own in values.groupby(rows["trial"]):
        steps = rows.loc[own.index, "step"]
        watch = GoalWatch(goal, int(str(trial)))
        for step, value in zip(map(int, steps), map(float, own), strict=True):
            watch.add(step, value)
        nearest.append(watch.nearest)
    return nearest_of(goal, nearest)
