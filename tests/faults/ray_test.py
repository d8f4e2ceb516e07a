"""A race on a Ray cluster of real processes, which are killed one after the other."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = [pytest.mark.fault, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("DPS_TF_RAY_KILLS", "6"))
SWEEP = (
    "--gin_file=nqm/sgd",
    "--gin_bindings=workload.points = 16",
    "--gin_bindings=sweep.batch_sizes = (65536, 1048576)",
    "--gin_bindings=evaluation.examples = 8388608",
    "--gin_bindings=evaluation.minimum = 256",
)


def train(directory: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """Starts the command; turns take 50 ms in each slot."""
    command = [sys.executable, "-m", "dps_tf.train", *SWEEP, *options]
    return subprocess.Popen(
        [*command, "--import=tests.faults.slow_simulation", f"--sweep_dir={directory}"],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """Waits for the command, which has to finish; returns what it printed."""
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return said


def results(directory: Path) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for name in ("trials", "curves")
        for path in sorted(directory.glob(f"cells/*/{name}.parquet"))
    }


def work_ratios(directory: Path) -> list[float]:
    tables = map(pd.read_parquet, directory.glob("cells/*/work.parquet"))
    totals = (table[table["trial"].isna()].set_index("quantity") for table in tables)
    return [float(total["value"]["work_ratio"]) for total in totals]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("one") / "sweep"
    ended(train(directory, DPS_TF_TURN_SECONDS="0"))
    found = results(directory)
    assert len(found) == 4
    return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head node without slots, and two nodes with two each."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        found.add_node(num_cpus=2, wait=False)
    yield found
    found.shutdown()


def slots_of(cluster: Cluster) -> list[int]:
    """Returns the processes of the cluster's slots."""
    found = []
    for node in cluster.worker_nodes:
        (raylet,) = node.all_processes["raylet"]
        family = subprocess.run(
            ["pgrep", "--parent", str(raylet.process.pid), "--full", "ray::RemoteSlot"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        found += [int(pid) for pid in family.stdout.split()]
    return found


def wait_for_progress(directory: Path, process: subprocess.Popen[str]) -> None:
    """Waits until the sweep has written something more."""

    def written() -> int:
        return sum(path.stat().st_size for path in directory.glob("cells/*/log/*"))

    before, deadline = written(), time.monotonic() + 300
    while written() <= before and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.skipif(
    "DPS_TF_RAY_KILLS" not in os.environ,
    reason="processes of Ray are killed where DPS_TF_RAY_KILLS gives their number",
)
def test_actors_nodes_and_driver_killed_leave_the_tables_of_one_machine(
    cluster: Cluster, expected: dict[str, bytes], tmp_path: Path
) -> None:
    directory, chance = tmp_path / "sweep", random.Random(3)
    options = ("--engine=ray", f"--ray_address={cluster.address}")
    process = train(directory, *options)
    for kill in range(KILLS):
        wait_for_progress(directory, process)
        if process.poll() is not None:
            break
        if kill % 3 == 0:
            for pid in chance.sample(slots_of(cluster), 1):
                os.kill(pid, signal.SIGKILL)
        elif kill % 3 == 1:
            node = chance.choice(list(cluster.worker_nodes))
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=2, wait=False)
        else:
            process.kill()
            process.communicate()
            process = train(directory, *options)
    ended(process)
    assert results(directory) == expected


@pytest.mark.skipif(
    "DPS_TF_RAY_KILLS" not in os.environ,
    reason="processes of Ray are killed where DPS_TF_RAY_KILLS gives their number",
)
def test_a_race_on_four_slots_is_that_of_one_and_hardly_more_work(
    cluster: Cluster, expected: dict[str, bytes], tmp_path: Path
) -> None:
    directory = tmp_path / "sweep"
    address = f"--ray_address={cluster.address}"
    said = ended(train(directory, "--engine=ray", address, DPS_TF_TURN_SECONDS="0"))
    assert results(directory) == expected
    assert max(work_ratios(directory)) <= 1.10
    assert "ray" not in said.lower() and "Traceback" not in said


@pytest.mark.skipif(
    "DPS_TF_RAY_KILLS" not in os.environ,
    reason="processes of Ray are killed where DPS_TF_RAY_KILLS gives their number",
)
def test_a_trial_that_kills_its_process_twice_has_failed(tmp_path: Path) -> None:
    directory = tmp_path / "sweep"
    one_cell = "--gin_bindings=sweep.batch_sizes = (1048576,)"
    process = train(directory, one_cell, "--engine=ray", "--slots=2", DPS_TF_KILLER="3")
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 1, said
    assert "1 failed" in said


def test_there_is_a_slot_for_each_processor_gpu_or_tpu_host() -> None:
    from dps_tf.tuning.ray_cluster import needs

    assert needs({"CPU": 3.0, "memory": 1e9}) == [{"num_cpus": 1.0}] * 3
    assert needs({"CPU": 16.0, "GPU": 2.0}) == [{"num_gpus": 1.0}] * 2
    assert needs({"CPU": 96.0, "TPU": 4.0}) == [{"resources": {"TPU": 4.0}}]
    assert needs({"memory": 1e9}) == [], "a head node without processors trains nothing"
