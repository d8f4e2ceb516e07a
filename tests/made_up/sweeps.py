"""Sweeps that nobody ran, with K* = c1/B + c2 known.

A trial's steps-to-result grow log-quadratically with the distance of its effective
learning rate from the best one; rates far above it diverge. Its error falls as a power
of the step and meets the goal at the drawn step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.loading import Tables
from dps_tf.core import (
    Cell,
    EvaluationInterval,
    Goal,
    Pruning,
    Space,
    StudySpecification,
)
from dps_tf.store import (
    MEASUREMENTS,
    FileSystem,
    LocalFiles,
    RecordedTrial,
    StudyReader,
    SweepLayout,
    write_table,
)
from tests.made_up import recorded
from tests.made_up.recorded import Truth
from tests.made_up.specifications import ERROR, specification
from tests.store.object_store import MemoryFiles

VALIDATION_EXAMPLES = 6000
LEARNING_RATE = ("log", 1e-4, 1.0)
MOMENTUM = ("reverse_log", 0.9, 0.9999)


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
    finishers: int = 3
    goal: float = 0.03
    step_budget: int = 12_000
    interval: int = 50
    search_mode: str = "race"
    closed: bool = True
    failed: int = 0
    hopeless: tuple[int, ...] = ()
    """Batch sizes at which no trial meets the goal."""
    measured: bool = True


def c1_of(sparsity: float) -> float:
    """Examples; grows with sparsity as smoothness does."""
    return 24_000 * smoothness_ratio(sparsity)


def c2_of(optimizer: str) -> float:
    """Steps; momentum acts on the flat part."""
    return 260.0 if optimizer == "sgd" else 130.0


def smoothness_ratio(sparsity: float) -> float:
    """L(s) / L(0)."""
    return 1 + 1.6 * sparsity**2


def write_sweep(
    directory: Path | str, sweep: Sweep, files: FileSystem | None = None
) -> Path | str:
    """Writes a made-up sweep, the same for the same argument; returns its directory."""
    files, layout = files or LocalFiles(), SweepLayout(str(directory))
    truths = list(_truths(sweep))
    recorded.write(directory, truths, files)
    for each in truths if sweep.measured else ():
        cell = layout.cell(each.study.cell.name)
        reader = StudyReader(files, cell)
        best = reader.best_trial()
        if best is not None:
            measured = _measurements(each.study.cell, reader.trial(best))
            write_table(files, cell.measurements, measured, MEASUREMENTS)
    return directory


def make(*sweeps: Sweep, goal: float | None = None) -> Tables:
    """Returns the tables of made-up sweeps, as `load` would."""
    files = MemoryFiles()
    names = [f"memory://{number}" for number in range(len(sweeps))]
    for name, sweep in zip(names, sweeps, strict=True):
        write_sweep(name, sweep, files)
    return recorded.load(files, *names, goal=goal)


def write_open_study(directory: Path, batch_size: int = 64) -> Path:
    """Writes a study of four trials: one reached, one diverged, one runs, one waits."""
    errors = [[0.2, 0.1, 0.03], [math.nan], [0.5]]
    asked = {"name": "mnist_simple_cnn", "dataset": "mnist", "network": "simple_cnn"}
    asked |= {"goal": Goal(ERROR, 0.03), "points": 4, "step_budget": 1000}
    begun = recorded.truth(errors, batch_size=batch_size, closed=False, **asked)
    return recorded.write(directory, [begun])


def _truths(sweep: Sweep) -> Iterator[Truth]:
    grid = itertools.product(
        sweep.optimizers, sweep.sparsities, sweep.seeds, sweep.batch_sizes
    )
    for optimizer, sparsity, seed, batch_size in grid:
        names = {"learning_rate": LEARNING_RATE}
        if optimizer != "sgd":
            names["momentum"] = MOMENTUM
        study = specification(
            batch_size,
            sparsity,
            seed=seed,
            axes=sweep.axes,
            name=sweep.workload,
            optimizer=optimizer,
            goal=Goal(ERROR, sweep.goal),
            space=Space.from_dict(names),
            points=sweep.points,
            step_budget=sweep.step_budget,
            evaluation_interval=EvaluationInterval(steps=sweep.interval),
            finishers=sweep.finishers,
            search_mode=sweep.search_mode,
            pruning=Pruning("kernels_and_biases"),
            precision=sweep.precision,
        )
        errors = list(_errors(sweep, study))
        if not sweep.closed:
            half = sweep.points // 2
            errors[half:] = [row[:2] for row in errors[half:]]
        errors[: sweep.failed] = [row[:1] for row in errors[: sweep.failed]]
        failed = dict.fromkeys(range(sweep.failed), "disk full")
        yield Truth(errors, study, failed=failed, closed=sweep.closed)


def _errors(sweep: Sweep, study: StudySpecification) -> np.ndarray:
    """Returns the errors of all trials at all evaluations."""
    cell = study.cell
    # A list of whole numbers: the same generator state on every platform.
    key = [cell.batch_size, cell.seed, int(1000 * cell.sparsity), len(cell.optimizer)]
    random = np.random.default_rng(key)
    drawn = pd.DataFrame(study.workload.draw(cell.seed, sweep.points))
    rates = drawn["learning_rate"] / (1 - drawn.get("momentum", 0.0))
    octaves = np.log2(rates.to_numpy() / (min(0.02 * cell.batch_size, 1.2) / 4))
    exponents = 0.12 * octaves**2 + random.normal(0.0, 0.08, len(octaves))
    best = c1_of(cell.sparsity) / cell.batch_size + c2_of(cell.optimizer)
    never = (octaves > 3) | (cell.batch_size in sweep.hopeless)
    reached = np.where(never, 1e9, np.minimum(best * 2**exponents, 1e9))
    diverged = np.where(octaves > 3, random.integers(2, 121, len(octaves)), np.inf)
    steps = np.arange(sweep.interval, sweep.step_budget + 1, sweep.interval)
    meets = max(1, math.floor(sweep.goal * VALIDATION_EXAMPLES))
    wrong = np.floor(meets * (reached[:, np.newaxis] / steps) ** 0.6)
    wrong = np.where(
        steps < reached[:, np.newaxis],
        np.maximum(wrong, meets + 1),
        np.minimum(wrong, meets),
    )
    errors = np.minimum(wrong / VALIDATION_EXAMPLES, 0.9)
    errors = np.where(steps < diverged[:, np.newaxis], errors, np.nan)
    if sweep.closed and sweep.search_mode == "race":
        # The record would not keep what comes after the end of the race.
        rank = min(sweep.finishers + sweep.failed, sweep.points)
        return errors[:, steps < sorted(reached)[rank - 1] + sweep.interval]
    return errors


def _measurements(cell: Cell, trial: RecordedTrial) -> pd.DataFrame:
    """Returns what was measured along a trial that met the goal."""
    step = np.unique(np.geomspace(1, trial.steps_to_result, 10).astype(int))
    noise, square = 25.0 * step**0.25, 1.0 / step**0.3
    values = {
        "smoothness": 9 * smoothness_ratio(cell.sparsity) * step**0.12,
        "gradient_square": square,
        "noise_trace": noise * square,
        "noise_scale": noise,
    }
    rows = pd.DataFrame({"step": step, **values}).melt("step", var_name="quantity")
    return rows.assign(**cell.to_json(), trial=trial.number, examples=5000)
