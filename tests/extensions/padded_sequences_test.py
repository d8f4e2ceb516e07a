"""Padding, dropout and augmentation of tokens take a module and a gin file."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import dps_tf
from dps_tf import data

FILE = Path(__file__).parent / "padded_sequences.gin"


@pytest.mark.slow
def test_a_sequence_model_goes_from_the_gin_file_to_its_tables(tmp_path):
    importlib.import_module("tests.extensions.padded_sequences")
    sweep = dps_tf.sweep(str(FILE))
    # It refuses parts that make a step twice and not alike.
    tables = dps_tf.run(sweep, tmp_path)
    assert "complete" in set(tables.trials["outcome"])
    # Tokens that are wrong, out of those that are not padding.
    labels = np.asarray(data.load("counting").validation.labels)
    assert labels.shape[1] == 10 and np.any(labels < 0)
    wrong = tables.curves["validation/classification_error"] * np.sum(labels >= 0)
    np.testing.assert_allclose(wrong, np.round(wrong), atol=1e-9)
