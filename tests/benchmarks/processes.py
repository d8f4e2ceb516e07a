"""Candidates in processes of their own, measured in turn."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]

Rounds = dict[str, list[dict[str, float]]]


class Process:
    """One worker, idle except while it is asked."""

    def __init__(self, candidate: str, batch_size: int, errors: IO[bytes]):
        self._candidate = candidate
        self._errors = errors
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.benchmarks.worker",
                candidate,
                str(batch_size),
            ],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def _answer(self) -> dict[str, float]:
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            text = self._errors.read().decode(errors="replace")[-3000:]
            raise RuntimeError(f"{self._candidate} ended:\n{text}")
        return json.loads(line)

    def wait_until_ready(self) -> None:
        """Returns once the candidate has traced and run."""
        self._answer()

    def measure(self, seconds: float) -> dict[str, float]:
        """Returns what it did in about so many seconds."""
        print(seconds, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def processes(names: Sequence[str], batch_size: int) -> Iterator[dict[str, Process]]:
    """Starts one process for each candidate; one after the other, for a fair start."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in names:
            errors = stack.enter_context(tempfile.TemporaryFile())
            found[name] = Process(name, batch_size, errors)
            stack.callback(found[name].close)
            found[name].wait_until_ready()
        yield found


def interleaved(
    names: Sequence[str], batch_size: int, repeats: int, seconds: float
) -> Rounds:
    """Returns the answers of each candidate, asked in turn: A B C A B C ..."""
    rounds: Rounds = {name: [] for name in names}
    with processes(names, batch_size) as running:
        for _ in range(repeats):
            for name, process in running.items():
                rounds[name].append(process.measure(seconds))
    return rounds


def median(rounds: Rounds, name: str, key: str = "steps_per_second") -> float:
    """Returns the median over the rounds."""
    return statistics.median(answer[key] for answer in rounds[name])


def ratio(rounds: Rounds, name: str, base: str) -> float:
    """Returns the median over the rounds of a ratio within each round."""
    return statistics.median(
        ours["steps_per_second"] / theirs["steps_per_second"]
        for ours, theirs in zip(rounds[name], rounds[base], strict=True)
    )
