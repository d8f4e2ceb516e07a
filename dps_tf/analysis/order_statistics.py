"""How much the best of n trials owes to luck.

K* is a minimum over N trials. Redrawing n of these N with replacement, the best of n
has a distribution in closed form: with the trials in the order of their
steps-to-result, P(best of n is among the first k) = 1 - (1 - k/N)^n.

Only exchangeable trials may be redrawn, see `exchangeable`.

What this is not: a confidence interval, or a weight for a fit. It is one-sided, since
no redraw can beat the observed minimum, which alone keeps 1 - (1 - 1/N)^N of the mass
at n = N: 63 % for large N. What other trials would have given is not in the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dps_tf.analysis.tables import Floats, belongs, curve_key
from dps_tf.core.errors import UserError
from dps_tf.core.workload import QUASI_RANDOM

QUANTILES = (0.05, 0.1, 0.5, 0.9, 0.95)
"""Median, 80 % and 90 % intervals."""

FAR_SECOND = 0.1
"""A tenth of K*, 0.14 octaves: published K* curves scatter by 0.03 to 0.25 octaves
about their fits (`published.py`), so less is not worth drawing for."""


def exchangeable(trials: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns the trials whose order says nothing of their results.

    Redrawing them stands for other draws. An oracle that learns chooses a point after
    the trials before it: its trials are no sample, and their best of n is not defined.

    Args:
        trials: any table with one row per trial.
        studies: one row per cell.
    """
    drawn = studies[studies["oracle"] == QUASI_RANDOM]
    return trials[belongs(trials, drawn)] if len(drawn) else trials.iloc[:0]


def mass_on_minimum(trials: int) -> float:
    """Returns the share of the best-of-N distribution that lies on the observed best.

    >>> round(mass_on_minimum(100), 3)
    0.634
    """
    return 1.0 - (1.0 - 1.0 / trials) ** trials


def probability_among_first(trials: int, draws: ArrayLike) -> Floats:
    """Returns P(best of n is among the first k), [number of n, trials + 1].

    Args:
        trials: N.
        draws: n, each at least 1.
    """
    n = np.atleast_1d(np.asarray(draws, np.float64))[:, None]
    k = np.arange(trials + 1, dtype=np.float64)[None, :]
    return np.asarray(1.0 - (1.0 - k / trials) ** n, np.float64)


@dataclass(frozen=True)
class BestOfN:
    """The distribution of the best of n, for several n.

    Attributes:
        draws: n, [r].
        quantiles: levels, [q].
        low: [r, q], least value each quantile can have; infinity: not reached.
        high: [r, q], greatest value; above `low` where the trials at this rank were
            stopped before their result was known, infinity if nothing bounds it.
        mass_on_minimum: share of the distribution on the observed minimum, [r].
    """

    draws: Floats
    quantiles: tuple[float, ...]
    low: Floats
    high: Floats
    mass_on_minimum: Floats

    def to_frame(self) -> pd.DataFrame:
        """Returns one row per n.

        Columns: draws, mass_on_minimum, and for each quantile `q05`, its least value
        (NaN: not reached within the budget), and `q05_open`, true where this is a
        lower bound only.
        """
        columns: dict[str, object] = {
            "draws": self.draws.astype(np.int64),
            "mass_on_minimum": self.mass_on_minimum,
        }
        for j, level in enumerate(self.quantiles):
            low, high = self.low[:, j], self.high[:, j]
            name = f"q{round(100 * level):02d}"
            columns[name] = np.where(np.isinf(low), np.nan, low)
            columns[f"{name}_open"] = low < high
        return pd.DataFrame(columns)


def best_of_n(
    earliest: ArrayLike,
    latest: ArrayLike | None = None,
    draws: Sequence[int] | None = None,
    *,
    quantiles: Sequence[float] = QUANTILES,
) -> BestOfN:
    """Returns the distribution of the best of n trials redrawn from the given ones.

    The k-th order statistic lies between the k-th of `earliest` and the k-th of
    `latest`, whatever the unknown results are; a quantile is one of them.

    Args:
        earliest: [N] least steps-to-result of each trial, infinity for never.
        latest: [N] greatest steps-to-result; `earliest` if all are known.
        draws: n; 1 .. N by default.
        quantiles: levels in (0, 1).
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
    return BestOfN(
        draws=n.astype(np.float64),
        quantiles=tuple(quantiles),
        low=low[rank - 1],
        high=high[rank - 1],
        mass_on_minimum=reached[:, 1],
    )


def is_lone_winner(
    earliest: ArrayLike, latest: ArrayLike, interval: int
) -> bool | None:
    """Returns whether K_(2), the second best trial, lies far above K_(1) = K*.

    Far: by more than FAR_SECOND and by more than one evaluation interval. A search
    whose winner is alone found its minimum once, and might not have. None where the
    records cannot tell, or for one trial.

    Args:
        earliest: [N] least steps-to-result of each trial.
        latest: [N] greatest steps-to-result.
        interval: steps between evaluations.
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


def repeats(results: pd.DataFrame) -> pd.DataFrame:
    """Returns the spread of K* over repeats of a study under other seeds.

    One row per cell but for its seed: `repeats` (number of seeds), `reached` (seeds
    with a K* that is no mere bound), and the least, median and greatest of these in
    `steps_min`, `steps_median`, `steps_max`. This spread, unlike the best of n on
    redrawing, is two-sided; with few seeds it is a range and no interval.

    Args:
        results: one row per cell, of `reduce.results`.
    """
    keys = [
        name for name in [*curve_key(results), "batch_size", "goal"] if name != "seed"
    ]
    exact = results["steps_to_result"].where(results["steps_bound"] == "")
    frame = results[keys].assign(steps=exact.astype("Float64").astype(np.float64))
    grouped = frame.groupby(keys, sort=True)["steps"]
    spread = grouped.agg(
        repeats="size",
        reached="count",
        steps_min="min",
        steps_median="median",
        steps_max="max",
    )
    return spread.reset_index()
