"""Studies that nobody ran, recorded by the package from the errors of their trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from dps_tf.analysis import loading
from dps_tf.core import (
    EvaluationInterval,
    Space,
    StudySpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
)
from dps_tf.store import (
    CellLayout,
    FileSystem,
    LocalFiles,
    StudyReader,
    SweepLayout,
    close_study,
    fingerprint,
    open_study,
    write_json,
)
from dps_tf.store.study_tables import study_tables
from tests.made_up.specifications import ENVIRONMENT, ERROR, specification
from tests.store.object_store import MemoryFiles

INPUTS = {"training_examples": 54_000, "validation_examples": 6000}
GIN = "sweep.batch_sizes = (4, 8)\nworkload.goal = @goal()\n"
INTERVAL = 100


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
