"""An optimizer of the user's own takes a module and a gin file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf import optim
from tests.extensions import spectral_descent

FILE = Path(__file__).with_name("spectral_descent.gin")


def test_its_update_is_its_formula():
    optimizer = optim.TensorOptimizer("spectral_descent")
    assert optimizer.rule.rule is spectral_descent.RULE
    optimizer.set_metaparameters({"learning_rate": 0.5, "beta": 0.0})
    kernel, bias = tf.Variable(tf.zeros([2, 2])), tf.Variable([1.0, 1.0])
    rotation, stretch = np.array([[0.0, -1.0], [1.0, 0.0]]), np.diag([3.0, 0.1])
    gradient = tf.constant(rotation @ stretch, tf.float32)
    optimizer.apply_gradients([(gradient, kernel), (tf.constant([2.0, 4.0]), bias)])
    np.testing.assert_allclose(kernel, -0.5 * rotation, atol=1e-6)
    np.testing.assert_allclose(bias, [0.0, -1.0], atol=1e-6)


@pytest.mark.slow
def test_it_is_tuned_beside_another_in_its_default_space(tmp_path):
    sweep = dps_tf.sweep(str(FILE))
    studies = sweep.specification.studies
    spaces = {s.cell.optimizer: s.workload.space.names for s in studies}
    assert spaces == {
        "sgd": ("learning_rate",),
        "spectral_descent": ("learning_rate", "beta"),
    }
    results = dps_tf.run(sweep, tmp_path).results
    assert sorted(results["optimizer"]) == ["sgd", "spectral_descent"]
    assert results["closed"].all()
    assert results["failed"].sum() == 0
