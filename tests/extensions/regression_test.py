"""A regression takes a module and a gin file."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import dps_tf
from dps_tf import data, models

FILE = Path(__file__).parent / "regression.gin"


@pytest.mark.slow
def test_a_regression_goes_from_the_gin_file_to_its_tables(tmp_path):
    importlib.import_module("tests.extensions.regression")
    sweep = dps_tf.sweep(str(FILE))
    tables = dps_tf.run(sweep, tmp_path)
    assert "complete" in set(tables.trials["outcome"])
    met = tables.curves[tables.curves["validation/huber_loss"] <= 0.22]
    assert met["test/huber_loss"].notna().all()
    # A linear model by least squares is about as good: the goal is no mere noise.
    held = data.load("diabetes", test="carved")
    train, validation = held.train, held.validation
    ones = [np.c_[part.inputs, np.ones(len(part))] for part in (train, validation)]
    fit = np.linalg.lstsq(ones[0], train.labels, rcond=None)[0]
    error = np.abs(ones[1] @ fit - validation.labels)
    small = np.minimum(error, 0.5)
    assert np.mean(small * (error - 0.5 * small)) == pytest.approx(0.2, abs=0.05)
    # Nothing has been learned before the first step.
    workload = sweep.specification.studies[0].workload
    network = models.build_for(workload, held.input_shape, held.classes)
    network.set_weights(models.initial_point(network, 0))
    outputs = network.predict(validation.inputs, verbose=0)
    error = np.abs(outputs - validation.labels)
    small = np.minimum(error, 0.5)
    assert np.mean(small * (error - 0.5 * small)) > 0.25
