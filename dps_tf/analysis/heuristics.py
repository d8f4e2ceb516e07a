"""The best learning rate of each cell, beside the rates that scaling rules give.

The effective learning rate is lr / (1 - momentum). The linear rule multiplies it by
B/B0 from its best value at an anchor batch size B0, the square-root rule by sqrt(B/B0).

Source: Shallue et al. 2019, Figure 8 and published notebook, anchored there at the
smallest batch size.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import (
    BOUNDS,
    Floats,
    cell_codes,
    curve_key,
    require,
    study_key,
)

RULES = {"linear": 1.0, "square_root": 0.5}
"""Power of B/B0 by which a rule multiplies the rate."""
WITHIN = 0.1
"""Share of K* within which a trial counts as good as the best one: K* to 1.1 K*."""


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


def _trials_of_cells(studies: pd.DataFrame, trials: pd.DataFrame) -> list[pd.DataFrame]:
    """Returns the trials of each cell in their order, with their effective `rate`."""
    require(trials, BOUNDS, "trials (see with_bounds)")
    codes = cell_codes(trials, studies)
    order = np.lexsort((trials["trial"].to_numpy(np.int64), codes))
    ordered = trials.assign(rate=effective_learning_rate(trials)).iloc[order]
    edges = np.searchsorted(codes[order], np.arange(1, len(studies)))
    return [ordered.iloc[rows] for rows in np.split(np.arange(len(trials)), edges)]


def _best_of(trials: pd.DataFrame) -> pd.Series | None:
    """Returns the trial that reached the goal first, or None if no trial did."""
    latest = trials["latest"].to_numpy(np.float64)
    if not np.isfinite(latest).any():
        return None
    return trials.iloc[int(np.argmin(latest))]


def best_rates(
    studies: pd.DataFrame, trials: pd.DataFrame, within: float = WITHIN
) -> pd.DataFrame:
    """Returns the best effective learning rate of each cell, with its spread.

    Columns: those of `study_key`, steps_to_result, effective_learning_rate (of the best
    trial), effective_low and effective_high (over the trials known to have reached the
    goal by (1 + within) K*), trials_within (their number), spread_open (whether trials
    that were stopped, or are known by bounds only, might belong to them too). NaN where
    no trial reached it. Trials have the bounds of `reduce.with_bounds`; `within` is
    a share of K*.
    """
    rows = []
    for cell_trials in _trials_of_cells(studies, trials):
        best = _best_of(cell_trials)
        if best is None:
            rows.append((np.nan, np.nan, np.nan, np.nan, 0, False))
            continue
        limit = (1 + within) * best["latest"]
        good = cell_trials["latest"] <= limit
        rates = cell_trials.loc[good, "rate"].to_numpy(np.float64)
        may_be = (cell_trials["earliest"] <= limit) & ~good
        rows.append(
            (
                best["latest"],
                best["rate"],
                rates.min(),
                rates.max(),
                int(good.sum()),
                bool(may_be.any()),
            )
        )
    names = ["steps_to_result", "effective_learning_rate", "effective_low"]
    names += ["effective_high", "trials_within", "spread_open"]
    spreads = pd.DataFrame(rows, columns=names)
    return pd.concat(
        [studies[study_key(studies)].reset_index(drop=True), spreads], axis=1
    )


def rules(studies: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the rate that each rule gives, one row per cell and rule.

    Columns: those of `study_key`, rule, anchor (the smallest batch size of the curve
    with a K*, from which the rule counts), rule_rate. Curves without a K* are left out.
    Trials have the bounds of `reduce.with_bounds`.
    """
    names = ["anchor", "anchor_rate"]
    best = best_rates(studies, trials)
    with_rate = best.dropna(subset="effective_learning_rate")
    first = with_rate.sort_values("batch_size").drop_duplicates(curve_key(with_rate))
    first = first.rename(
        columns={"batch_size": "anchor", "effective_learning_rate": "anchor_rate"}
    )
    keys = curve_key(studies)
    both = studies[study_key(studies)].merge(first[[*keys, *names]], on=keys)
    growth = both["batch_size"] / both["anchor"]
    by_rule = [
        both.assign(rule=rule, rule_rate=both["anchor_rate"] * growth**power)
        for rule, power in RULES.items()
    ]
    return pd.concat(by_rule, ignore_index=True).drop(columns="anchor_rate")
