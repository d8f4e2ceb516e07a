"""The package's engine on the same problem: its runner, one program per slot."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from dps_tf import models, optim
from dps_tf._keras import keras
from dps_tf.core import Job, TrialState
from dps_tf.data import Dataset, Examples, Transform, image_augmentation
from dps_tf.sparsity import MaskSet
from dps_tf.training import DeviceData, Program, Task, TrainingRunner
from tests.benchmarks import problem

TRIALS = 16
"""Trials that wait for their turns, so that each turn loads another state."""


def dataset(transform: Transform | None = None) -> Dataset:
    """Returns the problem with a validation split of two: evaluation costs nothing."""
    inputs, labels = problem.examples()
    held = Examples(inputs[:2], labels[:2])
    return Dataset(
        "mnist_shaped",
        Examples(inputs, labels),
        held,
        problem.CLASSES,
        "",
        "none",
        transform=transform,
    )


def with_dropout() -> keras.Model:
    """Returns simple-cnn that leaves out half of the features of its last layer."""
    plain = models.build("simple_cnn", problem.SHAPE, problem.CLASSES)
    *_, features, classifier = plain.layers
    dropped = keras.layers.Dropout(0.5)(features.output)
    return keras.Model(plain.input, classifier(dropped), name="simple_cnn_dropout")


def task(data: Dataset, optimizer: str = "sgd") -> Task:
    """Returns simple-cnn with an optimizer; dropout goes with augmented images."""
    plain = functools.partial(
        models.build, "simple_cnn", problem.SHAPE, problem.CLASSES
    )
    return Task(
        plain if data.transform is None else with_dropout,
        functools.partial(optim.build, optimizer),
        data,
    )


def half_masks(trial: int, initial: list[np.ndarray]) -> MaskSet:
    """Returns masks that keep a random half of every kernel."""
    generator = np.random.default_rng(trial)
    masks = [
        np.float32(generator.random(value.shape) < 0.5)
        if value.ndim > 1
        else np.ones(value.shape, np.float32)
        for value in initial
    ]
    return MaskSet(masks=tuple(masks), realised_sparsity=0.5)


class Engine:
    """Trials of the package side by side, each turn of another trial.

    Attributes:
        turn_seconds: wall time of the turns so far, loading and reading included.
        slice_seconds: that part of it which `Program.advance_lanes` took.
    """

    def __init__(
        self,
        batch_size: int,
        threads: int,
        optimizer: str = "sgd",
        masked: bool = False,
        random: bool = False,
    ):
        data = dataset(image_augmentation(("pad_and_crop", "flip")) if random else None)
        device = DeviceData(data, tf.distribute.OneDeviceStrategy("/device:CPU:0"))
        programs = [
            Program(task(data, optimizer), device, batch_size) for _ in range(threads)
        ]
        for program in programs:
            program.advance_lanes = self._timed(program.advance_lanes)
        self._runner = TrainingRunner(programs, 0, prune=half_masks if masked else None)
        self._steps = problem.steps_per_turn(batch_size)
        self._states: list[TrialState | None] = [None] * TRIALS
        self._next = itertools.cycle(range(TRIALS))
        self._lock = threading.Lock()
        self.turn_seconds = 0.0
        self.slice_seconds = 0.0

    def _timed(self, advance: Callable) -> Callable:
        def timed(*words: object) -> object:
            begun = problem.now()
            result = advance(*words)
            with self._lock:
                self.slice_seconds += problem.now() - begun
            return result

        return timed

    def _turn(self, slot: int, steps: int) -> int:
        with self._lock:
            trial = next(self._next)
        state = self._states[trial]
        step = 0 if state is None else state.step
        job = Job(
            trial, {"learning_rate": problem.LEARNING_RATE}, state, until=step + steps
        )
        (report,) = self._runner.run(slot, [job], lambda: False)
        if report.diverged_step is not None:
            raise RuntimeError(f"trial {trial} diverged at {report.diverged_step}")
        self._states[trial] = report.state
        with self._lock:
            self.turn_seconds += report.seconds
        return report.steps_executed

    def turns(self, slot: int, more: Callable[[], bool]) -> int:
        """Trains in one thread while there is `more` time; returns steps of trials."""
        done = 0
        while more():
            done += self._turn(slot, self._steps)
        return done

    @property
    def slots(self) -> int:
        """How many threads `turns` is called from at once."""
        return self._runner.slots

    def warm_up(self) -> None:
        """Traces every program and gives every trial its first turn."""
        with ThreadPoolExecutor(self.slots) as pool:
            list(pool.map(lambda slot: self._turn(slot, 8), range(self.slots)))
            list(
                pool.map(
                    lambda slot: [self._turn(slot, 4) for _ in range(TRIALS // 2)],
                    range(self.slots),
                )
            )
        self.turn_seconds = self.slice_seconds = 0.0


class FirstStep:
    """All that the command `train` does before a trial's first step, and that step."""

    slots = 1

    def __init__(self, batch_size: int):
        # What a sweep imports beyond training: keras-tuner is not small.
        import dps_tf.tuning.sweep  # noqa: F401

        self._engine = Engine(batch_size, threads=1)

    def warm_up(self) -> None:
        """Makes the first step."""
        self._engine._turn(0, 1)

    def turns(self, slot: int, more: Callable[[], bool]) -> int:
        """Nothing more is asked of it."""
        raise NotImplementedError
