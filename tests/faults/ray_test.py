"""Races on a Ray cluster of real processes, which are killed one after the other.

The nodes are those of Ray's own fixture, all on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from tests.distribution.slurm_cluster import wait_until  # noqa: E402
from tests.faults.victim import Victim, logged, results  # noqa: E402

pytestmark = [pytest.mark.fault, pytest.mark.slow]

NODES = 2
NOISY_QUADRATIC = (
    "--gin_file=nqm/sgd",
    "--gin_bindings=workload.points = 16",
    "--gin_bindings=sweep.batch_sizes = (65536, 1048576)",
    "--gin_bindings=evaluation.examples = 8388608",
    "--gin_bindings=evaluation.minimum = 512",
    "--import=tests.faults.slow_simulation",
)


TRAINED = (
    "--gin_file=quickstart",
    "--gin_bindings=workload.points = 7",
    "--gin_bindings=workload.step_budget = 64",
    "--gin_bindings=sweep.batch_sizes = (3, 37)",
    "--lanes=3",
)


class Driver:
    """The command, forked: importing TensorFlow anew takes longer than a sweep."""

    def __init__(self, children: Victim, output: Path, *options: str, **variables: str):
        self._children, self._output = children, output
        arguments = [*options, f"--sweep_dir={output.parent}/sweep"]
        order = {"arguments": arguments, "output": str(output), "background": True}
        self.pid = children.start(kind="train", environment=variables, **order)

    @property
    def is_over(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._children.wait(self.pid)

    def end(self, code: int = 0, seconds: float = 900) -> str:
        """Waits for the command; returns what it printed."""
        wait_until(lambda: self.is_over, seconds, self._output.read_text)
        said = self._output.read_text()
        assert self._children.wait(self.pid) == code, said
        return said


@pytest.fixture
def train(children: Victim, tmp_path: Path) -> Callable[..., Driver]:
    """Starts the command on the test's sweep directory."""
    return functools.partial(Driver, children, tmp_path / "output")


@pytest.fixture(scope="module")
def alone(
    children: Victim, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, bytes]]:
    """Gives the tables of the sweep by one worker."""

    @functools.cache
    def tables() -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("one")
        alone = {"DPS_TF_TURN_SECONDS": "0"}
        Driver(children, folder / "output", *NOISY_QUADRATIC, **alone).end()
        found = results(folder / "sweep")
        assert len(found) >= 4
        return found

    return tables


class Nodes:
    """A head node without slots, and nodes with two each."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    def fill(self) -> None:
        """Adds what is missing."""
        while len(self.cluster.worker_nodes) < NODES:
            self.add()

    @property
    def options(self) -> tuple[str, str]:
        return "--engine=ray", f"--ray_address={self.cluster.address}"

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=2, wait=False)

    def remove(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)

    def slots(self, node: Any) -> list[psutil.Process]:
        """Returns the processes of a node's slots."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        found = []
        for process in raylet.children(recursive=True):
            try:
                title = " ".join(process.cmdline())
            except psutil.NoSuchProcess:
                continue
            # A node ends with its agents, whose titles begin like those of slots.
            if title.startswith("ray::") and not re.match("ray::(IDLE|.*Agent)", title):
                found.append(process)
        return found

    def close(self) -> None:
        for node in [*self.cluster.worker_nodes, self.cluster.head_node]:
            self.remove(node)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        # Seconds until a silent node is given up.
        patch.setenv("RAY_health_check_failure_threshold", "3")
        found = Nodes()
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    """The cluster with all its nodes, whatever a test before has removed."""
    cluster.fill()
    return cluster


def wait_for_progress(directory: Path, driver: Driver) -> None:
    """Waits until the sweep has written something more."""
    before = logged(directory)
    wait_until(lambda: logged(directory) > before or driver.is_over, 300, str)


def kill(nodes: Nodes, what: str, chance: random.Random) -> bool:
    """Takes one actor or node away, now; returns whether there was one."""
    node = chance.choice(list(nodes.cluster.worker_nodes))
    if what == "actor":
        slots = nodes.slots(node)
        for process in chance.sample(slots, min(1, len(slots))):
            process.kill()
        return bool(slots)
    nodes.remove(node)
    nodes.add()
    return True


def killed_sweep(
    nodes: Nodes, start: Callable[[], Driver], directory: Path, kinds: Iterable[str]
) -> list[str]:
    """Runs a sweep to its end under kills; returns what was killed."""
    chance, done, driver = random.Random(str(directory)), [], start()
    for what in kinds:
        wait_for_progress(directory, driver)
        time.sleep(chance.uniform(0, 1))
        if driver.is_over:
            break
        if what == "driver":
            driver.kill()
            driver = start()
        elif not kill(nodes, what, chance):
            continue
        done.append(what)
    # Ray says which node died, if the sweep lasts until it knows; TensorFlow may speak
    # of GPUs that are not there.
    dead_node = r"\S*\(raylet\)\S* The node with .*(\n\t.*)*"
    text = re.sub(dead_node, "", driver.end())
    said = [line for line in text.splitlines() if "cuInit" not in line]
    assert not [line for line in said if re.search("failed|ray", line.lower())], said
    return done


@pytest.mark.parametrize("lanes", [1, 3])
def test_actors_nodes_and_driver_killed_leave_the_tables_of_one_machine(
    nodes, alone, children, tmp_path, lanes
):
    options = *NOISY_QUADRATIC, *nodes.options, f"--lanes={lanes}"
    every = ["actor", "node", "driver"]
    left = len(every)
    while left:
        folder = tmp_path / f"{left} left"
        folder.mkdir()
        start = functools.partial(Driver, children, folder / "output", *options)
        done = killed_sweep(nodes, start, folder / "sweep", every[-left:])
        assert results(folder / "sweep") == alone()
        left -= len(done)


def test_trials_that_are_trained_in_lanes_have_the_bytes_of_threads(children, tmp_path):
    found = []
    for slots in (("--slots=1",), ("--slots=2", "--engine=ray")):
        folder = tmp_path / slots[-1]
        folder.mkdir()
        Driver(children, folder / "output", *TRAINED, *slots).end()
        found.append(results(folder / "sweep"))
    assert len(found[0]) == 4 and found[0] == found[1]


@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_a_ray_that_was_started_here_and_dies_stops_the_run(
    train, alone, tmp_path, part
):
    slow = {"DPS_TF_TURN_SECONDS": "0.2", "RAY_health_check_failure_threshold": "1"}
    driver = train(*NOISY_QUADRATIC, "--engine=ray", "--slots=2", **slow)
    wait_for_progress(tmp_path / "sweep", driver)
    (victim,) = [
        process
        for process in psutil.Process(driver.pid).children(recursive=True)
        if process.name() == part
    ]
    victim.kill()
    said = driver.end(code=75, seconds=90)
    assert "stopped by the end of the Ray that was started here; run the same" in said
    train(*NOISY_QUADRATIC, DPS_TF_TURN_SECONDS="0").end()
    assert results(tmp_path / "sweep") == alone()


def test_a_cluster_without_slots_is_waited_for_until_the_timeout(
    nodes, train, tmp_path
):
    wait = {"DPS_TF_TURN_SECONDS": "0.2", "DPS_TF_PATIENCE_SECONDS": "3"}
    driver = train(*NOISY_QUADRATIC, *nodes.options, "--slots_timeout=12", **wait)
    wait_for_progress(tmp_path / "sweep", driver)
    for node in list(nodes.cluster.worker_nodes):
        nodes.remove(node)
    said = driver.end(code=75, seconds=90)
    assert re.search(r"waiting since \d\d:\d\d:\d\d for a slot of the Ray", said)
    assert "stopped by --slots_timeout, as the Ray cluster at " in said


def test_a_trial_that_kills_its_process_twice_has_failed(train):
    """On a Ray of this machine alone, which nobody else can reach."""
    options = ["--gin_bindings=sweep.batch_sizes = (1048576,)", "--slots=2"]
    driver = train(*NOISY_QUADRATIC, *options, "--engine=ray", DPS_TF_KILLER="3")
    seen: set[str] = set()
    modes: set[str] = set()
    while not driver.is_over:
        for process in psutil.Process(driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                seen |= listening(process)
                if process.name() == "raylet":
                    modes.add(process.environ().get("RAY_AUTH_MODE", ""))
        time.sleep(2)  # A look at all connections takes a while.
    said = driver.end(code=1)
    assert "1 failed" in said
    assert "trials that failed: 3; cause of the first: " in said
    assert "worker process has died" in said
    assert seen == {"127.0.0.1"} and modes == {"token"}


def listening(process: psutil.Process) -> set[str]:
    """Returns the addresses at which a process listens."""
    found = process.net_connections("inet")
    # An IPv4 address may be written as one of IPv6.
    return {
        c.laddr.ip.removeprefix("::ffff:")
        for c in found
        if c.status == psutil.CONN_LISTEN
    }


def test_there_is_a_slot_for_each_processor_gpu_or_tpu_host():
    from dps_tf.tuning.ray_cluster import needs

    assert needs({"CPU": 3.0, "memory": 1e9}) == [{"num_cpus": 1.0}] * 3
    assert needs({"CPU": 16.0, "GPU": 2.0}) == [{"num_gpus": 1.0}] * 2
    assert needs({"CPU": 96.0, "TPU": 4.0}) == [{"resources": {"TPU": 4.0}}]
    assert needs({"memory": 1e9}) == [], "a head node without processors trains nothing"
