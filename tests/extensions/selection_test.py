"""A selection takes a module and a gin file, and no change of the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dps_tf
from dps_tf.cli.command_line import import_modules
from dps_tf.core import UserError
from dps_tf.store import LocalFiles, StateStore, SweepLayout

FILE = str(Path(__file__).parent / "pairs_selection.gin")


def test_pairs_keep_their_better_entry_through_training(tmp_path):
    import_modules(["tests.extensions.pairs_selection"])
    sweep = dps_tf.sweep(FILE)
    tables = dps_tf.run(sweep, tmp_path / "sweep")
    assert set(tables.results["sparsity"]) == {0.5}
    assert set(tables.trials["realised_sparsity"]) == {0.5}
    cell = sweep.specification.studies[0].cell.name
    paths = SweepLayout(str(tmp_path / "sweep")).cell(cell)
    state, _ = StateStore(LocalFiles(), paths.states).load(0)
    assert state.step > 0
    kernels = [array for array in state.arrays[:4] if array.ndim == 2]
    assert len(kernels) == 2
    for kernel in kernels:
        kept = kernel.reshape(len(kernel), -1, 2) != 0
        np.testing.assert_array_equal(kept.sum(axis=-1), 1)


def test_sparsity_that_it_cannot_reach_is_told_before_the_first_cell(tmp_path):
    import_modules(["tests.extensions.pairs_selection"])
    sweep = dps_tf.sweep(FILE, values={"sweep.sparsities": (0.9,)})
    with pytest.raises(UserError, match=r"prunes one half, not 0\.9"):
        dps_tf.run(sweep, tmp_path / "sweep")
    assert not (tmp_path / "sweep" / "cells").exists()
