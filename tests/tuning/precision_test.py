"""A sweep in bfloat16: recorded as such, measured in float32, never mixed up."""

from __future__ import annotations

from pathlib import Path

import pytest

import dps_tf
from dps_tf.core import UserError
from dps_tf.probing import Measurer, Wanted
from dps_tf.store import LocalFiles, StudyReader
from tests.made_up import small_sweeps

CELL = "blobs-nesterov-snip-seed0-b8-s0.5"
PRUNED = ("sweep.sparsities = (0.5,)", "sweep.sparsity_methods = ('snip',)")
BFLOAT16 = "sweep.precision = 'mixed_bfloat16'"


def scores(layout):
    """Returns the files of scores of a sweep, by their names."""
    folder = Path(layout.scores)
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.npz")}


def test_precision_is_part_of_the_record_and_of_the_replay(tmp_path):
    layout = small_sweeps.trained(tmp_path / "sweep", [*PRUNED, BFLOAT16])
    stored = StudyReader(LocalFiles(), layout.cell(CELL)).specification
    assert stored.precision == "mixed_bfloat16"
    assert set(dps_tf.load(layout.root).results["precision"]) == {"mixed_bfloat16"}
    # It refuses a replay that is not that of the record, bit for bit.
    measured = Measurer(LocalFiles(), layout, Wanted(30, 2)).measure(CELL, [0])
    assert measured["value"].notna().all() and len(measured) == 8
    with pytest.raises(UserError, match="precision: stored 'mixed_bfloat16'"):
        small_sweeps.trained(tmp_path / "sweep", PRUNED)
    # Masks are those of float32.
    plain = small_sweeps.trained(tmp_path / "plain", PRUNED)
    assert scores(layout) and scores(layout) == scores(plain)
