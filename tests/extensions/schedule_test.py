"""A schedule takes a module and a gin file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import dps_tf
from dps_tf import optim
from tests.extensions import triangular_schedule

FILE = Path(__file__).with_name("triangular_schedule.gin")


def test_the_rate_is_that_of_its_corners_and_the_lines_between():
    assert "triangular" in optim.SCHEDULES.names()
    point = {"learning_rate": 2.0, "cycle_steps": 8.0, "low_rate_factor": 0.25}
    found = [
        float(triangular_schedule.triangular(point, tf.constant(step, tf.int64)))
        for step in range(17)
    ]
    np.testing.assert_allclose(found, np.interp(range(17), [0, 4, 8, 12, 16], CORNERS))


CORNERS = [0.5, 2.0, 0.5, 2.0, 0.5]


@pytest.mark.slow
def test_its_metaparameters_are_tuned(tmp_path):
    trials = dps_tf.run(dps_tf.sweep(str(FILE)), tmp_path).trials
    assert trials["cycle_steps"].between(4, 20).all()
    assert trials["cycle_steps"].nunique() == 3
    assert not (trials["outcome"] == "failed").any()
