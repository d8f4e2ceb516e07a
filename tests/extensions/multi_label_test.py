"""A set of several labels and a maximized goal take a module and a gin file."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import dps_tf
from dps_tf import data

FILE = Path(__file__).parent / "multi_label.gin"
PRECISION = "validation/average_precision"


@pytest.mark.slow
def test_a_maximized_goal_goes_from_the_gin_file_to_its_tables(tmp_path):
    importlib.import_module("tests.extensions.multi_label")
    tables = dps_tf.run(dps_tf.sweep(str(FILE)), tmp_path)
    assert "complete" in set(tables.trials["outcome"])
    curves = tables.curves
    complete = tables.trials[tables.trials["outcome"] == "complete"].iloc[0]
    best = curves[curves["trial"] == complete["trial"]].sort_values("step")
    # Met at its last evaluation and at none before.
    assert (best[PRECISION] >= 0.55).tolist() == [False] * (len(best) - 1) + [True]
    labels = data.load("mosaics").validation.labels
    assert np.mean(labels) < 0.4  # what ranking at random would give
    pictures = best["validation/exact_match"] * len(labels)
    np.testing.assert_allclose(pictures, pictures.round(), atol=1e-9)
