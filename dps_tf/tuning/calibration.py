"""Measures, within seconds, how long a sweep's programs take on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dps_tf.core import DENSE, Job, StudySpecification
from dps_tf.training import TrainingRunner
from dps_tf.tuning.backends import Backends

STEPS_SECONDS = 1.0
"""Least time in seconds over which the steps of one batch size are timed."""
LARGEST_SECONDS = 1.0
"""Longest time in seconds of a step, as it is foreseen, that is measured."""


@dataclass(frozen=True)
class Calibration:
    """Times measured on this machine, all in seconds.

    Attributes:
        network: workload and optimizer, in words.
        slots: trials side by side.
        steps: time of a step, by batch size; at least one entry.
        evaluation: time of an evaluation.
        pruning: time to make and prune an initial point.
        start_up: longest time until a dense cell has made its first step, compiling
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
            f"{seconds:.2g} s at {size}" for size, seconds in self.steps.items()
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
    """Returns times measured with one of the networks of `studies`; writes no files.

    One trial on one slot trains the dense network at the smallest batch size, the
    middle one and the largest whose step may take LARGEST_SECONDS. `pruning` is the
    seconds that `Backends.try_out` returns.
    """
    of_size = _dense(studies)
    sizes = sorted(of_size)
    middle = sizes[len(sizes) // 2]
    times = {middle: _timed(backends, of_size[middle])}
    # A step grows at most in proportion to its batch.
    slowest = max(middle, LARGEST_SECONDS / times[middle][0] * middle)
    for size in (sizes[0], max(size for size in sizes if size <= slowest)):
        if size not in times:
            times[size] = _timed(backends, of_size[size], evaluates=False)
    cell = of_size[middle].cell
    return Calibration(
        network=", ".join([cell.workload, cell.optimizer, *(a for _, a in cell.axes)]),
        slots=backends.slots(of_size[middle]),
        steps={size: times[size][0] for size in sorted(times)},
        evaluation=times[middle][2],
        pruning=pruning,
        start_up=max(start_up for _, start_up, _ in times.values()),
    )


def _dense(studies: Sequence[StudySpecification]) -> dict[int, StudySpecification]:
    """Returns a dense study of the first network for each batch size."""
    first = studies[0].cell
    network = first.workload, first.optimizer, first.axes
    of_size: dict[int, StudySpecification] = {}
    for study in studies:
        cell = study.cell
        if (cell.workload, cell.optimizer, cell.axes) == network:
            dense = replace(cell, sparsity_method=DENSE, sparsity=0.0)
            of_size[cell.batch_size] = replace(study, cell=dense)
    return of_size


def _timed(
    backends: Backends, study: StudySpecification, *, evaluates: bool = True
) -> tuple[float, float, float]:
    """Returns the seconds of a step, of the start-up, and of an evaluation or 0."""
    begun = time.monotonic()
    runner = backends.runner(study)
    point = study.workload.draw(study.cell.seed, 1)[0]
    if isinstance(runner, TrainingRunner):
        runner.try_step(point)
        start_up = time.monotonic() - begun
        seconds = runner.step_seconds(point, STEPS_SECONDS)
        return seconds, start_up, runner.evaluation_seconds() if evaluates else 0.0
    # Evaluations of a simulated trial are a part of its steps.
    state, step = None, 0
    while time.monotonic() - begun < STEPS_SECONDS / 10 or not step:
        job = Job(0, point, state, step + study.evaluations.interval)
        report = runner.run(0, job, lambda: False)
        state, step = report.state, report.step
        if report.diverged_step is not None:
            break
    return (time.monotonic() - begun) / step, 0.0, 0.0
