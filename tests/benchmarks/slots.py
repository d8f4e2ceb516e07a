"""Slots of a cluster: how many turns the driver hands out, and what actors cost.

`driver`: turns per second of one race on simulated slots whose turns take no time.
`actors`: steps per second of the same sweep on two actors and on two threads.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from dps_tf.core.execution import Job, TrialState, TurnReport
from dps_tf.core.study import StudySpecification
from dps_tf.store.files import LocalFiles
from dps_tf.store.layout import SweepLayout
from dps_tf.store.study_record import open_study
from dps_tf.tuning.driver import StudyDriver
from dps_tf.tuning.simulation import SimulatedBackend, SimulatedRunner
from dps_tf.workloads.reading import read_configuration

SLOTS = 200
TRIALS = 4
BUDGETS = (400, 2400)
"""Step budgets, whose difference in time is that of training alone."""
SWEEP = (
    "--gin_file=lee2021/mnist_sgd",
    "--gin_bindings=sweep.sparsities = (0.0,)",
    f"--gin_bindings=workload.points = {TRIALS}",
    "--gin_bindings=goal.threshold = 0.0",
)


class InstantSlots(SimulatedRunner):
    """Simulated slots that hold states; a curve is computed once for all of them."""

    def __init__(self, specification: StudySpecification, slots: int):
        super().__init__(specification)
        self._count = slots
        self._homes: dict[int, int] = {}
        self.turns = 0

    @property
    def slots(self) -> int:
        return self._count

    def idle_slots(self, busy: Collection[int], wanted: int) -> list[int]:
        return [slot for slot in range(self._count) if slot not in busy][:wanted]

    def slot_of(self, trial: int) -> int | None:
        return self._homes.get(trial)

    def run(self, slot: int, job: Job, stop: Any) -> TurnReport:
        report = super().run(slot, job, stop)
        self._homes[job.trial] = slot
        self.turns += 1
        return replace(report, state=TrialState(report.step, ()))


def driver(points: int = 400) -> dict[str, Any]:
    """Returns turns per second of a race of `points` trials on 200 slots."""
    bindings = [f"workload.points = {points}", "sweep.batch_sizes = (1048576,)"]
    sweep, _ = read_configuration(["nqm/sgd"], bindings)
    study = sweep.studies[0]
    prepared = SimulatedBackend().prepare(study)
    with tempfile.TemporaryDirectory() as folder:
        layout = SweepLayout(folder).cell(study.cell.name)
        record = open_study(
            LocalFiles(), layout, study, prepared.environment, prepared.training_inputs
        )
        drawn = study.workload.draw(study.cell.seed, study.rule.draws_limit)
        slots = InstantSlots(study, SLOTS)
        begun = time.perf_counter()
        StudyDriver(record, slots, drawn.__getitem__, lambda: False).run()
        seconds = time.perf_counter() - begun
    return {
        "slots": SLOTS,
        "trials": points,
        "turns": slots.turns,
        "turns per second": slots.turns / seconds,
    }


def actors(batch_size: int, data_dir: str) -> dict[str, Any]:
    """Returns steps per second of MNIST on two threads and on two actors."""
    found: dict[str, Any] = {"batch size": batch_size}
    for name, more in (("threads", []), ("actors", ["--engine=ray"])):
        options = ["--slots=2", f"--data_dir={data_dir}", *more]
        options.append(f"--gin_bindings=sweep.batch_sizes = ({batch_size},)")
        first, second = (_seconds(options, budget) for budget in BUDGETS)
        # What both do alike, imports and tracing, is no part of the difference.
        found[name] = TRIALS * (BUDGETS[1] - BUDGETS[0]) / (second - first)
    found["actors / threads"] = found["actors"] / found["threads"]
    return found


def _seconds(options: list[str], budget: int) -> float:
    """Returns how long the command takes for a step budget."""
    command = [sys.executable, "-m", "dps_tf.train", *SWEEP, *options]
    command.append(f"--gin_bindings=workload.step_budget = {budget}")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        subprocess.run([*command, f"--sweep_dir={folder}/sweep"], check=True)
        return time.perf_counter() - begun
