"""Are recorded tables those of the sweep, and do old cells stay beside new ones?"""

from __future__ import annotations

import pandas as pd
import pytest

from dps_tf.analysis.loading import load
from tests.contracts.verdicts_test import module
from tests.made_up.sweeps import Sweep, write_sweep

ERROR = "validation/classification_error"
SMALL = {"points": 4, "sparsities": (0.0,), "measured": False, "step_budget": 3_000}


@pytest.fixture
def record():
    return module("recording").record


def test_cells_are_added_and_others_stay(record, tmp_path):
    stem = tmp_path / "stem"
    sweeps = [Sweep(batch_sizes=(size,), **SMALL) for size in (32, 64)]
    for number, sweep in enumerate(sweeps):
        record(str(write_sweep(tmp_path / str(number), sweep)), str(stem))
    cells = pd.read_csv(f"{stem}.csv")
    results = [load(tmp_path / str(n)).results for n in range(2)]
    k = pd.concat(results).set_index("batch_size")["steps_to_result"]
    assert cells.set_index("batch_size")["steps_to_result"].to_dict() == k.to_dict()
    trials = pd.read_csv(f"{stem}_trials.csv")
    assert trials.groupby("batch_size").size().to_dict() == {32: 4, 64: 4}
    assert "least_validation" not in trials
    # The same sweep again changes no byte.
    files = sorted(tmp_path.glob("stem*"))
    before = [file.read_bytes() for file in files]
    record(str(tmp_path / "0"), str(stem))
    assert [file.read_bytes() for file in files] == before and len(files) == 3


def test_trials_to_their_ends_have_their_least_error(record, tmp_path):
    sweep = Sweep(batch_sizes=(32,), search_mode="exhaustive", **SMALL)
    record(str(write_sweep(tmp_path / "sweep", sweep)), str(tmp_path / "stem"))
    trials = pd.read_csv(tmp_path / "stem_trials.csv").set_index("trial")
    curves = load(tmp_path / "sweep").curves
    least = {
        trial: min(rows[ERROR][~rows["is_bound"].astype(bool)])
        for trial, rows in curves.groupby("trial")
    }
    assert trials["least_validation"].to_dict() == pytest.approx(least)
    # There is no test set.
    assert "test_at_least" not in trials
