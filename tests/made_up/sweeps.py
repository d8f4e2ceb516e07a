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
from dps_tf.core import Cell, EvaluationInterval, Goal, Pruning, Space
from dps_tf.store import (
    MEASUREMENTS,
    FileSystem,
    LocalFiles,
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
        best = StudyReader(files, cell).best_trial()
        if best is not None:
            measured = _measurements(each, best)
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
    errors = [np.array(row) for row in ([0.2, 0.1, 0.03], [np.nan], [0.5])]
    asked = {"name": "mnist_simple_cnn", "dataset": "mnist", "network": "simple_cnn"}
    begun = recorded.truth(
        errors,
        batch_size=batch_size,
        goal=Goal(ERROR, 0.03),
        points=4,
        step_budget=1000,
        closed=False,
        **asked,
    )
    return recorded.write(directory, [begun])


def _truths(sweep: Sweep) -> Iterator[Truth]:
    grid = itertools.product(
        sweep.optimizers, sweep.sparsities, sweep.seeds, sweep.batch_sizes
    )
    for optimizer, sparsity, seed, batch_size in grid:
        method = "snip" if sparsity else "none"
        names = {"learning_rate": LEARNING_RATE}
        if optimizer != "sgd":
            names["momentum"] = MOMENTUM
        study = specification(
            cell=Cell(
                *(sweep.workload, optimizer, method, seed, batch_size, sparsity),
                axes=sweep.axes,
            ),
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
        layers = _layers(sparsity)
        yield Truth(errors, study, False, failed, layers, sweep.closed)


def _errors(sweep: Sweep, study) -> np.ndarray:
    """Returns the errors of all trials at all evaluations."""
    cell = study.cell
    # A list of whole numbers: the same generator state on every platform.
    key = [cell.batch_size, cell.seed, int(1000 * cell.sparsity), len(cell.optimizer)]
    random = np.random.default_rng(key)
    drawn = study.workload.draw(cell.seed, sweep.points)
    fates = [_fate(point, cell, random) for point in drawn]
    reached, diverged = np.array(fates).T[..., np.newaxis]
    if cell.batch_size in sweep.hopeless:
        reached[:] = math.inf
    reached = np.minimum(reached, 1e9)
    steps = np.arange(sweep.interval, sweep.step_budget + 1, sweep.interval)
    meets = max(1, math.floor(sweep.goal * VALIDATION_EXAMPLES))
    wrong = np.floor(meets * (reached / steps) ** 0.6)
    wrong = np.where(
        steps < reached, np.maximum(wrong, meets + 1), np.minimum(wrong, meets)
    )
    errors = np.minimum(wrong, 0.9 * VALIDATION_EXAMPLES) / VALIDATION_EXAMPLES
    errors = np.where(steps < diverged, errors, np.nan)
    if sweep.closed and sweep.search_mode == "race":
        # The record would not keep what comes after the end of the race.
        rank = min(sweep.finishers + sweep.failed, sweep.points)
        return errors[:, steps < sorted(reached[:, 0])[rank - 1] + sweep.interval]
    return errors


def _fate(point: dict[str, float], cell: Cell, random) -> tuple[float, float]:
    """Returns (steps-to-result, step of divergence); infinity for never."""
    best = c1_of(cell.sparsity) / cell.batch_size + c2_of(cell.optimizer)
    rate = point["learning_rate"] / (1 - point.get("momentum", 0.0))
    best_rate = min(0.02 * cell.batch_size, 1.2) / 4
    octaves = math.log2(rate / best_rate)
    noise = 2 ** random.normal(0.0, 0.08)
    if octaves > 3:
        return math.inf, 1 + int(random.integers(1, 120))
    return best * noise * 2 ** min(0.12 * octaves**2, 40), math.inf


def _layers(sparsity: float) -> tuple[dict, ...]:
    kept = 1 - sparsity
    layers = [
        {"name": "conv", "parameters": 800, "kept": round(800 * kept**0.3)},
        {"name": "conv_1", "parameters": 51_200, "kept": round(51_200 * kept**1.1)},
        {"name": "dense", "parameters": 10_240, "kept": round(10_240 * kept**0.8)},
    ]
    return tuple({**layer, "emptied": False} for layer in layers if sparsity)


def _measurements(each: Truth, best: int) -> pd.DataFrame:
    """Returns what was measured along the best trial."""
    cell, goal = each.study.cell, each.study.goal
    end = each.study.evaluations.interval * (
        goal.first_met(list(each.errors[best])) + 1
    )
    at = {**cell.to_json(), "trial": best, "examples": 5000}
    rows = []
    for step in np.unique(np.geomspace(1, end, 10).astype(int)):
        noise, square = 25.0 * step**0.25, 1.0 / step**0.3
        values = {
            "smoothness": 9 * smoothness_ratio(cell.sparsity) * step**0.12,
            "gradient_square": square,
            "noise_trace": noise * square,
            "noise_scale": noise,
        }
        rows += [
            {**at, "step": int(step), "quantity": name, "value": float(value)}
            for name, value in values.items()
        ]
    return pd.DataFrame(rows)
