"""Checks the search behind a K*: its ranges, its evaluations and its trials.

A search is wide enough if the best value of a metaparameter lies inside of its range,
and fine enough if K* is many evaluation intervals. K* is also a minimum over N trials,
and owes something to luck: the best of n, redrawn from these N with replacement, has a
distribution in closed form. With the trials in the order of their steps-to-result,
P(best of n is among the first k) = 1 - (1 - k/N)^n. Only exchangeable trials may be
redrawn.

This distribution is no confidence interval, and no weight for a fit. It is one-sided,
since no redraw can beat the observed minimum, which alone keeps 1 - (1 - 1/N)^N of the
mass at n = N: 63 % for large N. What other trials would have given is not in the data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dps_tf.analysis.tables import (
    Codes,
    Floats,
    belongs,
    metaparameter_names,
    study_key,
)
from dps_tf.core import QUASI_RANDOM, Space, UserError, is_rate

_MOST_DRAWS = 100

QUANTILES = (0.05, 0.1, 0.5, 0.9, 0.95)
"""Levels of the median and of the 80 % and 90 % intervals."""

FAR_SECOND = 0.1
"""Share of K* by which a second best trial is far: 0.14 octaves. Published K* scatter
by 0.03 to 0.25 octaves about their fits (`published.py`), so less does not matter."""


def at_boundary(
    best: pd.DataFrame, studies: pd.DataFrame, trials: pd.DataFrame, codes: Codes
) -> list[str]:
    """Returns per cell the tuned names whose best value lies at an end of its range.

    `Space.at_boundary` says which these are. A learning rate without a range has the
    range of the values tried in the cell. The names are separated by commas; empty
    where no trial reached the goal. An optimum at an end calls for a wider range and a
    repetition. `best` and `studies` have one row per cell, in the same order; `best`
    has the best trial's metaparameters and `best_trial`. `trials` are all trials, and
    `codes` the positions of their cells.
    """
    reached = best["best_trial"].notna().to_numpy(bool)
    texts = studies["space"].to_numpy(object)
    spaces = {text: Space.from_dict(json.loads(text)) for text in set(texts)}
    rates = [name for name in metaparameter_names(trials) if is_rate(name)]
    by_cell, cells = trials[rates].groupby(codes), range(len(best))
    least, greatest = by_cell.min().reindex(cells), by_cell.max().reindex(cells)
    columns = {name for space in spaces.values() for name in space.names} | set(rates)
    values = {
        name: best[name].to_numpy(np.float64)
        for name in columns
        if name in best.columns
    }
    names = []
    for position, text in enumerate(texts):
        space = spaces[text]
        point = {name: float(column[position]) for name, column in values.items()}
        at_end = list(space.at_boundary(point))
        for name in rates:
            low, high = least[name].iloc[position], greatest[name].iloc[position]
            if name not in space.names and low < high and point[name] in (low, high):
                at_end.append(name)
        names.append(",".join(at_end) if reached[position] else "")
    return names


def search_health(
    studies: pd.DataFrame, trials: pd.DataFrame, codes: Codes
) -> pd.DataFrame:
    """Returns the health of each cell's search, one row per row of `studies`.

    Columns:
        infeasible_share: diverged trials / trials; NaN without trials.
        lone_winner: see `is_lone_winner`; NA where the records cannot tell.
        first_evaluation: share of the trials that met the goal at their first
            evaluation; where it is large, an untrained network might meet it as well.
        interval_over_kstar: evaluation interval / K*, the relative resolution of K*;
            NaN without K* and for irregular evaluations.

    Args:
        studies: one row per cell.
        trials: one row per trial with `earliest` and `latest` of `with_bounds`.
        codes: position in `studies` of each trial's cell.
    """
    cells = len(studies)
    every = studies["evaluation_interval"].to_numpy(np.int64)
    interval = np.where(every > 0, every, np.nan)
    counted = pd.DataFrame(
        {
            "infeasible_share": trials["outcome"].to_numpy(object) == "infeasible",
            "first_evaluation": trials["latest"].to_numpy() <= interval[codes],
        }
    )
    shares = counted.groupby(codes).mean().reindex(range(cells))
    best = trials["latest"].groupby(codes).min().reindex(range(cells))
    # An archive may hold an evaluation at step 0 that meets the goal.
    kstar = best.where((best > 0) & np.isfinite(best))
    places = trials.groupby(codes).indices
    ends = [trials.iloc[places.get(cell, [])] for cell in range(cells)]
    alone = [
        is_lone_winner(rows["earliest"], rows["latest"], int(steps))
        for rows, steps in zip(ends, every, strict=True)
    ]
    return pd.DataFrame(
        {
            "infeasible_share": shares["infeasible_share"],
            "lone_winner": pd.array(alone, dtype="boolean"),
            "interval_over_kstar": interval / kstar,
            "first_evaluation": shares["first_evaluation"].fillna(0.0),
        }
    )


def is_lone_winner(
    earliest: ArrayLike, latest: ArrayLike, interval: int
) -> bool | None:
    """Returns whether K_(2), the second best trial, lies far above K_(1) = K*.

    Far means by more than FAR_SECOND and by more than one evaluation interval. A search
    with a lone winner found its minimum once, and could have missed it. None where the
    records cannot tell, or for one trial. Each trial's steps-to-result lies between
    `earliest` and `latest`, [N].
    """
    low = np.sort(np.asarray(earliest, np.float64))
    high = np.sort(np.asarray(latest, np.float64))
    if len(low) < 2 or not np.isfinite(high[0]):
        return None

    def limit(best: float) -> float:
        return best + max(FAR_SECOND * best, float(interval))

    if high[1] <= limit(low[0]):
        return False
    return True if low[1] > limit(high[0]) else None


def exchangeable(trials: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns the trials that were drawn independently of each other's results.

    Redrawing these stands for other draws. An oracle that learns chooses a point by the
    results of earlier trials: its trials are no sample, and have no best of n.
    """
    drawn = studies[studies["oracle"] == QUASI_RANDOM]
    return trials[belongs(trials, drawn)] if len(drawn) else trials.iloc[:0]


def probability_among_first(trials: int, draws: ArrayLike) -> Floats:
    """Returns P(best of n of N trials is among the first k), [number of n, N + 1]."""
    n = np.atleast_1d(np.asarray(draws, np.float64))[:, None]
    k = np.arange(trials + 1, dtype=np.float64)[None, :]
    return np.asarray(1.0 - (1.0 - k / trials) ** n, np.float64)


def best_of_n(
    earliest: ArrayLike,
    latest: ArrayLike | None = None,
    draws: Sequence[int] | None = None,
    *,
    quantiles: Sequence[float] = QUANTILES,
) -> tuple[Floats, Floats]:
    """Returns the least and greatest values of the quantiles of the best of n trials.

    Both are [number of n, number of quantiles], of trials redrawn from the given ones.
    The least is infinite where the goal is not reached; the greatest is above it where
    the trials at this rank were stopped before their result was known, and infinite if
    nothing bounds it.

    The k-th order statistic lies between the k-th of `earliest` and the k-th of
    `latest`, whatever the unknown results are; a quantile is one of them. Each trial's
    steps-to-result lies between `earliest` and `latest`, [N], which are equal by
    default; n is 1 .. N by default.
    """
    low = np.sort(np.asarray(earliest, np.float64))
    high = low if latest is None else np.sort(np.asarray(latest, np.float64))
    if len(low) == 0:
        raise UserError("the best of n needs at least one trial.")
    n = np.arange(1, len(low) + 1) if draws is None else np.asarray(draws)
    if len(n) == 0 or n.min() < 1:
        raise UserError("the number of draws must be at least 1.")
    reached = probability_among_first(len(low), n)
    # Rank of a quantile: the least k whose probability is not below the level; the
    # slack keeps a level that is met exactly from falling to rounding.
    levels = np.asarray(quantiles, np.float64) - 1e-12
    rank = np.stack([np.argmax(reached >= level, axis=1) for level in levels], axis=1)
    return low[rank - 1], high[rank - 1]


def best_of_n_table(bounded: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns the distribution of the best of n for every cell of quasi-random points.

    Columns: `study_key`, draws (n), mass_on_minimum (share of the distribution
    on the observed minimum), and for each quantile `q05`, its least value (NaN: not
    reached within the budget), and `q05_open`, true where this is a lower bound only. n
    runs over 1 .. N, or for more than a hundred trials over a hundred numbers that are
    evenly spaced in log n.
    """
    tables = []
    drawn = exchangeable(bounded, studies)
    names = study_key(bounded)
    for cell, trials in drawn.groupby(names, sort=False):
        draws = _draws(len(trials))
        low, high = best_of_n(trials["earliest"], trials["latest"], draws)
        columns: dict[str, Any] = dict(zip(names, cell, strict=True))
        columns["draws"] = draws
        columns["mass_on_minimum"] = probability_among_first(len(trials), draws)[:, 1]
        for level, least, greatest in zip(QUANTILES, low.T, high.T, strict=True):
            name = f"q{round(100 * level):02d}"
            columns[name] = np.where(np.isinf(least), np.nan, least)
            columns[f"{name}_open"] = least < greatest
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _draws(trials: int) -> list[int]:
    """Returns 1 .. N, or _MOST_DRAWS numbers from 1 to N, evenly spaced in log n."""
    if trials <= _MOST_DRAWS:
        return list(range(1, trials + 1))
    return [int(n) for n in np.unique(np.geomspace(1, trials, _MOST_DRAWS).round())]
