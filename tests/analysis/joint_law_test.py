from __future__ import annotations

import numpy as np
import pytest

from dps_tf.analysis.law import Observations, fit_joint, fit_law
from dps_tf.core import UserError

B = 2.0 ** np.arange(0, 16, 2)


def curve(rng, c1, c2, interval=0):
    steps = (c1 / B + c2) * np.exp2(rng.normal(0, 0.05, len(B)))
    if not interval:
        return Observations.of(B, steps)
    steps = np.ceil(steps / interval) * interval
    return Observations.of(B, steps, steps - interval)


def test_only_what_differs_is_said_to_move():
    rng = np.random.default_rng(0)
    curves = {
        "sgd": curve(rng, 5e5, 3000, 50),
        "momentum": curve(rng, 5e5, 1000, 50),
    }
    joint = fit_joint(curves, "sgd")
    assert joint.best_model == "c1_shared"
    ratio = joint.ratios[0]
    assert ratio.c1.low < 1 < ratio.c1.high
    assert 0.25 < ratio.c2.low < ratio.c2.high < 0.4
    assert 2.5 < ratio.critical_batch_size.low < 3 < ratio.critical_batch_size.high
    p = joint.models.set_index("model")["p_value"]
    assert p["c2_shared"] < 1e-3 < p["c1_shared"]
    assert np.isnan(p["both_free"])


def test_equal_curves_share_both():
    rng = np.random.default_rng(1)
    curves = {str(k): curve(rng, 5e5, 3000) for k in range(3)}
    joint = fit_joint(curves, "0")
    assert joint.best_model == "both_shared"
    assert [ratio.curve for ratio in joint.ratios] == ["1", "2"]
    frame = joint.to_frame()
    assert (frame["c1_low"] < 1).all() and (frame["c1_high"] > 1).all()


def test_ratio_of_exact_curves_is_exact():
    curves = {
        "dense": Observations.of(B, 1e5 / B + 400),
        "sparse": Observations.of(B, 3e5 / B + 600),
    }
    ratio = fit_joint(curves, "dense").ratios[0]
    assert ratio.c1.value == pytest.approx(3, rel=1e-2)
    assert ratio.c2.value == pytest.approx(1.5, rel=1e-2)


def test_intervals_of_ratios_cover():
    rng = np.random.default_rng(2)
    covered = np.zeros((40, 2), bool)
    for i in range(40):
        curves = {"a": curve(rng, 2e5, 700, 50), "b": curve(rng, 6e5, 1400, 50)}
        ratio = fit_joint(curves, "a").ratios[0]
        covered[i] = (
            ratio.c1.low <= 3 <= ratio.c1.high,
            ratio.c2.low <= 2 <= ratio.c2.high,
        )
    assert (covered.mean(axis=0) > 0.86).all()


def test_the_same_tables_give_the_same_numbers():
    curves = {k: curve(np.random.default_rng(3), 1e5, 500, 100) for k in "ab"}
    assert fit_joint(curves, "a").ratios == fit_joint(curves, "a").ratios


def test_both_free_is_the_fit_of_each_curve():
    rng = np.random.default_rng(4)
    curves = {"a": curve(rng, 2e5, 700), "b": curve(rng, 6e5, 1400)}
    ratio = fit_joint(curves, "a").ratios[0]
    one, two = fit_law(curves["a"]), fit_law(curves["b"])
    assert ratio.c1.value == pytest.approx(two.c1.value / one.c1.value, rel=2e-2)


def test_unknown_reference_single_and_short_curves_are_refused():
    rng = np.random.default_rng(5)
    curves = {"dense": curve(rng, 1e5, 500), "sparse": curve(rng, 1e5, 500)}
    with pytest.raises(UserError, match="did you mean 'dense'"):
        fit_joint(curves, "dens")
    with pytest.raises(UserError, match="two curves"):
        fit_joint({"dense": curves["dense"]}, "dense")
    curves["sparse"] = Observations.of([1, 2], [10, 5])
    with pytest.raises(UserError, match="'sparse' has 2 batch sizes"):
        fit_joint(curves, "dense")
