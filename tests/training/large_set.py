"""Trains on a set that is ten times as large as the memory that training takes.

Prints JSON: bytes of the set, bytes of memory by which training it grew the process,
processor's seconds per step streamed and in memory (which, unlike time, do not depend
on what else runs), and shares of time spent waiting for data.
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
from dps_tf.training import DeviceData, Program, StreamedData
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


def begun(data: Dataset, placed) -> Program:
    problem = Problem(data, "simple_cnn", batch_size=BATCH)
    program = Program(problem.task, placed(data, problems.one_device()), BATCH)
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


def advance(program: Program, turn: int, count: int, steps: int = STEPS):
    """Returns (processor's seconds per step, share of time spent waiting for data)."""
    rows = examples_at(turn * steps, steps, 1, count, BATCH)
    start, used = time.perf_counter(), time.process_time()
    waited = data_wait()
    program.advance(rows)
    seconds = time.perf_counter() - start
    return (time.process_time() - used) / steps, (data_wait() - waited) / seconds


def main(folder: Path) -> None:
    strategies.configure_threads(1, 2)
    path = folder / "inputs.npy"
    # A file of zeros without blocks: as long as the set, and no burden on the disk.
    file = np.lib.format.open_memmap(path, "w+", np.uint8, (COUNT, *SHAPE))
    small = dataset(scaled(np.asarray(file[:512])))
    held, streamed = begun(small, DeviceData), begun(mapped(file, scaled), StreamedData)
    for program, count in ((held, 512), (streamed, COUNT)):
        advance(program, 0, count)
    before, peak = anonymous_bytes(), Peak()
    peak.start()
    pairs = [
        (advance(held, turn, 512), advance(streamed, turn, COUNT))
        for turn in range(1, 17)
    ]
    starved = begun(mapped(file, slow), StreamedData)
    advance(starved, 0, COUNT, 1)
    print(
        json.dumps(
            {
                "set": int(file.nbytes),
                "grown": peak.end() - before,
                "held": min(one[0] for one, _ in pairs),
                "streamed": min(other[0] for _, other in pairs),
                "wait": min(other[1] for _, other in pairs),
                "starved": advance(starved, 1, COUNT, 4)[1],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
