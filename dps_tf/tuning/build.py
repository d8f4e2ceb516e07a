"""Looks names up: from a workload's plain values to what a program trains."""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dps_tf import data, models, objectives, optim, sparsity
from dps_tf._keras import keras
from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.study import TRAIN_LOSS, VALIDATION, StudySpecification
from dps_tf.core.workload import Workload
from dps_tf.data.dataset import Dataset
from dps_tf.objectives import Objective
from dps_tf.training.local_workers import check_shares
from dps_tf.training.program import Task

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import PrunedModel


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
    for name in set(optim.COMPILED) & set(workload.metaparameters):
        if name not in workload.fixed:
            raise UserError(
                f"{name} is tuned, and a program is compiled for one: set it in "
                f"workload.fixed, or make workload.fixed.{name} an axis."
            )
    if len({"workers", "local_steps"} & set(workload.metaparameters)) == 1:
        raise UserError(
            "local SGD is so many workers that make so many local_steps each, and only "
            "one of these is given: set both in workload.fixed, or make them axes."
        )
    reads = optim.reads(workload.optimizer, workload.learning_rate_schedule)
    workload.check_metaparameters({**reads, **build_objective(workload).reads})


def check_workers(specification: StudySpecification) -> None:
    """Raises UserError for workers of local SGD that cannot share a study's batch."""
    cell = specification.cell
    workers = int(specification.workload.fixed.get("workers", 1))
    check_shares(cell.batch_size, workers)
    method = sparsity.SPARSITY_METHODS[cell.sparsity_method] if cell.sparsity else None
    if workers > 1 and method is not None and method.prunes_while_training:
        raise UserError(
            f"sparsity method {cell.sparsity_method!r} prunes while it trains, and "
            "workers of local SGD keep the zeros that they begin with: leave "
            "workload.fixed.workers out, or use a method that prunes before."
        )


def check_objective(specification: StudySpecification) -> None:
    """Raises UserError for a goal that the objective of a study cannot judge."""
    goal, objective = specification.goal, build_objective(specification.workload)
    splits = (VALIDATION, *specification.further_splits)
    columns = [name for split in splits for name in objective.columns(split)]
    columns.append(TRAIN_LOSS)
    if goal.metric not in columns:
        known = near_matches(goal.metric, columns)
        raise UserError(
            f"goal.metric {goal.metric!r} is no metric of the objective "
            f"{specification.workload.objective!r}: {known}."
        )
    if specification.evaluation == "goal":
        objective.bounded_metric(goal)


def check_pruning(specification: StudySpecification) -> None:
    """Raises UserError for what a sparsity method or selection cannot do."""
    cell, budget = specification.cell, specification.rule.last_evaluation
    sparsity.check_pruning(
        cell.sparsity_method, cell.sparsity, specification.pruning, budget
    )


@functools.lru_cache(maxsize=2)
def _loaded(name: str, data_dir: str | None, options: str) -> Dataset:
    folder = None if data_dir is None else Path(data_dir)
    return data.load(name, folder, **_with_tuples(json.loads(options)))


def _with_tuples(value: Any) -> Any:
    """Returns a value of JSON with its lists as tuples, at every depth.

    A loader gets the same from a gin file as from a record, which is JSON.
    """
    if isinstance(value, dict):
        return {name: _with_tuples(of) for name, of in value.items()}
    if isinstance(value, list):
        return tuple(_with_tuples(of) for of in value)
    return value


def load_dataset(workload: Workload, data_dir: str | None) -> Dataset:
    """Returns the data set of a workload; the last two stay in memory.

    Raises UserError, with the command that prepares it, if it is not there.
    """
    options = {
        "split": workload.split,
        "split_seed": workload.split_seed,
        "validation_examples": workload.validation_examples,
        "test": workload.test,
        "test_examples": workload.test_examples,
        "training_examples": workload.training_examples,
        **workload.dataset_arguments,
    }
    return _loaded(workload.dataset, data_dir, json.dumps(options, sort_keys=True))


@functools.lru_cache(maxsize=4)
def _objective(
    name: str, arguments: str, token_bytes: tuple[int, ...] | None
) -> Objective:
    """Returns the objective whose passes are traced once for all cells."""
    return objectives.build(name, json.loads(arguments), token_bytes)


def build_objective(workload: Workload, dataset: Dataset | None = None) -> Objective:
    """Returns the objective of a workload; a data set tells it what it knows."""
    known = None if dataset is None else dataset.token_bytes
    return _objective(
        workload.objective,
        json.dumps(dict(workload.objective_arguments), sort_keys=True),
        None if known is None else tuple(int(length) for length in known),
    )


def build_network(workload: Workload, dataset: Dataset) -> keras.Model:
    """Returns a new network of a workload, in float32.

    Raises:
        UserError: its builder refuses the arguments or the data; with the place.
    """
    name, arguments = workload.network, dict(workload.network_arguments)
    try:
        return models.build(name, dataset.input_shape, dataset.classes, **arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        raise UserError(
            f"network {name!r} cannot be built with {arguments} on {dataset.name}: "
            f"{text} ({place.filename}, line {place.lineno})."
        ) from error


def build_task(
    workload: Workload,
    dataset: Dataset,
    pruning_wrapper: Callable[[keras.Model], PrunedModel] | None = None,
    precision: str = "float32",
) -> Task:
    """Returns what a program of this workload trains.

    Args:
        workload: whose names are looked up.
        dataset: its examples.
        pruning_wrapper: see `Task`.
        precision: in which the network computes; see `models.in_precision`.
    """
    objective = build_objective(workload, dataset)
    given = workload.metaparameters
    return Task(
        network=lambda: models.in_precision(
            build_network(workload, dataset), precision
        ),
        optimizer=functools.partial(
            optim.build,
            workload.optimizer,
            workload.learning_rate_schedule,
            [name for name in given if name not in objective.reads],
            workload.step_budget,
            **{
                n: int(workload.fixed[n]) for n in optim.COMPILED if n in workload.fixed
            },
        ),
        dataset=dataset,
        loss_metaparameters=tuple(n for n in objective.reads if n in given),
        pruning_wrapper=pruning_wrapper,
        objective=objective,
    )
