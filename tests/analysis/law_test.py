from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, t

from dps_tf.analysis.law import Observations, fit_law
from dps_tf.analysis.law.likelihood import (
    flat_curve,
    law_curve,
    log_likelihood,
    no_plateau_curve,
    power_curve,
)
from dps_tf.core.errors import UserError

B = 2.0 ** np.arange(8)


@pytest.mark.parametrize("c1,c2", [(1e4, 300.0), (1e8, 5e3), (50.0, 1e3), (3.0, 1.0)])
@pytest.mark.parametrize("loss", ["gaussian", "soft_l1"])
def test_exact_curves_give_back_c1_and_c2(c1, c2, loss):
    fit = fit_law(Observations.of(B, c1 / B + c2), loss)
    assert fit.c1.value == pytest.approx(c1, rel=1e-5)
    assert fit.c2.value == pytest.approx(c2, rel=1e-5)
    assert fit.critical_batch_size.value == pytest.approx(c1 / c2, rel=1e-5)
    assert fit.rms < 1e-5
    assert fit.c1.low <= c1 * (1 + 1e-6) and fit.c1.high >= c1 * (1 - 1e-6)


def test_exact_curves_on_a_fine_grid_of_evaluations_give_back_the_law():
    steps = np.ceil(1e5 / B + 2000)
    fit = fit_law(Observations.of(B, steps, steps - 1))
    assert fit.c1.value == pytest.approx(1e5, rel=2e-3)
    assert fit.c2.value == pytest.approx(2000, rel=2e-3)


def test_exact_steps_give_the_t_interval_of_least_squares():
    rng = np.random.default_rng(0)
    steps = (1e5 / B + 4000) * np.exp2(rng.normal(0, 0.05, 8))
    fit = fit_law(Observations.of(B, steps))
    point = np.log2([fit.c1.value, fit.c2.value])
    curve, jacobian = law_curve(point, np.log2(B))
    scale = np.sqrt(np.sum((np.log2(steps) - curve) ** 2) / 6)
    covariance = scale**2 * np.linalg.inv(jacobian.T @ jacobian)
    half = t.ppf(0.975, 6) * np.sqrt(np.diag(covariance))
    for estimate, middle, width in zip((fit.c1, fit.c2), point, half, strict=True):
        ends = np.log2([estimate.low, estimate.high])
        np.testing.assert_allclose(ends, [middle - width, middle + width], atol=0.03)


def test_bracket_probability_is_that_of_the_normal_distribution():
    b, low, high = (
        np.array([1.0, 4.0]),
        np.array([100.0, 0.0]),
        np.array([200.0, 100.0]),
    )
    observations = Observations.of(b, high, low)
    mean = np.log2([170.0, 90.0])
    value, _, _ = log_likelihood(observations, mean, 0.3)
    p = norm.cdf((np.log2(200 / 170)) / 0.3) - norm.cdf(np.log2(100 / 170) / 0.3)
    q = norm.cdf(np.log2(100 / 90) / 0.3)
    assert value == pytest.approx(np.log(p) + np.log(q), rel=1e-10)


@pytest.mark.parametrize(
    "curve", [law_curve, no_plateau_curve, flat_curve, power_curve]
)
def test_derivatives_are_those_of_finite_differences(curve):
    rng = np.random.default_rng(0)
    size = {no_plateau_curve: 1, flat_curve: 1, law_curve: 2}.get(curve, 3)
    p = np.array([9.0, 0.8, 7.0])[:size] if size == 3 else np.array([12.0, 8.0])[:size]
    log2_batch = np.arange(5.0)
    _, derivative = curve(p, log2_batch)
    for j in range(size):
        step = np.eye(size)[j] * 1e-6
        difference = curve(p + step, log2_batch)[0] - curve(p - step, log2_batch)[0]
        np.testing.assert_allclose(derivative[:, j], difference / 2e-6, atol=1e-7)
    high = np.exp2(curve(p, log2_batch)[0] + rng.normal(0, 0.1, 5))
    low = np.array([np.nan, *high[1:4] * 0.8, 0.0])
    observations = Observations(np.exp2(log2_batch), low, high)
    mean = curve(p, log2_batch)[0]
    _, slope, by_scale = log_likelihood(observations, mean, 0.1)
    for i in range(5):
        step = np.eye(5)[i] * 1e-6
        up = log_likelihood(observations, mean + step, 0.1)[0]
        down = log_likelihood(observations, mean - step, 0.1)[0]
        assert slope[i] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-4)
    up = log_likelihood(observations, mean, 0.1 * np.exp(1e-6))[0]
    down = log_likelihood(observations, mean, 0.1 * np.exp(-1e-6))[0]
    assert by_scale == pytest.approx((up - down) / 2e-6, rel=1e-4)


def test_without_a_plateau_c2_is_open_towards_zero():
    rng = np.random.default_rng(0)
    steps = 1e6 / B * np.exp2(rng.normal(0, 0.05, 8))
    fit = fit_law(Observations.of(B, steps))
    assert not fit.plateau_resolved and fit.slope_resolved
    assert fit.c2.low == 0 and np.isfinite(fit.c2.high)
    assert fit.critical_batch_size.high == np.inf
    assert fit.to_json()["critical_batch_size"]["high"] is None


def test_a_flat_curve_leaves_c1_open_towards_zero():
    rng = np.random.default_rng(0)
    fit = fit_law(Observations.of(B, 1000 * np.exp2(rng.normal(0, 0.05, 8))))
    assert not fit.slope_resolved and fit.plateau_resolved
    assert fit.c1.low == 0 and fit.critical_batch_size.low == 0


def test_scaling_the_batch_sizes_scales_c1_only():
    steps = (1e5 / B + 4000) * np.exp2(np.random.default_rng(0).normal(0, 0.05, 8))
    one = fit_law(Observations.of(B, steps, steps - 50))
    two = fit_law(Observations.of(1024 * B, steps, steps - 50))
    assert two.c1.value == pytest.approx(1024 * one.c1.value, rel=1e-2)
    assert two.c2.low == pytest.approx(one.c2.low, rel=1e-2)


def test_soft_l1_is_not_drawn_by_an_outlier():
    steps = 1e4 / B + 300
    steps[3] *= 4
    robust = fit_law(Observations.of(B, steps), "soft_l1")
    plain = fit_law(Observations.of(B, steps))
    assert abs(np.log2(robust.c2.value / 300)) < abs(np.log2(plain.c2.value / 300))
    assert robust.c1.low <= 1e4 <= robust.c1.high


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
        (([1, 2, 4], [10, 5, 3], [9, 5, 2]), "bracket_low is 5 at batch size 2"),
        (([1, 2, 4], [10, 5]), "3, 2 and 2 values"),
    ],
)
def test_impossible_observations_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Observations.of(*arguments)


def test_unknown_loss_names_the_known_ones():
    with pytest.raises(UserError, match="gaussian"):
        fit_law(Observations.of(B, 1e4 / B + 300), "huber")


def test_results_without_k_star_are_left_out_of_a_fit():
    results = pd.DataFrame(
        {
            "batch_size": [8, 16, 32, 64],
            "steps_to_result": pd.array([800, 400, None, 300], dtype="Int64"),
            "bracket_low": pd.array([700, 300, None, 0], dtype="Int64"),
            "steps_bound": ["", ">= 350, <= 400", "> 1000", ">= 100, <= 300"],
        }
    )
    observations = Observations.from_results(results)
    assert list(observations.batch_size) == [8, 16]
    assert list(observations.low) == [700, 300]
