"""Tables of sweeps that nobody ran, with K* = c1/B + c2 known.

A trial's steps-to-result grow log-quadratically with the distance of its effective
learning rate from the best one; rates far above it diverge. Outcomes come from the
package's own reduction of a race, curves from an error that falls as a power of the
step and meets the goal at the drawn step.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis import loading
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.tables import metaparameter_names, with_open_ends
from dps_tf.core import (
    CELL_KEY,
    Cell,
    EvaluationInterval,
    EvaluationSchedule,
    Goal,
    RaceRule,
    Space,
    Trajectory,
    TrialProvenance,
    TrialResult,
    TrialState,
    TurnReport,
    points,
    reduce_study,
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
from tests.made_up import rows
from tests.made_up.rows import ERROR
from tests.made_up.specifications import specification

GIN = "sweep.batch_sizes = (4, 8)\nworkload.goal = @goal()\n"
ENVIRONMENT = {"tensorflow": "2.20.0", "instruction_sets": "avx2"}
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


def make(sweep: Sweep = Sweep()) -> StoredTables:  # noqa: B008 (frozen)
    """Returns the tables of a made-up sweep, the same for the same argument."""
    studies, trials, curves, measurements = [], [], [], []
    grid = itertools.product(
        sweep.optimizers, sweep.sparsities, sweep.seeds, sweep.batch_sizes
    )
    for optimizer, sparsity, seed, batch_size in grid:
        identity = {
            "workload": sweep.workload,
            "optimizer": optimizer,
            "sparsity_method": "snip" if sparsity else "none",
            "seed": seed,
            "batch_size": batch_size,
            "sparsity": sparsity,
            **dict(sweep.axes),
            "precision": sweep.precision,
        }
        studies.append(_study(sweep, identity))
        cell_trials, cell_curves = _trials(sweep, identity)
        trials += cell_trials
        curves += [table.assign(**identity) for table in cell_curves]
        if sweep.measured:
            measurements += _measurements(identity, cell_trials)
    return StoredTables(
        pd.DataFrame(studies),
        rows.typed(trials),
        pd.concat(curves, ignore_index=True),
        pd.DataFrame(measurements) if measurements else _nothing_measured(),
    )


def tables_of(*made: StoredTables, goal: float | None = None) -> Tables:
    """Returns the tables of one or several made-up sweeps, as `load` would."""
    studies, trials, curves, measurements = (
        pd.concat([getattr(one, name) for one in made], ignore_index=True)
        for name in ("studies", "trials", "curves", "measurements")
    )
    trials = with_open_ends(trials, studies)
    record = StoredTables(studies, trials, curves, measurements)
    return loading.tables_of(record, goal)


def _study(sweep: Sweep, identity: dict[str, Any]) -> dict[str, Any]:
    return rows.study(
        Goal(ERROR, sweep.goal),
        **identity,
        step_budget=sweep.step_budget,
        points=sweep.points,
        finishers=sweep.finishers,
        search_mode=sweep.search_mode,
        evaluation_interval=sweep.interval,
        evaluation_examples=VALIDATION_EXAMPLES,
        space=json.dumps(_space(identity["optimizer"]).to_json()),
        closed=sweep.closed,
        prunable="kernels_and_biases" if any(sweep.sparsities) else "none",
    )


def _space(optimizer: str) -> Space:
    names = {"learning_rate": LEARNING_RATE}
    if optimizer != "sgd":
        names["momentum"] = MOMENTUM
    return Space.from_dict(names)


def _trials(
    sweep: Sweep, identity: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[pd.DataFrame]]:
    optimizer, batch_size = identity["optimizer"], identity["batch_size"]
    drawn = points(_space(optimizer), "sobol", identity["seed"], sweep.points)
    # A list of whole numbers: the same generator state on every platform.
    key = [batch_size, identity["seed"], int(1000 * identity["sparsity"])]
    random = np.random.default_rng([*key, len(optimizer)])
    best = c1_of(identity["sparsity"]) / batch_size + c2_of(optimizer)
    schedule = EvaluationSchedule(sweep.interval)
    states, exact = [], []
    for number, point in enumerate(drawn):
        steps, diverged = _fate(point, best, batch_size, random)
        if batch_size in sweep.hopeless:
            steps = math.inf
        if not sweep.closed and number >= sweep.points // 2:
            states.append(Trajectory(last_step=2 * sweep.interval))
        elif number < sweep.failed:
            states.append(Trajectory(last_step=sweep.interval, failed="disk full"))
        elif diverged:
            seen = schedule.at_or_after(diverged)
            states.append(Trajectory(last_step=seen, diverged_step=diverged))
        else:
            finish = schedule.at_or_after(math.ceil(min(steps, 1e9)))
            finish = finish if finish <= sweep.step_budget else None
            last = finish or schedule.last_within(sweep.step_budget)
            states.append(Trajectory(last_step=last, finish_step=finish))
        exact.append(steps)
    mode = sweep.search_mode == "exhaustive"
    rule = RaceRule(
        sweep.points, sweep.finishers, sweep.step_budget, schedule, exhaustive=mode
    )
    ends = reduce_study(states, rule).trials
    layers = _layers(identity["sparsity"])
    found = [
        rows.trial(identity, number, ended, layers=layers, **drawn[number])
        for number, ended in enumerate(ends)
    ]
    return found, [_curve(sweep, n, end, exact[n]) for n, end in enumerate(ends)]


def _fate(
    point: dict[str, float], best: float, batch_size: int, random: np.random.Generator
) -> tuple[float, int]:
    """Returns (steps-to-result, step of divergence or 0)."""
    rate = point["learning_rate"] / (1 - point.get("momentum", 0.0))
    best_rate = min(0.02 * batch_size, 1.2) / 4
    octaves = math.log2(rate / best_rate)
    noise = 2 ** random.normal(0.0, 0.08)
    if octaves > 3:
        return math.inf, 1 + int(random.integers(1, 120))
    return best * noise * 2 ** min(0.12 * octaves**2, 40), 0


def _layers(sparsity: float) -> str:
    kept = 1 - sparsity
    layers = [
        {"name": "conv", "parameters": 800, "kept": round(800 * kept**0.3)},
        {"name": "conv_1", "parameters": 51_200, "kept": round(51_200 * kept**1.1)},
        {"name": "dense", "parameters": 10_240, "kept": round(10_240 * kept**0.8)},
    ]
    return json.dumps([{**layer, "emptied": False} for layer in layers if sparsity])


def _curve(sweep: Sweep, number: int, ended: TrialResult, exact: float) -> pd.DataFrame:
    steps = np.arange(sweep.interval, ended.end_step + 1, sweep.interval)
    meets = max(1, math.floor(sweep.goal * VALIDATION_EXAMPLES))
    crossing = min(exact, 1e9)
    wrong = np.floor(meets * np.maximum((crossing / np.maximum(steps, 1)) ** 0.6, 0))
    wrong = np.where(steps >= crossing, np.minimum(wrong, meets), wrong)
    wrong = np.where(steps < crossing, np.maximum(wrong, meets + 1), wrong)
    error = np.minimum(wrong, 0.9 * VALIDATION_EXAMPLES) / VALIDATION_EXAMPLES
    if ended.outcome == "infeasible":
        error = np.full(len(steps), 0.9)
    return pd.DataFrame(
        {
            "trial": number,
            "step": steps,
            "is_bound": False,
            ERROR: error,
            "validation/cross_entropy": 3.2 * error,
            "train/loss": 3.0 * error,
        }
    )


def _measurements(
    identity: dict[str, Any], trials: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns what was measured along the best trial, if any met the goal."""
    ends = [(row["steps_to_result"], row["trial"]) for row in trials]
    found: list[dict[str, Any]] = []
    for end, trial in sorted(pair for pair in ends if pair[0])[:1]:
        for step in np.unique(np.geomspace(1, end, 10).astype(int)):
            noise, square = 25.0 * step**0.25, 1.0 / step**0.3
            values = {
                "smoothness": 9 * smoothness_ratio(identity["sparsity"]) * step**0.12,
                "gradient_square": square,
                "noise_trace": noise * square,
                "noise_scale": noise,
            }
            at = {**identity, "trial": trial, "step": int(step), "examples": 5000}
            found += [
                {**at, "quantity": name, "value": float(value)}
                for name, value in values.items()
            ]
    return found


def _nothing_measured() -> pd.DataFrame:
    frame = empty_frame(MEASUREMENTS)
    frame.insert(len(CELL_KEY), "precision", pd.Series(dtype=object))
    return frame


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
    chosen = np.logical_and.reduce([table[k] == v for k, v in identity.items()])
    return table[chosen].drop(columns="precision").reset_index(drop=True)


def write_open_study(directory: Path, batch_size: int = 64) -> Path:
    """Writes a study of four trials: one reached, one diverged, one runs, one waits."""
    files, sweep = LocalFiles(), SweepLayout(str(directory))
    study = specification(
        batch_size,
        name="mnist_simple_cnn",
        dataset="mnist",
        network="simple_cnn",
        goal=Goal(ERROR, 0.03),
        points=4,
        step_budget=1000,
        evaluation_interval=EvaluationInterval(steps=100),
        finishers=1,
    )
    write_json(files, sweep.marker, {})
    write_json(files, sweep.sweep, {"cells": [study.cell.name]})
    layout = sweep.cell(study.cell.name)
    inputs = {"training_examples": 54_000, "validation_examples": 6_000}
    record = open_study(files, layout, study, ENVIRONMENT, inputs)
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
