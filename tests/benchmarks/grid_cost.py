"""What the whole grid of Lee et al. 2021 costs, with the race and without.

`python -m tests.benchmarks grid_cost` measures the steps and evaluations of the machine
it runs on and prints the plan for it. The plan of launch/README.md is what this module
makes of the two tables of `grid/`: seconds that were measured on one machine, and laws
K* = c1/B + c2 of which the column `basis` says where they come from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.core import StudySpecification, points
from dps_tf.workloads.reading import read_configuration

TABLES = Path(__file__).parent / "grid"
OPTIMIZERS = ("sgd", "momentum", "nesterov")
DATASETS = ("mnist", "fashion_mnist", "cifar10")
VALIDATION_EXAMPLES = {"simple_cnn": 6_000, "resnet8": 5_000}
MULTIPLICATIONS = {"simple_cnn": 3_747_840, "resnet8": 12_239_488}
"""Of one example, forward; twice as many more backward."""
BEST_RATE = 0.1
"""The best lr / (1 - momentum) that is assumed: those measured lie around it."""
_HOUR = 3600.0


@dataclass(frozen=True)
class Work:
    """What a study makes its trials do, all together."""

    steps: float
    evaluations: float


@dataclass(frozen=True)
class Accelerator:
    """A machine that was not measured, and what is assumed of it.

    Attributes:
        peak: floating-point operations per second of one device, of its data sheet.
        share: of the peak that these small networks reach, (least, most).
        launch: fixed seconds of a step or evaluation, (least, most).
    """

    name: str
    devices: int
    peak: float
    share: tuple[float, float]
    launch: tuple[float, float]


ACCELERATORS = (
    Accelerator("8 x A100", 8, 19.5e12, (0.03, 0.3), (1e-4, 1e-3)),
    Accelerator("v5e-8", 8, 197e12, (0.002, 0.05), (5e-5, 5e-4)),
)

GPU = "one H100"
"""The accelerator that was measured: `grid/h100.csv`, with one and with four slots."""

Seconds = Callable[[str, int], tuple[float, float]]
"""(network, batch size) -> seconds of the machine for a step, and for an evaluation."""


def studies() -> Iterator[StudySpecification]:
    """Yields every study of the nine shipped configurations."""
    for dataset, optimizer in itertools.product(DATASETS, OPTIMIZERS):
        sweep, _ = read_configuration([f"lee2021/{dataset}_{optimizer}"], [])
        yield from sweep.studies


def steps_to_result(study: StudySpecification, laws: pd.DataFrame) -> int:
    """Returns K* of a cell by its law, on the grid of its evaluations."""
    cell, workload = study.cell, study.workload
    row = laws.loc[(workload.dataset, workload.optimizer, cell.sparsity)]
    interval = study.evaluations.interval
    steps = row.c1 / cell.batch_size + row.c2
    return min(interval * math.ceil(steps / interval), workload.step_budget)


def with_race(study: StudySpecification, best: int) -> Work:
    """Returns the floor of the race for one finisher: every trial goes to K*."""
    steps = study.workload.points * best
    return Work(steps, steps / study.evaluations.interval)


def without_race(study: StudySpecification, best: int, diverge: bool) -> Work:
    """Returns the work of trials that end at the goal, or with the budget.

    Assumed: below BEST_RATE the steps are inverse to the rate; a trial above it never
    meets the goal.

    Args:
        study: whose points they are.
        best: its K*.
        diverge: whether a trial above the best rate ends at its first evaluation, which
            is the least that it can cost, or with the budget, the most.
    """
    workload = study.workload
    drawn = points(workload.space, workload.sequence, 0, workload.points)
    rates = np.array([p["learning_rate"] / (1 - p.get("momentum", 0.0)) for p in drawn])
    slow = np.minimum(best * BEST_RATE / rates, workload.step_budget)
    failed = study.evaluations.interval if diverge else workload.step_budget
    steps = float(np.where(rates <= BEST_RATE, slow, failed).sum())
    return Work(steps, steps / study.evaluations.interval)


def measured(table: pd.DataFrame) -> Seconds:
    """Returns the seconds of a measured machine: linear between the logarithms of the
    batch sizes measured, and in proportion beyond the largest."""

    def seconds(network: str, batch_size: int) -> tuple[float, float]:
        rows = table[table["network"] == network].sort_values("batch_size")
        largest = int(rows["batch_size"].iloc[-1])
        inside = np.log(min(batch_size, largest))
        step = np.interp(inside, np.log(rows["batch_size"]), np.log(rows["seconds"]))
        beyond = max(1.0, batch_size / largest)
        return float(np.exp(step) * beyond), float(rows["evaluation_seconds"].median())

    return seconds


def assumed(machine: Accelerator, pessimistic: bool) -> Seconds:
    """Returns the seconds of an accelerator by formula, all its devices busy with
    trials of their own: (launch + operations / (share x peak)) / devices."""
    end = 1 if pessimistic else 0
    launch, share = machine.launch[end], machine.share[1 - end]

    def seconds(network: str, batch_size: int) -> tuple[float, float]:
        forward = 2 * MULTIPLICATIONS[network] / (share * machine.peak)
        step = launch + 3 * forward * batch_size
        evaluation = launch + forward * VALIDATION_EXAMPLES[network]
        return step / machine.devices, evaluation / machine.devices

    return seconds


def hours(work: Work, study: StudySpecification, seconds: Seconds) -> float:
    """Returns the hours that a machine works at a study."""
    step, evaluation = seconds(study.workload.network, study.cell.batch_size)
    return (work.steps * step + work.evaluations * evaluation) / _HOUR


def plan(laws: pd.DataFrame, machine: Seconds) -> pd.DataFrame:
    """Returns hours by workload and optimizer, and of all: race, and (least, most)
    without it, on a measured machine; the race on the measured GPU, and on each
    accelerator that was not measured, (least, most)."""
    gpu = read_seconds(TABLES / "h100.csv")
    gpu_seconds = measured(gpu[gpu["slots"] == gpu["slots"].max()])
    rows = []
    for study in studies():
        best = steps_to_result(study, laws)
        race = with_race(study, best)
        row = {
            "workload": study.workload.dataset,
            "optimizer": study.workload.optimizer,
            "race": hours(race, study, machine),
            "least": hours(without_race(study, best, True), study, machine),
            "most": hours(without_race(study, best, False), study, machine),
            GPU: hours(race, study, gpu_seconds),
        }
        for one in ACCELERATORS:
            for end in (False, True):
                name = f"{one.name} {'most' if end else 'least'}"
                row[name] = hours(race, study, assumed(one, end))
        rows.append(row)
    frame = pd.DataFrame(rows)
    summed = frame.groupby(["workload", "optimizer"], sort=False).sum().reset_index()
    total = summed.drop(columns=["workload", "optimizer"]).sum()
    summed.loc[len(summed)] = {"workload": "all", "optimizer": "", **total}
    return summed


def markdown(found: pd.DataFrame) -> str:
    """Returns the plan as the table of launch/README.md."""
    names = [one.name for one in ACCELERATORS]
    head = ["workload", "race", "without", GPU]
    head += [f"{name}, estimate" for name in names]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in found.to_dict("records"):
        cells = [f"{row['workload']} {row['optimizer']}".strip()]
        cells += [_time(row["race"]), _range(row["least"], row["most"])]
        cells += [_time(row[GPU])]
        cells += [_range(row[f"{name} least"], row[f"{name} most"]) for name in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _range(least: float, most: float) -> str:
    return f"{_time(least)} to {_time(most)}"


def _time(hours: float) -> str:
    """Returns hours to two digits, in the unit that suits them."""
    for unit, length in (("years", 8766.0), ("days", 24.0)):
        if hours >= 2 * length:
            return f"{_two_digits(hours / length)} {unit}"
    return f"{_two_digits(hours)} h"


def _two_digits(value: float) -> str:
    digits = 1 - math.floor(math.log10(value))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}"


def read_laws() -> pd.DataFrame:
    """Returns c1, c2 and their basis by (dataset, optimizer, sparsity)."""
    return pd.read_csv(TABLES / "laws.csv").set_index(
        ["dataset", "optimizer", "sparsity"]
    )


def read_seconds(path: Path = TABLES / "seconds.csv") -> pd.DataFrame:
    """Returns columns network, batch_size, slots, seconds, evaluation_seconds."""
    return pd.read_csv(path)


def show(seconds: pd.DataFrame) -> str:
    """Returns the plan of a measured machine as text."""
    return markdown(plan(read_laws(), measured(seconds)))
