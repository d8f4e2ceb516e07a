"""Sweeps of which the truth is known: a runner of given errors runs their studies.

Errors are given for each study (`truth`), or those of a `Sweep` with K* = c1/B + c2
known: a trial's steps-to-result grow log-quadratically with the distance of its
effective learning rate from the best one, and rates far above it diverge. Its error
falls as a power of the step and meets the goal at the drawn step.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import loading
from dps_tf.core import (
    EvaluationInterval,
    Goal,
    Pruning,
    Space,
    StudySpecification,
    SweepSpecification,
)
from dps_tf.store import (
    MEASUREMENTS,
    LocalFiles,
    StudyReader,
    SweepLayout,
    fingerprint,
    write_table,
)
from dps_tf.store.tables import to_frame
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.sweep import start_sweep
from tests.made_up.specifications import ERROR, SPACE, specification
from tests.made_up.studies import (
    Place,
    SyntheticRunner,
    interrupting,
    reader_of,
    run,
    trials_of,
)
from tests.store.object_store import MemoryFiles

GIN = "sweep.batch_sizes = (4, 8)\nworkload.goal = @goal()\n"
INTERVAL = 100


@dataclass(frozen=True)
class Truth:
    """A study, and the errors of its trials at their evaluations.

    A trial diverges where its error is NaN. One with fewer errors than others fails
    after the last of them, unless it has met the goal; its study stays open.
    """

    errors: Sequence[Sequence[float]]
    study: StudySpecification

    def record(self, place: Place) -> None:
        """Runs the study."""
        interval, sparsity = self.study.evaluations.interval, self.study.cell.sparsity
        trials = trials_of(*self.errors)
        run(place, self.study, SyntheticRunner(trials, interval, sparsity=sparsity))


def truth(
    errors: Sequence[Sequence[float]], *, interval: int = INTERVAL, **changes: Any
) -> Truth:
    """Returns a study with these errors; changes are those of its specification."""
    asked = {
        "points": len(errors),
        "step_budget": max(map(len, errors)) * interval,
        "evaluation_interval": EvaluationInterval(steps=interval),
        "finishers": 1,
        # Of no value at an end of a range K* would be a bound only.
        "space": Space.from_dict({"learning_rate": ("discrete", (0.1, 0.2))}),
    }
    return Truth(errors, specification(**{**asked, **changes}))


def random_truth(rng, trials=12, evaluations=15, **changes) -> Truth:
    """Returns curves that fall from about 0.5, some of which diverge."""
    rate = rng.uniform(0.02, 0.5, (trials, 1))
    level = np.exp(-rate * np.arange(1, evaluations + 1)) * 0.6
    errors = np.clip(level + rng.normal(0, 0.03, (trials, evaluations)), 0, 1)
    errors = np.round(errors, 2)  # Ties, and values equal to the threshold.
    for trial in range(trials):
        if rng.random() < 0.25:
            errors[trial, rng.integers(evaluations) :] = np.nan
    return truth(errors, **changes)


def write(directory: Path | str, truths: Sequence[Truth]) -> Path | str:
    """Writes a sweep as training leaves it, and returns its directory."""
    for each in truths:
        each.record(directory)
    sweep = SweepSpecification(tuple(each.study for each in truths))
    start_sweep(LocalFiles(), SweepLayout(str(directory)), sweep, GIN)
    return directory


def tables(*truths: Truth) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns the tables (studies, trials, curves) of a sweep of studies."""
    with tempfile.TemporaryDirectory() as folder:
        found = loading.load(write(folder, truths))
    return found.studies, found.trials, found.curves


def closing(**changes: Any) -> dict[str, Any]:
    """Returns what closes a study of three trials: one reached, one not, one failed."""
    errors = [[0.5, 0.4, 0.3, 0.2, 0.2, 0.2, 0.1], [0.5] * 7, [0.5] * 3]
    files, made = MemoryFiles(), truth(errors, **changes)
    made.record(files)
    frames = {
        name: to_frame(t) for name, t in reader_of(files, made.study).tables().items()
    }
    # A study with a failed trial stays open until it has been tried again.
    [row] = frames.pop("studies").to_dict("records")
    return {"study": {**row, "closed": True}, **frames}


def without_format(content: Any) -> bytes:
    """Returns a record as it was written before formats had numbers."""
    record = {"content": content, "sha256": fingerprint(content)}
    return f"{json.dumps(record, sort_keys=True, indent=2)}\n".encode()


def write_open_study(directory: Path, batch_size: int = 64) -> Path:
    """Writes a study of four trials: one reached, one diverged, one runs, one waits."""
    study = truth(
        [[0.2, 0.1, 0.03, 0.03], [math.nan] * 4, [0.5] * 4, [0.5] * 4],
        batch_size=batch_size,
        name="mnist_simple_cnn",
        dataset="mnist",
        network="simple_cnn",
        goal=Goal(ERROR, 0.03),
        # Its trials run one after another.
        space=SPACE,
        oracle="keras_tuner.oracles.RandomSearchOracle",
    )
    stop = StopRequest()
    trials = trials_of(*study.errors)
    runner = SyntheticRunner(trials, INTERVAL, before_slice=interrupting(stop, 5))
    with contextlib.suppress(Interrupted):
        run(directory, study.study, runner, stop)
    return directory


@dataclass(frozen=True)
class Sweep:
    """What to make up. Every combination of the tuples is a cell."""

    workload: str = "mnist_simple_cnn"
    optimizers: tuple[str, ...] = ("sgd",)
    sparsities: tuple[float, ...] = (0.0, 0.9)
    seeds: tuple[int, ...] = (0,)
    batch_sizes: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    axes: tuple[tuple[str, str], ...] = ()
    precision: str = "float32"
    points: int = 16
    goal: float = 0.03
    step_budget: int = 12_000
    interval: int = 50
    search_mode: str = "race"
    measured: bool = True

    def studies(self) -> list[StudySpecification]:
        """Returns the study of every cell."""
        names = {"learning_rate": ("log", 1e-4, 1.0)}
        momentum = {"momentum": ("reverse_log", 0.9, 0.9999)}
        return [
            specification(
                batch_size,
                sparsity,
                seed=seed,
                axes=self.axes,
                name=self.workload,
                optimizer=optimizer,
                goal=Goal(ERROR, self.goal),
                space=Space.from_dict(
                    names if optimizer == "sgd" else {**names, **momentum}
                ),
                points=self.points,
                step_budget=self.step_budget,
                evaluation_interval=EvaluationInterval(steps=self.interval),
                finishers=3,
                search_mode=self.search_mode,
                pruning=Pruning("kernels_and_biases"),
                precision=self.precision,
            )
            for optimizer, sparsity, seed, batch_size in itertools.product(
                self.optimizers, self.sparsities, self.seeds, self.batch_sizes
            )
        ]


def smoothness_ratio(sparsity: float) -> float:
    """Returns L(s) / L(0)."""
    return 1 + 1.6 * sparsity**2


def law_of(optimizer: str, sparsity: float) -> tuple[float, float]:
    """Returns c1 (examples), which grows as smoothness does, and c2 (steps).

    Momentum acts on the flat part.
    """
    return 24_000 * smoothness_ratio(sparsity), 260.0 if optimizer == "sgd" else 130.0


def errors_of(study: StudySpecification) -> np.ndarray:
    """Returns the errors of all trials at all evaluations."""
    cell, workload = study.cell, study.workload
    # A list of whole numbers: the same generator state on every platform.
    key = [cell.batch_size, cell.seed, int(1000 * cell.sparsity), len(cell.optimizer)]
    random = np.random.default_rng(key)
    drawn = pd.DataFrame(workload.draw(cell.seed, workload.points))
    rates = drawn["learning_rate"] / (1 - drawn.get("momentum", 0.0))
    octaves = np.log2(rates.to_numpy() / (min(0.02 * cell.batch_size, 1.2) / 4))
    c1, c2 = law_of(cell.optimizer, cell.sparsity)
    exponents = 0.12 * octaves**2 + random.normal(0.0, 0.08, len(octaves))
    reached = (c1 / cell.batch_size + c2) * 2**exponents
    interval = study.evaluations.interval
    steps = np.arange(interval, workload.step_budget + 1, interval)
    errors = study.goal.threshold * (reached[:, np.newaxis] / steps) ** 0.6
    errors[octaves > 3, 1:] = np.nan
    return np.minimum(errors, 0.9)


def write_sweep(directory: Path | str, sweep: Sweep) -> Path | str:
    """Writes a made-up sweep, the same for the same argument; returns its directory."""
    truths = [Truth(errors_of(study), study) for study in sweep.studies()]
    write(directory, truths)
    for each in truths if sweep.measured else ():
        _measure(reader_of(directory, each.study))
    return directory


def _measure(study: StudyReader) -> None:
    """Writes what was measured along the best trial, if one has met the goal."""
    best = study.best_trial()
    if best is None:
        return
    cell = study.trained().cell
    step = np.unique(np.geomspace(1, study.trial(best).steps_to_result, 10).astype(int))
    noise, square = 25.0 * step**0.25, 1.0 / step**0.3
    values = {
        "smoothness": 9 * smoothness_ratio(cell.sparsity) * step**0.12,
        "gradient_square": square,
        "noise_trace": noise * square,
        "noise_scale": noise,
    }
    rows = pd.DataFrame({"step": step, **values}).melt("step", var_name="quantity")
    rows = rows.assign(**cell.to_json(), trial=best, examples=5000)
    write_table(LocalFiles(), study.layout.measurements, rows, MEASUREMENTS)


def make(*sweeps: Sweep, goal: float | None = None) -> loading.Tables:
    """Returns what `load` returns of made-up sweeps, but no trace of where they were."""
    with tempfile.TemporaryDirectory() as folder:
        names = [
            write_sweep(f"{folder}/{number}", sweep)
            for number, sweep in enumerate(sweeps)
        ]
        return replace(loading.load(*names, goal=goal), sweeps=())
