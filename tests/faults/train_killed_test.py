"""The command itself, on real training, killed and asked to stop."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

pytestmark = [pytest.mark.fault, pytest.mark.slow]

# The command with snapshots so frequent that a short run has many of them.
COMMAND = (
    "from dps_tf.store import study_record; study_record.SNAPSHOT_SECONDS = 0.2; "
    "from dps_tf import train; from dps_tf.command_line import run; run(train.main)"
)
BINDINGS = (
    "workload.points = 12",
    "workload.step_budget = 3000",
    "workload.space = {'learning_rate': ('log', 1e-3, 1e-1)}",
    "evaluation.examples = 400",
    "sweep.batch_sizes = (4, 16)",
    "sweep.finishers = 3",
)
KILLS = 8


def start(directory: Path) -> subprocess.Popen[str]:
    """Starts the command on a sweep of two cells."""
    bindings = [f"--gin_bindings={binding}" for binding in BINDINGS]
    words = [sys.executable, "-c", COMMAND, "--gin_file=quickstart", *bindings]
    return subprocess.Popen(
        [*words, f"--sweep_dir={directory}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Waits for a command to finish and returns what it printed."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    return out


def results(directory: Path) -> dict[str, bytes]:
    """Returns the bytes of every result table, by cell and name."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for name in ("trials.parquet", "curves.parquet")
        for path in sorted(directory.glob(f"cells/*/{name}"))
    }


def begun(directory: Path) -> bool:
    """Returns whether a cell has a log, so that training is under way."""
    return any(directory.glob("cells/*/log/*"))


def wait_until_begun(process: subprocess.Popen[str], directory: Path) -> None:
    """Waits until training is under way, or the process has ended."""
    deadline = time.monotonic() + 120
    while not begun(directory) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Result tables of a run that nothing disturbed."""
    directory = tmp_path_factory.mktemp("undisturbed")
    finish(start(directory))
    return results(directory)


def test_killed_at_random_moments_it_leaves_the_same_tables(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    moments = random.Random(7)
    for _ in range(KILLS):
        process = start(tmp_path)
        wait_until_begun(process, tmp_path)
        # From importing TensorFlow to well inside a cell.
        time.sleep(moments.uniform(0.0, 9.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(start(tmp_path))
    assert results(tmp_path) == undisturbed
    for table in tmp_path.glob("cells/*/work.parquet"):
        work = pd.read_parquet(table)
        steps = work[work["quantity"] == "steps"].set_index("trial")["value"]
        floor = work[work["quantity"] == "floor_steps"].set_index("trial")["value"]
        # Each kill costs what was under way since the last snapshot, and no more.
        assert (steps.dropna() >= floor.dropna()).all()
        assert steps[steps.index.isna()].item() < 2 * floor[floor.index.isna()].item()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_leaves_to_be_run_again(
    number: signal.Signals, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    process = start(tmp_path)
    wait_until_begun(process, tmp_path)
    process.send_signal(number)
    asked = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, out + err
    assert time.monotonic() - asked < 10
    assert f"stopped by {number.name}" in out
    finish(start(tmp_path))
    assert results(tmp_path) == undisturbed
