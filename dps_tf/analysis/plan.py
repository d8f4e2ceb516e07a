"""What the rest of a sweep will cost: predicted from what has been measured.

The work of a cell is its trials times the steps of each. In a race those follow the law
K* = c1/B + c2, as each trial runs about as long as the first finishers need; so the
logarithm of the steps of a trial is modelled by the law plus noise, curve by curve, and
the curves of a sweep are alike: their log c1 and log c1/c2 scatter about common means
(a hierarchical model, by Laplace's approximation, averaged over the spreads of SPREADS
and the noises of NOISES). Cells that are done teach about the cells that wait, of the
same curve most. Seconds come from measured step times.

`tests/analysis/plan_test.py` replays recorded sweeps: its 80 % intervals hold 70 to
90 % of the true costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import Codes, Floats, curve_key, curve_label
from dps_tf.core import UserError

LEVEL = 0.8
SPREADS = (0.15, 0.3, 0.6, 1.0)
"""Octaves by which log2 c1 and log2 c1/c2 of curves of one sweep scatter."""
NOISES = (0.1, 0.2, 0.35)
"""Octaves by which the steps of a trial scatter about the law of its curve."""
_MEANS = (15.0, 7.5)
_DEVIATIONS = (6.0, 2.0)
"""Of the means of log2 c1 (32,768 examples, within a factor of 64) and of log2 c1/c2
(181, within a factor of four), before anything is measured: most workloads of Shallue
et al. 2019 and Lee et al. 2021."""
_ROUNDS = 30
_LARGEST_STEP = 3.0  # Octaves, of one round of Gauss-Newton.
_DRAWS = 4_000


def work_of(studies: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Returns the work of closed cells: curve, batch_size, trials, steps (of all)."""
    keys = curve_key(studies)
    closed = studies[studies["closed"].astype(bool)]
    names = [curve_label(row, keys) for _, row in closed.iterrows()]
    cells = closed[[*keys, "batch_size"]].assign(curve=names)
    joined = trials.merge(cells, on=[*keys, "batch_size"])
    groups = joined.groupby(["curve", "batch_size"], sort=False)["end_step"]
    found = groups.agg(trials="size", steps="sum").reset_index()
    return found[found["steps"] > 0].reset_index(drop=True)


def predicted_steps(
    done: pd.DataFrame, waiting: pd.DataFrame, level: float = LEVEL
) -> tuple[pd.DataFrame, Floats]:
    """Returns the steps of one trial in cells that wait, and draws of them.

    The table has one row per cell of `waiting`, in its order: curve, batch_size, steps
    (the median), low and high. The draws are [d, cells]: the cells of one draw go
    together, so that sums over cells have intervals too.

    Args:
        done: cells that were measured: curve, batch_size, trials, steps (of all
            trials); see `work_of`. Cells of other sweeps teach as further curves.
        waiting: curve and batch_size.
        level: nominal coverage of the intervals.

    Raises:
        UserError: nothing was measured.
    """
    if done.empty:
        raise UserError(
            "nothing has been measured from which the steps of a trial could be "
            "predicted: name a sweep or a table of a similar workload with --like."
        )
    curves = list(dict.fromkeys([*done["curve"], *waiting["curve"]]))
    fits = [
        _fit(_Cells.of(done, curves), len(curves), spread, noise)
        for spread in SPREADS
        for noise in NOISES
    ]
    evidence = np.array([fit.log_evidence for fit in fits])
    weight = np.exp(evidence - evidence.max())
    rng = np.random.default_rng(0)  # The same records give the same plan.
    chosen = rng.multinomial(_DRAWS, weight / weight.sum())
    cells = _Cells.of(waiting, curves)
    draws = np.exp2(
        np.concatenate(
            [fit.draws(cells, n, rng) for fit, n in zip(fits, chosen, strict=True)]
        )
    )
    ends = [0.5, (1 - level) / 2, (1 + level) / 2]
    middle, low, high = np.quantile(draws, ends, axis=0)
    table = waiting[["curve", "batch_size"]].reset_index(drop=True)
    return table.assign(steps=middle, low=low, high=high), draws


@dataclass(frozen=True)
class _Cells:
    """Curves and batch sizes of cells, and log2 of the steps of a trial if known."""

    curve: Codes
    log2_batch: Floats
    log2_steps: Floats

    @classmethod
    def of(cls, table: pd.DataFrame, curves: Sequence[str]) -> _Cells:
        places = {curve: i for i, curve in enumerate(curves)}
        steps = np.full(len(table), np.nan)
        if "steps" in table.columns:
            steps = np.log2((table["steps"] / table["trials"]).to_numpy(np.float64))
        return cls(
            np.array([places[curve] for curve in table["curve"]], np.int64),
            np.log2(table["batch_size"].to_numpy(np.float64)),
            steps,
        )

    def expected(self, parameters: Floats) -> tuple[Floats, Floats]:
        """Returns log2 steps [n] by the law, and their derivative [n, p].

        Parameters: the means of log2 c1 and of log2 c1/c2, then the differences of
        both from the means, curve by curve.
        """
        first = 2 + 2 * self.curve
        log2_c1 = parameters[0] + parameters[first]
        falling = log2_c1 - self.log2_batch
        plateau = log2_c1 - parameters[1] - parameters[first + 1]
        steps = np.logaddexp2(falling, plateau)
        share = np.exp2(plateau - steps)
        rows = np.arange(len(self.curve))
        derivative = np.zeros((len(rows), len(parameters)))
        derivative[:, 0] = derivative[rows, first] = 1
        derivative[:, 1] = derivative[rows, first + 1] = -share
        return steps, derivative


@dataclass(frozen=True)
class _Fit:
    """A normal approximation of the posterior under one spread and one noise."""

    mean: Floats
    covariance: Floats
    noise: float
    log_evidence: float

    def draws(self, cells: _Cells, number: int, rng: np.random.Generator) -> Floats:
        """Returns draws of log2 of the steps of a trial, noise included, [d, cells]."""
        steps, derivative = cells.expected(self.mean)
        covariance = derivative @ self.covariance @ derivative.T
        covariance += self.noise**2 * np.eye(len(steps))
        return rng.multivariate_normal(steps, covariance, number, method="eigh")


def _fit(cells: _Cells, curves: int, spread: float, noise: float) -> _Fit:
    """Returns the posterior's mode and curvature, by Gauss-Newton."""
    mean = np.r_[_MEANS, np.zeros(2 * curves)]
    deviation = np.r_[_DEVIATIONS, np.full(2 * curves, spread)]
    precision = np.diag(deviation**-2)
    found = mean.copy()
    found[0] = float(np.median(cells.log2_steps + cells.log2_batch))
    for _ in range(_ROUNDS):
        steps, derivative = cells.expected(found)
        curvature = precision + derivative.T @ derivative / noise**2
        slope = precision @ (mean - found)
        slope += derivative.T @ (cells.log2_steps - steps) / noise**2
        change = np.linalg.solve(curvature, slope)
        change *= min(1.0, _LARGEST_STEP / max(np.abs(change).max(), 1e-9))
        found = found + change
        if np.abs(change).max() < 1e-6:
            break
    steps, derivative = cells.expected(found)
    covariance = np.linalg.inv(precision + derivative.T @ derivative / noise**2)
    residual = (cells.log2_steps - steps) / noise
    distance = (found - mean) / deviation
    evidence = -0.5 * (residual @ residual + distance @ distance)
    evidence -= len(steps) * np.log(noise) + np.log(deviation).sum()
    evidence += 0.5 * np.linalg.slogdet(covariance)[1]
    return _Fit(
        np.asarray(found, np.float64),
        np.asarray(covariance, np.float64),
        noise,
        float(evidence),
    )
