"""Whether nominal 95 % intervals hold the truth in 92 to 98 % of simulated sweeps.

Each sweep has its own c1 and c2, log-uniform: c2 from 150 to 5,000 steps, that is 1.5
to 50 evaluation intervals, and c1/c2 from 16 to 1,024. For one fixed law whose plateau
is a few evaluations, no method can promise 95 %: all plateau points then share one
bracket, and its whole width is known or it is not; measured there, coverage is 90 to
100 %.
"""

from __future__ import annotations

import numpy as np
import pytest

from dps_tf.analysis.law import Observations, fit_law
from tests.analysis.coverage import (
    CASES,
    DESIGNS,
    doubted,
    hardest_law,
    held,
    most_doubted,
)
from tests.analysis.sweeps import first_passage, minimum_factor, sweep, sweep_at_edge

BATCH_SIZES = 2.0 ** np.arange(0, 16, 2)


SIZES = {4: 2.0 ** np.array([2, 5, 8, 11]), 14: 2.0 ** np.arange(14)}
"""Few and many batch sizes, by their number."""


def shares(observe, sweeps, seed=0, factor=None):
    """Returns the shares of sweeps whose intervals hold f c1, f c2 and c1/c2.

    Args:
        observe: (generator, c1, c2) to observations.
        sweeps: their number.
        seed: of the generator.
        factor: f, by default that of a minimum over trials.
    """
    rng = np.random.default_rng(seed)
    covered = np.zeros((sweeps, 3), bool)
    factor = minimum_factor() if factor is None else factor
    for i in range(sweeps):
        c2 = 2 ** rng.uniform(np.log2(150), np.log2(5000))
        c1 = c2 * 2 ** rng.uniform(4, 10)
        fit = fit_law(observe(rng, c1, c2))
        truth = (factor * c1, factor * c2, c1 / c2)
        estimates = (fit.c1, fit.c2, fit.critical_batch_size)
        for k, (true, found) in enumerate(zip(truth, estimates, strict=True)):
            covered[i, k] = found.low <= true <= found.high
    return covered.mean(axis=0)


def coverage(sweeps, interval, seed=0, sizes=BATCH_SIZES):
    """Returns the shares for sweeps of `sweeps.sweep`."""

    def observe(rng, c1, c2):
        steps = sweep(rng, c1, c2, sizes, interval)
        return Observations.of(sizes, steps, steps - interval if interval else None)

    return shares(observe, sweeps, seed)


@pytest.mark.slow
@pytest.mark.parametrize("interval", [100, 0])
def test_intervals_cover_in_91_to_99_percent_of_many_sweeps(interval):
    found = coverage(150, interval)
    assert (found >= 0.91).all() and (found <= 0.995).all(), found


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 14])
def test_intervals_cover_at_four_and_at_fourteen_batch_sizes(number):
    # Of 60 intervals 53 or more hold in 99 of 100 cases; were they of 80 %, in seven.
    assert (coverage(60, interval=100, sizes=SIZES[number]) >= 0.88).all()


@pytest.mark.slow
def test_winners_at_an_edge_are_bounds_and_their_values_would_mislead():
    def observe(as_bounds):
        def observations(rng, c1, c2):
            steps, at_end = sweep_at_edge(rng, c1, c2, BATCH_SIZES)
            low = np.where(at_end & as_bounds, 0.0, steps - 100)
            return Observations.of(BATCH_SIZES, steps, low)

        return observations

    ignored = shares(observe(False), 30)
    assert ignored[1] < 0.8  # c2: the plateau looks higher than it is.
    assert (shares(observe(True), 60) >= 0.88).all()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_what_all_batch_sizes_share_moves_c1_and_c2_and_not_their_ratio(share):
    """`share` is the correlation that `repeats.noise_of_search` measures."""

    def observe(rng, c1, c2):
        # Trial i has the same seeds at every batch size.
        together = np.sqrt(share) * rng.standard_normal()
        own = np.sqrt(1 - share) * rng.standard_normal(len(BATCH_SIZES))
        steps = (c1 / BATCH_SIZES + c2) * np.exp2(0.15 * (together + own))
        steps = np.ceil(steps / 100) * 100
        return Observations.of(BATCH_SIZES, steps, steps - 100)

    found = shares(observe, 60, factor=1.0)
    assert found[2] >= 0.88
    if share == 0.0:
        assert (found >= 0.88).all()
    if share == 0.6:
        # As documents say: the common factor is in no interval of c1 and c2.
        assert (found[:2] < 0.8).all()


@pytest.mark.slow
def test_curves_that_go_up_and_down_leave_c2_and_shorten_what_c1_knows():
    def observe(rng, c1, c2):
        crossing = (c1 / BATCH_SIZES + c2) * np.exp2(rng.normal(0, 0.05, 8))
        steps = np.array([first_passage(rng, k, 100, 0.05) for k in crossing])
        return Observations.of(BATCH_SIZES, steps, steps - 100)

    found = shares(observe, 60, factor=1.0)
    assert found[1] >= 0.85 and found[2] >= 0.75
    # Small batches are evaluated most often before they cross, and are lucky earlier.
    assert found[0] < 0.9


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Gumbel", "t, 3 degrees", "winners at edges", "bounds"]
)
def test_intervals_hold_where_the_law_holds(name):
    # Standard error of a share of 95 % over 50 curves: 3 %. The law itself is above.
    assert np.mean([*held(name, curves=50)]) >= 0.88


@pytest.mark.slow
def test_intervals_averaged_over_the_exponent_hold_whatever_it_is():
    # Each takes an integral over the exponent. Of 112 intervals 100 or more hold in 99
    # of 100 cases; were they of 80 %, in one.
    shares = [np.mean([*held(name, 16, averaged=True)]) for name in CASES]
    assert np.mean(shares) >= 0.89 and min(shares) >= 0.75, shares


@pytest.mark.slow
def test_one_in_ten_sweeps_of_the_law_is_doubted_and_most_with_another_exponent():
    # Were 25 % of 48 curves doubted, 6 of 100 such tests would pass; at 9 %, 94.
    assert np.mean([doubted(name, 1.0, 16) for name in DESIGNS]) <= 0.16
    # Were half of 24 curves doubted, three in a thousand would.
    assert np.mean([doubted(name, 0.7, 8) for name in DESIGNS]) >= 0.79


@pytest.mark.parametrize("name", DESIGNS)
def test_no_rule_with_one_false_doubt_in_ten_doubts_more(name):
    # The likelihood ratio is the best rule between two curves: its share, by draws.
    curve, law, scatter = hardest_law(name, 0.7)
    rng = np.random.default_rng(0)
    noise = rng.normal(0, scatter, (20_000, len(law)))
    ratio = [
        ((k - law) ** 2 - (k - curve) ** 2).sum(1) for k in (law + noise, curve + noise)
    ]
    best = np.mean(ratio[1] > np.quantile(ratio[0], 0.9))
    assert abs(best - most_doubted(name, 0.7)) < 0.015
    # No law of a grid is nearer to the curve.
    sizes = np.asarray(DESIGNS[name]().batch_size, float)
    c1, c2 = np.meshgrid(np.linspace(0, 14, 281), np.linspace(-3, 2, 101))
    laws = np.log2(2 ** c1[..., None] / sizes + 2 ** c2[..., None])
    nearest = np.linalg.norm(laws - curve, axis=-1).min()
    assert nearest >= 0.999 * np.linalg.norm(law - curve)


def unresolved(observe, name, curves=100):
    """Returns the share of simulated curves in which a constant is not resolved."""
    rng = np.random.default_rng(0)
    return 1 - np.mean([getattr(fit_law(observe(rng)), name) for _ in range(curves)])


@pytest.mark.slow
def test_a_fall_with_bounds_is_resolved_and_a_flat_curve_has_no_slope():
    sizes = 2.0 ** np.array([3, 5, 7, 9, 11])

    def falling(rng):
        steps = (36_000 / sizes + 80) * np.exp2(rng.normal(0, 0.15, 5))
        steps = np.ceil(steps / 8) * 8
        return Observations.of(sizes, steps, np.where(sizes > 200, 0, steps - 8))

    def flat(rng):
        steps = 1000 * np.exp2(rng.normal(0, 0.15, 5))
        return Observations.of(sizes, steps, steps - 10)

    assert unresolved(falling, "slope_resolved", 40) < 0.05
    # Standard error of a share of 5 % over 100 curves: 2 %.
    assert unresolved(flat, "slope_resolved") >= 0.93
