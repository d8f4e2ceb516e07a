"""A sweep whose batches two processes share, over loopback: equal to one device's.

And what becomes of it when one of them is refused, stopped or killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dps_tf
from tests.training.group_processes import free_ports
from tests.training.multi_worker_test import ROOT
from tests.tuning import small_sweeps

GRID = (
    "sweep.batch_sizes = (8, 16)",
    "sweep.sparsities = (0.0, 0.5)",
    "sweep.sparsity_methods = ('snip',)",
    "workload.network = 'mlp_batch_norm'",
    "workload.network_arguments = {'widths': (6,), 'ghost_batch_size': 4}",
)
LONG = (  # Nobody gets there, so that there is time to stop and kill.
    "sweep.sparsities = (0.5,)",
    "sweep.sparsity_methods = ('snip',)",
    "workload.points = 2",
    "workload.step_budget = 10000",
    "evaluation.steps = 500",
    "goal.threshold = 0.0",
)
GONE = "error: another process of the group that TF_CONFIG names is gone: start all"


def start(
    directory: Path,
    bindings: Sequence[str],
    *flags: str,
) -> list[subprocess.Popen]:
    """Starts the same command in both processes of a group."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    given = [f"--gin_bindings={b}" for b in [*small_sweeps.BINDINGS, *bindings]]
    command = [sys.executable, "-m", "dps_tf.train", *given, *flags]
    command += [f"--sweep_dir={directory}", "--strategy=multi_worker_mirrored"]
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",  # as the command has it for users
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"worker": workers},
                        "task": {"type": "worker", "index": index},
                    }
                ),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]


def ends(group: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Waits for all; (exit code, output, errors) of each."""
    found = []
    for process in group:
        output, errors = process.communicate(timeout=500)
        found.append((process.returncode, output, errors))
    return found


def sessions(directory: Path) -> int:
    """How often the first cell was begun or gone on with."""
    logs = [path.read_bytes() for path in directory.glob("cells/*/log/main.log")]
    return b"".join(logs).count(b'"kind":"session"')


def processor_seconds(process: subprocess.Popen) -> float:
    """What a process has used; unlike the clock it does not count waiting."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(directory: Path, seconds: float) -> list[subprocess.Popen]:
    """Starts a group; returns once it has been tracing and training for a while."""
    before = sessions(directory)
    group = start(directory, LONG)
    while sessions(directory) == before:
        assert all(process.poll() is None for process in group), ends(group)
        time.sleep(0.1)
    begun = processor_seconds(group[0])
    while group[0].poll() is None and processor_seconds(group[0]) < begun + seconds:
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
    assert first[1].count("K* = ") == 4
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
    group = started(tmp_path / "group", 1.0)
    group[1].send_signal(signal.SIGTERM)
    stopped = ends(group)
    if stopped[0][0] == 0:
        pytest.skip("the group was too quick to compare its whole curve")
    assert [code for code, *_ in stopped] == [75, 75]
    assert "stopped by SIGTERM" in stopped[0][1]
    for killed in (1, 0):
        group = started(tmp_path / "group", 2.0)
        group[killed].kill()
        begun = time.monotonic()
        code, _, errors = ends([group[1 - killed]])[0]
        assert time.monotonic() - begun < 30
        group[killed].communicate()
        if code == 0:
            pytest.skip("the group was too quick to compare its whole curve")
        assert code == 75
        assert errors.startswith(GONE)
        assert errors.count("\n") == 1
        assert list((tmp_path / "group").glob("cells/*/states/*.npz"))
    group = start(tmp_path / "group", LONG)
    long = small_sweeps.configured([*small_sweeps.BINDINGS, *LONG])
    small_sweeps.launched(tmp_path / "one", long, slots=2)
    first, second = ends(group)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert_same(tmp_path / "one", tmp_path / "group")
    # What the first three sessions did was not all done again.
    assert steps_executed(tmp_path / "group") < 2 * steps_executed(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.multi_device
@pytest.mark.parametrize(
    ("bindings", "flags", "sentence"),
    [
        (("sweep.batch_sizes = (8, 9)",), (), "batch size 9 cannot be split over 2"),
        (("workload.network = 'mpl'",), (), "network 'mpl' is unknown"),
        pytest.param(
            (),
            ("--share",),
            "--share is no longer taken",
            marks=pytest.mark.by_hand,  # as the others, once refused
        ),
    ],
)
def test_what_a_user_can_mend_ends_all_processes(tmp_path, bindings, flags, sentence):
    first, second = ends(start(tmp_path, bindings, *flags))
    assert (first[0], second[0]) == (2, 2)
    assert sentence in first[2]
    for _, _, errors in (first, second):
        assert errors.startswith("error: ") and errors.count("\n") == 1
