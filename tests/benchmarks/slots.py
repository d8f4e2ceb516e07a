"""Slots of a cluster: how many turns the driver hands out, and what actors cost.

`driver`: turns per second of one race on simulated slots whose turns take no time.
`actors`: steps per second of the same race on two actors and on two threads.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from dps_tf.core import ClusterRunner, Job, Runner, StudySpecification, TurnReport
from dps_tf.store import LocalFiles, SweepLayout, open_study
from dps_tf.tuning.driver import StudyDriver
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.resources import configure_threads
from dps_tf.tuning.simulation import SimulatedBackend, SimulatedRunner
from dps_tf.tuning.trained_backend import TrainedBackend
from dps_tf.workloads.reading import read_configuration

SLOTS = 200
BUDGETS = {8: 500, 64: 200, 512: 100}
"""Steps of each trial by batch size: some seconds for four on two slots."""


class InstantSlots(SimulatedRunner, ClusterRunner):
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

    def new_environments(self) -> list[Any]:
        return []

    def lost_trials(self) -> list[int]:
        return []

    def run(self, slot: int, jobs: Sequence[Job], stop: Any) -> Sequence[TurnReport]:
        reports = super().run(slot, jobs, stop)
        self._homes |= {job.trial: slot for job in jobs}
        self.turns += 1
        return reports


def drive(study: StudySpecification, inputs: tuple[Any, Any], runner: Runner) -> float:
    """Runs a study in a new folder to its end; returns the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        layout = SweepLayout(folder).cell(study.cell.name)
        record = open_study(LocalFiles(), layout, study, *inputs)
        drawn = study.workload.draw(study.cell.seed, study.rule.draws_limit)
        begun = time.perf_counter()
        StudyDriver(record, runner, drawn.__getitem__, lambda: False).run()
        return time.perf_counter() - begun


def driver(points: int) -> dict[str, Any]:
    """Returns turns per second of a race of `points` trials on 200 slots."""
    bindings = [f"workload.points = {points}", "sweep.batch_sizes = (1048576,)"]
    study = read_configuration(["nqm/sgd"], bindings)[0].studies[0]
    prepared = SimulatedBackend().prepare(study)
    slots = InstantSlots(study, SLOTS)
    inputs = prepared.environment, prepared.training_inputs
    seconds = drive(study, inputs, slots)
    return {
        "slots": SLOTS,
        "trials": points,
        "turns": slots.turns,
        "seconds": seconds,
        "turns per second": slots.turns / seconds,
    }


def actors(batch_size: int, data_dir: str, rounds: int) -> dict[str, Any]:
    """Returns steps per second of four trials of MNIST on two threads and two actors.

    Medians over rounds in turn, in one process, after one that compiles the programs.
    """
    from dps_tf.tuning.ray_cluster import RayCluster
    from dps_tf.tuning.ray_engine import RayBackend

    configure_threads()
    budget = BUDGETS[batch_size]
    bindings = ["sweep.sparsities = (0.0,)", "workload.points = 4"]
    bindings += ["goal.threshold = 0.0", f"workload.step_budget = {budget}"]
    bindings.append(f"sweep.batch_sizes = ({batch_size},)")
    study = read_configuration(["lee2021/mnist_sgd"], bindings)[0].studies[0]
    options = Options(tempfile.gettempdir(), data_dir, slots=2)
    trained = TrainedBackend(options, LocalFiles())
    # First, as it imports lazily: no other thread may import anything meanwhile.
    threads = trained.prepare(study)
    cluster = RayCluster(replace(options, engine="ray"))
    cluster.connect()
    backend = RayBackend(trained, cluster, StopRequest(), options)
    prepared = {"threads": threads, "actors": backend.prepare(study)}
    while len(prepared["actors"].runner.idle_slots((), 2)) < 2:
        time.sleep(0.1)
    rates: dict[str, list[float]] = {"threads": [], "actors": []}
    for _ in range(1 + rounds):
        for name, of in prepared.items():
            inputs = of.environment, of.training_inputs
            rates[name].append(4 * budget / drive(study, inputs, of.runner))
        print({name: round(every[-1], 2) for name, every in rates.items()}, flush=True)
    cluster.close()
    found = {name: statistics.median(every[1:]) for name, every in rates.items()}
    ratios = [a / b for a, b in zip(rates["actors"], rates["threads"], strict=True)]
    return {
        "batch size": batch_size,
        **found,
        "actors / threads": statistics.median(ratios[1:]),
        "least": min(ratios[1:]),
        "most": max(ratios[1:]),
    }
