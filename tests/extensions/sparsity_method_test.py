"""A sparsity method takes a module and a gin file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dps_tf.analysis import loading
from tests.extensions import lamp_method
from tests.tuning.small_sweeps import configured, launched

FILE = Path(__file__).with_name("lamp_method.gin")


def test_scores_are_those_of_the_definition():
    generator = np.random.default_rng(0)
    theta = [generator.normal(size=(4, 3)), generator.normal(size=5)]
    found = lamp_method.lamp(SimpleNamespace(theta=theta), None)
    for weights, scores in zip(theta, found, strict=True):
        squares = weights**2
        for value, score in zip(squares.ravel(), scores.ravel(), strict=True):
            expected = value / squares[squares >= value].sum()
            np.testing.assert_allclose(score, expected)
        # The largest weight of a layer is never removed before all others.
        assert scores.max() == pytest.approx(1.0)


@pytest.mark.slow
def test_it_prunes_beside_a_shipped_method(tmp_path):
    launched(tmp_path, configured([], [str(FILE)]))
    trials = loading.load(tmp_path).trials
    assert sorted(set(trials["sparsity_method"])) == ["lamp", "magnitude"]
    assert not (trials["outcome"] == "failed").any()
    np.testing.assert_allclose(trials["realised_sparsity"], 0.5, atol=0.01)
