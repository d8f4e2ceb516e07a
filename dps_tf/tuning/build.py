"""Looks names up: from a workload's plain values to what a program trains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from dps_tf import data, models, optim, sparsity
from dps_tf._keras import keras
from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.registry import FRACTION, Argument
from dps_tf.core.study import StudySpecification
from dps_tf.core.workload import Workload
from dps_tf.data.dataset import Dataset
from dps_tf.sparsity import methods, pruning_schedule
from dps_tf.training.task import LOSS_METAPARAMETERS, PruningWrapper, Task


def check_names(workload: Workload) -> None:
    """Raises UserError for names that are not registered, and what they do not read.

    So are arguments of the data set and the network, and metaparameters that are
    missing, that nothing reads, or that can leave their range.
    """
    data.DATASETS.resolve(workload.dataset, workload.dataset_arguments)
    models.NETWORKS.resolve(workload.network, workload.network_arguments)
    if workload.split not in data.SPLITS:
        known = near_matches(workload.split, data.SPLITS)
        raise UserError(f"split {workload.split!r} is unknown: {known}")
    reads = optim.reads(workload.optimizer, workload.learning_rate_schedule)
    loss = dict.fromkeys(LOSS_METAPARAMETERS, Argument(0.0, FRACTION))
    workload.check_metaparameters({**reads, **loss})


def check_pruning(specification: StudySpecification) -> None:
    """Raises UserError for an unknown sparsity method or argument of one."""
    cell, arguments = specification.cell, specification.pruning.arguments
    if cell.sparsity == 0:
        return
    method = sparsity.method(cell.sparsity_method)
    method.resolve(arguments)
    if method.kind == methods.SCHEDULED:
        budget = specification.rule.last_evaluation
        pruning_schedule.target(method.name, cell.sparsity, arguments, budget)


@functools.lru_cache(maxsize=2)
def _loaded(
    name: str,
    data_dir: str | None,
    split: str,
    split_seed: int,
    validation_examples: int | None,
    arguments: tuple[tuple[str, object], ...],
) -> Dataset:
    return data.load(
        name,
        None if data_dir is None else Path(data_dir),
        split=split,
        split_seed=split_seed,
        validation_examples=validation_examples,
        **dict(arguments),
    )


def load_dataset(workload: Workload, data_dir: str | None) -> Dataset:
    """Returns the data set of a workload; the last two stay in memory.

    Raises UserError, with the command that prepares it, if it is not there.
    """
    return _loaded(
        workload.dataset,
        data_dir,
        workload.split,
        workload.split_seed,
        workload.validation_examples,
        tuple(sorted(workload.dataset_arguments.items())),
    )


def build_network(workload: Workload, dataset: Dataset) -> keras.Model:
    """Returns a new network of a workload, in float32."""
    return models.build(
        workload.network,
        dataset.input_shape,
        dataset.classes,
        **workload.network_arguments,
    )


def build_task(
    workload: Workload,
    dataset: Dataset,
    pruning_wrapper: Callable[[keras.Model], PruningWrapper] | None = None,
    precision: str = "float32",
) -> Task:
    """Returns what a program of this workload trains.

    Args:
        workload: whose names are looked up.
        dataset: its examples.
        pruning_wrapper: see `Task`.
        precision: in which the network computes; see `models.in_precision`.
    """
    given = workload.metaparameters
    return Task(
        network=lambda: models.in_precision(
            build_network(workload, dataset), precision
        ),
        optimizer=functools.partial(
            optim.build,
            workload.optimizer,
            workload.learning_rate_schedule,
            [name for name in given if name not in LOSS_METAPARAMETERS],
            workload.step_budget,
        ),
        dataset=dataset,
        loss_metaparameters=tuple(n for n in LOSS_METAPARAMETERS if n in given),
        pruning_wrapper=pruning_wrapper,
    )
