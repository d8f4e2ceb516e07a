"""Ratios between networks that differ in one thing, in pairs of equal seed and trial.

A network with a higher loss is not only another network: it is also at another point of
its training. So each ratio is given twice: at equal steps, and at equal training loss.
Where the two disagree, the effect depends on what is held equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from dps_tf.analysis.tables import Floats, metaparameter_names, study_key

FIRST_STEP = 100
"""First step at which networks are compared at equal steps: never initialization."""
LEVEL = 0.95
DENSITY = ("sparsity_method", "sparsity")
"""Columns in which the networks of a pair differ."""


@dataclass(frozen=True)
class PairedRatio:
    """The ratio of a quantity between two networks.

    Attributes:
        ratio: geometric mean over seeds; NaN without a pair.
        low: lower end of its interval, of a t distribution over the seeds; 0 for one.
        high: upper end; infinity for one seed.
        seeds: number of seeds, each the mean over its pairs.
        pairs: number of pairs with a step or loss in common.
    """

    ratio: float
    low: float
    high: float
    seeds: int
    pairs: int


def paired_ratio(
    treated: pd.DataFrame, reference: pd.DataFrame, quantity: str, matched: str
) -> PairedRatio:
    """Returns the ratio treated / reference, in pairs of equal seed and trial.

    Logarithms are averaged over the steps of a pair, then over the pairs of a seed; the
    seeds count as independent, since pairs of one seed share data and order. Values
    that are not positive are left out. With `matched="step"`, networks are compared at
    equal steps from FIRST_STEP on; with "loss", at equal training loss where the losses
    overlap, log-log interpolated. Measurements have the schema MEASUREMENTS.
    """
    by_seed: dict[int, list[float]] = {}
    compare = _at_steps if matched == "step" else _at_losses
    others = _logs(reference, quantity)
    for (seed, trial), one in _logs(treated, quantity).items():
        other = others.get((seed, trial))
        log_ratios = np.empty(0) if other is None else compare(one, other)
        if len(log_ratios):
            by_seed.setdefault(seed, []).append(float(np.mean(log_ratios)))
    means = [float(np.mean(values)) for values in by_seed.values()]
    pairs = sum(len(values) for values in by_seed.values())
    return _interval(means, pairs)


def paired_measurements(
    measurements: pd.DataFrame, trials: pd.DataFrame
) -> pd.DataFrame:
    """Returns the measurements of trials that have a partner, and of the partners.

    Partners differ in sparsity and its method only: one of them is dense, and their
    metaparameters are equal.
    """
    points = metaparameter_names(trials)
    cell = study_key(trials)
    with_points = measurements.merge(
        trials[[*cell, "trial", *points]], on=[*cell, "trial"], how="left"
    )
    alike = [n for n in cell if n not in ("sparsity", "sparsity_method")]
    groups = with_points.groupby([*alike, "trial", *points], dropna=False)["sparsity"]
    is_paired = (groups.transform("min") == 0) & (groups.transform("max") > 0)
    return measurements[is_paired.to_numpy()].reset_index(drop=True)


def paired_ratios(
    measurements: pd.DataFrame,
    quantities: Sequence[str] = ("smoothness", "largest_eigenvalue"),
) -> pd.DataFrame:
    """Returns the ratios of each pruned network to the dense one of the same cell.

    One row per curve, quantity and `matched`: the cell without seed, `quantity`,
    `matched`, and the fields of PairedRatio. Measurements have the schema MEASUREMENTS,
    with `loss` among the quantities for comparisons at equal loss.
    """
    context = [n for n in study_key(measurements) if n not in (*DENSITY, "seed")]
    rows: list[dict[str, object]] = []
    for values, cells in measurements.groupby(context, dropna=False):
        dense = cells[cells["sparsity"] == 0]
        pruned = cells[cells["sparsity"] > 0]
        for density, treated in pruned.groupby(list(DENSITY)):
            identity = dict(zip(context, values, strict=True))
            identity |= dict(zip(DENSITY, density, strict=True))
            rows += [
                {**identity, "quantity": quantity, "matched": matched}
                | vars(paired_ratio(treated, dense, quantity, matched))
                for quantity in quantities
                for matched in ("step", "loss")
            ]
    return pd.DataFrame(rows)


def with_theory_products(measurements: pd.DataFrame) -> pd.DataFrame:
    """Returns measurements with the products that c1 and c2 follow in the theory.

    Lee et al. 2021, section 4: c1 is proportional to Delta L beta / eps^2, and c2 to
    Delta / (eta eps). Deviation: both are taken at single steps, where the theory has
    bounds over a training. Delta is the fall of the training loss since the first
    measured step, which ought to be 0 or 1. L is the local smoothness, beta the trace
    of the gradients' covariance, eps the squared norm of the gradient, and eta the
    learning rate. mu is not measured and left out of both.

    The table has the schema MEASUREMENTS, with curvature. The quantities `theory_c1`
    and `theory_c2` follow it, for each later step at which all factors were measured
    and eps is positive.
    """
    key = [n for n in measurements.columns if n not in ("quantity", "value")]
    trial = [n for n in key if n != "step"]
    wide = measurements.pivot(index=key, columns="quantity", values="value")
    wide = wide.reset_index()
    first = wide.sort_values("step").drop_duplicates(trial)[[*trial, "step", "loss"]]
    wide = wide.merge(first, on=trial, suffixes=("", "_at_first"))
    fall = wide["loss_at_first"] - wide["loss"]
    rate = wide["rate_times_eigenvalue"] / wide["largest_eigenvalue"]
    # The estimate of eps is without bias, so that it may be negative where the gradient
    # is small: nothing is in proportion to it there.
    eps = wide["gradient_square"].where(wide["gradient_square"] > 0)
    is_later = wide["step"] > wide["step_at_first"]
    products = {
        "theory_c1": fall * wide["smoothness"] * wide["noise_trace"] / eps**2,
        "theory_c2": fall / (rate * eps),
    }
    parts = [
        wide[key].assign(quantity=name, value=value)[is_later & value.notna()]
        for name, value in products.items()
    ]
    return pd.concat([measurements, *parts], ignore_index=True)


def _logs(rows: pd.DataFrame, quantity: str) -> dict[Any, Floats]:
    """Returns step, log loss and log quantity, [steps, 3], by seed and trial.

    The log loss is NaN where no loss was measured.
    """
    positive = rows[rows["value"] > 0]
    names = ["seed", "trial", "step"]
    losses = positive[positive["quantity"] == "loss"][[*names, "value"]]
    values = positive[positive["quantity"] == quantity][[*names, "value"]]
    joined = values.merge(losses, on=names, how="left", suffixes=("", "_of_loss"))
    by_pair: dict[Any, Floats] = {}
    for pair, rows_of_pair in joined.sort_values(names).groupby(["seed", "trial"]):
        table = rows_of_pair[["step", "value_of_loss", "value"]].to_numpy(np.float64)
        table[:, 1:] = np.log(table[:, 1:])
        by_pair[pair] = table
    return by_pair


def _at_steps(one: Floats, other: Floats) -> Floats:
    """Returns the log ratios at the steps at which both were measured."""
    steps, i, j = np.intersect1d(one[:, 0], other[:, 0], return_indices=True)
    differences = one[i, 2] - other[j, 2]
    return np.asarray(differences[steps >= FIRST_STEP], np.float64)


def _at_losses(one: Floats, other: Floats) -> Floats:
    """Returns the log ratios at all losses of both that are in the range of both."""
    curves = []
    for rows in (one, other):
        usable = rows[(rows[:, 0] > 0) & np.isfinite(rows[:, 1])]
        curves.append(usable[np.argsort(usable[:, 1]), 1:])
    if any(len(curve) < 2 for curve in curves):
        return np.empty(0)
    low = max(curve[0, 0] for curve in curves)
    high = min(curve[-1, 0] for curve in curves)
    grid = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    grid = grid[(grid >= low) & (grid <= high)]
    values = [np.interp(grid, curve[:, 0], curve[:, 1]) for curve in curves]
    return np.asarray(values[0] - values[1], np.float64)


def _interval(means: Sequence[float], pairs: int) -> PairedRatio:
    seeds = len(means)
    if not seeds:
        return PairedRatio(math.nan, 0.0, math.inf, 0, 0)
    middle = float(np.mean(means))
    if seeds == 1:
        return PairedRatio(math.exp(middle), 0.0, math.inf, 1, pairs)
    error = float(np.std(means, ddof=1)) / math.sqrt(seeds)
    width = float(stats.t.ppf((1 + LEVEL) / 2, seeds - 1)) * error
    return PairedRatio(
        math.exp(middle),
        math.exp(middle - width),
        math.exp(middle + width),
        seeds,
        pairs,
    )
