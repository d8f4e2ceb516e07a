"""Sweeps that nobody ran, recorded by the package from the errors of their trials.

Errors are given for each study (`truth`), or those of a `Sweep` with K* = c1/B + c2
known: a trial's steps-to-result grow log-quadratically with the distance of its
effective learning rate from the best one, and rates far above it diverge. Its error
falls as a power of the step and meets the goal at the drawn step.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from dps_tf.analysis import loading
from dps_tf.core import (
    Cell,
    EvaluationInterval,
    Goal,
    Pruning,
    Space,
    StudySpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
)
from dps_tf.store import (
    MEASUREMENTS,
    CellLayout,
    FileSystem,
    LocalFiles,
    RecordedTrial,
    StudyReader,
    SweepLayout,
    close_study,
    fingerprint,
    open_study,
    write_json,
    write_table,
)
from dps_tf.store.study_tables import study_tables
from tests.made_up.specifications import ENVIRONMENT, ERROR, specification
from tests.store.object_store import MemoryFiles

INPUTS = {"training_examples": 54_000, "validation_examples": 6000}
GIN = "sweep.batch_sizes = (4, 8)\nworkload.goal = @goal()\n"
INTERVAL = 100
LEARNING_RATE = ("log", 1e-4, 1.0)
MOMENTUM = ("reverse_log", 0.9, 0.9999)


@dataclass(frozen=True)
class Truth:
    """A study, and what its trials would do.

    Attributes:
        errors: error of each trial at its evaluations; NaN where it is seen to diverge.
        study: specification of the study.
        bounds: whether an evaluation stops once the goal is out of reach.
        failed: texts of the errors of trials that fail after their last evaluation.
        closed: whether the study is finished.
    """

    errors: Sequence[Sequence[float]]
    study: StudySpecification
    bounds: bool = False
    failed: Mapping[int, str] = field(default_factory=dict)
    closed: bool = True

    def report(self, trial: int, place: int, error: float) -> TurnReport:
        """Returns the report of the turn that ends with evaluation 1, 2, ..."""
        interval = self.study.evaluations.interval
        state = TrialState(place * interval, ())
        report = TurnReport(trial, state, state.step, steps_executed=interval)
        if np.isnan(error):
            return replace(report, diverged_step=report.step)
        nearly = self.study.goal.threshold * 1.05
        is_bound = self.bounds and error > nearly
        metrics = {
            ERROR: nearly if is_bound else error,
            "validation/cross_entropy": 3.2 * error,
            "train/loss": 3.0 * error,
        }
        return replace(report, metrics=metrics, is_bound=is_bound)

    def write(self, files: FileSystem, layout: CellLayout) -> None:
        """Writes the study as training leaves it, but no log if it is closed."""
        record = open_study(files, layout, self.study, ENVIRONMENT, INPUTS)
        sparsity = self.study.cell.sparsity
        layer = {"name": "dense", "parameters": 1000, "emptied": False}
        layers = ({**layer, "kept": round(1000 * (1 - sparsity))},) if sparsity else ()
        for trial, errors in enumerate(self.errors):
            facts = TrialProvenance(trial, trial, sparsity, layers)
            record.add_provenance(trial, facts)
            for place, error in enumerate(errors, start=1):
                record.add_report(self.report(trial, place, float(error)))
                met = self.study.goal.reaches(error) and self.study.stop_at_goal
                if met or np.isnan(error):
                    break
            if trial in self.failed:
                record.add_failure(trial, self.failed[trial])
        if not self.closed:
            record.snapshot(force=True)
            return
        row, frames = study_tables(self.study, record.history, INPUTS, closed=True)
        close_study(files, layout.root, study=row, **frames)


def truth(
    errors: Sequence[Sequence[float]],
    *,
    interval: int = INTERVAL,
    bounds: bool = False,
    failed: Mapping[int, str] | None = None,
    closed: bool = True,
    **changes: Any,
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
    study = specification(**{**asked, **changes})
    return Truth(errors, study, bounds, failed or {}, closed)


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


def write(
    directory: Path | str, truths: Sequence[Truth], files: FileSystem | None = None
) -> Path | str:
    """Writes a sweep as training leaves it, and returns its directory."""
    files, layout = files or LocalFiles(), SweepLayout(str(directory))
    cells = {each.study.cell.name: each for each in truths}
    write_json(files, layout.marker, {})
    write_json(files, layout.sweep, {"cells": list(cells)})
    files.write_atomic(layout.config, GIN.encode())
    for name, each in cells.items():
        each.write(files, layout.cell(name))
    return directory


def load(files: MemoryFiles, *directories: str, **arguments: Any) -> loading.Tables:
    """Returns what `load` returns of sweeps in memory, but no trace of where they are.

    A file system in memory saves the time of disks, and of names for directories.
    """
    with mock.patch.object(loading, "files_for", lambda directory: files):
        return replace(loading.load(*directories, **arguments), sweeps=())


def closing(**changes: Any) -> dict[str, Any]:
    """Returns what closes a study of three trials: one reached, one not, one failed."""
    errors = [[0.5, 0.4, 0.3, 0.2, 0.2, 0.2, 0.1], [0.5] * 7, [0.5] * 3]
    text = 'out of "memory",\nreally'
    files, layout = MemoryFiles(), CellLayout("sweep/cells/cell")
    truth(errors, failed={2: text}, **changes).write(files, layout)
    closed = StudyReader(files, layout).closed()
    [row] = closed.pop("studies").to_dict("records")
    return {"study": row, **closed}


def without_format(content: Any) -> bytes:
    """Returns a record as it was written before formats had numbers."""
    record = {"content": content, "sha256": fingerprint(content)}
    return f"{json.dumps(record, sort_keys=True, indent=2)}\n".encode()


def tables(*truths: Truth) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns the tables (studies, trials, curves) of a sweep of studies."""
    files = MemoryFiles()
    write("memory://sweep", truths, files)
    found = load(files, "memory://sweep")
    return found.studies, found.trials, found.curves


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
    write(directory, truths, files)
    for each in truths if sweep.measured else ():
        cell = layout.cell(each.study.cell.name)
        reader = StudyReader(files, cell)
        best = reader.best_trial()
        if best is not None:
            measured = _measurements(each.study.cell, reader.trial(best))
            write_table(files, cell.measurements, measured, MEASUREMENTS)
    return directory


def make(*sweeps: Sweep, goal: float | None = None) -> loading.Tables:
    """Returns the tables of made-up sweeps, as `load` would."""
    files = MemoryFiles()
    names = [f"memory://{number}" for number in range(len(sweeps))]
    for name, sweep in zip(names, sweeps, strict=True):
        write_sweep(name, sweep, files)
    return load(files, *names, goal=goal)


def write_open_study(directory: Path, batch_size: int = 64) -> Path:
    """Writes a study of four trials: one reached, one diverged, one runs, one waits."""
    errors = [[0.2, 0.1, 0.03], [math.nan], [0.5]]
    asked = {"name": "mnist_simple_cnn", "dataset": "mnist", "network": "simple_cnn"}
    asked |= {"goal": Goal(ERROR, 0.03), "points": 4, "step_budget": 1000}
    begun = truth(errors, batch_size=batch_size, closed=False, **asked)
    return write(directory, [begun])


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
    examples = INPUTS["validation_examples"]
    meets = max(1, math.floor(sweep.goal * examples))
    wrong = np.floor(meets * (reached[:, np.newaxis] / steps) ** 0.6)
    wrong = np.where(
        steps < reached[:, np.newaxis],
        np.maximum(wrong, meets + 1),
        np.minimum(wrong, meets),
    )
    errors = np.minimum(wrong / examples, 0.9)
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
