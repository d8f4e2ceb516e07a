"""Reduces tables to the steps-to-result of each trial and each cell, for any goal.

Two columns bound the step at which a trial first met a goal: `earliest` and `latest`,
both evaluated steps. Both are equal where the record is exact. Infinity stands for
'never within the step budget'. A curve's bounds (is_bound) and the step at which a
trial was stopped can prove that a goal was not reached, and never that it was.

K* is the least steps-to-result of a cell's trials. Where trials were stopped before
they could answer a new goal, K* lies between the least `earliest` and the least
`latest`; `steps_bound` of the cell then holds these bounds, and no number in its row
claims more than the records hold.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from dps_tf.analysis.search_health import at_boundary, search_health
from dps_tf.analysis.tables import (
    Bools,
    Codes,
    Floats,
    cell_codes,
    has_rows,
    metaparameter_names,
    require,
    require_metric,
    study_goal,
    study_key,
    trial_codes,
)
from dps_tf.core import (
    OUTCOMES,
    Crossings,
    Goal,
    UserError,
    crossings,
    is_further,
    trial_outcome,
)


def results(
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    curves: pd.DataFrame | None = None,
    goal: Goal | None = None,
) -> pd.DataFrame:
    """Returns the table of results, one row per cell, in the order of `studies`.

    Columns: `study_key`, the best trial's metaparameters, and what
    `tables.entries("results")` describes. With `steps_bound` set, K* lies in
    (bracket_low, steps_to_result]. Arguments as of `with_bounds`; trials are already
    cut to each study's prefix of draws.
    """
    bounded = with_bounds(studies, trials, curves, goal)
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
    frame["at_boundary"] = at_boundary(frame, studies, bounded, codes)
    frame["closed"] = studies["closed"].to_numpy(bool)
    _add_bounds(frame, studies, bounded, codes)
    frame = pd.concat([frame, search_health(studies, bounded, codes)], axis=1)
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
    low, high = np.full(len(studies), np.inf), np.full(len(studies), np.inf)
    np.minimum.at(low, codes, trials["earliest"].to_numpy(np.float64))
    np.minimum.at(high, codes, trials["latest"].to_numpy(np.float64))
    interval = np.maximum(studies["evaluation_interval"].to_numpy(np.int64), 1)
    # An open study may still draw trials, and no record has them yet.
    more = studies["count"].to_numpy(object) == "feasible"
    more |= frame["trials"].to_numpy(np.int64) < studies["points"].to_numpy(np.int64)
    unknown = ~studies["closed"].to_numpy(bool) & more
    undrawn = np.where(unknown, interval, np.inf)
    low = np.minimum(low, undrawn)
    budget = studies["step_budget"].to_numpy(np.int64)
    spent = frame["incomplete"].to_numpy(np.int64) > 0
    texts = zip(low, high, budget, spent, strict=True)
    frame["steps_bound"] = [_bound_text(*values) for values in texts]
    frame["steps_low"] = _whole(low, np.isfinite(low))
    frame["steps_high"] = _whole(high, np.isfinite(high))
    is_open = (low < high) & np.isfinite(high)
    before = np.where(is_open, np.maximum(low - interval, 0), 0).astype(np.int64)
    bracket = frame["bracket_low"]
    lower_ends = bracket.fillna(0).astype(np.int64).to_numpy()
    wider = pd.Series(np.minimum(lower_ends, before), dtype="Int64")
    frame["bracket_low"] = bracket.where(~is_open, wider)
    frame["finishers_known"] = _finishers_known(trials, codes, undrawn)


def _bound_text(low: float, high: float, budget: int, spent: bool) -> str:
    if low == high:
        # No trial reached it: K* is above the budget if any trial was alive there.
        return f"> {budget}" if np.isinf(low) and spent else ""
    lower = f">= {int(low)}"
    return lower if np.isinf(high) else f"{lower}, <= {int(high)}"


def _finishers_known(trials: pd.DataFrame, codes: Codes, undrawn: Floats) -> Codes:
    """Returns per cell how many exact results no uncertain trial can undercut.

    `undrawn`, per cell, is the least possible result of trials that are still to draw.
    """
    earliest = trials["earliest"].to_numpy(np.float64)
    latest = trials["latest"].to_numpy(np.float64)
    horizon = undrawn.copy()
    uncertain = earliest < latest
    np.minimum.at(horizon, codes[uncertain], earliest[uncertain])
    is_exact = np.isfinite(latest) & ~uncertain & (latest <= horizon[codes])
    return np.bincount(codes[is_exact], minlength=len(undrawn)).astype(np.int64)


def _emptied(row: pd.DataFrame, reached: Bools) -> list[str]:
    """Returns per cell the names of the best trial's layers that kept nothing."""
    return [
        ", ".join(str(layer["name"]) for layer in json.loads(text) if layer["emptied"])
        if has_best
        else ""
        for text, has_best in zip(row["layers"], reached, strict=True)
    ]


def with_bounds(
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    curves: pd.DataFrame | None = None,
    goal: Goal | None = None,
) -> pd.DataFrame:
    """Returns `trials` with the columns `earliest` and `latest` (float64).

    Under another goal than a study's own, its trials have outcome, steps_to_result and
    bracket_low for that goal. A trial whose record ended before it could answer is
    `censored`. A trial that met the goal by some step, after evaluations that give only
    bounds, is `complete` with a bracket that covers these evaluations.
    `curves` are needed for another goal than the studies' own.

    Raises:
        UserError: another goal without curves, or on a metric that they do not hold.
    """
    require(trials, ["outcome", "steps_to_result", "end_step"], "trials")
    cells = cell_codes(trials, studies)
    interval = studies["evaluation_interval"].to_numpy(np.int64)[cells]
    budget = studies["step_budget"].to_numpy(np.int64)[cells]
    own = _under_own_goal(trials, interval, budget)
    if goal is None:
        return own
    differs = np.array([study_goal(row) != goal for _, row in studies.iterrows()], bool)
    if not differs.any():
        return own
    if curves is None:
        raise UserError(f"the goal {goal} is not the study's own: it needs the curves.")
    _check_recorded(studies[differs], curves, goal)
    other = _under_other_goal(trials, curves, goal, interval, budget)
    changed = differs[cells]
    for column in other.columns:
        own[column] = other[column].where(changed, own[column])
    return own


def _next_evaluation(step: Codes, interval: Codes, budget: Codes) -> Floats:
    """Returns the first evaluation after a step, infinity beyond the budget.

    An interval of 0 stands for irregular evaluations: any step may be one.
    """
    width = np.maximum(interval, 1)
    following = (step // width + 1) * width
    return np.where(following <= budget, following, np.inf).astype(np.float64)


def _under_own_goal(
    trials: pd.DataFrame, interval: Codes, budget: Codes
) -> pd.DataFrame:
    outcome = trials["outcome"].to_numpy(object)
    reached = outcome == "complete"
    steps = trials["steps_to_result"].astype("Float64").to_numpy(np.float64, na_value=0)
    latest = np.where(reached, steps, np.inf)
    open_ended = (outcome == "censored") | (outcome == "failed")
    end = trials["end_step"].to_numpy(np.int64)
    earliest = np.where(open_ended, _next_evaluation(end, interval, budget), latest)
    return trials.assign(earliest=earliest, latest=latest)


def _check_recorded(studies: pd.DataFrame, curves: pd.DataFrame, goal: Goal) -> None:
    """Raises UserError unless each study has recorded the goal's metric."""
    require_metric(curves, goal.metric)
    measured = has_rows(studies, curves.loc[curves[goal.metric].notna()])
    if not measured.all():
        row = studies.iloc[int(np.argmin(measured))]
        raise UserError(
            f"{row['workload']} at batch size {row['batch_size']} never recorded "
            f"{goal.metric!r}, so it cannot answer the goal {goal}."
        )


def _under_other_goal(
    trials: pd.DataFrame,
    curves: pd.DataFrame,
    goal: Goal,
    interval: Codes,
    budget: Codes,
) -> pd.DataFrame:
    crossed = _crossings(trials, curves, goal)
    sure = crossed.sure
    outcome = trials["outcome"].to_numpy(object)
    end = trials["end_step"].to_numpy(np.int64)
    # Where evaluations are irregular, the last one says nothing of the end of the run.
    covered = np.where(interval > 0, np.minimum(end, crossed.last), end)
    resumes = _next_evaluation(covered, interval, budget)
    resumes = np.where(outcome == "infeasible", np.inf, resumes)
    reached = np.isfinite(sure)
    earliest = np.minimum(crossed.maybe, np.where(reached, sure, resumes))
    previous = np.maximum(earliest - np.maximum(interval, 1), 0.0)
    low = np.where(np.isfinite(crossed.before), crossed.before, previous)
    undecided = ~reached & np.isfinite(earliest)
    diverged = (outcome == "infeasible") & ~undecided
    failed = outcome == "failed"
    ends = zip(reached, diverged, failed, undecided, strict=True)
    new = [
        trial_outcome(reached=r, diverged=d, failed=f, is_open=o) for r, d, f, o in ends
    ]
    return pd.DataFrame(
        {
            "outcome": np.array(new, object),
            "steps_to_result": _whole(sure, reached),
            "bracket_low": _whole(low, reached),
            "earliest": earliest,
            "latest": sure,
        },
        index=trials.index,
    )


def _whole(values: Floats, present: Bools) -> pd.arrays.IntegerArray:
    """Returns values as integers, missing where they are not `present`."""
    filled = np.where(present, values, 0).astype(np.int64)
    return pd.arrays.IntegerArray(filled, ~present)


def _crossings(trials: pd.DataFrame, curves: pd.DataFrame, goal: Goal) -> Crossings:
    """Returns where each trial met the goal, from the evaluations of all trials."""
    values = curves[goal.metric].to_numpy(np.float64)
    # Only validation is stopped early; training metrics are always exact.
    bounds = curves["is_bound"].to_numpy(bool)
    bounds = bounds & goal.metric.startswith("validation/")
    if is_further(goal.metric):
        # Without an evaluation there, the trial may have met the goal.
        bounds |= np.isnan(values)
    codes = trial_codes(curves, trials)
    steps = curves["step"].to_numpy(np.int64)
    return crossings(goal, len(trials), codes, steps, values, bounds)
