"""keras-tuner's chief and workers as real processes, killed one after the other."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dps_tf.store.closing import read_closed
from dps_tf.store.files import LocalFiles
from dps_tf.store.log import read_logs
from dps_tf.tuning.chief_worker import PATIENCE_SECONDS
from tests.faults.victim import Victim

pytestmark = [pytest.mark.fault, pytest.mark.slow]

POINTS = 12
BINDINGS = (
    "workload.oracle = 'keras_tuner.oracles.RandomSearchOracle'",
    f"workload.points = {POINTS}",
    "workload.step_budget = 20480",
    "sweep.batch_sizes = (16384,)",
    "sweep.finishers = 1",
    "evaluation.examples = 8388608",
    "evaluation.minimum = 256",
)


class Company:
    """Processes that share the trials of one sweep.

    Args:
        children: starts them.
        directory: of the sweep.
        patience: how long a chief may be silent, instead of the usual time.
    """

    def __init__(
        self, children: Victim, directory: Path, patience: float = PATIENCE_SECONDS
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._children = children
        self._patience = patience
        self.directory = directory

    def start(self, name: str) -> int:
        return self._children.start(
            kind="train",
            background=True,
            arguments=[
                "--gin_file=nqm/sgd",
                *(f"--gin_bindings={binding}" for binding in BINDINGS),
                f"--sweep_dir={self.directory}",
                "--workers=1",
            ],
            environment={
                "KERASTUNER_ORACLE_IP": "127.0.0.1",
                "KERASTUNER_ORACLE_PORT": str(self.port),
                "KERASTUNER_TUNER_ID": name,
            },
            seconds=[0.05],
            patience=self._patience,
            output=str(self.output(name)),
        )

    def output(self, name: str) -> Path:
        return self.directory.parent / f"{name}.txt"

    def wait(self, child: int) -> int:
        return self._children.wait(child)

    def kill(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        assert self.wait(child) == -signal.SIGKILL

    def events(self, writer: str = "") -> list[dict]:
        (cell,) = self.directory.glob("cells/*")
        logs, _ = read_logs(LocalFiles(), f"{cell}/log")
        found = [
            e for name, log in logs.items() if name.startswith(writer) for e in log
        ]
        return [e for e in found if e["kind"] == "evaluation"]


def until(is_so: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except ValueError:
            pass  # The cell is not there yet.
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_killed_worker_and_killed_chief_lose_no_trial(children, tmp_path):
    company = Company(children, tmp_path / "sweep")
    chief = company.start("chief")
    first, second = company.start("worker-1"), company.start("worker-2")
    until(lambda: company.events("worker-1") and company.events("worker-2"))
    company.kill(first)
    seen = len(company.events())
    until(lambda: len(company.events()) > seen + 40)
    company.kill(chief)
    # Before the worker gives up; it goes on meanwhile, and with the new chief.
    chief = company.start("chief")
    third = company.start("worker-3")
    codes = {
        name: company.wait(child)
        for name, child in (("chief", chief), ("second", second), ("third", third))
    }
    said = company.output("chief").read_text()
    assert codes == {"chief": 0, "second": 0, "third": 0}, said

    (cell,) = (tmp_path / "sweep").glob("cells/*")
    closed, problems = read_closed(LocalFiles(), str(cell))
    assert closed is not None and not problems
    trials = closed.frame("trials")
    assert list(trials["trial"]) == list(range(POINTS))
    assert trials["learning_rate"].nunique() == POINTS
    assert not trials["outcome"].isin(["failed"]).any()
    # All that anybody trained is evaluations of these trials, and each up to its end.
    ran = {(event["trial"], event["step"]) for event in company.events()}
    for trial, end in zip(trials["trial"], trials["end_step"], strict=True):
        assert {(trial, step) for step in range(512, end + 1, 512)} <= ran


def test_workers_leave_soon_when_their_chief_is_gone(children, tmp_path):
    patience = 15.0
    assert patience < PATIENCE_SECONDS < 60
    company = Company(children, tmp_path / "sweep", patience)
    chief = company.start("chief")
    # A worker is not to lose its patience while the chief starts.
    until(lambda: list(company.directory.glob("cells/*/study.json")))
    worker = company.start("worker-1")
    until(lambda: company.events("worker-1"))
    company.kill(chief)
    killed = time.monotonic()
    assert company.wait(worker) == 75
    assert time.monotonic() - killed < patience + 20
    said = company.output("worker-1").read_text()
    assert said.count("does not answer: start it again") == 1
    assert "Traceback" not in said
