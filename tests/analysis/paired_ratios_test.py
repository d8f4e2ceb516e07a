"""Paired ratios against simulations of networks whose ratio is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.paired_ratios import (
    paired_ratio,
    paired_ratios,
    with_theory_products,
)

STEPS = (0, 20, 100, 200, 400, 700, 999)


def measured(
    draw, *, seeds=5, ratio=1.0, delay=1.0, noise=0.0, shared=None, sparsity=0.0
):
    """Smoothness 30 loss^-0.5 times a ratio; the loss falls `delay` times later."""
    rows = []
    for seed in range(seeds):
        for trial in (0, 1):
            common = 0.0 if shared is None else shared[seed, trial]
            own = noise * draw.normal()
            for step in STEPS:
                loss = 2.0 / (1 + step / (20 * delay))
                value = 30 * loss**-0.5 * ratio * np.exp(common + own)
                about = {
                    "workload": "w",
                    "optimizer": "sgd",
                    "sparsity_method": "snip" if sparsity else "none",
                    "precision": "float32",
                    "seed": seed,
                    "batch_size": 128,
                    "sparsity": sparsity,
                    "trial": trial,
                    "step": step,
                    "examples": 1000,
                }
                rows.append({**about, "quantity": "loss", "value": loss})
                rows.append({**about, "quantity": "smoothness", "value": value})
    return pd.DataFrame(rows)


def test_ratio_without_noise_is_found_both_ways():
    draw = np.random.default_rng(0)
    dense, sparse = measured(draw), measured(draw, ratio=1.5)
    for matched in ("step", "loss"):
        found = paired_ratio(sparse, dense, "smoothness", matched)
        assert found.ratio == pytest.approx(1.5)
        assert (found.seeds, found.pairs) == (5, 10)
        assert found.low == pytest.approx(1.5) and found.high == pytest.approx(1.5)


def test_network_that_is_only_later_differs_at_equal_steps_and_not_at_equal_loss():
    draw = np.random.default_rng(0)
    dense, late = measured(draw), measured(draw, delay=1.5)
    assert paired_ratio(late, dense, "smoothness", "step").ratio < 0.9
    at_loss = paired_ratio(late, dense, "smoothness", "loss")
    # Between looks the logarithms are lines, which a power law is.
    assert at_loss.ratio == pytest.approx(1.0, abs=1e-9)


def test_interval_covers_the_ratio_as_often_as_it_says():
    draw = np.random.default_rng(1)
    covered, widths = [], []
    for _ in range(100):
        shared = {(s, t): draw.normal() for s in range(5) for t in (0, 1)}
        dense = measured(draw, shared=shared, noise=0.1)
        sparse = measured(draw, shared=shared, noise=0.1, ratio=1.2)
        found = paired_ratio(sparse, dense, "smoothness", "step")
        covered.append(found.low <= 1.2 <= found.high)
        widths.append(found.high / found.low)
    assert 0.92 <= np.mean(covered) <= 0.98
    # What the networks of a pair share does not widen it: one unit would be e^2.5.
    assert np.median(widths) < 1.5


def test_initialization_is_in_no_ratio():
    draw = np.random.default_rng(0)
    dense, sparse = measured(draw), measured(draw, ratio=1.5)
    at_start = (sparse["step"] == 0) & (sparse["quantity"] == "smoothness")
    sparse.loc[at_start, "value"] = 1e9
    for matched in ("step", "loss"):
        found = paired_ratio(sparse, dense, "smoothness", matched)
        assert found.ratio == pytest.approx(1.5)


def test_one_seed_has_no_interval_and_none_no_ratio():
    draw = np.random.default_rng(0)
    dense, sparse = measured(draw, seeds=1), measured(draw, seeds=1, ratio=2.0)
    found = paired_ratio(sparse, dense, "smoothness", "step")
    assert (found.ratio, found.low, found.high) == (pytest.approx(2.0), 0.0, np.inf)
    none = paired_ratio(sparse.iloc[:0], dense, "smoothness", "step")
    assert np.isnan(none.ratio) and none.pairs == 0
    far = measured(draw, seeds=1, delay=1e9)
    assert paired_ratio(far, dense, "smoothness", "loss").pairs == 0


def test_each_pruned_network_is_compared_with_the_dense_one():
    draw = np.random.default_rng(0)
    parts = [
        measured(draw),
        measured(draw, sparsity=0.5, ratio=1.1),
        measured(draw, sparsity=0.9, ratio=1.3),
    ]
    found = paired_ratios(pd.concat(parts, ignore_index=True), ["smoothness"])
    assert list(found["sparsity"]) == [0.5, 0.5, 0.9, 0.9]
    assert list(found["matched"]) == ["step", "loss"] * 2
    np.testing.assert_allclose(found["ratio"], [1.1, 1.1, 1.3, 1.3])


def test_products_of_the_theory_are_those_of_its_quantities():
    looks = {
        0: {"loss": 2.5, "smoothness": 9.0, "gradient_square": 4.0},
        20: {"loss": 0.5, "smoothness": 3.0, "gradient_square": 0.5},
        # An estimate without bias may be negative: no product stands for it.
        100: {"loss": 0.4, "smoothness": 3.0, "gradient_square": -0.1},
    }
    about = {"seed": 0, "trial": 1, "examples": 1000}
    rows = [
        {**about, "step": step, "quantity": name, "value": value}
        for step, look in looks.items()
        for name, value in {
            **look,
            "noise_trace": 7.0,
            "rate_times_eigenvalue": 0.6,
            "largest_eigenvalue": 6.0,
        }.items()
    ]
    measured = pd.DataFrame(rows)
    found = with_theory_products(measured)
    pd.testing.assert_frame_equal(found.iloc[: len(measured)], measured)
    added = found.iloc[len(measured) :].set_index("quantity")
    assert list(added["step"]) == [20, 20]
    # Delta = 2, L = 3, beta = 7, eps = 0.5, eta = 0.1.
    assert added.loc["theory_c1", "value"] == pytest.approx(2 * 3 * 7 / 0.25)
    assert added.loc["theory_c2", "value"] == pytest.approx(2 / (0.1 * 0.5))
