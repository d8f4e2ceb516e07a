"""Do 95 % intervals of c1/c2 hold, and how often is an exponent of 1 doubted?

`python -m tests.analysis.coverage [CURVES]` prints the tables of
docs/pages/explanation/statistics.md, for 100 curves of each case (in 15 minutes);
`law_coverage_test.py` looks at fewer.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from scipy.stats import norm

from dps_tf.analysis.fit_table import observations_by_curve
from dps_tf.analysis.law import Observations, fit_law, misfits
from dps_tf.core import UserError
from tests.packaging.source_tree import SOURCE_TREE


def gumbel(rng, number):
    """Returns the logarithms of minima: a tail of lucky searches."""
    return -0.15 * rng.gumbel(size=number)


def normal(rng, number):
    return rng.normal(0, 0.15, number)


def heavy(rng, number):
    """Returns t-distributed scatter: one K* in fifty lies far off."""
    return 0.12 * rng.standard_t(3, number)


CASES = {
    "law": (1.0, normal),
    "power 0.9": (0.9, normal),
    "power 1.1": (1.1, normal),
    "Gumbel": (1.0, gumbel),
    "t, 3 degrees": (1.0, heavy),
    "winners at edges": (1.0, normal),
    "bounds": (1.0, normal),
}


def case(name, rng):
    """Returns a curve of a case at 4 to 14 batch sizes, and its c1/c2."""
    power, scatter = CASES[name]
    number = int(rng.integers(4, 15))
    sizes = 2.0 ** np.linspace(0, 14, number).round()
    c2, critical = 2 ** rng.uniform(7.5, 12), 2 ** rng.uniform(4, 10)
    true = c2 * (critical / sizes) ** power + c2
    steps = true * np.exp2(scatter(rng, number))
    at_edge = np.zeros(number, bool)
    if name == "winners at edges":
        at_edge = rng.random(number) < 0.25
    if name == "bounds":
        at_edge[-1] = True
    if at_edge.any():
        # A wider space would have given as little as half of it.
        steps *= np.exp2(np.where(at_edge, rng.uniform(0, 1, number), 0.0))
    steps = np.ceil(steps / 50) * 50
    low = np.where(at_edge, 0.0, steps - 50)
    if name == "bounds":
        # A budget that is set beforehand, at the batch size that needs most steps.
        budget = true[0] * 2 ** rng.uniform(-1, 0.5)
        if steps[0] > budget and number > 4:
            low[0], steps[0] = budget, np.inf
    return Observations.of(sizes, steps, low), critical


def shipped(name, curve):
    """Returns a curve of a recorded table."""
    table = pd.read_csv(SOURCE_TREE / "gin_configs" / f"{name}.csv")
    return list(observations_by_curve(table).values())[curve]


DESIGNS = {
    "quickstart": lambda: Observations.of(
        [4, 8, 16, 32, 64, 128, 256, 512, 1024],
        [304, 128, 76, 50, 32, 29, 21, 24, 22],
        [288, 120, 72, 48, 31, 28, 20, 23, 21],
    ),
    "first sweep of `new`": lambda: Observations.of(
        [8, 32, 128, 400], [300, 110, 60, 45], [290, 108, 59, 44]
    ),
    "lee2021/rivals": lambda: shipped("lee2021/rivals", 0),
}
"""Sweeps of which others are simulated: their batch sizes, evaluation intervals, c1, c2
and scatter."""


def doubted(name, power, curves):
    """Returns the share of simulated sweeps like one whose exponent is doubted."""
    rng = np.random.default_rng(0)
    like = DESIGNS[name]()
    fit, sizes = fit_law(like), like.batch_size
    true = fit.c2.value * ((fit.critical_batch_size.value / sizes) ** power + 1)
    every = np.where(np.isfinite(like.interval), like.interval, 0)
    every = np.maximum(1, np.where(every > 0, every, np.nanmedian(like.interval)))
    doubts = []
    for _ in range(curves):
        steps = true * np.exp2(rng.normal(0, max(fit.scale.value, 0.05), len(sizes)))
        steps = np.ceil(steps / every) * every
        found = fit_law(Observations.of(sizes, steps, steps - every))
        doubts.append("exponent" in misfits(found))
    return float(np.mean(doubts))


def hardest_law(name, power):
    """Returns (curve of a design with a power, the law nearest to it, scatter).

    Curves are binary logarithms of steps over c2, which no rule knows.
    """
    like = DESIGNS[name]()
    fit, sizes = fit_law(like), np.asarray(like.batch_size, float)
    critical = fit.critical_batch_size.value
    curve = np.log2((critical / sizes) ** power + 1)
    begin = [np.log2(critical), 0.0]
    nearest = least_squares(
        lambda law: curve - np.log2(2 ** law[0] / sizes + 2 ** law[1]), begin
    )
    return curve, curve - nearest.fun, max(fit.scale.value, 0.05)


def most_doubted(name, power, wrongly=0.1):
    """Returns the greatest share of sweeps that any rule can doubt (Neyman, Pearson).

    The rule may doubt a share `wrongly` of the sweeps of any law. It is told which law
    is nearest, which power it is and the scatter, and reads K* without intervals: a
    rule that has to find these does no better.
    """
    curve, law, scatter = hardest_law(name, power)
    distance = np.linalg.norm(curve - law) / scatter
    return float(norm.cdf(distance - norm.isf(wrongly)))


def held(name, curves, averaged=False):
    """Returns whether 95 % intervals of c1/c2 of curves of a case hold the truth.

    Intervals are those averaged over the exponent where that is asked. Curves without a
    fit, as too few of their batch sizes have more than a bound, are left out.
    """
    rng = np.random.default_rng(0)
    for _ in range(curves):
        observations, critical = case(name, rng)
        try:
            fit = fit_law(observations)
        except UserError:
            continue
        found = fit.critical_averaged if averaged else fit.critical_batch_size
        yield found.low <= critical <= found.high


def main():
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("| curves | c1/c2 holds | averaged over a |")
    print("| --- | ---: | ---: |")
    for name in CASES:
        shares = [np.mean([*held(name, curves, each)]) for each in (False, True)]
        cells = " | ".join(f"{100 * share:.0f} %" for share in shares)
        print(f"| {name} | {cells} |", flush=True)
    print("| sweeps like | doubted at exponent 1 | at 0.7 | at most at 0.7 |")
    print("| --- | ---: | ---: | ---: |")
    for name in DESIGNS:
        shares = [doubted(name, power, curves) for power in (1.0, 0.7)]
        shares.append(most_doubted(name, 0.7))
        cells = " | ".join(f"{100 * share:.0f} %" for share in shares)
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
