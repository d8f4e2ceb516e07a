"""Seconds that the programs of a sweep take on this machine, measured in a few seconds.

One network is measured, at its smallest, a middle and its largest batch size, by one
trial on one slot: what slots cost each other is not seen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dps_tf.core import DENSE, Job, StudySpecification
from dps_tf.training import TrainingRunner
from dps_tf.tuning.backends import Backends

STEPS_SECONDS = 1.0
"""Steps of one batch size are made until they have lasted so long."""
LIMIT_SECONDS = 15.0
"""After this no further batch size is begun."""


@dataclass(frozen=True)
class Calibration:
    """What was measured; all times in seconds.

    Attributes:
        network: workload and optimizer, in words.
        slots: trials side by side.
        steps: seconds of a step, by batch size; one at least.
        evaluation: the longest of an evaluation.
        pruning: making and pruning an initial point.
        start_up: the longest from nothing to the first step of a dense cell, compiling
            included.
    """

    network: str
    slots: int
    steps: dict[int, float]
    evaluation: float
    pruning: float
    start_up: float

    def __str__(self) -> str:
        """Returns what was measured and what is assumed, in sentences."""
        steps = ", ".join(
            f"{each:.2g} s at {size}" for size, each in self.steps.items()
        )
        side = "trial" if self.slots == 1 else "trials side by side"
        return (
            f"measured here with {self.network}: a step {steps}; an evaluation "
            f"{self.evaluation:.2g} s; an initial point {self.pruning:.2g} s; a cell "
            f"starts in {self.start_up:.2g} s.\n"
            f"assumed: {self.slots} {side} on this machine, each at the speed of one "
            "alone; all networks of the sweep at this speed."
        )


def calibrate(
    backends: Backends, studies: Sequence[StudySpecification], pruning: float
) -> Calibration:
    """Returns the times of one of the networks of some studies; keeps nothing.

    The smallest batch size is always measured, and further ones within LIMIT_SECONDS.
    Steps are those of the dense network, as scores can take longer than all the rest:
    `pruning` is what an initial point took where everything was tried out.
    """
    begun = time.monotonic()
    found: dict[int, tuple[float, float, float]] = {}
    chosen = _chosen(studies)
    for study in chosen:
        if found and time.monotonic() - begun > LIMIT_SECONDS:
            break
        found[study.cell.batch_size] = _timed(backends, study)
    _, evaluations, starts = zip(*found.values(), strict=True)
    cell = chosen[0].cell
    return Calibration(
        network=", ".join([cell.workload, cell.optimizer, *(a for _, a in cell.axes)]),
        slots=backends.slots(chosen[0]),
        steps={size: times[0] for size, times in sorted(found.items())},
        evaluation=max(evaluations),
        pruning=pruning,
        start_up=max(starts),
    )


def _chosen(studies: Sequence[StudySpecification]) -> list[StudySpecification]:
    """Returns studies of the first network, dense: smallest, largest, middle batch."""
    first = studies[0].cell
    network = first.workload, first.optimizer, first.axes
    of_size: dict[int, StudySpecification] = {}
    for study in studies:
        cell = study.cell
        if (cell.workload, cell.optimizer, cell.axes) == network:
            dense = replace(cell, sparsity_method=DENSE, sparsity=0.0)
            of_size[cell.batch_size] = replace(study, cell=dense)
    sizes = sorted(of_size)
    wanted = dict.fromkeys((sizes[0], sizes[-1], sizes[len(sizes) // 2]))
    return [of_size[size] for size in wanted]


def _timed(backends: Backends, study: StudySpecification) -> tuple[float, float, float]:
    """Returns seconds of a step, of an evaluation, and of the start-up."""
    begun = time.monotonic()
    runner = backends.runner(study)
    point = study.workload.draw(study.cell.seed, 1)[0]
    if isinstance(runner, TrainingRunner):
        runner.try_step(point)
        started = time.monotonic() - begun
        return *runner.timed(point, STEPS_SECONDS), started
    # Evaluations of a simulated trial are a part of its steps.
    state, step = None, 0
    while time.monotonic() - begun < STEPS_SECONDS / 10 or not step:
        job = Job(0, point, state, step + study.evaluations.interval)
        report = runner.run(0, job, lambda: False)
        state, step = report.state, report.step
        if report.diverged_step is not None:
            break
    return (time.monotonic() - begun) / step, 0.0, 0.0
