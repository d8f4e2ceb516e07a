"""Sweeps of a known truth, which the runner of given errors runs.

Errors are given for each study (`truth`), or are those of a `Sweep` by K* = c1/B + c2:
a trial's steps-to-result grow log-quadratically with the distance of its effective
learning rate from the best one, and rates far above it diverge. Its error falls as a
power of the step.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import loading
from dps_tf.analysis.tables import with_precision
from dps_tf.core import Cell, Goal, Pruning, Space, StudySpecification
from dps_tf.store import MEASUREMENTS, SweepReader, write_table
from dps_tf.tuning.interruption import Interrupted
from tests.made_up.specifications import ERROR, MOMENTUM_SPACE, SPACE, specification
from tests.made_up.studies import (
    MEMORY,
    SyntheticRunner,
    frames,
    reader_of,
    run,
    trials_of,
)
from tests.store.object_store import MemoryFiles


def truth(errors: Sequence[Sequence[float]], **changes: Any) -> SyntheticRunner:
    """Returns the runner of a `study` with these errors; changes are of the study."""
    asked = {"interval": 100, "points": len(errors), "finishers": 1, **changes}
    asked.setdefault("step_budget", max(map(len, errors)) * asked["interval"])
    # Of no value at an end of a range K* would be a bound only.
    values = Space.from_dict({"learning_rate": ("discrete", (0.1, 0.2))})
    study = specification(**{"space": values, **asked})
    return SyntheticRunner(trials_of(*errors), study=study)


def tables(*truths: SyntheticRunner) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns the tables (studies, trials, curves) of a sweep of studies."""
    disk = MemoryFiles()
    for each in truths:
        run(disk, each.study, each)
    found = SweepReader(disk, MEMORY).tables()
    trials, curves = (
        with_precision(table, found.studies) for table in (found.trials, found.curves)
    )
    return found.studies, trials, curves


def closing(**changes: Any) -> dict[str, Any]:
    """Returns what closes a study of three trials: one reached, one not, one failed."""
    errors = [[0.5, 0.4, 0.3, 0.2, 0.2, 0.2, 0.1], [0.5] * 7, [0.5] * 3]
    files, made = MemoryFiles(), truth(errors, **changes)
    run(files, made.study, made)
    found = frames(files, made.study)
    # In a sweep a study stays open while a trial that failed may be tried again.
    [row] = found.pop("studies").to_dict("records")
    return {"study": {**row, "closed": True}, **found}


def write_open_study(directory: Path, batch_size: int = 64) -> Path:
    """Writes a study of four trials: one reached, one diverged, one runs, one waits."""
    # Trials that an oracle chooses run one after another.
    oracle = "keras_tuner.oracles.RandomSearchOracle"
    asked = {"points": 4, "step_budget": 1000, "interval": 100, "oracle": oracle}
    runner = SyntheticRunner(trials_of([0.3, 0.2, 0.1], [np.nan], [0.5]), stop_at=5)
    with contextlib.suppress(Interrupted):
        run(directory, specification(batch_size, **asked), runner)
    return directory


@dataclass(frozen=True)
class Sweep:
    """What to make up. Every combination of the tuples is a cell."""

    name: str = "mnist_simple_cnn"
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

    def parts(self) -> Iterator[Sweep]:
        """Yields a sweep of each cell alone."""
        tuples = ("optimizers", "sparsities", "seeds", "batch_sizes")
        for values in itertools.product(*(getattr(self, name) for name in tuples)):
            cell = zip(tuples, values, strict=True)
            yield replace(self, **{name: (value,) for name, value in cell})

    def study(self) -> StudySpecification:
        """Returns the study of a sweep of one cell."""
        same = ("name", "axes", "precision", "points", "step_budget", "interval")
        return specification(
            *(self.batch_sizes[0], self.sparsities[0]),
            optimizer=self.optimizers[0],
            seed=self.seeds[0],
            space=SPACE if self.optimizers == ("sgd",) else MOMENTUM_SPACE,
            goal=Goal(ERROR, self.goal),
            finishers=3,
            pruning=Pruning("kernels_and_biases"),
            search_mode=self.search_mode,
            **{name: getattr(self, name) for name in same},
        )


def law_of(optimizer: str, sparsity: float) -> tuple[float, float]:
    """Returns c1 (examples), more if sparse, and c2 (steps), fewer with momentum."""
    return 24_000 * (1 + 1.6 * sparsity**2), 260.0 if optimizer == "sgd" else 130.0


def _errors(study: StudySpecification) -> np.ndarray:
    """Returns the errors of all trials at all evaluations."""
    cell, workload = study.cell, study.workload
    # A list of whole numbers: the same generator state on every platform.
    key = [cell.batch_size, cell.seed, int(1000 * cell.sparsity), len(cell.optimizer)]
    random = np.random.default_rng(key)
    drawn = pd.DataFrame(workload.draw(cell.seed, workload.points))
    rates = drawn["learning_rate"] / (1 - drawn.get("momentum", 0.0))
    octaves = np.log2(rates.to_numpy() / (min(0.02 * cell.batch_size, 1.2) / 4))
    c1, c2 = law_of(cell.optimizer, cell.sparsity)
    noise = random.normal(0.0, 0.08, len(octaves))
    reached = (c1 / cell.batch_size + c2) * 2 ** (0.12 * octaves**2 + noise)
    steps = np.array(study.evaluations.steps_up_to(workload.step_budget))
    errors = study.goal.threshold * (reached[:, np.newaxis] / steps) ** 0.6
    errors[octaves > 3, 1:] = np.nan
    return np.minimum(errors, 0.9)


class GrowingFiles(MemoryFiles):
    """Files in memory as a local disk would have them: a log is one that grows."""

    can_append = True

    def append(self, path: str, data: bytes) -> None:
        begun = self.read_bytes(path) if path in self.objects else b""
        self.write_atomic(path, begun + data)


def write_sweep(directory: Path | str, sweep: Sweep) -> Path | str:
    """Writes a made-up sweep, the same for the same argument; returns its directory."""
    for part in sweep.parts():
        for name, content in _files_of(part).items():
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return directory


@functools.cache
def _files_of(sweep: Sweep) -> dict[str, bytes]:
    """Returns the files of a sweep of one cell, which a process runs once."""
    study, lanes, disk = sweep.study(), sweep.points, GrowingFiles()
    # The tables are those of a trial at a time, in a third of the time.
    run(disk, study, SyntheticRunner(trials_of(*_errors(study)), lanes=lanes))
    reader = reader_of(disk, study)
    best = reader.best_trial() if sweep.measured else None
    if best is not None:
        rows = _measured(study.cell, best)
        write_table(disk, reader.layout.measurements, rows, MEASUREMENTS)
    return {
        path.removeprefix(f"{MEMORY}/"): data
        for path, (data, _) in disk.objects.items()
    }


def _measured(cell: Cell, trial: int) -> pd.DataFrame:
    """Returns what was measured along a trial."""
    step = 2 ** np.arange(8)
    noise, square = 25.0 * step**0.25, step**-0.3
    values = {
        "smoothness": law_of(cell.optimizer, cell.sparsity)[0] * step**0.12,
        "gradient_square": square,
        "noise_trace": noise * square,
        "noise_scale": noise,
    }
    rows = pd.DataFrame({"step": step, **values}).melt("step", var_name="quantity")
    return rows.assign(**cell.to_json(), trial=trial, examples=5000)


def make(*sweeps: Sweep) -> loading.Tables:
    """Returns what `load` returns of made-up sweeps, but no trace of their folder."""
    return copy.deepcopy(_loaded(sweeps))


@functools.cache
def _loaded(sweeps: tuple[Sweep, ...]) -> loading.Tables:
    with tempfile.TemporaryDirectory() as folder:
        places = [write_sweep(f"{folder}/{n}", each) for n, each in enumerate(sweeps)]
        return replace(loading.load(*places), sweeps=())
