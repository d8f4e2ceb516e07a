from __future__ import annotations

import numpy as np
import pytest

from dps_tf.analysis.law import Observations, fit_law
from dps_tf.analysis.regimes import (
    by_batch_size,
    ends,
    fitted_regimes,
    linear_scaling_from,
    maximum_useful,
    measured_regimes,
    perfect_scaling_first,
    sensitivity,
)
from dps_tf.core import UserError

B = 2.0 ** np.arange(8)


def test_perfect_scaling_to_the_end_is_open():
    observations = Observations.of(B, 1024 / B)
    assert perfect_scaling_first(observations, 0.2) == (128.0, True)
    assert linear_scaling_from(observations, B[0], 0.2) == (128.0, True)
    assert maximum_useful(observations, 0.2) == (128.0, True)


def test_rules_differ_where_a_later_point_recovers():
    steps = np.array([1000, 700, 260, 200, 190, 180, 180, 180.0])
    observations = Observations.of(B, steps)
    # 700 x 2 is over 1.2 x 1000, and 260 x 4 is not.
    assert perfect_scaling_first(observations, 0.2) == (1.0, False)
    assert linear_scaling_from(observations, B[0], 0.2) == (4.0, False)
    assert maximum_useful(observations, 0.2) == (8.0, False)


def test_a_point_on_the_limit_is_within_it():
    observations = Observations.of([1, 2], [1000, 600])
    assert perfect_scaling_first(observations, 0.2) == (2.0, True)


def test_linear_scaling_from_a_stated_batch_size():
    observations = Observations.of(B, 1e4 / B + 100)
    b, is_open = linear_scaling_from(observations, 4, 0.2)
    limit = 1.2 * 4 + 0.2 * 100
    assert b == max(x for x in B if x <= limit) and not is_open
    with pytest.raises(UserError, match="measured: 1, 2, 4"):
        linear_scaling_from(observations, 3)


def test_ends_on_the_fit_solve_their_definitions():
    c1, c2 = 1e5, 500.0
    fit = fit_law(Observations.of(B * 8, c1 / (B * 8) + c2))
    for regime in fitted_regimes(fit, (0.1, 0.2, 0.5), linear_from=32):
        b, t = regime.batch_size, regime.tolerance
        k = c1 / b + c2
        if regime.name == "fit_perfect_scaling":
            assert k * b == pytest.approx((1 + t) * c1, rel=1e-3)
        elif regime.name == "fit_maximum_useful":
            assert k == pytest.approx((1 + t) * c2, rel=1e-3)
        else:
            limit = (1 + t) * (c1 / 32 + c2) * 32
            assert k * b == pytest.approx(limit, rel=1e-3)
        assert regime.low <= b <= regime.high


def test_zhang_et_al_2024_is_linear_scaling_from_256_by_20_percent():
    a, b = 700.0, 2e6  # log K = log(a + b/B); published: B* = b/(5a) + 1.2 256
    sizes = 2.0 ** np.arange(6, 14)
    fit = fit_law(Observations.of(sizes, b / sizes + a))
    found = [
        r
        for r in fitted_regimes(fit, (0.2,), linear_from=256)
        if r.name == "fit_linear_scaling_from"
    ]
    assert found[0].batch_size == pytest.approx(b / (5 * a) + 1.2 * 256, rel=1e-3)


def test_a_plateau_that_is_not_resolved_leaves_ends_open():
    rng = np.random.default_rng(0)
    fit = fit_law(Observations.of(B, 1e6 / B * np.exp2(rng.normal(0, 0.05, 8))))
    assert all(regime.high is None for regime in fitted_regimes(fit))


def test_sensitivity_shows_how_far_the_tolerance_moves_the_end():
    observations = Observations.of(B, 1e3 / B + 100)
    regimes = measured_regimes(observations, (0.2, 0.5), linear_from=2)
    table = sensitivity(regimes).set_index("definition")
    assert list(table.columns) == ["20 %", "50 %", "octaves"]
    row = table.loc["perfect_scaling_first"]
    assert row["octaves"] == np.log2(row["50 %"] / row["20 %"])
    assert len(table) == 4
    assert regimes[0].to_json()["definition"].startswith("last B before")


def test_ends_on_the_fit_move_less_with_the_scatter_than_ends_on_the_points():
    rng = np.random.default_rng(0)
    c1, c2, sizes = 30_000.0, 500.0, 2.0 ** np.arange(14)
    found = []
    for _ in range(40):
        steps = (c1 / sizes + c2) * np.exp2(rng.normal(0, 0.15, len(sizes)))
        observations = Observations.of(sizes, steps)
        found.append(ends(fit_law(observations)))
    true = 0.2 * c1 / c2
    covered = [end.perfect.low <= true <= end.perfect.high for end in found]
    assert np.mean(covered) > 0.85
    on_fit = np.log2([end.perfect.value for end in found])
    on_points = np.log2([end.points_perfect for end in found])
    # On points, "perfect up to" comes out anywhere over five octaves.
    assert np.ptp(on_points) >= 4
    assert np.std(on_fit) < 0.35 * np.std(on_points)
    assert abs(np.mean(on_fit) - np.log2(true)) < 0.2


def test_a_curve_is_flat_only_if_fit_and_points_agree():
    sizes = 2.0 ** np.arange(12)
    flat = Observations.of(sizes, 2e3 / sizes + 500)
    assert ends(fit_law(flat)).is_flat
    falling = Observations.of(sizes[:6], 2e3 / sizes[:6] + 20)
    assert not ends(fit_law(falling)).is_flat
    # The last K* is a lucky one: the points find no plateau, and the fit does.
    steps = 2e3 / sizes + 500
    steps[-1] /= 1.5
    lucky = Observations.of(sizes, steps)
    found = ends(fit_law(lucky))
    assert found.flat.value < sizes[-1] and found.points_flat is None
    assert not found.is_flat


def test_several_seeds_are_one_mean_whatever_their_order():
    rng = np.random.default_rng(0)
    sizes = np.repeat(2.0 ** np.arange(8), 3)
    steps = (1e4 / sizes + 300) * np.exp2(rng.normal(0, 0.3, 24))
    shuffled = rng.permutation(24)
    one = Observations.of(sizes, steps)
    two = Observations.of(sizes[shuffled], steps[shuffled])
    mean = by_batch_size(one)
    assert mean.high[0] == pytest.approx(np.exp(np.log(steps[:3]).mean()))
    for regime, other in zip(measured_regimes(one), measured_regimes(two), strict=True):
        assert regime == other


def test_bounds_are_no_points():
    observations = Observations.of([1, 2, 4, 8], [8.0, 4, 2, np.inf], [7, 3, 1, 9])
    assert list(by_batch_size(observations).batch_size) == [1, 2, 4]
