from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from dps_tf.analysis.law import Estimate, Observations, fit_law
from dps_tf.analysis.regimes import (
    by_batch_size,
    ends,
    maximum_useful,
    perfect_scaling,
)

B = 2.0 ** np.arange(8)


def test_perfect_scaling_may_go_on_to_the_end():
    observations = Observations.of(B, 1024 / B)
    assert perfect_scaling(observations, 0.2) == 128.0
    assert maximum_useful(observations, 0.2) == (128.0, True)


def test_rules_differ_where_a_later_point_recovers():
    steps = np.array([1000, 700, 260, 200, 190, 180, 180, 180.0])
    observations = Observations.of(B, steps)
    # 700 x 2 is over 1.2 x 1000, and 260 x 4 is not.
    assert perfect_scaling(observations, 0.2) == 1.0
    assert maximum_useful(observations, 0.2) == (8.0, False)


def test_a_point_on_the_limit_is_within_it():
    observations = Observations.of([1, 2], [1000, 600])
    assert perfect_scaling(observations, 0.2) == 2.0


@pytest.mark.parametrize("t", [0.1, 0.2, 0.5])
def test_ends_on_the_fit_solve_their_definitions(t):
    c1, c2 = 1e5, 500.0
    found = ends(fit_law(Observations.of(B * 8, c1 / (B * 8) + c2)), t)
    for end, steps in (
        (found.perfect, lambda b: (1 + t) * c1 / b),
        (found.flat, lambda b: (1 + t) * c2),
    ):
        assert c1 / end.value + c2 == pytest.approx(steps(end.value), rel=1e-3)
        assert end.low <= end.value <= end.high


def test_a_plateau_that_is_not_resolved_leaves_ends_open():
    rng = np.random.default_rng(0)
    fit = fit_law(Observations.of(B, 1e6 / B * np.exp2(rng.normal(0, 0.05, 8))))
    values = ends(fit).to_json()
    assert values["perfect"]["high"] is None and values["flat"]["high"] is None


def test_an_end_below_what_was_measured_is_no_number():
    fit = fit_law(Observations.of(4 * B, 16 / (4 * B) + 300))
    found = dataclasses.replace(ends(fit), critical=Estimate(1.06, 0.5, 45.0))
    assert found.by_fit.split(") ", 1)[1].startswith(
        "ends below the smallest measured (at most 9), and "
    )
    found = dataclasses.replace(found, critical=Estimate(0.4, 0.2, 0.6), is_flat=True)
    assert found.by_fit.endswith("the steps level off below the smallest measured")
    assert not re.search(r"1\.06|0\.2", found.sentence)


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
    for other in (two, mean):
        assert perfect_scaling(by_batch_size(other), 0.2) == perfect_scaling(mean, 0.2)
        assert maximum_useful(by_batch_size(other), 0.2) == maximum_useful(mean, 0.2)


def test_bounds_are_no_points():
    observations = Observations.of([1, 2, 4, 8], [8.0, 4, 2, np.inf], [7, 3, 1, 9])
    assert list(by_batch_size(observations).batch_size) == [1, 2, 4]
