"""The best result under a budget of steps or of epochs.

Larger batches win under a step budget, smaller ones under an epoch budget. The
question is one of final quality, so it needs curves that go on to the budget: those of
an exhaustive study that does not stop at the goal. Where trials were stopped before the
budget, another of them might have been better; the row then says so. Source: Shallue et
al. 2019, Figure 11: a batch size appears only if its trials may run for the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import (
    Bools,
    Codes,
    Floats,
    cell_codes,
    metaparameter_names,
    require_metric,
    study_key,
    trial_codes,
)
from dps_tf.core import UserError

GOOD = 0.1
"""Share of the best value within which a trial counts as good."""


@dataclass(frozen=True)
class Budget:
    """A limit on training, in steps or in epochs; exactly one is given."""

    steps: int | None = None
    epochs: float | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.steps, self.epochs) if value is not None]
        if len(given) != 1 or not given[0] > 0:
            raise UserError(
                f"the budget has steps={self.steps!r} and epochs={self.epochs!r}; give "
                "one of them, and more than 0."
            )

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps} steps"
        return f"{self.epochs:g} epochs"

    def in_steps(self, studies: pd.DataFrame) -> Codes:
        """Returns the budget of each cell in whole steps."""
        if self.steps is not None:
            return np.full(len(studies), self.steps, np.int64)
        assert self.epochs is not None
        examples = self.epochs * studies["training_examples"].to_numpy(np.float64)
        batch = studies["batch_size"].to_numpy(np.float64)
        return np.asarray(np.floor(examples / batch + 1e-9), np.int64)


def best_under_budget(
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    curves: pd.DataFrame,
    budget: Budget,
    metric: str,
    direction: str = "minimize",
) -> pd.DataFrame:
    """Returns the best value that any trial had within the budget, one row per cell.

    Columns: those of `study_key`, budget, budget_steps, best_value, best_trial,
    best_step, is_exact (whether every trial was followed to the budget with exact
    values), reason (why it is not, or why there is no value), good_trials (whose best
    value lies within GOOD of the best) and for each metaparameter its value of the best
    trial, `<name>_low` and `<name>_high` over the good trials.

    A value that is not exact is what was found, and the best can only be better. The
    direction is `minimize` or `maximize`.

    Raises:
        UserError: the curves lack the metric.
    """
    require_metric(curves, metric)
    cells = cell_codes(trials, studies)
    limit = budget.in_steps(studies)
    sign = 1.0 if direction == "minimize" else -1.0
    value, step, hidden = _best_of_trials(trials, curves, limit[cells], metric, sign)
    followed = _is_followed(studies, trials, cells, limit)
    followed |= _ends_divergent(trials, curves, metric)
    rows = []
    for cell, study in enumerate(studies.to_dict("records")):
        mine = np.flatnonzero(cells == cell)
        row = {"reason": _obstacle(study, limit[cell], value[mine]), "good_trials": 0}
        if not row["reason"]:
            best = mine[np.argmin(value[mine])]
            good = mine[value[mine] <= value[best] + GOOD * abs(value[best])]
            row = {
                "best_value": sign * value[best],
                "best_step": step[best],
                "reason": _doubt(value[best], hidden[mine], followed[mine]),
                **_region(trials, best, good),
            }
        rows.append(row)
    columns = ["budget", "budget_steps", "best_value", "best_step", "is_exact"]
    columns += ["reason", "best_trial", "good_trials"]
    for name in metaparameter_names(trials):
        columns += [name, f"{name}_low", f"{name}_high"]
    found = pd.DataFrame(rows, columns=columns)
    found = found.assign(budget=str(budget), budget_steps=limit)
    found["is_exact"] = found["reason"] == ""
    identity = studies[study_key(studies)].reset_index(drop=True)
    frame = pd.concat([identity, found], axis=1)
    whole = ["best_trial", "best_step", "good_trials"]
    return frame.astype({name: "Int64" for name in whole})


def _obstacle(study: Mapping[Any, Any], limit: int, value: Floats) -> str:
    """Returns why a cell has no value within the budget; empty if it has one."""
    if limit == 0 and study["training_examples"] == 0:
        return "its number of training examples is not known"
    if study["step_budget"] < limit:
        return "its step budget is smaller"
    if not np.isfinite(value.min(initial=np.inf)):
        return "no trial has an exact value within the budget"
    return ""


def _region(trials: pd.DataFrame, best: int, good: Codes) -> dict[str, object]:
    """Returns the best trial, and the ranges of metaparameters of the good ones."""
    found = {"best_trial": trials["trial"].iloc[best], "good_trials": len(good)}
    for name in metaparameter_names(trials):
        column = trials[name].to_numpy(np.float64)
        found[name] = column[best]
        found[f"{name}_low"] = column[good].min()
        found[f"{name}_high"] = column[good].max()
    return found


def _doubt(best: float, hidden: Floats, followed: Bools) -> str:
    """Returns why another value may be better than the best one; empty if none may."""
    stopped = int((~followed).sum())
    if stopped:
        return f"{stopped} of {len(followed)} trials were stopped before the budget"
    if (hidden < best).any():
        return "evaluations that stopped early may hide a better value"
    return ""


def _best_of_trials(
    trials: pd.DataFrame, curves: pd.DataFrame, limit: Codes, metric: str, sign: float
) -> tuple[Floats, Floats, Floats]:
    """Returns per trial: its least value, the step of it, and the least of its bounds.

    Values are multiplied by the sign, so that least is best; infinity is none.
    """
    codes = trial_codes(curves, trials)
    steps = curves["step"].to_numpy(np.int64)
    values = sign * curves[metric].to_numpy(np.float64)
    used = (codes >= 0) & ~np.isnan(values)
    used[used] = steps[used] <= limit[codes[used]]
    codes, steps, values = codes[used], steps[used], values[used]
    bound = curves["is_bound"].to_numpy(bool)[used] & metric.startswith("validation/")
    hidden = np.full(len(trials), np.inf)
    np.minimum.at(hidden, codes[bound], values[bound])
    codes, steps, values = codes[~bound], steps[~bound], values[~bound]
    order = np.lexsort((steps, values, codes))
    first, position = np.unique(codes[order], return_index=True)
    best, at = np.full(len(trials), np.inf), np.full(len(trials), np.nan)
    best[first] = values[order][position]
    at[first] = steps[order][position]
    return best, at, hidden


def _ends_divergent(trials: pd.DataFrame, curves: pd.DataFrame, metric: str) -> Bools:
    """Returns which trials end with a value that is not finite.

    A trial that diverged after it had met the goal is `complete`; it has no later
    values that a longer run would have shown.
    """
    codes = trial_codes(curves, trials)
    order = np.lexsort((curves["step"].to_numpy(np.int64), codes))
    order = order[codes[order] >= 0]
    last = np.zeros(len(trials))
    last[codes[order]] = curves[metric].to_numpy(np.float64)[order]
    return np.asarray(~np.isfinite(last), np.bool_)


def _is_followed(
    studies: pd.DataFrame, trials: pd.DataFrame, cells: Codes, limit: Codes
) -> Bools:
    """Returns which trials were followed to the last evaluation of the budget."""
    interval = np.maximum(studies["evaluation_interval"].to_numpy(np.int64), 1)
    last = (limit // interval * interval)[cells]
    diverged = trials["outcome"].to_numpy(object) == "infeasible"
    reached_end = trials["end_step"].to_numpy(np.int64) >= last
    return np.asarray(diverged | reached_end, np.bool_)
