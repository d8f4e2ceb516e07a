"""A sweep whose batches two processes share, over loopback: equal to one device's.

And what becomes of it when one of them is refused, stopped or killed.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dps_tf
from tests.training.group_processes import Member, ends, start_group
from tests.tuning import small_sweeps

GRID = (
    "sweep.sparsities = (0.0, 0.5)",
    "sweep.sparsity_methods = ('snip',)",
    "workload.network = 'mlp_batch_norm'",
    "workload.network_arguments = {'widths': (6,), 'ghost_batch_size': 4}",
)
LONG = (  # Nobody gets there, so that there is time to stop and kill.
    "sweep.sparsities = (0.5,)",
    "sweep.sparsity_methods = ('snip',)",
    "workload.points = 2",
    "workload.step_budget = 2400",
    "evaluation.steps = 200",
    "goal.threshold = 0.0",
)
GONE = "error: another process of the group that TF_CONFIG names is gone: start all"


def start(directory: Path, bindings: Sequence[str]) -> list[Member]:
    """Starts the same command in both processes of a group."""
    given = [f"--gin_bindings={b}" for b in [*small_sweeps.BINDINGS, *bindings]]
    words = ["-m", "dps_tf.train", *given, f"--sweep_dir={directory}"]
    return start_group([*words, "--strategy=multi_worker_mirrored"])


def reached(directory: Path) -> int:
    """Returns the last step that the log of the first cell tells of."""
    logs = b"".join(path.read_bytes() for path in directory.glob("cells/*/log/*.log"))
    return max(map(int, re.findall(rb'"step":(\d+)', logs)), default=0)


def started(directory: Path, step: int) -> list[Member]:
    """Starts a group; returns once it has got to a step."""
    group = start(directory, LONG)
    while reached(directory) < step:
        assert all(member.process.poll() is None for member in group), ends(group)
        time.sleep(0.05)
    return group


def assert_same(one: Path, other: Path) -> None:
    """Losses to 1e-5, everything else exactly."""
    mine, theirs = dps_tf.load(str(one)), dps_tf.load(str(other))
    pd.testing.assert_frame_equal(mine.trials, theirs.trials)
    pd.testing.assert_frame_equal(mine.results, theirs.results)
    losses = ["validation/cross_entropy", "train/loss"]
    pd.testing.assert_frame_equal(
        mine.curves.drop(columns=losses), theirs.curves.drop(columns=losses)
    )
    np.testing.assert_allclose(
        mine.curves[losses], theirs.curves[losses], rtol=0, atol=1e-5
    )


def steps_executed(directory: Path) -> float:
    """Updates made in all sessions together."""
    tables = [pd.read_parquet(path) for path in directory.glob("cells/*/work.parquet")]
    work = pd.concat(tables)
    mine = work[(work["quantity"] == "steps") & work["trial"].notna()]
    return float(mine["value"].sum())


@pytest.mark.slow
@pytest.mark.multi_device
def test_sweep_is_that_of_one_device_and_is_not_run_twice(tmp_path):
    group = start(tmp_path / "group", GRID)
    small_sweeps.trained(tmp_path / "one", GRID)
    first, second = ends(group)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert first[1].count("K* = ") == 2
    assert second[1:] == ("", "")
    assert_same(tmp_path / "one", tmp_path / "group")
    study = next((tmp_path / "group").glob("cells/*/study.json")).read_text()
    assert "2 in 2 processes" in study
    first, second = ends(start(tmp_path / "group", GRID))
    assert (first[0], second[0]) == (0, 0)
    assert "nothing to do" in first[1]


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.fault
def test_stopped_and_killed_it_goes_on_from_the_kept_states(tmp_path):
    group = started(tmp_path / "group", 600)
    group[1].process.send_signal(signal.SIGTERM)
    stopped = ends(group)
    assert [code for code, *_ in stopped] == [75, 75]
    assert "stopped by SIGTERM" in stopped[0][1]
    for killed, step in ((1, 1000), (0, 1400)):
        group = started(tmp_path / "group", step)
        group[killed].process.send_signal(signal.SIGKILL)
        begun = time.monotonic()
        code, _, errors = group[1 - killed].end()
        assert time.monotonic() - begun < 30
        group[killed].end()
        assert code == 75
        assert errors.startswith(GONE)
        assert errors.count("\n") == 1
        assert list((tmp_path / "group").glob("cells/*/states/*.npz"))
    group = start(tmp_path / "group", LONG)
    small_sweeps.trained(tmp_path / "one", LONG)
    first, second = ends(group)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert_same(tmp_path / "one", tmp_path / "group")
    # Had each session begun anew, it would be 1.6 times as much.
    assert steps_executed(tmp_path / "group") < 1.35 * steps_executed(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("binding", "sentence"),
    [
        ("sweep.batch_sizes = (8, 9)", "batch size 9 cannot be split over 2"),
        ("workload.network = 'mpl'", "network 'mpl' is unknown"),
    ],
)
def test_what_a_user_can_mend_ends_all_processes(tmp_path, binding, sentence):
    first, second = ends(start(tmp_path, [binding]))
    assert (first[0], second[0]) == (2, 2)
    assert sentence in first[2]
    for _, _, errors in (first, second):
        assert errors.startswith("error: ") and errors.count("\n") == 1
