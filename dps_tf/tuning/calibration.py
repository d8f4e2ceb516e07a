"""Measures, within seconds, how long a sweep's programs take on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dps_tf.core import DENSE, StudySpecification
from dps_tf.tuning.backends import Backends

LARGEST_SECONDS = 1.0
"""Longest time in seconds of a step, as it is foreseen, that is measured."""


@dataclass(frozen=True)
class Calibration:
    """Times measured on this machine, all in seconds.

    Attributes:
        network: workload and optimizer, in words.
        slots: turns side by side.
        steps: time of a step of a trial, by batch size; at least one entry.
        evaluation: time of an evaluation.
        pruning: time to make and prune an initial point.
        start_up: longest time until a dense cell has made its first step, compiling
            included.
        devices: how many share a trial's batch.
        lanes: trials of a turn, by the batch sizes of `steps`; empty stands for one.
    """

    network: str
    slots: int
    steps: dict[int, float]
    evaluation: float
    pruning: float
    start_up: float
    devices: int = 1
    lanes: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Returns what was measured and what is assumed, in sentences."""
        steps = ", ".join(
            f"{seconds:.2g} s at {size}" for size, seconds in self.steps.items()
        )
        side = "trial" if self.slots == 1 else "trials side by side"
        if (most := max(self.lanes.values(), default=1)) > 1:
            side = f"groups of up to {most} trials side by side"
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
    backend = backends(of_size[middle])
    in_middle = backend.times(of_size[middle])
    steps, lanes = {middle: in_middle.step}, {middle: in_middle.lanes}
    start_up = in_middle.start_up
    # A step grows at most in proportion to its batch.
    slowest = max(middle, LARGEST_SECONDS / in_middle.step * middle)
    for size in (sizes[0], max(size for size in sizes if size <= slowest)):
        if size not in steps:
            found = backend.times(of_size[size], evaluates=False)
            steps[size], lanes[size] = found.step, found.lanes
            start_up = max(start_up, found.start_up)
    axes = [value for _, value in first.axes]
    return Calibration(
        network=", ".join([first.workload, first.optimizer, *axes]),
        slots=in_middle.slots,
        steps=dict(sorted(steps.items())),
        evaluation=in_middle.evaluation,
        pruning=pruning,
        start_up=start_up,
        devices=in_middle.devices,
        lanes=lanes,
    )
