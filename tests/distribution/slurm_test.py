"""Does the sbatch file run a sweep on a real Slurm, and through what happens there?"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import dps_tf
from dps_tf.store import CellLayout, LocalFiles, StudyReader
from tests import interpreter
from tests.distribution.slurm_cluster import Cluster, wait_until, why_not
from tests.packaging.source_tree import SOURCE_TREE

pytestmark = [pytest.mark.slow, pytest.mark.fault]

SBATCH = SOURCE_TREE / "launch" / "slurm" / "sweep.sbatch"
# Simulated in turns that take a while: to import TensorFlow in each process, which most
# of the time would go to, shows nothing of Slurm.
SWEEP = """
include 'nqm/sgd.gin'
workload.points = 4
workload.step_budget = 40000
evaluation.examples = 8388608
evaluation.minimum = 512
sweep.batch_sizes = (131072, 262144, 524288, 1048576)
sweep.finishers = 1
"""
SLOWLY = "--import=tests.faults.slow_simulation"
PATH = f"PYTHONPATH={Path(dps_tf.__file__).parents[1]}:{interpreter.ROOT}"
SECONDS = 600  # for each wait; machines that run the tests are shared
PAUSE = 1.0  # between two questions to Slurm, each of which starts a program


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    cluster = Cluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Array:
    """An array job of the sbatch file on a sweep directory of its own."""

    def __init__(self, cluster: Cluster, folder: Path, tasks: int) -> None:
        self.cluster = cluster
        self.folder = folder
        self.sweep_dir = folder / "shared sweep"
        (folder / "sweep.gin").write_text(SWEEP)
        told = cluster.run(
            *("env", f"DPS_TF_VENV={Path(sys.executable).parents[1]}"),
            *(PATH, "DPS_TF_TURN_SECONDS=0.05"),
            *("sbatch", "--parsable", f"--array=0-{tasks - 1}"),
            *(f"--chdir={folder}", f"--output={folder}/task-%a.log", str(SBATCH)),
            *(
                f"--gin_file={folder}/sweep.gin",
                f"--sweep_dir={self.sweep_dir}",
                SLOWLY,
            ),
        )
        assert told.strip().isdecimal(), told
        self.job = told.strip()

    def show(self, task: int) -> dict[str, str]:
        """Returns what Slurm knows about a task."""
        told = self.cluster.run("scontrol", "show", "job", f"{self.job}_{task}")
        return dict(re.findall(r"(\w+)=(\S+)", told))

    def log(self, task: int) -> str:
        path = self.folder / f"task-{task}.log"
        return path.read_text() if path.exists() else ""

    def trainer(self, task: int) -> int | None:
        """Returns the process that trains for a task, if there is one."""
        mine = {f"SLURM_ARRAY_JOB_ID={self.job}", f"SLURM_ARRAY_TASK_ID={task}"}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                variables = (process / "environ").read_bytes().decode().split("\0")
            except OSError:
                continue
            if b"dps_tf.train" in command and mine <= set(variables):
                return int(process.name)
        return None

    def cells_begun(self) -> int:
        return len({path.parent for path in self.sweep_dir.glob("cells/*/states/*")})

    def wait_until(self, is_so) -> None:
        wait_until(is_so, SECONDS, self.told, PAUSE)

    def wait_for_restart(self, task: int, times: int) -> None:
        """Returns when a task has been requeued and runs again; shortens the hold."""
        self.wait_until(lambda: self.show(task)["Restarts"] == str(times))
        self.wait_until(lambda: self.show(task)["JobState"] == "PENDING")
        # A start in the second of the end would be taken for the one that has ended:
        # against that Slurm holds requeued jobs for two minutes.
        time.sleep(3)
        job = self.show(task)["JobId"]
        changes = ("StartTime=now", "TimeLimit=UNLIMITED")
        self.cluster.run("scontrol", "update", f"jobid={job}", *changes)
        self.wait_until(lambda: self.trainer(task) is not None)

    def told(self) -> str:
        logs = [self.log(task)[:6000] for task in range(2)]
        return "\n".join([self.cluster.run("squeue"), *logs, self.cluster.told()])


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """The sweep directory of a plain run."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "sweep.gin").write_text(SWEEP)
    words = ["-m", "dps_tf.train", "--slots=1", f"--sweep_dir={folder}/sweep"]
    done = interpreter.run([*words, f"--gin_file={folder}/sweep.gin"], cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "sweep"


def _tables(sweep_dir: Path) -> dict[str, pd.DataFrame]:
    """Returns the closed tables of every cell, as read from its folder."""
    found = {}
    for cell in sorted((sweep_dir / "cells").iterdir()):
        study = StudyReader(LocalFiles(), CellLayout(str(cell)))
        closed = study.closed()
        assert closed is not None, f"{cell.name}: {study.problems}"
        for name in ("trials", "curves"):
            found[f"{cell.name} {name}"] = closed[name]
    return found


def _has_pending(process: int, number: signal.Signals) -> bool:
    """Returns whether a stopped process will get a signal when it goes on."""
    status = Path(f"/proc/{process}/status").read_text()
    pending = re.search(r"ShdPnd:\s*(\w+)", status)
    return bool(int(pending[1], 16) >> (number - 1) & 1)


def test_killed_and_requeued_tasks_leave_the_tables_of_a_plain_run(
    cluster, plain, tmp_path
):
    array = Array(cluster, tmp_path, tasks=2)
    array.wait_until(lambda: array.cells_begun() >= 2)
    # Nobody gets on while the test looks on: the sweep is a matter of seconds.
    trainers = [array.trainer(task) for task in range(2)]
    for trainer in trainers:
        os.kill(trainer, signal.SIGSTOP)

    # The time of task 1 is nearly up: Slurm looks every half minute, and warns it.
    cluster.run("scontrol", "update", f"jobid={array.job}_1", "TimeLimit=2")

    # As the kernel does when memory runs out.
    os.kill(trainers[0], signal.SIGKILL)
    array.wait_for_restart(0, times=1)
    assert "left with 137: is requeued" in array.log(0)
    os.kill(array.trainer(0), signal.SIGSTOP)

    array.wait_until(lambda: _has_pending(trainers[1], signal.SIGTERM))
    os.kill(trainers[1], signal.SIGCONT)
    array.wait_for_restart(1, times=1)
    assert "left with 75: is requeued" in array.log(1)

    # As Slurm does for the sake of a job that matters more.
    cluster.run("scontrol", "requeue", f"{array.job}_0")
    array.wait_for_restart(0, times=2)
    assert array.log(0).count("is requeued") == 1

    array.wait_until(lambda: not cluster.run("squeue", "-h").strip())
    assert [array.show(task)["ExitCode"] for task in range(2)] == ["0:0", "0:0"]
    expected, found = _tables(plain), _tables(array.sweep_dir)
    assert expected.keys() == found.keys() and len(found) == 8
    for name, frame in expected.items():
        pd.testing.assert_frame_equal(found[name], frame, check_exact=True)


def test_a_cancelled_task_stays_cancelled(cluster, tmp_path):
    array = Array(cluster, tmp_path, tasks=1)
    array.wait_until(array.cells_begun)
    cluster.run("scancel", array.job)
    array.wait_until(lambda: not cluster.run("squeue", "-h").strip())
    assert array.show(0)["JobState"] == "CANCELLED"
    assert "as the job is being ended from outside" in array.log(0)
    assert "is requeued" not in array.log(0)


def test_a_mistake_of_the_user_is_not_tried_again(cluster, tmp_path):
    array = Array(cluster, tmp_path, tasks=1)
    (tmp_path / "sweep.gin").write_text("workload.nothing = 1\n")
    array.wait_until(lambda: not cluster.run("squeue", "-h").strip())
    assert array.show(0)["ExitCode"] == "2:0"
    assert "error: parameter of workload 'nothing' is unknown" in array.log(0)


def test_a_cluster_of_ray_trains_on_the_nodes_of_a_job(cluster, plain, tmp_path):
    (tmp_path / "sweep.gin").write_text(SWEEP)
    sweep_dir, log = tmp_path / "sweep", tmp_path / "job.log"
    told = cluster.run(
        *("env", f"DPS_TF_VENV={Path(sys.executable).parents[1]}"),
        *(PATH, "DPS_TF_TURN_SECONDS=0.05", "DPS_TF_PORT=26379"),
        *("sbatch", "--parsable", "--nodes=1", f"--chdir={tmp_path}"),
        *(f"--output={log}", str(SOURCE_TREE / "launch" / "ray" / "sweep.sbatch")),
        *(f"--gin_file={tmp_path}/sweep.gin", f"--sweep_dir={sweep_dir}", SLOWLY),
    )
    job = told.strip()
    assert job.isdecimal(), told

    def is_over() -> bool:
        return not cluster.run("squeue", "-h").strip()

    # In the middle of training, as Slurm does when the time of a job is nearly up.
    wait_until(lambda: list(sweep_dir.glob("cells/*/states/*")), SECONDS, log.read_text)
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    wait_until(lambda: "the job is requeued" in log.read_text(), 120, log.read_text)
    assert "stopped by SIGTERM" in log.read_text()
    wait_until(lambda: "PENDING" in cluster.run("squeue", "-h", "-o", "%T"), 60, str)
    time.sleep(3)
    cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now")
    wait_until(is_over, SECONDS, lambda: log.read_text() + cluster.told(), PAUSE)
    assert "ExitCode=0:0" in cluster.run("scontrol", "show", "job", job)
    expected, found = _tables(plain), _tables(sweep_dir)
    assert expected.keys() == found.keys() and len(found) == 8
    for name, frame in expected.items():
        pd.testing.assert_frame_equal(found[name], frame, check_exact=True)
