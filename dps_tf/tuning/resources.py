"""The machine that a process trains on: its devices, slots and data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from dps_tf.core.errors import UserError
from dps_tf.core.study import StudySpecification
from dps_tf.data.dataset import Dataset
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import DeviceData
from dps_tf.training.program import Program
from dps_tf.tuning.tasks import build_task

_CPU_SLOTS = 8
"""Most trials side by side on a CPU; more only take memory and caches."""


def processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_batch_size(specification: StudySpecification, dataset: Dataset) -> None:
    """Raises UserError unless a batch fits the training set."""
    batch_size = specification.cell.batch_size
    if batch_size > len(dataset.train):
        raise UserError(
            f"batch size {batch_size} is larger than the training set of "
            f"{dataset.name}, {len(dataset.train)} examples: choose a smaller one."
        )


@dataclass(frozen=True)
class Resources:
    """Where trials run. None of it changes a result.

    Attributes:
        strategies: one per slot; a slot carries its own trials.
    """

    strategies: tuple[tf.distribute.Strategy, ...]

    @classmethod
    def of_this_machine(cls, slots: int = 0) -> Resources:
        """Returns slots that share the local devices evenly.

        Args:
            slots: trials side by side; 0 is one per processor on a CPU, and one per
                GPU where there are GPUs.
        """
        if slots < 0:
            raise UserError(f"slots is {slots}; it must be at least 0.")
        devices = strategies.local_devices()
        if slots == 0:
            gpus = len(tf.config.list_logical_devices("GPU"))
            slots = gpus or min(processors(), _CPU_SLOTS)
        return cls(
            tuple(
                tf.distribute.OneDeviceStrategy(devices[i % len(devices)])
                for i in range(slots)
            )
        )

    def programs(
        self, specification: StudySpecification, dataset: Dataset
    ) -> list[Program]:
        """Returns a program per slot; slots of one device share its data.

        Raises:
            UserError: the batch does not fit the training set.
        """
        check_batch_size(specification, dataset)
        batch_size = specification.cell.batch_size
        task = build_task(specification.workload, dataset)
        goal = specification.goal if specification.evaluation == "goal" else None
        held = self._device_data(dataset)
        return [Program(task, data, batch_size, goal=goal) for data in held]

    def _device_data(self, dataset: Dataset) -> Sequence[DeviceData]:
        by_device: dict[str, DeviceData] = {}
        held = []
        for strategy in self.strategies:
            name = str(strategy.extended.worker_devices)
            if name not in by_device:
                by_device[name] = DeviceData(dataset, strategy)
            held.append(by_device[name])
        return held
