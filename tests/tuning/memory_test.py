"""States that do not fit into memory are refused before a sweep begins."""

from __future__ import annotations

import pytest

import dps_tf
from dps_tf import data
from dps_tf.core import UserError
from dps_tf.tuning import resources

WEIGHTS = 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
"""Of an MLP with two layers of 64 on digits of 8 by 8."""


@pytest.mark.parametrize(
    ("optimizer", "sparsity", "copies"),
    [("sgd", 0.0, 1), ("momentum", 0.0, 2), ("adam", 0.0, 3), ("momentum", 0.9, 3)],
)
def test_states_of_all_trials_are_counted(
    tmp_path, monkeypatch, optimizer, sparsity, copies
):
    needed = 7 * 4 * WEIGHTS * copies
    values = {
        "workload.optimizer": optimizer,
        "workload.points": 7,
        "workload.step_budget": 8,
        "workload.network_arguments": {"widths": (64, 64)},
        "sweep.batch_sizes": (16,),
        "sweep.sparsities": (sparsity,),
        "sweep.sparsity_methods": ("snip",),
    }
    if optimizer == "momentum":
        values["workload.fixed"] = {"momentum": 0.9}
    sweep = dps_tf.sweep("smoke/quickstart", values=values)
    monkeypatch.setattr(resources, "free_memory", lambda: needed - 1)
    with pytest.raises(UserError, match=r"states of its 7 trials take .* GB, and"):
        dps_tf.run(sweep, tmp_path / "refused")
    assert not (tmp_path / "refused" / "cells").exists()
    monkeypatch.setattr(resources, "free_memory", lambda: needed)
    [study] = sweep.specification.studies
    resources.check_memory(study, data.load_for(study.workload, None))
