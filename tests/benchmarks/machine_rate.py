"""Seconds of this machine for a step and an evaluation, trials on all of its devices.

As `dps_tf.train` uses them by default: every processor, GPU or TPU core carries trials
of its own. Seconds are those of the whole machine: wall time over the steps of all
trials.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf import models, optim
from dps_tf.core import examples_at
from dps_tf.data import Dataset, Examples
from dps_tf.training import Program, Task, device_memory
from dps_tf.tuning.resources import Resources, free_memory
from tests.benchmarks.grid_cost import VALIDATION_EXAMPLES

CLASSES = 10
SHAPES = {"simple_cnn": (28, 28, 1), "resnet8": (32, 32, 3)}


def write_table(
    path: Path,
    resources: Resources,
    batch_sizes: Sequence[int],
    *,
    train_examples: int = 45_000,
    repeats: int = 3,
    seconds: float = 5.0,
) -> pd.DataFrame:
    """Returns and writes columns network, batch_size, slots, seconds (a step),
    evaluation_seconds: medians over the repeats."""
    rows = []
    for network in SHAPES:
        task = task_of(network, train_examples)
        for batch_size in batch_sizes:
            machine = _Machine(task, resources, batch_size)
            found = [machine.measure(seconds) for _ in range(repeats)]
            step, evaluation = np.median(found, axis=0)
            rows.append(
                {
                    "network": network,
                    "batch_size": batch_size,
                    "slots": machine.slots,
                    "seconds": step,
                    "evaluation_seconds": evaluation,
                }
            )
    table = pd.DataFrame(rows)
    table.to_csv(path, index=False, float_format="%.4g")
    return table


def task_of(network: str, train_examples: int) -> Task:
    """Returns a network with made-up examples of its data set's shape and numbers."""
    generator = np.random.default_rng(0)

    def split(count: int) -> Examples:
        inputs = generator.standard_normal((count, *SHAPES[network]), np.float32)
        labels = generator.integers(0, CLASSES, count).astype(np.int32)
        return Examples(inputs, labels)

    train, held = split(train_examples), split(VALIDATION_EXAMPLES[network])
    data = Dataset(f"like_{network}", train, held, CLASSES, "", "none")
    build = functools.partial(models.build, network, SHAPES[network], CLASSES)
    return Task(build, functools.partial(optim.build, "sgd"), data)


class _Machine:
    """A program for each slot of the machine, all of which work at once."""

    def __init__(self, task: Task, resources: Resources, batch_size: int):
        placed = {}
        self._programs = []
        for strategy in resources.strategies:
            key = str(strategy.extended.worker_devices)
            if key not in placed:
                placed[key] = device_memory.place(
                    task.dataset, strategy, "auto", free_memory()
                )
            self._programs.append(Program(task, placed[key], batch_size))
        self._batch_size = batch_size
        self._examples = len(task.dataset.train)
        for program in self._programs:
            initial = models.initial_point(program.network, 0)
            state = program.fresh_state(initial)
            program.load(state, {"learning_rate": 0.01})
        self._seconds_each(lambda program: self._advance(program, 2), 1)
        self._seconds_each(lambda program: program.evaluate(), 1)

    @property
    def slots(self) -> int:
        return len(self._programs)

    def measure(self, seconds: float) -> tuple[float, float]:
        """Returns seconds for a step and for an evaluation, in about twice so many."""
        return (
            self._rate(lambda program: self._advance(program, 4), seconds) / 4,
            self._rate(lambda program: program.evaluate(), seconds),
        )

    def _advance(self, program: Program, steps: int) -> None:
        program.advance(examples_at(0, steps, 0, self._examples, self._batch_size))

    def _rate(self, work: Callable[[Program], object], seconds: float) -> float:
        times = max(1, int(seconds / (self._seconds_each(work, 1) * self.slots)))
        return self._seconds_each(work, times)

    def _seconds_each(self, work: Callable[[Program], object], times: int) -> float:
        """Returns wall time over all that was done: `times` in each slot at once."""

        def repeat(program: Program) -> None:
            for _ in range(times):
                work(program)

        begun = time.perf_counter()
        with ThreadPoolExecutor(self.slots) as pool:
            list(pool.map(repeat, self._programs))
        return (time.perf_counter() - begun) / (times * self.slots)
