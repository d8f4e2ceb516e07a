"""Do 95 % intervals of c1/c2 hold, and is a caution printed where they do not?

`python -m tests.analysis.coverage [CURVES]` prints the table of
docs/pages/explanation/statistics.md, for 200 curves of each case (in 10 minutes);
`law_coverage_test.py` looks at fewer.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from dps_tf.analysis.law import Observations, fit_law, misfits
from dps_tf.core import UserError


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


class Coverage(NamedTuple):
    """Shares of curves.

    Attributes:
        held: those with an interval of c1/c2 that holds the truth.
        averaged: those where the interval averaged over the exponent does; NaN if
            `every` is false.
        cautioned: of those that are not held, those with a caution beside the fit.
        alarms: of those that are held, likewise; NaN if `every` is false.
        refused: those without a fit, as too few batch sizes have more than a bound.
    """

    held: float
    averaged: float
    cautioned: float
    alarms: float
    refused: float


def coverage_of(name, curves, every=False):
    """Returns the shares of a case; fits with an exponent for `every` curve or none."""
    rng = np.random.default_rng(0)
    held, averaged, cautions = [], [], []
    for _ in range(curves):
        observations, critical = case(name, rng)
        try:
            fit = fit_law(observations)
        except UserError:
            continue
        plain = fit.critical_batch_size
        held.append(plain.low <= critical <= plain.high)
        asked = every or not held[-1]
        cautions.append(asked and (fit.is_short or bool(misfits(fit))))
        if every:
            over_a = fit.critical_averaged
            averaged.append(over_a.low <= critical <= over_a.high)
    inside, has_caution = np.array(held), np.array(cautions)
    return Coverage(
        held=float(inside.mean()),
        averaged=float(np.mean(averaged)) if every else float("nan"),
        cautioned=float(has_caution[~inside].mean()) if not inside.all() else 1.0,
        alarms=float(has_caution[inside].mean()) if every else float("nan"),
        refused=1 - len(held) / curves,
    )


def main():
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print("| curves | c1/c2 holds | averaged over a | caution where not | where so |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in CASES:
        shares = coverage_of(name, curves, every=True)
        cells = " | ".join(f"{100 * share:.0f} %" for share in shares[:4])
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
