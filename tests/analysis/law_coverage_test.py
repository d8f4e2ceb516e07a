"""Whether nominal 95 % intervals hold the truth in 92 to 98 % of simulated sweeps.

Each sweep has its own c1 and c2, log-uniform: c2 from 150 to 5,000 steps, that is 1.5
to 50 evaluation intervals, and c1/c2 from 16 to 1,024. For one fixed law whose plateau
is a few evaluations, no method can promise 95 %: all plateau points then share one
bracket, and its whole width is known or it is not; measured there, coverage is 90 to
100 %.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from dps_tf.analysis.law import Observations, fit_law
from tests.analysis.sweeps import minimum_factor, sweep

BATCH_SIZES = 2.0 ** np.arange(0, 16, 2)


def coverage(sweeps, interval, seed=0):
    """Returns the shares of sweeps whose intervals hold f c1, f c2 and c1/c2."""
    rng = np.random.default_rng(seed)
    covered = np.zeros((sweeps, 3), bool)
    for i in range(sweeps):
        c2 = 2 ** rng.uniform(np.log2(150), np.log2(5000))
        c1 = c2 * 2 ** rng.uniform(4, 10)
        steps = sweep(rng, c1, c2, BATCH_SIZES, interval)
        low = steps - interval if interval else None
        fit = fit_law(Observations.of(BATCH_SIZES, steps, low))
        factor = minimum_factor()
        truth = (factor * c1, factor * c2, c1 / c2)
        estimates = (fit.c1, fit.c2, fit.critical_batch_size)
        for k, (true, found) in enumerate(zip(truth, estimates, strict=True)):
            covered[i, k] = found.low <= true <= found.high
    return covered.mean(axis=0)


def test_intervals_cover_in_a_hundred_sweeps():
    # Standard error of a share of 95 % over 100 sweeps: 2 %.
    assert (coverage(100, interval=100) >= 0.88).all()


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("DPS_TF_SLOW") or os.environ.get("CI")),
    reason="half a minute: runs with DPS_TF_SLOW=1 and in CI",
)
@pytest.mark.parametrize("interval", [100, 0])
def test_intervals_cover_in_92_to_98_percent_of_1000_sweeps(interval):
    shares = coverage(1000, interval)
    assert (shares >= 0.92).all() and (shares <= 0.98).all(), shares


def test_the_bracket_takes_away_the_bias_of_half_an_interval():
    rng = np.random.default_rng(0)
    c1, c2, ratios, naive = 50_000.0, 300.0, [], []
    for _ in range(40):
        steps = sweep(rng, c1, c2, BATCH_SIZES)
        with_bracket = fit_law(Observations.of(BATCH_SIZES, steps, steps - 100))
        without = fit_law(Observations.of(BATCH_SIZES, steps))
        ratios.append(with_bracket.c2.value / (minimum_factor() * c2))
        naive.append(without.c2.value / (minimum_factor() * c2))
    assert abs(np.log2(np.mean(ratios))) < 0.1
    assert np.log2(np.mean(naive)) > 0.1
