"""Three real processes that split the cells of one sweep, killed at random."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dps_tf.store import DamagedError, LocalFiles, read_json
from tests.faults.victim import Victim

pytestmark = [pytest.mark.fault, pytest.mark.slow]

WORKERS, KILLS = 3, 5
CELLS = "(131072, 262144, 524288, 1048576)"


def arguments(directory: Path, cells: str, workers: int, **bindings: int) -> list[str]:
    wanted = {
        "sweep.batch_sizes": cells,
        "workload.points": 16,
        # Some twenty evaluations to the goal instead of a hundred or more.
        "evaluation.examples": 16384 * 512,
        "evaluation.minimum": 256,
        **{name.replace("_", ".", 1): value for name, value in bindings.items()},
    }
    return [
        "--gin_file=nqm/sgd",
        *(f"--gin_bindings={name} = {value}" for name, value in wanted.items()),
        f"--sweep_dir={directory}",
        f"--workers={workers}",
    ]


def result_tables(directory: Path) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for name in ("trials", "curves")
        for path in sorted(directory.glob(f"cells/*/{name}.parquet"))
    }


@pytest.fixture(scope="module")
def alone(
    children: Victim, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, bytes]]:
    """Gives what one worker finds: the arguments are those of `arguments`."""
    found: dict[str, dict[str, bytes]] = {}

    def tables(cells: str, **bindings: int) -> dict[str, bytes]:
        which = repr((cells, bindings))
        if which not in found:
            directory = tmp_path_factory.mktemp("one")
            given = arguments(directory, cells, 1, **bindings)
            children.start(kind="train", arguments=given)
            assert children.end() == 0
            found[which] = result_tables(directory)
        return found[which]

    return tables


def workers_of(supervisor: int) -> list[int]:
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    return [int(pid) for pid in children.read_text().split()]


def owners(directory: Path) -> set[int]:
    """Returns the processes that have claimed something in an open cell."""
    found = set()
    for path in directory.glob("cells/*/claims/*.owner"):
        try:
            found.add(read_json(LocalFiles(), str(path))["owner"]["pid"])
        except (FileNotFoundError, DamagedError):
            continue
    return found


def kill_one(
    supervisor: int, directory: Path, chance: random.Random, killed: set[int]
) -> None:
    """Kills a worker that has something, if there is one."""
    busy = owners(directory).intersection(workers_of(supervisor)) - killed
    if busy:
        one = chance.choice(sorted(busy))
        killed.add(one)
        os.kill(one, signal.SIGKILL)


def is_finished(directory: Path, cells: int) -> bool:
    return len(list(directory.glob("cells/*/closed.json"))) == cells


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.by_hand)])
def test_five_of_three_workers_killed_lose_nothing(children, alone, tmp_path, seed):
    cells = CELLS
    expected = alone(cells)
    assert len(expected) == 2 * 4

    three, closings = tmp_path / "three", tmp_path / "closings"
    supervisor = children.start(
        kind="train",
        arguments=arguments(three, cells, WORKERS),
        seconds=[0.03],
        closings=str(closings),
    )
    chance = random.Random(seed)
    killed: set[int] = set()
    while len(killed) < KILLS and not is_finished(three, 4):
        time.sleep(chance.uniform(0.1, 0.6))
        kill_one(supervisor, three, chance, killed)
    print(f"seed {seed}: {len(killed)} workers killed")
    assert children.end() == 0
    assert len(killed) == KILLS, "the sweep was finished before"

    assert result_tables(three) == expected
    closed = Counter(closings.read_text().split())
    assert set(closed) <= {path.name for path in three.glob("cells/*")}
    assert set(closed.values()) == {1}, "a cell was closed twice"
    assert is_finished(three, 4)
