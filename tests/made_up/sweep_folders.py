"""Made-up sweeps on a real disk, in the layout that training leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import metaparameter_names
from dps_tf.core import (
    Cell,
    EvaluationInterval,
    Goal,
    Space,
    StudySpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
    Workload,
)
from dps_tf.store import (
    MEASUREMENTS,
    WORK,
    LocalFiles,
    StoredTables,
    SweepLayout,
    close_study,
    empty_frame,
    open_study,
    write_json,
    write_table,
)
from tests.made_up.rows import ERROR

GIN = "sweep.batch_sizes = (4, 8)\nworkload.goal = @goal()\n"
ENVIRONMENT = {"tensorflow": "2.20.0", "instruction_sets": "avx2"}


def write_sweep(directory: Path, made: StoredTables) -> Path:
    """Writes closed studies and returns the directory."""
    files, sweep = LocalFiles(), SweepLayout(str(directory))
    write_json(files, sweep.marker, {})
    files.write_atomic(sweep.config, GIN.encode())
    studies = made.studies.astype(object).to_dict("records")
    cells = [Cell.from_json(row).name for row in studies]
    write_json(files, sweep.sweep, {"cells": cells})
    for row in studies:
        identity = Cell.from_json(row).to_json()
        layout = sweep.cell(Cell.from_json(row).name)
        trials, curves, measured = (
            _of_cell(table, identity)
            for table in (made.trials, made.curves, made.measurements)
        )
        origin = {"origin": {}, "environments": [ENVIRONMENT]}
        write_json(files, layout.study, origin)
        untuned = [n for n in metaparameter_names(trials) if trials[n].isna().all()]
        trials = trials.drop(columns=untuned)
        close_study(
            files,
            layout.root,
            study=row,
            trials=trials,
            curves=curves,
            work=empty_frame(WORK),
        )
        if len(measured):
            write_table(files, layout.measurements, measured, MEASUREMENTS)
    return directory


def _of_cell(table: pd.DataFrame, identity: dict) -> pd.DataFrame:
    rows = np.logical_and.reduce([table[k] == v for k, v in identity.items()])
    return table[rows].drop(columns="precision").reset_index(drop=True)


def write_open_study(directory: Path, batch_size: int = 64) -> Path:
    """Writes a study of four trials: one reached, one diverged, one runs, one waits."""
    files, sweep = LocalFiles(), SweepLayout(str(directory))
    workload = Workload(
        name="mnist_simple_cnn",
        dataset="mnist",
        network="simple_cnn",
        optimizer="sgd",
        goal=Goal(ERROR, 0.03),
        space=Space.from_dict({"learning_rate": ("log", 1e-4, 1.0)}),
        points=4,
        step_budget=1000,
        evaluation_interval=EvaluationInterval(steps=100),
    )
    cell = Cell("mnist_simple_cnn", "sgd", "none", 0, batch_size, 0.0)
    specification = StudySpecification(cell, workload, finishers=1)
    write_json(files, sweep.marker, {})
    write_json(files, sweep.sweep, {"cells": [cell.name]})
    layout = sweep.cell(cell.name)
    inputs = {"training_examples": 54_000, "validation_examples": 6_000}
    record = open_study(files, layout, specification, ENVIRONMENT, inputs)
    for trial, errors in enumerate(([0.2, 0.1, 0.03], [0.9], [0.5])):
        record.add_provenance(trial, TrialProvenance(trial, trial))
        for place, error in enumerate(errors):
            record.add_report(_report(trial, 100 * (place + 1), error))
    record.snapshot(force=True)
    return directory


def _report(trial: int, step: int, error: float) -> TurnReport:
    diverged = trial == 1
    return TurnReport(
        trial=trial,
        state=TrialState(step, (np.zeros(1),)),
        step=step,
        metrics=None if diverged else {ERROR: error, "train/loss": error},
        diverged_step=step - 50 if diverged else None,
        steps_executed=100,
        seconds=1.0,
    )
