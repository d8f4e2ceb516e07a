"""Whether a rule for the learning rate would have found what the search found.

The effective learning rate is lr / (1 - momentum). The linear rule multiplies it by
B/B0 from its best value at an anchor batch size B0, the square-root rule by sqrt(B/B0).
What K* a rule would have given is read off the measured trial that is nearest to the
rule's rate; nothing is trained.

Source: Shallue et al. 2019, Figure 8 and published notebook, anchored there at the
smallest batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import (
    BOUNDS,
    Codes,
    Floats,
    cell_codes,
    curve_key,
    require,
    study_key,
)
from dps_tf.core.errors import UserError

RULES = {"linear": 1.0, "square_root": 0.5}
"""Power of B/B0 by which a rule multiplies the rate."""
WITHIN = 0.1
"""Share of K* within which a trial counts as good as the best one."""
DISTANCE = 0.5
"""Octaves between a rule's rate and the nearest trial's, beyond which there is none."""


def effective_learning_rate(trials: pd.DataFrame) -> Floats:
    """Returns lr / (1 - momentum) of each trial; lr where it has no momentum.

    A momentum that was not tuned is not in the table, and then is a constant factor.
    """
    require(trials, ["learning_rate"], "trials")
    rate = trials["learning_rate"].to_numpy(np.float64)
    if "momentum" not in trials.columns:
        return rate
    momentum = np.nan_to_num(trials["momentum"].to_numpy(np.float64), nan=0.0)
    return np.asarray(rate / (1.0 - momentum), np.float64)


@dataclass(frozen=True)
class _Trials:
    """Rows of all trials, by cell."""

    cells: Codes
    number: Codes
    rate: Floats
    earliest: Floats
    latest: Floats
    outcome: pd.Series

    @classmethod
    def of(cls, studies: pd.DataFrame, trials: pd.DataFrame) -> _Trials:
        require(trials, BOUNDS, "trials (see with_bounds)")
        return cls(
            cells=cell_codes(trials, studies),
            number=trials["trial"].to_numpy(np.int64),
            rate=effective_learning_rate(trials),
            earliest=trials["earliest"].to_numpy(np.float64),
            latest=trials["latest"].to_numpy(np.float64),
            outcome=trials["outcome"],
        )

    def in_cell(self, cell: int) -> Codes:
        """Returns the rows of a cell, in the order of the trials."""
        rows = np.flatnonzero(self.cells == cell)
        return rows[np.argsort(self.number[rows], kind="stable")]


def best_rates(
    studies: pd.DataFrame, trials: pd.DataFrame, within: float = WITHIN
) -> pd.DataFrame:
    """Returns the best effective learning rate of each cell, with its spread.

    Columns: those of `study_key`, steps_to_result, effective_learning_rate (of the best
    trial), effective_low and effective_high (over the trials known to have reached the
    goal by (1 + within) K*), trials_within (their number), spread_open (whether trials
    that were stopped, or are known by bounds only, might belong to them too). NaN where
    nobody reached the goal.

    Args:
        studies: one row per cell.
        trials: with the bounds of `trial_bounds.with_bounds`.
        within: share of K*.
    """
    table = _Trials.of(studies, trials)
    rows = []
    for cell in range(len(studies)):
        mine = table.in_cell(cell)
        best = _best_of(table, mine)
        if best is None:
            rows.append((np.nan, np.nan, np.nan, np.nan, 0, False))
            continue
        limit = (1 + within) * table.latest[best]
        good = table.latest[mine] <= limit
        rates = table.rate[mine][good]
        may_be = (table.earliest[mine] <= limit) & ~good
        rows.append(
            (
                table.latest[best],
                table.rate[best],
                rates.min(),
                rates.max(),
                int(good.sum()),
                bool(may_be.any()),
            )
        )
    names = ["steps_to_result", "effective_learning_rate", "effective_low"]
    names += ["effective_high", "trials_within", "spread_open"]
    found = pd.DataFrame(rows, columns=names)
    return pd.concat(
        [studies[study_key(studies)].reset_index(drop=True), found], axis=1
    )


def _best_of(table: _Trials, rows: Codes) -> int | None:
    """Returns the first row in the order (latest, trial), or None if none reached."""
    if len(rows) == 0 or not np.isfinite(table.latest[rows].min()):
        return None
    return int(rows[int(np.argmin(table.latest[rows]))])


def rules(
    studies: pd.DataFrame,
    trials: pd.DataFrame,
    anchor: int | None = None,
    distance: float = DISTANCE,
) -> pd.DataFrame:
    """Returns what each rule would have given, one row per cell and rule.

    Columns: those of `study_key`, rule, anchor (batch size), rule_rate, nearest_trial,
    outcome (of the nearest trial),
    steps_to_result (of that trial; NA if it did not reach the goal), steps_bound (what
    is known of a trial that was stopped), over_best (steps_to_result / K* of the
    cell). The columns of the trial are NA where none lies within the distance. Curves
    without K* at the anchor are left out.

    Args:
        studies: one row per cell.
        trials: with the bounds of `trial_bounds.with_bounds`.
        anchor: batch size B0; by default the smallest of each curve with a K*.
        distance: octaves.

    Raises:
        UserError: no curve has a K* at the anchor.
    """
    table = _Trials.of(studies, trials)
    batch = studies["batch_size"].to_numpy(np.int64)
    keys: list[dict[Any, Any]] = studies[study_key(studies)].to_dict("records")
    rows = []
    curves = studies.reset_index(drop=True).groupby(curve_key(studies), sort=False)
    for _, curve in curves:
        cells = curve.index.to_numpy(np.int64)
        best = {int(c): _best_of(table, table.in_cell(int(c))) for c in cells}
        start = _anchor_cell(batch, best, anchor)
        if start is None or (row := best[start]) is None:
            continue
        for cell in cells[np.argsort(batch[cells], kind="stable")]:
            for rule, power in RULES.items():
                growth = float(batch[cell] / batch[start]) ** power
                wanted = float(table.rate[row]) * growth
                found = _nearest(table, int(cell), wanted, distance)
                rows.append(
                    {
                        **keys[int(cell)],
                        "rule": rule,
                        "anchor": int(batch[start]),
                        "rule_rate": wanted,
                        **found,
                        "over_best": _over_best(table, found, best[int(cell)]),
                    }
                )
    if not rows:
        raise UserError(
            f"no curve has a steps-to-result at the anchor batch size {anchor}: choose "
            "one that has."
        )
    return pd.DataFrame(rows).astype(
        {"nearest_trial": "Int64", "steps_to_result": "Int64"}
    )


def _anchor_cell(
    batch: Codes, best: dict[int, int | None], anchor: int | None
) -> int | None:
    known = [cell for cell, row in best.items() if row is not None]
    if anchor is not None:
        known = [cell for cell in known if batch[cell] == anchor]
    return min(known, key=lambda cell: int(batch[cell])) if known else None


def _nearest(
    table: _Trials, cell: int, wanted: float, distance: float
) -> dict[str, object]:
    rows = table.in_cell(cell)
    octaves = np.abs(np.log2(table.rate[rows] / wanted))
    place = int(np.argmin(octaves)) if len(rows) else -1
    missing: dict[str, object] = {
        "nearest_trial": None,
        "outcome": None,
        "steps_to_result": None,
        "steps_bound": "",
    }
    if place < 0 or not octaves[place] <= distance:
        return missing
    row = int(rows[place])
    reached = bool(np.isfinite(table.latest[row]))
    low = table.earliest[row]
    stopped = not reached and bool(np.isfinite(low))
    return {
        "nearest_trial": int(table.number[row]),
        "outcome": str(table.outcome.iloc[row]),
        "steps_to_result": int(table.latest[row]) if reached else None,
        "steps_bound": f">= {int(low)}" if stopped else "",
    }


def _over_best(table: _Trials, found: dict[str, object], best: int | None) -> float:
    steps = found["steps_to_result"]
    if best is None or not isinstance(steps, int):
        return float("nan")
    return steps / float(table.latest[best])
