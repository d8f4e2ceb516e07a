"""Evaluations of small sets that stop at a goal, as those of large ones do."""

from __future__ import annotations

from unittest import mock

import pytest

from dps_tf.training import evaluation


@pytest.fixture(scope="package", autouse=True)
def split_of_several_batches():
    """Makes batches smaller than the made-up splits: one batch is evaluated exactly."""
    with mock.patch.object(evaluation, "GOAL_BATCH_SIZE", 9):
        yield
