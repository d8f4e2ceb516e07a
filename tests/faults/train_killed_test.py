"""The command on real training, killed and asked to stop.

Its processes are forked from one that has imported TensorFlow, so that they are hit
while they have something to lose.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.distribution.slurm_cluster import wait_until
from tests.faults.victim import Victim, logged, results

pytestmark = [pytest.mark.fault, pytest.mark.slow]

BINDINGS = (
    "workload.points = 12",
    "workload.step_budget = 3000",
    "workload.space = {'learning_rate': ('log', 1e-3, 1e-1)}",
    "evaluation.examples = 400",
    "sweep.batch_sizes = (4, 16)",
    "sweep.finishers = 3",
)
KILLS = 5


def start(children: Victim, directory: Path, *options: str, **order: object) -> int:
    """Starts the command on a sweep of two cells, with snapshots that are frequent."""
    bindings = [f"--gin_bindings={binding}" for binding in BINDINGS]
    arguments = ["--gin_file=quickstart", *bindings, f"--sweep_dir={directory}"]
    return children.start(kind="train", arguments=[*arguments, *options], **order)


def finish(children: Victim, directory: Path) -> None:
    """Runs the command to its end."""
    start(children, directory)
    assert children.end() == 0


def wait_for_more(directory: Path, before: int) -> None:
    """Waits until training is under way."""
    deadline = time.monotonic() + 120
    while logged(directory) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def undisturbed(
    children: Victim, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], float]:
    """Result tables of a run that nothing disturbed, and how long it took."""
    directory = tmp_path_factory.mktemp("undisturbed")
    started = time.monotonic()
    finish(children, directory)
    return results(directory), time.monotonic() - started


def test_killed_at_random_moments_it_leaves_the_same_tables(
    children: Victim, tmp_path: Path, undisturbed: tuple[dict[str, bytes], float]
) -> None:
    expected, whole = undisturbed
    moments = random.Random(7)
    for kill in range(3 * KILLS):
        if kill >= KILLS and logged(tmp_path):
            break
        # From reading the configuration to well inside a cell, and later where other
        # work has slowed this machine down.
        latest = 0.5 * max(1, kill / KILLS) ** 2
        start(children, tmp_path, kill_after=moments.uniform(0.0, latest) * whole)
        assert children.end() in (0, -signal.SIGKILL)
    assert logged(tmp_path)
    finish(children, tmp_path)
    assert results(tmp_path) == expected
    for table in tmp_path.glob("cells/*/work.parquet"):
        work = pd.read_parquet(table)
        steps = work[work["quantity"] == "steps"].set_index("trial")["value"]
        floor = work[work["quantity"] == "floor_steps"].set_index("trial")["value"]
        # Each kill costs what was under way since the last snapshot, and no more.
        assert (steps.dropna() >= floor.dropna()).all()
        assert steps[steps.index.isna()].item() < 2 * floor[floor.index.isna()].item()


def test_each_signal_saves_and_leaves_to_be_run_again(
    children: Victim, tmp_path: Path, undisturbed: tuple[dict[str, bytes], float]
) -> None:
    sweep, output = tmp_path / "sweep", tmp_path / "output"

    def is_in_a_long_slice() -> object:
        return re.search(r"slice of ([5-9]|\d\d)", output.read_text())

    slow = ["--import=tests.faults.slow_steps"]
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    for number, options in *((each, []) for each in signals), (signal.SIGTERM, slow):
        before = logged(sweep)
        order = {"background": True, "output": str(output)}
        child = start(children, sweep, *options, **order)
        wait_for_more(sweep, before)
        if options:
            wait_until(is_in_a_long_slice, 60, output.read_text)
        os.kill(child, number)
        asked = time.monotonic()
        assert children.wait(child) == 75, output.read_text()
        assert time.monotonic() - asked < 10
        assert f"stopped by {number.name}" in output.read_text()
    finish(children, sweep)
    assert results(sweep) == undisturbed[0]
