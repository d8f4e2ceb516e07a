"""What error a budget of steps or of epochs buys at each batch size.

Larger batches win under a step budget, smaller ones under an epoch budget. The question
is one of final quality, so it needs curves that go on to the budget: those of an
exhaustive study that does not stop at the goal. Where trials were stopped before the
budget, another of them might have been better; the row then says so.

Source: Shallue et al. 2019, Figure 11: a batch size appears only if its trials may run
for the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dps_tf.analysis.tables import (
    Codes,
    Floats,
    cell_codes,
    metaparameter_names,
    metric_names,
    study_key,
    trial_codes,
)
from dps_tf.core.errors import UserError, near_matches

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
    values), reason (why it
    is not, or why there is no value), good_trials (whose best value lies within GOOD of
    the best) and for each metaparameter its value of the best trial, `<name>_low` and
    `<name>_high` over the good trials: the region of good metaparameters.

    A value that is not exact is what was found, and the best can only be better.

    Args:
        studies: one row per cell.
        trials: one row per trial.
        curves: one row per evaluation.
        budget: of steps or epochs.
        metric: column of `curves`.
        direction: `minimize` or `maximize`.

    Raises:
        UserError: the curves lack the metric.
    """
    names = metric_names(curves)
    if metric not in names:
        raise UserError(
            f"the curves hold no metric {metric!r}: {near_matches(metric, names)}."
        )
    cells = cell_codes(trials, studies)
    limit = budget.in_steps(studies)
    sign = 1.0 if direction == "minimize" else -1.0
    value, step, hidden = _best_of_trials(trials, curves, limit[cells], metric, sign)
    followed = _is_followed(studies, trials, cells, limit)
    followed |= _ends_divergent(trials, curves, metric)
    rows = []
    for cell in range(len(studies)):
        mine = np.flatnonzero(cells == cell)
        found = _cell_row(value[mine], step[mine], hidden[mine], followed[mine])
        if limit[cell] == 0 and studies["training_examples"].iloc[cell] == 0:
            found = _without("its number of training examples is not known")
        elif studies["step_budget"].iloc[cell] < limit[cell]:
            found = _without("its step budget is smaller")
        place = found.pop("place")
        row = {"budget": str(budget), "budget_steps": int(limit[cell])}
        if isinstance(found["best_value"], float):
            found["best_value"] *= sign
        rows.append({**row, **found, **_region(trials, mine, place, value[mine])})
    frame = pd.concat(
        [studies[study_key(studies)].reset_index(drop=True), pd.DataFrame(rows)], axis=1
    )
    whole = ["best_trial", "best_step", "good_trials"]
    return frame.astype({name: "Int64" for name in whole})


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


def _ends_divergent(
    trials: pd.DataFrame, curves: pd.DataFrame, metric: str
) -> NDArray[np.bool_]:
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
) -> NDArray[np.bool_]:
    """Returns which trials were followed to the last evaluation of the budget."""
    interval = np.maximum(studies["evaluation_interval"].to_numpy(np.int64), 1)
    last = (limit // interval * interval)[cells]
    diverged = trials["outcome"].to_numpy(object) == "infeasible"
    reached_end = trials["end_step"].to_numpy(np.int64) >= last
    return np.asarray(diverged | reached_end, np.bool_)


def _without(reason: str) -> dict[str, object]:
    return {
        "best_value": np.nan,
        "best_step": None,
        "is_exact": False,
        "reason": reason,
        "place": None,
    }


def _cell_row(
    value: Floats, step: Floats, hidden: Floats, followed: NDArray[np.bool_]
) -> dict[str, object]:
    if len(value) == 0 or not np.isfinite(value.min()):
        return _without("no trial has an exact value within the budget")
    place = int(np.argmin(value))
    stopped = int((~followed).sum())
    reason = ""
    if stopped:
        reason = f"{stopped} of {len(value)} trials were stopped before the budget"
    elif (hidden < value[place]).any():
        reason = "evaluations that stopped early may hide a better value"
    return {
        "best_value": float(value[place]),
        "best_step": int(step[place]),
        "is_exact": reason == "",
        "reason": reason,
        "place": place,
    }


def _region(
    trials: pd.DataFrame, rows: Codes, place: object, value: Floats
) -> dict[str, object]:
    """Returns the best trial, and the ranges of metaparameters of the good ones."""
    names = metaparameter_names(
        trials.drop(columns=["earliest", "latest"], errors="ignore")
    )
    if not isinstance(place, int):
        empty = [column for n in names for column in (n, f"{n}_low", f"{n}_high")]
        found: dict[str, object] = {"best_trial": None, "good_trials": 0}
        return {**found, **dict.fromkeys(empty, np.nan)}
    best = value[place]
    good = rows[value <= best + GOOD * abs(best)]
    found = {
        "best_trial": int(trials["trial"].iloc[rows[place]]),
        "good_trials": len(good),
    }
    for name in names:
        column = trials[name].to_numpy(np.float64)
        found[name] = float(column[rows[place]])
        found[f"{name}_low"] = float(column[good].min())
        found[f"{name}_high"] = float(column[good].max())
    return found
