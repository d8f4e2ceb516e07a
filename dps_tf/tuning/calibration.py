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
        devices: how many share a trial's batch.
    """

    network: str
    slots: int
    steps: dict[int, float]
    evaluation: float
    pruning: float
    start_up: float
    devices: int = 1

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
    """Returns times measured with the first network of `studies`; writes no files.

    One trial on one slot trains it dense at the smallest batch size, the middle one and
    the largest whose step may take LARGEST_SECONDS. `pruning` is the seconds that
    `Backends.try_out` returns.
    """
    first = studies[0].cell
    network = first.workload, first.optimizer, first.axes
    of_size: dict[int, StudySpecification] = {}
    for study in studies:
        cell = study.cell
        if (cell.workload, cell.optimizer, cell.axes) == network:
            dense = replace(cell, sparsity_method=DENSE, sparsity=0.0)
            of_size[cell.batch_size] = replace(study, cell=dense)
    sizes = sorted(of_size)
    middle = sizes[len(sizes) // 2]
    times = {middle: _timed(backends, of_size[middle])}
    # A step grows at most in proportion to its batch.
    slowest = max(middle, LARGEST_SECONDS / times[middle][0] * middle)
    for size in (sizes[0], max(size for size in sizes if size <= slowest)):
        if size not in times:
            times[size] = _timed(backends, of_size[size], evaluates=False)
    axes = [value for _, value in first.axes]
    return Calibration(
        network=", ".join([first.workload, first.optimizer, *axes]),
        slots=backends.slots(of_size[middle]),
        steps={size: times[size][0] for size in sorted(times)},
        evaluation=times[middle][2],
        pruning=pruning,
        start_up=max(start_up for _, start_up, _ in times.values()),
        devices=backends.devices(of_size[middle]),
    )


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
    # A simulated trial starts at once, and its evaluations are a part of its steps.
    interval = study.evaluations.interval
    for step in range(interval, 101 * interval, interval):
        runner.run(0, [Job(0, point, None, step)], lambda: False)
    return (time.monotonic() - begun) / step, 0.0, 0.0
