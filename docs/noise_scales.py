"""Does the gradient noise scale order c1/c2? Rank correlation and slope over curves.

McCandlish et al. 2018 expect the two to agree in order of magnitude. `associated` asks
how well they go together over curves of several optimizers or sparsities, within each
workload or across workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from evidence import Evidence
from scipy.stats import rankdata

from dps_tf.analysis.law import LEVEL, Distribution
from dps_tf.analysis.report.curves import curves_of, of_curve
from dps_tf.analysis.report.law import fits_of
from dps_tf.analysis.report.measurements import averaged, mean_scale
from dps_tf.analysis.tables import Floats

TABLES = (
    "optimizers/fashion_mnist_fc",
    "optimizers/text_transformer",
    "lee2021/mnist_curves",
    "lee2021/fashion_mnist_curves",
    "lee2021/cifar10_curves",
    "shallue2019/mnist_optimizers",
    "shallue2019/mnist_fc_sizes",
    "shallue2019/mnist_fc_ghosts",
    "shallue2019/text_networks",
)
"""Recorded curves along whose winners the noise scale was measured."""
REPLICATES = 8000
FEWEST = 3
"""Curves of a workload below which nothing is correlated."""
NAMES = {"rank": "rank correlation", "slope": "slope"}


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve: its noise scale in examples, and c1/c2.

    Curves of equal `group` are ranked together: table, workload and goal, and the
    optimizer where a table has many curves.
    """

    group: tuple[str, ...]
    noise: float
    critical: Distribution


def measured_curves(
    study: str, cells: pd.DataFrame, measurements: pd.DataFrame, prefix: str
) -> list[MeasuredCurve]:
    """Returns the curves of a table that have a fit and a noise scale.

    Curves that are too short alone have the joint fit of their workload. Numerator and
    denominator are averaged over the steps up to K* and divided, and the mean over the
    cells of a curve is geometric, as in the report. `measurements` have the schema
    MEASUREMENTS; `prefix` is empty for the Euclidean scale or `optimizer_`.
    """
    curves = curves_of(cells)
    averages = averaged(curves, measurements, prefix)
    found = [
        MeasuredCurve(
            (study, key.workload, key.goal, curves.labels[key].optimizer),
            mean_scale(of_curve(averages, key)),
            fit.posterior.critical_batch_size,
        )
        for key, fit in fits_of(curves).items()
    ]
    return [curve for curve in found if np.isfinite(curve.noise)]


def associated(
    curves: Sequence[MeasuredCurve], across: bool = False
) -> dict[str, tuple[float, Floats]]:
    """Returns value and replicates of `rank` and `slope`, as in NAMES.

    `rank` is Spearman's rank correlation of noise scale and c1/c2, and `slope` is the
    slope of log c1/c2 on log noise scale by least squares. The workload is a fixed
    effect: curves are ranked within a workload, and ranks and logarithms count from
    their mean within it. With one workload both are the plain statistics. `across`
    workloads all curves are ranked together. Each workload keeps its number of curves,
    so that the replicates are about these workloads, not about others.

    The value is computed from the medians of c1/c2. A replicate draws c1/c2 of every
    curve from its posterior, the curves independently, and then the curves of each
    workload with replacement. A posterior with an open end is taken as it is. Medians
    scatter by their posteriors already, and draws add to it: intervals are wide rather
    than narrow, and replicates lie nearer to 0 than the value. The noise scale is taken
    as measured. Replicates in which nothing differs are left out.

    Raises:
        ValueError: a workload has fewer than FEWEST curves, unless `across`.
    """
    random = np.random.default_rng(0)
    plain, drawn = [], []
    for group in dict.fromkeys(curve.group for curve in curves):
        own = [curve for curve in curves if curve.group == group]
        if len(own) < FEWEST and not across:
            name = " ".join(text for text in group if text)
            raise ValueError(f"{name}: {len(own)} curves, of {FEWEST} at least")
        noise = np.log2([curve.noise for curve in own])
        medians = np.log2([curve.critical.quantiles([0.5])[0] for curve in own])
        plain.append((noise[None], medians[None]))
        each = [
            random.choice(of.critical.middles, REPLICATES, p=of.critical.masses)
            for of in own
        ]
        picked = random.integers(len(own), size=(REPLICATES, len(own)))
        critical = np.take_along_axis(np.transpose(each), picked, axis=1)
        drawn.append((noise[picked], critical))
    if across:
        # Each group is x, y of [d, n]: all curves in one.
        plain, drawn = ([np.concatenate(of, axis=2)] for of in (plain, drawn))
    values, found = statistics(plain), statistics(drawn)
    return {
        name: (float(values[name][0]), found[name][np.isfinite(found[name])])
        for name in NAMES
    }


def statistics(groups: Sequence[tuple[Floats, Floats]]) -> dict[str, Floats]:
    """Returns `rank` and `slope` of each row, [d] each, over groups x, y of [d, n]."""
    raw = sum(_moments(x, y) for x, y in groups)
    ranks = sum(_moments(rankdata(x, axis=1), rankdata(y, axis=1)) for x, y in groups)
    with np.errstate(invalid="ignore", divide="ignore"):
        rank = ranks[1] / np.sqrt(ranks[0] * ranks[2])
        return {"rank": rank, "slope": raw[1] / raw[0]}


def _moments(x: Floats, y: Floats) -> Floats:
    """Returns the sums of x x, x y and y y about the means of each row, [3, d]."""
    x, y = (values - values.mean(axis=1, keepdims=True) for values in (x, y))
    return np.stack([(a * b).sum(axis=1) for a, b in ((x, x), (x, y), (y, y))])


def order(
    statistic: str,
    studies: Sequence[str],
    curves: Sequence[MeasuredCurve],
    of: str,
    across: bool = False,
) -> Evidence:
    """Returns a statistic of `associated` as evidence against 0; `of`: which scale."""
    value, replicates = associated(curves, across)[statistic]
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    p = 2 * min((replicates > 0).mean(), (replicates < 0).mean())
    within = float(np.quantile(np.abs(replicates), LEVEL))
    about = f"{NAMES[statistic]} of {of} and c1/c2 over {len(curves)} curves"
    about = f"{about}{' across workloads' * across}"
    found = value, low, high, float(p), within
    counted = {"seeds": len(curves), "replicates": "curves"}
    return Evidence(about, tuple(studies), *found, null=0, **counted)
