"""Steps-to-result of each cell, from the tables alone and for any goal.

K* is the least steps-to-result of a cell's trials. Where trials were stopped before
they could answer a new goal, K* lies between the least of what each trial can have and
the least of what is known to have been reached; the cell then says so in
`steps_bound`, and no number in its row claims more than the records hold.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import search_health
from dps_tf.analysis.tables import (
    Codes,
    Floats,
    cell_codes,
    metaparameter_names,
    study_goal,
    study_key,
)
from dps_tf.analysis.trial_bounds import with_bounds
from dps_tf.core.goal import Goal
from dps_tf.core.trial import OUTCOMES


def results(
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    curves: pd.DataFrame | None = None,
    goal: Goal | None = None,
    *,
    from_curves: bool = False,
) -> pd.DataFrame:
    """Returns one row per cell, in the order of `studies`.

    Columns: those of `study_key`, the best trial's metaparameters, and what
    `columns.entries("results")` describes.

    With `steps_bound` set, K* lies in (bracket_low, steps_to_result].

    Args:
        studies: one row per cell.
        trials: one row per trial, already cut to each study's prefix of draws.
        curves: one row per evaluation; needed for another goal than the study's own.
        goal: what to reduce for; by default each study's own goal.
        from_curves: see `trial_bounds.with_bounds`.
    """
    bounded = with_bounds(studies, trials, curves, goal, from_curves=from_curves)
    codes = cell_codes(bounded, studies)
    best = _best_trial(bounded, codes, len(studies))
    frame = studies[study_key(studies)].reset_index(drop=True)
    frame["goal"] = [str(goal or study_goal(study)) for _, study in studies.iterrows()]
    row = bounded.iloc[np.maximum(best, 0)].reset_index(drop=True)
    reached = best >= 0
    frame["steps_to_result"] = row["steps_to_result"].astype("Int64").where(reached)
    frame["bracket_low"] = row["bracket_low"].astype("Int64").where(reached)
    frame["best_trial"] = row["trial"].astype("Int64").where(reached)
    for name in metaparameter_names(trials):
        frame[name] = row[name].astype(np.float64).where(reached)
    frame = pd.concat([frame, _counts(bounded, codes, len(studies))], axis=1)
    frame["at_boundary"] = search_health.at_boundary(frame, studies)
    frame["closed"] = studies["closed"].to_numpy(bool)
    _add_bounds(frame, studies, bounded, codes)
    health = search_health.search_health(studies, bounded, codes)
    frame = pd.concat([frame, health], axis=1)
    frame["realised_sparsity"] = row["realised_sparsity"].where(reached)
    frame["emptied_layers"] = _emptied(row, reached)
    for name in (
        "evaluation_interval",
        "step_budget",
        "training_examples",
        "draws_exhausted",
    ):
        frame[name] = studies[name].to_numpy()
    return frame


def _best_trial(trials: pd.DataFrame, codes: Codes, cells: int) -> Codes:
    """Returns per cell the row that reached first, ties to the lower trial; or -1."""
    latest = trials["latest"].to_numpy(np.float64)
    order = np.lexsort((trials["trial"].to_numpy(np.int64), latest, codes))
    order = order[np.isfinite(latest[order])]
    best = np.full(cells, -1, np.int64)
    first, position = np.unique(codes[order], return_index=True)
    best[first] = order[position]
    return best


def _counts(trials: pd.DataFrame, codes: Codes, cells: int) -> pd.DataFrame:
    outcome = trials["outcome"].to_numpy(object)
    counts = {"trials": np.bincount(codes, minlength=cells)}
    for name in OUTCOMES:
        counts[name] = np.bincount(codes[outcome == name], minlength=cells)
    return pd.DataFrame(counts).astype(np.int64)


def _add_bounds(
    frame: pd.DataFrame, studies: pd.DataFrame, trials: pd.DataFrame, codes: Codes
) -> None:
    """Adds steps_low, steps_high, steps_bound, and widens brackets where K* is open."""
    low, high = _extremes(trials, codes, len(studies))
    interval = np.maximum(studies["evaluation_interval"].to_numpy(np.int64), 1)
    # An open study may still draw trials that nothing is known of.
    more = studies["count"].to_numpy(object) == "feasible"
    more |= frame["trials"].to_numpy(np.int64) < studies["points"].to_numpy(np.int64)
    unknown = ~studies["closed"].to_numpy(bool) & more
    undrawn = np.where(unknown, interval, np.inf)
    low = np.minimum(low, undrawn)
    budget = studies["step_budget"].to_numpy(np.int64)
    spent = frame["incomplete"].to_numpy(np.int64) > 0
    texts = zip(low, high, budget, spent, strict=True)
    frame["steps_bound"] = [_bound_text(*values) for values in texts]
    frame["steps_low"] = _or_missing(low)
    frame["steps_high"] = _or_missing(high)
    is_open = (low < high) & np.isfinite(high)
    before = np.where(is_open, np.maximum(low - interval, 0), 0).astype(np.int64)
    bracket = frame["bracket_low"]
    known = bracket.fillna(0).astype(np.int64).to_numpy()
    wider = pd.Series(np.minimum(known, before), dtype="Int64")
    frame["bracket_low"] = bracket.where(~is_open, wider)
    frame["finishers_known"] = _finishers_known(trials, codes, undrawn)


def _extremes(trials: pd.DataFrame, codes: Codes, cells: int) -> tuple[Floats, Floats]:
    low, high = np.full(cells, np.inf), np.full(cells, np.inf)
    np.minimum.at(low, codes, trials["earliest"].to_numpy(np.float64))
    np.minimum.at(high, codes, trials["latest"].to_numpy(np.float64))
    return low, high


def _bound_text(low: float, high: float, budget: int, spent: bool) -> str:
    if low == high:
        # Nobody reached it: behind the budget if any trial is still alive there.
        return f"> {budget}" if np.isinf(low) and spent else ""
    lower = f">= {int(low)}"
    return lower if np.isinf(high) else f"{lower}, <= {int(high)}"


def _or_missing(values: Floats) -> pd.Series:
    finite = np.isfinite(values)
    whole = pd.Series(np.where(finite, values, 0).astype(np.int64), dtype="Int64")
    return whole.where(finite)


def _finishers_known(trials: pd.DataFrame, codes: Codes, undrawn: Floats) -> Codes:
    """Returns how many trials reached at or before all that is not known exactly.

    Args:
        trials: with `earliest` and `latest`.
        codes: cell of each trial.
        undrawn: per cell, least result of trials that are still to be drawn.
    """
    earliest = trials["earliest"].to_numpy(np.float64)
    latest = trials["latest"].to_numpy(np.float64)
    horizon = undrawn.copy()
    uncertain = earliest < latest
    np.minimum.at(horizon, codes[uncertain], earliest[uncertain])
    known = np.isfinite(latest) & ~uncertain & (latest <= horizon[codes])
    return np.bincount(codes[known], minlength=len(undrawn)).astype(np.int64)


def _emptied(row: pd.DataFrame, reached: Any) -> list[str]:
    """Returns per cell the names of the best trial's layers that kept nothing."""
    return [
        ", ".join(str(layer["name"]) for layer in json.loads(text) if layer["emptied"])
        if known
        else ""
        for text, known in zip(row["layers"], reached, strict=True)
    ]
