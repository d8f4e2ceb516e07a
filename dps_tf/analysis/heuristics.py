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
    RowsByCell,
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


def best_rates(studies: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the best effective learning rate of each cell, with its spread.

    Columns: `study_key`, effective_learning_rate (of the best trial), effective_low,
    effective_high and spread_open. The spread is over the trials known to have reached
    the goal by (1 + WITHIN) K*. The spread is open where further trials might belong to
    it: trials that were stopped, or are known by bounds only. NaN stands for a cell in
    which no trial reached the goal. Trials have the bounds of `reduce.with_bounds`.
    """
    require(trials, BOUNDS, "trials (see with_bounds)")
    rated = trials.assign(rate=effective_learning_rate(trials)).sort_values("trial")
    by_cell = RowsByCell(rated, studies, ["rate", *BOUNDS])
    rows = []
    for cell in studies.to_dict("records"):
        found = by_cell.of(cell)
        limit = (1 + WITHIN) * found["latest"].min()
        if not np.isfinite(limit):
            rows.append((np.nan, np.nan, np.nan, False))
            continue
        good = found["latest"] <= limit
        rates, first = found["rate"][good], found["latest"].to_numpy().argmin()
        may_be = (found["earliest"] <= limit) & ~good
        best = found["rate"].iloc[int(first)]
        rows.append((best, rates.min(), rates.max(), bool(may_be.any())))
    names = ["effective_learning_rate", "effective_low", "effective_high"]
    spreads = pd.DataFrame(rows, columns=[*names, "spread_open"])
    cells = studies[study_key(studies)].reset_index(drop=True)
    return pd.concat([cells, spreads], axis=1)


def rules(studies: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the rate that each rule gives, one row per cell and rule.

    Columns: `study_key`, rule, anchor (the smallest batch size of the curve
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
