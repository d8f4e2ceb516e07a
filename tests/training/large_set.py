"""Trains on a set that is ten times as large as the memory that training takes.

Prints JSON: bytes of the set, bytes of memory by which training it grew the process,
and the share of time spent waiting for data that are slow to decode.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

from dps_tf import models
from dps_tf.core import examples_at
from dps_tf.data import Dataset, Examples, MappedRows
from dps_tf.training import Program, StreamedData
from dps_tf.training import strategy as strategies
from dps_tf.training.streamed_data import data_wait
from tests.training import problems
from tests.training.problems import Problem

SHAPE = (32, 32, 3)
COUNT = 240_000
BATCH = 32
STEPS = 16


def scaled(pixels: np.ndarray) -> np.ndarray:
    return pixels / np.float32(255)


def slow(pixels: np.ndarray) -> np.ndarray:
    """Decoding that takes longer than training."""
    time.sleep(0.02 * len(pixels))
    return scaled(pixels)


def dataset(inputs: np.ndarray) -> Dataset:
    labels = np.arange(len(inputs), dtype=np.int32) % 10
    held = Examples(np.asarray(inputs[np.arange(64)]), labels[:64])
    return Dataset("large", Examples(inputs, labels), held, 10, "", "none")


def mapped(file: np.ndarray, preprocess) -> Dataset:
    return dataset(MappedRows(file, np.arange(len(file)), preprocess))


def begun(data: Dataset) -> Program:
    problem = Problem(data, batch_size=BATCH)
    streamed = StreamedData(data, problems.one_device())
    program = Program(problem.task, streamed, BATCH)
    program.load(
        program.fresh_state(models.initial_point(program.network, 0)), problem.point
    )
    return program


def anonymous_bytes() -> int:
    """Memory of this process but for pages of files, which the system takes back."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise OSError("no RssAnon")


class Peak(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.bytes, self._ends = 0, threading.Event()

    def run(self):
        while not self._ends.wait(0.01):
            self.bytes = max(self.bytes, anonymous_bytes())

    def end(self) -> int:
        self._ends.set()
        self.join()
        return self.bytes


def advance(program: Program, turn: int, steps: int = STEPS) -> float:
    """Returns the share of time spent waiting for data."""
    rows = examples_at(turn * steps, steps, 1, COUNT, BATCH)
    start, waited = time.perf_counter(), data_wait()
    program.advance(rows)
    return (data_wait() - waited) / (time.perf_counter() - start)


def main(folder: Path) -> None:
    strategies.configure_threads(1, 2)
    path = folder / "inputs.npy"
    # A file of zeros without blocks: as long as the set, and no burden on the disk.
    file = np.lib.format.open_memmap(path, "w+", np.uint8, (COUNT, *SHAPE))
    streamed = begun(mapped(file, scaled))
    advance(streamed, 0)
    before, peak = anonymous_bytes(), Peak()
    peak.start()
    for turn in range(1, 17):
        advance(streamed, turn)
    starved = begun(mapped(file, slow))
    advance(starved, 0, 1)
    print(
        json.dumps(
            {
                "set": int(file.nbytes),
                "grown": peak.end() - before,
                "starved": advance(starved, 1, 4),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
