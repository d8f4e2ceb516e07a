from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr
from scipy.stats import multivariate_normal, norm, t

from dps_tf.analysis.law import (
    Estimate,
    Observations,
    exponent_of,
    fit_law,
    integration,
    misfits,
    posteriors,
    prior,
)
from dps_tf.analysis.law.likelihood import log_likelihood
from dps_tf.core import UserError

B = 2.0 ** np.arange(8)


@pytest.mark.parametrize("c1,c2", [(1e4, 300.0), (1e5, 5e3), (500.0, 1e3), (30.0, 1.0)])
def test_exact_curves_give_back_c1_and_c2(c1, c2):
    fit = fit_law(Observations.of(B, c1 / B + c2))
    # The floor of the residual scale is 0.7 %.
    assert fit.c1.low <= c1 <= fit.c1.high and fit.c1.high < 2 * fit.c1.low
    assert fit.c2.low <= c2 <= fit.c2.high
    assert fit.c1.value == pytest.approx(c1, rel=0.12)
    assert fit.c2.value == pytest.approx(c2, rel=0.06)
    assert fit.rms < 0.01


def test_exact_steps_give_the_t_interval_of_least_squares():
    """With a flat prior of both logarithms, the posterior is a t distribution."""
    rng = np.random.default_rng(0)
    steps = (1e5 / B + 4000) * np.exp2(rng.normal(0, 0.05, 8))
    fit = fit_law(Observations.of(B, steps))
    point = np.log2([fit.c1.value, fit.c2.value])
    share = 2 ** (point[0] - np.log2(B)) / (2 ** (point[0]) / B + 2 ** point[1])
    jacobian = np.stack([share, 1 - share], axis=1)
    curve = np.log2(2 ** point[0] / B + 2 ** point[1])
    scale = np.sqrt(np.sum((np.log2(steps) - curve) ** 2) / 6)
    covariance = scale**2 * np.linalg.inv(jacobian.T @ jacobian)
    half = t.ppf(0.975, 6) * np.sqrt(np.diag(covariance))
    for estimate, middle, width in zip((fit.c1, fit.c2), point, half, strict=True):
        ends = np.log2([estimate.low, estimate.high])
        np.testing.assert_allclose(ends, [middle - width, middle + width], atol=0.03)


def test_bracket_probability_is_that_of_the_normal_distribution():
    observations = Observations.of([1, 4, 8], [200, 100, np.inf], [100, 0, 50])
    mean = np.log2([170.0, 90.0, 60.0])
    value = log_likelihood(observations, mean, np.full(3, 0.3**2), np.array(0.0))
    p = norm.cdf((np.log2(200 / 170)) / 0.3) - norm.cdf(np.log2(100 / 170) / 0.3)
    q = norm.cdf(np.log2(100 / 90) / 0.3) * norm.cdf(np.log2(60 / 50) / 0.3)
    assert value == pytest.approx(np.log(p * q), rel=1e-10)


@pytest.mark.parametrize("seeds", [2, 3])
def test_how_shifts_of_seeds_differ_is_integrated_out(seeds):
    """Exact K* are normal; their covariance is that of shifts that add up to 0."""
    steps = np.array([200.0, 260, 230, 110, 130, 150]).reshape(2, 3)[:, :seeds]
    of = np.broadcast_to(np.arange(seeds), steps.shape)
    sizes = np.broadcast_to([[1.0], [4.0]], steps.shape)
    observations = Observations.of(sizes.ravel(), steps.ravel(), seed=of.ravel())
    mean, scale, shift = np.log2(np.where(sizes == 1, 220, 120)).ravel(), 0.2, 0.16
    found = log_likelihood(
        observations, mean, np.full(mean.shape, scale**2), np.array(shift)
    )
    contrast = np.eye(seeds)[of.ravel()] - 1 / seeds
    covariance = scale**2 * np.eye(len(mean)) + shift**2 * contrast @ contrast.T
    wanted = multivariate_normal.logpdf(np.log2(steps).ravel(), mean, covariance)
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("interval", [1.25, 1.05])
def test_brackets_of_two_seeds_are_those_of_their_shift(interval):
    """A plain sum over what two seeds differ by."""
    high = np.array([200.0, 260, 110, 135, 80, 88])
    observations = Observations.of(
        [1, 1, 4, 4, 9, 9], high, high / interval, seed=[0, 1] * 3
    )
    mean, scale, tau = np.log2([210.0, 210, 115, 115, 80, 80]), 0.06, 0.1
    d = np.linspace(-1, 1, 20_001)
    density = norm.pdf(d, 0, tau / 2**0.5)
    for k, sign in enumerate([1, -1] * 3):
        ends = np.log2([high[k] / interval, high[k]])[:, None] - mean[k] - sign * d
        density = density * np.diff(ndtr(ends / scale), axis=0)[0]
    found = log_likelihood(observations, mean, np.full(6, scale**2), np.array(tau))
    assert found == pytest.approx(np.log(density.sum() * (d[1] - d[0])), abs=0.03)


def simulated(seed):
    """Returns a curve with brackets and bounds, at 4 to 14 batch sizes."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(4, 15))
    sizes = 2.0 ** np.sort(rng.choice(15, number, replace=False))
    c2 = 2 ** rng.uniform(7, 12)
    c1 = c2 * 2 ** rng.uniform(1, 11)
    scatter = 2 ** rng.uniform(-5, -1.5)
    steps = (c1 / sizes + c2) * np.exp2(rng.normal(0, scatter, number))
    interval = 2 ** rng.uniform(3, 7)
    steps = np.ceil(steps / interval) * interval
    low = steps - interval
    if rng.random() < 0.5:
        low[-1] = 0.0
    if rng.random() < 0.3 and number > 4:
        low[0], steps[0] = max(low[0], 1.0), np.inf
    return Observations.of(sizes, steps, low)


def of_seeds(shift, scatter, seeds, interval=0.0):
    """Returns K* of several seeds at five batch sizes."""
    rng, rows = np.random.default_rng(seeds), []
    for seed, at in enumerate(np.linspace(-shift, shift, seeds)):
        noise = at + rng.normal(0, scatter, 5)
        steps = (1e5 / 4.0 ** np.arange(5) + 900) * np.exp2(noise)
        rows += zip(4.0 ** np.arange(5), steps, [seed] * 5, strict=True)
    sizes, steps, seed = np.transpose(rows)
    low = steps * (1 - interval) if interval else None
    return Observations.of(sizes, steps, low, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("shift,scatter,seeds", [(0.3, 0.03, 2), (0.1, 0.1, 3)])
def test_the_posterior_of_seeds_is_the_one_that_is_stated(shift, scatter, seeds):
    """A plain sum over level, shape, scale and share, shifts in the covariance."""
    observations = of_seeds(shift, scatter, seeds)
    [found] = posteriors([observations])
    middle, sizes = np.log2(observations.high), np.log2(observations.batch_size)
    shape, level = np.meshgrid(
        np.linspace(5.8, 7.8, 100), np.linspace(5, 15, 500), indexing="ij"
    )
    curve = np.log2(np.exp2(shape - sizes[:, None, None]) + 1)
    off = middle[:, None, None] - level - curve
    over = 2.0 ** (level - middle.min())
    log_prior = np.log(over) - 2 * np.log1p(over)
    weights = np.full(shape.shape, -np.inf)
    for scale in np.geomspace(0.01, 0.6, 24):
        for root in (np.arange(24) + 0.5) / 24:
            # Of 1 less the share: so there are many shares near 1.
            tau = scale * np.sqrt(1 / root**2 - 1)
            total = log_prior + np.log(root)
            for seed in range(seeds):
                own = off[observations.seed == seed]
                both = scale**2 + len(own) * tau**2
                square = (own**2).sum(0) - tau**2 / both * own.sum(0) ** 2
                total -= 0.5 * (square / scale**2 + np.log(both))
                total -= (len(own) - 1) * np.log(scale)
            weights = np.logaddexp(weights, total)
    weights = np.exp(weights - weights.max())
    sums = {"c1": shape + level, "c2": level, "critical_batch_size": shape}
    for name, values in sums.items():
        order = np.argsort(values.ravel(), kind="stable")
        below = np.cumsum(weights.ravel()[order]) / weights.sum()
        wanted = np.interp([0.025, 0.5, 0.975], below, values.ravel()[order])
        ends = np.log2(getattr(found, name).quantiles([0.025, 0.5, 0.975]))
        np.testing.assert_allclose(ends, wanted, atol=0.04 * np.ptp(wanted))


def brute_force(observations, around):
    """Returns quantiles of c1, c2 and c1/c2 from a plain sum over a dense grid.

    `around` is a posterior that says where to look, and nothing else.
    """
    b, m = (
        np.log2(observations.batch_size),
        np.log2(observations.middle[~observations.is_bound].min()),
    )
    with np.errstate(divide="ignore"):
        low, high = np.log2(observations.low), np.log2(observations.high)
    values, weights = [], []
    first = (np.log2(observations.middle) + b)[~observations.is_bound].min() - 6
    for log_scale in np.linspace(np.log(0.01), np.log(2.0), 73)[1::2]:
        scale = np.exp(log_scale)
        near = np.argmin(np.abs(np.log(around.lattice.scale) - log_scale))
        axes = []
        for axis, limit in ((around.log2_c1, first), (around.log2_c2, m - 16)):
            ends = axis[near][[0, -1]]
            wide = 0.12 * (ends[1] - ends[0])
            edges = np.linspace(max(ends[0] - wide, limit), ends[1] + wide, 131)
            axes.append((edges[1:] + edges[:-1]) / 2)
        c1, c2 = np.meshgrid(*axes, indexing="ij")
        total = c2 * np.log(2) - 2 * np.log1p(2.0 ** (c2 - m))
        for i in range(len(b)):
            curve = np.log2(2.0 ** (c1 - b[i]) + 2.0**c2)
            p = ndtr((high[i] - curve) / scale) - ndtr((low[i] - curve) / scale)
            total += np.log(np.maximum(p, 1e-300))
        cell = np.log((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))
        values.append(np.stack([c1, c2, c1 - c2]).reshape(3, -1))
        weights.append(total.ravel() + cell)
    values, weights = np.concatenate(values, axis=1), np.concatenate(weights)
    weights = np.exp(weights - weights.max())
    kept = weights > 1e-9
    rng, found = np.random.default_rng(0), []
    for row in values[:, kept]:
        # A random place within the cells, so that columns of cells are no steps.
        order = np.argsort(row + rng.uniform(-0.5, 0.5, len(row)) * 1e-3)
        below = np.cumsum(weights[kept][order])
        places = (below - weights[kept][order] / 2) / below[-1]
        found.append(np.interp([0.025, 0.975], places, row[order]))
    return np.array(found)


def ends_of(found):
    names = ("c1", "c2", "critical_batch_size")
    levels = [0.025, 0.975]
    return np.log2([getattr(found, name).quantiles(levels) for name in names])


@pytest.mark.slow
def test_the_posterior_is_the_one_that_is_stated():
    worst = []
    for observations in map(simulated, range(8)):
        [found] = posteriors([observations])
        wanted, ends = brute_force(observations, found), ends_of(found)
        width = wanted[:, 1:] - wanted[:, :1]
        worst.append(np.abs((ends - wanted) / width).max())
    # The plain sum is no better than that itself.
    assert np.median(worst) < 0.01 and max(worst) < 0.03, np.round(worst, 3)


@pytest.mark.parametrize(
    "observations",
    [simulated(0), of_seeds(0.2, 0.04, 2, 0.05), of_seeds(0.5, 0.02, 3)],
)
def test_doubling_the_resolution_moves_no_end_by_a_hundredth_of_the_interval(
    observations, monkeypatch
):
    one = ends_of(posteriors([observations])[0])
    monkeypatch.setattr(integration, "_RESOLUTION", (56, 40, 80, 16))
    two = ends_of(posteriors([observations])[0])
    assert (one != two).any()
    assert np.abs((one - two) / (two[:, 1:] - two[:, :1])).max() < 0.01


def test_without_a_plateau_c2_is_open_towards_zero():
    rng = np.random.default_rng(1)
    steps = 1e6 / B * np.exp2(rng.normal(0, 0.05, 8))
    fit = fit_law(Observations.of(B, steps))
    assert not fit.plateau_resolved and fit.slope_resolved
    assert fit.c2.low == 0 and np.isfinite(fit.c2.high)
    assert fit.critical_batch_size.high == np.inf
    assert fit.to_json()["critical_batch_size"]["high"] is None


def test_a_flat_curve_leaves_c1_open_towards_zero():
    rng = np.random.default_rng(1)
    fit = fit_law(Observations.of(B, 1000 * np.exp2(rng.normal(0, 0.05, 8))))
    assert not fit.slope_resolved and fit.plateau_resolved
    assert fit.c1.low == 0 and fit.critical_batch_size.low == 0


def test_scaling_the_batch_sizes_scales_c1_only():
    steps = (1e5 / B + 4000) * np.exp2(np.random.default_rng(0).normal(0, 0.05, 8))
    one = fit_law(Observations.of(B, steps, steps - 50))
    two = fit_law(Observations.of(1024 * B, steps, steps - 50))
    assert two.c1.value == pytest.approx(1024 * one.c1.value, rel=1e-2)
    assert two.c2.low == pytest.approx(one.c2.low, rel=1e-2)


def test_band_contains_the_curve_and_narrows_with_the_level():
    steps = (1e5 / B + 4000) * np.exp2(np.random.default_rng(0).normal(0, 0.05, 8))
    fit = fit_law(Observations.of(B, steps))
    low, high = fit.band(B)
    assert (low < fit.steps(B)).all() and (fit.steps(B) < high).all()
    half_low, half_high = fit_law(Observations.of(B, steps), level=0.5).band(B)
    assert (half_low > low).all() and (half_high < high).all()


def test_three_points_are_enough_and_say_little():
    fit = fit_law(Observations.of([1, 16, 256], [1e4, 1100.0, 420.0]))
    assert fit.c2.high / max(fit.c2.low, 1.0) > 2


@pytest.mark.parametrize(
    "arguments,message",
    [
        (([1, 2], [10, 5]), "at least 3 batch sizes"),
        (([1, 1, 1, 2], [10, 11, 12, 5]), "at least 3 batch sizes"),
    ],
)
def test_too_few_points_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        fit_law(Observations.of(*arguments))


@pytest.mark.parametrize(
    "arguments,message",
    [
        (([1, 2, 4], [10, -5, 3]), "steps_to_result is -5 in row 2"),
        (([0, 2, 4], [10, 5, 3]), "batch_size is 0 in row 1"),
        (([1, 2, 4], [10, np.nan, 3]), "steps_to_result is nan"),
        (([1, 2, 4], [10, 5, 3], [9, 5, 2]), "bracket_low is 5 in row 2"),
        (([1, 2, 4], [10, 5]), "3, 2, 2 and 2 values"),
    ],
)
def test_impossible_observations_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Observations.of(*arguments)


def results_table(**columns):
    return pd.DataFrame(
        {
            "batch_size": [8, 16, 32, 64],
            "steps_to_result": pd.array([800, 400, None, 300], dtype="Int64"),
            "bracket_low": pd.array([700, 300, None, 0], dtype="Int64"),
            "steps_low": pd.array([800, 350, None, 100], dtype="Int64"),
            "steps_bound": ["", ">= 350, <= 400", "> 1000", ">= 100, <= 300"],
            "step_budget": 1049,
            "evaluation_interval": 100,
            **columns,
        }
    )


def test_what_is_only_bounded_stays_in_a_fit_as_a_bound():
    observations = Observations.from_results(results_table())
    assert list(observations.batch_size) == [8, 16, 32, 64]
    assert list(observations.low) == [700, 300, 1000, 0]
    assert list(observations.high) == [800, 400, np.inf, 300]
    assert list(observations.is_bound) == [False, False, True, True]
    assert observations.batch_sizes == 2


def test_a_winner_at_the_end_of_its_range_is_a_bound():
    ends = results_table(at_boundary=["learning_rate", "", "", None])
    observations = Observations.from_results(ends)
    assert list(observations.low) == [0, 300, 1000, 0]


def test_a_cell_in_which_every_trial_diverged_is_left_out():
    diverged = results_table(steps_bound=["", "", "", ""])
    assert list(Observations.from_results(diverged).batch_size) == [8, 16, 64]


def test_bounds_move_a_fit_only_where_they_contradict_it():
    sizes, steps = 2.0 ** np.arange(9), 1e5 / 2.0 ** np.arange(9) + 300
    steps[:8] *= np.exp2(np.random.default_rng(0).normal(0, 0.05, 8))
    alone = fit_law(Observations.of(sizes[:8], steps[:8]))

    def with_last(low, high):
        lows = [*[np.nan] * 8, low]
        return fit_law(Observations.of(sizes, [*steps[:8], high], lows))

    agrees = with_last(0.5 * steps[8], np.inf)
    assert agrees.c2.value == pytest.approx(alone.c2.value, rel=0.05)
    assert np.isnan(agrees.residuals[8]) and np.isfinite(agrees.rms)
    assert with_last(0.0, 0.8 * steps[8]).c2.value < 0.95 * alone.c2.value
    assert with_last(1.3 * steps[8], np.inf).c2.value > 1.05 * alone.c2.value


def test_a_cell_that_is_known_to_be_noisy_weighs_less():
    steps = 1e5 / B + 3000
    steps[-1] *= 1.4
    plain = fit_law(Observations.of(B, steps))
    noise = [*[0.0] * 7, 0.5]
    weighted = fit_law(Observations.of(B, steps, noise=noise))
    assert abs(weighted.c2.value - 3000) < 0.5 * abs(plain.c2.value - 3000)
    with pytest.raises(UserError, match="noise is -1"):
        Observations.of(B, steps, noise=[-1.0] * 8)


FOUR = np.array([8, 32, 128, 512.0]), np.array([2600, 1400, 624, 440.0])


def test_upper_ends_do_not_hang_on_the_largest_scale_thought_possible(monkeypatch):
    sizes, steps = FOUR
    ends = []
    for ceiling in (1.0, 2.0, 4.0):
        ends_of_scale = (np.log(0.01), np.log(ceiling))
        monkeypatch.setattr(integration, "_LOG_SCALES", ends_of_scale)
        fit = fit_law(Observations.of(sizes, steps, 0.95 * steps))
        ends.append((fit.c1.high, fit.c2.high))
    # A prior flat in c2 had 15,000, 19,000 and 218,000 as upper ends at such sizes.
    # In octaves, between ceilings that differ by a factor of four; the plain sum above
    # moves by 0.19 and 0.28.
    assert np.ptp(np.log2(ends), axis=0).max() < 0.25
    assert fit.is_short and not fit_law(Observations.of(B, 1e5 / B + 300)).is_short


def test_prior_of_c2_is_proper_and_has_the_least_k_star_as_its_median():
    observations = Observations.of(B, 1e5 / B + 300)
    log2_c2 = np.linspace(-30, 50, 20_001)
    weight = np.exp(prior.log_prior_of_c2(log2_c2, observations))
    median = log2_c2[np.searchsorted(np.cumsum(weight) / weight.sum(), 0.5)]
    assert 2**median == pytest.approx(observations.high.min(), rel=0.01)
    assert weight[-1] / weight.max() < 1e-10 and weight[0] / weight.max() < 1e-10


def test_prediction_is_wider_than_the_band_and_its_share_of_new_studies_is_right():
    rng = np.random.default_rng(0)
    sizes, new, inside = 2.0 ** np.arange(0, 16, 2), np.array([32.0, 2.0**17]), []
    for _ in range(60):
        fit = fit_law(
            Observations.of(sizes, (1e5 / sizes + 900) * np.exp2(rng.normal(0, 0.1, 8)))
        )
        low, high = fit.prediction(new)
        band = fit.band(new)
        assert (low < band[0]).all() and (band[1] < high).all()
        steps = (1e5 / new + 900) * np.exp2(rng.normal(0, 0.1, 2))
        inside.append((low < steps) & (steps < high))
    # Standard error of a share of 95 % over 60 sweeps: 3 %.
    assert (np.mean(inside, axis=0) > 0.86).all()


def nesterov():
    """K* that fall 45 times, two of them bounds."""
    return Observations.of(
        [8, 32, 128, 512, 2048], [4320, 1160, 312, 160, 95], [4240, 1130, 304, 0, 0]
    )


def test_bounds_count_for_what_they_say():
    fit = fit_law(nesterov())
    assert fit.slope_resolved and fit.c1.low > 0


def test_a_k_star_that_falls_opens_the_end_of_c2_once():
    # The mass behind the decision falls from 99.4 to 97.4 %, past 98.75 %.
    sizes, steps = [4, 8, 16, 32, 64, 256], [2200, 1200, 500, 300, 200, 90]
    intervals = np.array([200, 200, 100, 50, 25, 90, 12])
    resolved = []
    for at_128 in range(97, 87, -1):
        high = np.array([*steps, at_128], float)
        fit = fit_law(Observations.of([*sizes, 128], high, high - intervals))
        resolved.append(fit.plateau_resolved)
    assert resolved[0] and not resolved[-1]
    assert resolved == sorted(resolved, reverse=True)


@pytest.mark.parametrize(
    "steps,message",
    [
        ([100, 120, 150, 200, 300, 500], "K\\* rises by"),
        ([6400, 3200, 51200, 800, 400, 200], "octaves from the fit"),
    ],
)
def test_misfits_are_said(steps, message):
    fit = fit_law(Observations.of(2.0 ** np.arange(6), np.array(steps, float)))
    assert any(re.search(message, sentence) for sentence in misfits(fit).values())


def test_an_exponent_that_is_not_1_is_found_and_c1_over_c2_averaged_over_it():
    sizes = 2.0 ** np.arange(0, 20, 2)
    rng = np.random.default_rng(0)
    steps = (1e5 / sizes**0.7 + 300) * np.exp2(rng.normal(0, 0.05, 10))
    fit = fit_law(Observations.of(sizes, steps))
    true = (1e5 / 300) ** (1 / 0.7)
    assert fit.exponent.low < 0.7 < fit.exponent.high < 1
    assert fit.critical_averaged.low < true < fit.critical_averaged.high
    assert fit.critical_batch_size.high < true
    assert any("exponent of B is 0." in text for text in misfits(fit).values())
    both = {"a": fit.observations, "b": Observations.of(sizes, 2 * steps)}
    together = Estimate.of(exponent_of(both))
    assert together.high - together.low < fit.exponent.high - fit.exponent.low


def test_a_curve_of_the_law_has_no_caution_and_scatter_of_half_an_octave_neither():
    sizes = 2.0 ** np.arange(14)
    steps = 1e5 / sizes + 100
    assert misfits(fit_law(Observations.of(sizes, steps, 0.9 * steps))) == {}
    for octaves in (0.6, 1.2):
        steps[6] = (1e5 / sizes[6] + 100) * 2**octaves
        far = misfits(fit_law(Observations.of(sizes, steps, 0.9 * steps)))
        assert ("far" in far) == (octaves > 1)


@pytest.mark.parametrize(
    "observations",
    [Observations.of(B, 1e5 / B + 400, 1e5 / B + 350), of_seeds(0.3, 0.05, 2)],
)
def test_draws_are_those_of_the_posterior(observations):
    found = fit_law(observations).posterior
    draws = found.draws(4000)
    levels = [0.025, 0.5, 0.975]
    drawn = {"c1": draws.c1, "c2": draws.c2, "steps": draws.steps(64.0)}
    laws = {"c1": found.c1, "c2": found.c2, "steps": found.steps(64.0)}
    for name, values in drawn.items():
        ends = np.log2(laws[name].quantiles(levels))
        np.testing.assert_allclose(
            np.log2(np.quantile(values, levels)), ends, atol=0.035 * np.ptp(ends)
        )
    assert (found.draws(4000).c1 == draws.c1).all()


def test_seeds_of_a_curve_share_a_shift_that_c1_and_c2_know_of():
    seeds = of_seeds(0.3, 0.03, 3)
    apart, together = fit_law(replace(seeds, seed=0 * seeds.seed)), fit_law(seeds)
    # c1/c2 does not feel the shift, and is known much better for it.
    assert together.critical_batch_size.octaves < apart.critical_batch_size.octaves / 2
    assert together.c2.octaves > 2 * together.critical_batch_size.octaves / 3
    # Each slice has a grid of its own, and next to nothing at its rim.
    density = together.posterior.log_density
    density = density - density.max(axis=(1, 2), keepdims=True)
    assert max(density[:, [0, -1]].max(), density[:, :, [0, -1]].max()) < -10
