"""Races on a Ray cluster of real processes, which are killed one after the other.

The nodes are those of Ray's own fixture, all on this machine. With DPS_TF_RAY_KILLS=N
N processes are killed instead of three, and nodes fall silent and come back; the
quickstart is trained under kills too; there are four nodes instead of two; and nodes
join.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from tests.distribution.slurm_cluster import wait_until  # noqa: E402
from tests.faults.victim import Victim  # noqa: E402

pytestmark = [pytest.mark.fault, pytest.mark.slow]

KILLS = int(os.environ.get("DPS_TF_RAY_KILLS", "0"))
NODES = 4 if KILLS else 2
BY_HAND = pytest.mark.skipif(not KILLS, reason="by hand, with DPS_TF_RAY_KILLS")
NOISY_QUADRATIC = (
    "--gin_file=nqm/sgd",
    "--gin_bindings=workload.points = 16",
    "--gin_bindings=sweep.batch_sizes = (65536, 1048576)",
    "--gin_bindings=evaluation.examples = 8388608",
    "--gin_bindings=evaluation.minimum = 512",
    "--import=tests.faults.slow_simulation",
)
QUICKSTART = ("--gin_file=quickstart",)


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
def alone(
    children: Victim, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, bytes]]:
    """Gives the tables of a sweep by one worker."""
    found: dict[tuple[str, ...], dict[str, bytes]] = {}

    def tables(*sweep: str) -> dict[str, bytes]:
        if sweep not in found:
            folder = tmp_path_factory.mktemp("one")
            Driver(children, folder / "output", *sweep, DPS_TF_TURN_SECONDS="0").end()
            found[sweep] = results(folder / "sweep")
            assert len(found[sweep]) >= 4
        return found[sweep]

    return tables


class Nodes:
    """A head node without slots, and nodes with two each."""

    def __init__(self) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.silent: list[Any] = []
        for _ in range(NODES):
            self.add()

    @property
    def options(self) -> tuple[str, str]:
        return "--engine=ray", f"--ray_address={self.cluster.address}"

    @property
    def live(self) -> list[Any]:
        return [n for n in self.cluster.worker_nodes if n not in self.silent]

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=2, wait=False)

    def remove(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)

    def family(self, node: Any) -> list[psutil.Process]:
        """Returns the processes of a node, its raylet last."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [*raylet.children(recursive=True), raylet]

    def slots(self, node: Any, doing: str = "ray::") -> list[psutil.Process]:
        """Returns the processes of a node's slots; `doing` begins their titles."""
        found = []
        for process in self.family(node)[:-1]:
            try:
                title = " ".join(process.cmdline())
            except psutil.NoSuchProcess:
                continue
            # A node ends with its agents, whose titles begin like those of slots.
            if title.startswith(doing) and not re.match("ray::(IDLE|.*Agent)", title):
                found.append(process)
        return found

    def trains(self, node: Any, seconds: float = 2.0) -> bool:
        """Returns whether a turn is seen on a node within some seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if any("trial" in " ".join(p.cmdline()) for p in self.slots(node)):
                return True
            time.sleep(0.02)
        return False

    def silence(self, node: Any) -> None:
        """Stops a node's processes where they are."""
        self.silent.append(node)
        for process in reversed(self.family(node)):
            process.suspend()

    def wake(self) -> None:
        """Lets silent nodes come back; Ray has given them up meanwhile."""
        while self.silent:
            node = self.silent.pop()
            for process in self.family(node):
                process.resume()
            time.sleep(1)
            self.remove(node)

    def close(self) -> None:
        self.wake()
        for node in [*self.cluster.worker_nodes, self.cluster.head_node]:
            self.remove(node)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        # Seconds until a silent node is given up.
        patch.setenv("RAY_health_check_failure_threshold", "3")
        found = Nodes()
        try:
            yield found
        finally:
            found.close()


def wait_for_progress(directory: Path, driver: Driver) -> None:
    """Waits until the sweep has written something more."""

    def written() -> int:
        return sum(path.stat().st_size for path in directory.glob("cells/*/log/*"))

    before = written()
    wait_until(lambda: written() > before or driver.is_over, 300, str)


def kill(nodes: Nodes, what: str, chance: random.Random) -> bool:
    """Takes one actor or node away, now; returns whether there was one."""
    node = chance.choice(nodes.live)
    if what == "actor":
        slots = nodes.slots(node)
        for process in chance.sample(slots, min(1, len(slots))):
            process.kill()
        return bool(slots)
    if what == "node":
        nodes.remove(node)
    else:
        nodes.wake()
        nodes.silence(node)
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
    # TensorFlow may speak of GPUs that are not there.
    said = [line for line in driver.end().splitlines() if "cuInit" not in line]
    assert not [line for line in said if re.search("failed|ray", line.lower())], said
    return done


@pytest.mark.parametrize(
    "sweep", [NOISY_QUADRATIC, *[QUICKSTART] * bool(KILLS)], ids=lambda s: s[0]
)
def test_actors_nodes_and_driver_killed_leave_the_tables_of_one_machine(
    nodes, alone, children, tmp_path, sweep
):
    left, chance = KILLS or 3, random.Random(KILLS)
    every = ["actor", "node", "driver"]
    if KILLS:
        kinds = ["actor", "node", "silence", "driver"]
        every = chance.choices(kinds, (6, 3, 1, 2), k=KILLS)
    while left:
        folder = tmp_path / f"{left} left"
        folder.mkdir()
        start = functools.partial(
            Driver, children, folder / "output", *sweep, *nodes.options
        )
        done = killed_sweep(nodes, start, folder / "sweep", every[-left:])
        ratios = work_ratios(folder / "sweep")
        print(f"{sweep[0]}: killed {Counter(done)}, work ratios {ratios}", flush=True)
        assert results(folder / "sweep") == alone(*sweep)
        left -= len(done)


@BY_HAND
def test_a_race_on_all_slots_is_that_of_one_and_hardly_more_work(
    nodes, alone, train, tmp_path
):
    said = train(*NOISY_QUADRATIC, *nodes.options, DPS_TF_TURN_SECONDS="0.01").end()
    assert results(tmp_path / "sweep") == alone(*NOISY_QUADRATIC)
    ratios = work_ratios(tmp_path / "sweep")
    print(f"{2 * NODES} slots: work ratios {ratios}", flush=True)
    assert max(ratios) <= 1.10
    assert "ray" not in said.lower() and "Traceback" not in said


@BY_HAND
def test_nodes_that_join_are_used(nodes, alone, train, tmp_path):
    driver = train(*NOISY_QUADRATIC, *nodes.options, DPS_TF_TURN_SECONDS="0.2")
    wait_for_progress(tmp_path / "sweep", driver)
    begun, node = time.monotonic(), nodes.add()
    wait_until(lambda: nodes.trains(node), 60, lambda: "the new node is not used")
    joined = time.monotonic() - begun
    print(f"used {joined:.1f} s after joining", flush=True)
    driver.end()
    assert results(tmp_path / "sweep") == alone(*NOISY_QUADRATIC)
    assert joined <= 30
    nodes.remove(node)


def test_a_ray_that_was_started_here_and_dies_stops_the_run(train, alone, tmp_path):
    slow = {
        "DPS_TF_TURN_SECONDS": "0.2",
        "RAY_health_check_failure_threshold": "1",
    }
    driver = train(*NOISY_QUADRATIC, "--engine=ray", "--slots=2", **slow)
    wait_for_progress(tmp_path / "sweep", driver)
    (raylet,) = [
        process
        for process in psutil.Process(driver.pid).children(recursive=True)
        if process.name() == "raylet"
    ]
    raylet.kill()
    said = driver.end(code=75, seconds=90)
    assert "stopped by the end of the Ray that was started here; run the same" in said
    train(*NOISY_QUADRATIC, DPS_TF_TURN_SECONDS="0").end()
    assert results(tmp_path / "sweep") == alone(*NOISY_QUADRATIC)


def test_a_cluster_without_slots_is_waited_for_until_the_timeout(
    nodes, train, tmp_path
):
    wait = {"DPS_TF_TURN_SECONDS": "0.2", "DPS_TF_PATIENCE_SECONDS": "3"}
    driver = train(*NOISY_QUADRATIC, *nodes.options, "--slots_timeout=12", **wait)
    wait_for_progress(tmp_path / "sweep", driver)
    for node in nodes.live:
        nodes.remove(node)
    said = driver.end(code=75, seconds=90)
    for _ in range(NODES):
        nodes.add()
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
        time.sleep(0.5)
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


@BY_HAND
def test_the_quickstart_trains_on_two_slots_as_on_one_machine(alone, train, tmp_path):
    sweep = (
        *QUICKSTART,
        "--gin_bindings=workload.points = 6",
        "--gin_bindings=sweep.batch_sizes = (64, 256)",
    )
    said = train(*sweep, "--engine=ray", "--slots=2").end()
    assert results(tmp_path / "sweep") == alone(*sweep)
    assert said.count("K* = ") == 2


def test_there_is_a_slot_for_each_processor_gpu_or_tpu_host():
    from dps_tf.tuning.ray_cluster import needs

    assert needs({"CPU": 3.0, "memory": 1e9}) == [{"num_cpus": 1.0}] * 3
    assert needs({"CPU": 16.0, "GPU": 2.0}) == [{"num_gpus": 1.0}] * 2
    assert needs({"CPU": 96.0, "TPU": 4.0}) == [{"resources": {"TPU": 4.0}}]
    assert needs({"memory": 1e9}) == [], "a head node without processors trains nothing"
