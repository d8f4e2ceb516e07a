"""The registered names of a workload become the network and data of a program."""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dps_tf import data, models, objectives, optim, sparsity
from dps_tf._keras import keras
from dps_tf.core import (
    TRAIN_LOSS,
    VALIDATION,
    Registry,
    StudySpecification,
    UserError,
    Workload,
    check_known,
    derive_seed,
    near_matches,
)
from dps_tf.data import Dataset
from dps_tf.objectives import Objective
from dps_tf.sparsity import kept_count, roles
from dps_tf.store import FileSystem
from dps_tf.training import Task, check_shares

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import Gradual


def check_study(specification: StudySpecification) -> None:
    """Raises UserError for a study that cannot be trained, whatever its data are.

    Reasons are names that are not registered; arguments and metaparameters that are
    missing, that nothing reads, or that can leave their range; workers that cannot
    share a batch; and a goal or sparsity that the objective or method does not allow.
    """
    _check_names(specification.workload)
    _check_workers(specification)
    _check_objective(specification)
    cell, budget = specification.cell, specification.rule.last_evaluation
    sparsity.check_pruning(
        cell.sparsity_method, cell.sparsity, specification.pruning, budget
    )


def _check_names(workload: Workload) -> None:
    data.DATASETS.resolve(workload.dataset, workload.dataset_arguments)
    models.NETWORKS.resolve(workload.network, workload.network_arguments)
    check_known("split", workload.split, data.SPLITS)
    for name in set(optim.COMPILED) & set(workload.metaparameters):
        if name not in workload.fixed:
            raise UserError(
                f"{name} is tuned, and a program is compiled for one value: set it "
                f"in workload.fixed, or make workload.fixed.{name} an axis."
            )
    if len({"workers", "local_steps"} & set(workload.metaparameters)) == 1:
        raise UserError(
            "local SGD needs both workers and local_steps, the steps that each worker "
            "makes, and only one of these is given: set both in workload.fixed, or "
            "make them axes."
        )
    reads = optim.reads(workload.optimizer, workload.learning_rate_schedule)
    workload.check_metaparameters({**reads, **_objective_of(workload).reads})


def _check_workers(specification: StudySpecification) -> None:
    cell = specification.cell
    workers = int(specification.workload.fixed.get("workers", 1))
    check_shares(cell.batch_size, workers)
    if workers > 1 and is_scheduled(specification):
        raise UserError(
            f"sparsity method {cell.sparsity_method!r} prunes while it trains, and "
            "workers of local SGD keep the zeros that they begin with: leave "
            "workload.fixed.workers out, or use a method that prunes before."
        )


_SOME_TOKEN_BYTES = (1,)
"""Placeholder for the bytes of the tokens before the data set is loaded."""


def _check_objective(specification: StudySpecification) -> None:
    """Raises UserError for a goal on a metric that the objective never has."""
    objective = _objective_of(specification.workload, _SOME_TOKEN_BYTES)
    _check_metric(specification, objective, "")
    if specification.evaluation == "goal":
        objective.bounded_metric(specification.goal)


def check_goal(specification: StudySpecification, dataset: Dataset) -> None:
    """Raises UserError for a goal on a metric that this data set does not allow."""
    objective = build_objective(specification.workload, dataset)
    _check_metric(specification, objective, f" on {dataset.name!r}")


def _check_metric(
    specification: StudySpecification, objective: Objective, where: str
) -> None:
    splits = (VALIDATION, *specification.further_splits)
    columns = [name for split in splits for name in objective.columns(split)]
    columns.append(TRAIN_LOSS)
    metric = specification.goal.metric
    if metric not in columns:
        raise UserError(
            f"goal.metric {metric!r} is no metric of the objective "
            f"{specification.workload.objective!r}{where}: "
            f"{near_matches(metric, columns)}."
        )


@functools.lru_cache(maxsize=2)
def _loaded(name: str, data_dir: str | None, options: str, replaced: int) -> Dataset:
    folder = None if data_dir is None else Path(data_dir)
    return data.load(name, folder, **_with_tuples(json.loads(options)))


def _with_tuples(value: Any) -> Any:
    """Returns a value of JSON with its lists as tuples, as a gin file has them."""
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    return value


def load_dataset(workload: Workload, data_dir: str | None) -> Dataset:
    """Returns the data set of a workload; the last two stay in memory.

    Raises UserError, with the command that prepares the data, if they are missing.
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
    text = json.dumps(options, sort_keys=True)
    return _loaded(workload.dataset, data_dir, text, Registry.replaced)


@functools.lru_cache(maxsize=8)
def _objective(
    name: str, arguments: str, token_bytes: tuple[int, ...] | None, replaced: int
) -> Objective:
    """Returns the objective whose passes are traced once for all cells."""
    return objectives.build(name, json.loads(arguments), token_bytes)


def build_objective(workload: Workload, dataset: Dataset) -> Objective:
    """Returns the objective of a workload on a data set.

    An objective that reads the number of bytes of each token gets them from the data
    set, if that has them.
    """
    lengths = dataset.token_bytes
    return _objective_of(
        workload, None if lengths is None else tuple(int(length) for length in lengths)
    )


def _objective_of(
    workload: Workload, token_bytes: tuple[int, ...] | None = None
) -> Objective:
    arguments = json.dumps(dict(workload.objective_arguments), sort_keys=True)
    return _objective(workload.objective, arguments, token_bytes, Registry.replaced)


def build_network(workload: Workload, dataset: Dataset) -> keras.Model:
    """Returns a new network in float32; UserError, with the place, if that fails."""
    of_data = dataset.name, dataset.input_shape, dataset.classes
    return _network(workload.network, dict(workload.network_arguments), *of_data)


def _network(
    name: str,
    arguments: dict[str, Any],
    dataset: str,
    input_shape: tuple[int | None, ...],
    classes: int,
) -> keras.Model:
    try:
        return models.build(name, input_shape, classes, **arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        raise UserError(
            f"network {name!r} cannot be built with {arguments} on {dataset}: "
            f"{text} ({place.filename}, line {place.lineno})."
        ) from error


def check_same(workload: Workload, dataset: Dataset) -> None:
    """Raises UserError if two builds of a network differ, or their initial points."""
    first, again = (build_network(workload, dataset) for _ in range(2))
    same = models.structure_hash(first) == models.structure_hash(again)
    points = (models.initial_point(built, 0) for built in (first, again))
    if not (same and all(map(np.array_equal, *points))):
        raise UserError(
            f"network {workload.network!r} differs from build to build, as where NumPy "
            "draws constants: its function has to give the same network each time, so "
            "give its generator a fixed seed, or draw by an initializer."
        )


def codes_of(study: StudySpecification, dataset: Dataset) -> dict[str, str]:
    """Returns the hash of the code of each part of a study that is a user's own.

    A network is not among them: the hash of its structure includes its code.
    """
    workload, cell = study.workload, study.cell
    parts = {
        "optimizer": optim.OPTIMIZERS[workload.optimizer],
        "schedule": optim.SCHEDULES[workload.learning_rate_schedule],
        "objective": build_objective(workload, dataset),
        "transform": dataset.transform,
    }
    if cell.sparsity > 0:
        parts["sparsity_method"] = sparsity.SPARSITY_METHODS[cell.sparsity_method]
    hashes = {name: models.code_hash(part) for name, part in parts.items()}
    return {name: digest for name, digest in hashes.items() if digest}


def is_own(study: StudySpecification, dataset: Dataset) -> bool:
    """Returns whether a study runs code that is a user's own."""
    network = models.NETWORKS[study.workload.network]
    return bool(codes_of(study, dataset) or models.code_hash(network))


def build_task(
    workload: Workload,
    dataset: Dataset,
    gradual: Callable[[keras.Model], Gradual] | None = None,
    precision: str = "float32",
) -> Task:
    """Returns what a program of this workload trains; see `Task`."""
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
        gradual=gradual,
        objective=objective,
    )


@functools.lru_cache(maxsize=2)
def _scratch_network(
    network: str,
    arguments: str,
    dataset: str,
    input_shape: tuple[int | None, ...],
    classes: int,
    replaced: int,
) -> keras.Model:
    """Returns the model whose passes are traced once for all cells of a network."""
    return _network(network, json.loads(arguments), dataset, input_shape, classes)


def scratch_network(workload: Workload, dataset: Dataset) -> keras.Model:
    """Returns a model of a workload's network for scores; its weights are arbitrary."""
    arguments = json.dumps(dict(workload.network_arguments), sort_keys=True)
    of_data = dataset.name, dataset.input_shape, dataset.classes
    return _scratch_network(workload.network, arguments, *of_data, Registry.replaced)


def is_scheduled(specification: StudySpecification) -> bool:
    """Returns whether a cell's networks are pruned while they train, by tfmot."""
    cell = specification.cell
    method = sparsity.SPARSITY_METHODS[cell.sparsity_method] if cell.sparsity else None
    return method is not None and method.prunes_while_training


def gradual_of(
    specification: StudySpecification,
) -> Callable[[keras.Model], Gradual] | None:
    """Returns the function from a cell's networks to tfmot's rule, if scheduled."""
    if not is_scheduled(specification):
        return None
    # Imported only here, as the library takes a second to import.
    from dps_tf.sparsity import tfmot

    cell, pruning = specification.cell, specification.pruning
    return lambda network: tfmot.with_schedule(
        network,
        cell.sparsity_method,
        cell.sparsity,
        pruning,
        specification.workload.step_budget,
    )


def _scheduled_point(
    specification: StudySpecification, dataset: Dataset
) -> sparsity.MaskSet:
    """Returns how many entries per variable a trial keeps if pruned in training."""
    # A trial that misses these counts fails, so they can be recorded beforehand.
    network = scratch_network(specification.workload, dataset)
    sizes = [int(np.prod(variable.shape)) for variable in network.trainable_variables]
    # tfmot keeps at least one entry of a variable.
    counts = [(n, max(1, kept_count(n, specification.cell.sparsity))) for n in sizes]
    return sparsity.counts_of(counts, roles(network), specification.pruning.prunable)


class Pruner:
    """Prunes the initial points of one cell's trials.

    Scores depend on the network, the data and the initial point alone, so their cache
    serves every batch size, optimizer and (one-shot methods) sparsity. `scores` is the
    folder of the cache, None for no cache; `progress` is called with a text on how far
    the scores of a trial are.
    """

    def __init__(
        self,
        specification: StudySpecification,
        dataset: Dataset,
        scores: str | None,
        files: FileSystem,
        progress: Callable[[str], None] | None = None,
    ):
        self._specification = specification
        self._progress = progress
        self._dataset = dataset
        self._network = scratch_network(specification.workload, dataset)
        self._cache = None if scores is None else sparsity.ScoreCache(scores, files)

    def __call__(self, trial: int, initial: list[np.ndarray]) -> sparsity.MaskSet:
        """Returns the masks of a trial."""
        if is_scheduled(self._specification):
            return _scheduled_point(self._specification, self._dataset)
        cell, workload = self._specification.cell, self._specification.workload
        key = {
            "network": workload.network,
            "network_arguments": dict(workload.network_arguments),
            "initial_seed": derive_seed(cell.seed, trial, "initial point"),
        }
        # The keys of scores of the oldest objective do not name it.
        objective = workload.objective, dict(workload.objective_arguments)
        if objective != ("softmax_cross_entropy", {}):
            key["objective"] = objective
        return sparsity.masks_for(
            self._network,
            initial,
            self._dataset,
            cell.sparsity_method,
            cell.sparsity,
            self._specification.pruning,
            key,
            cache=self._cache,
            progress=self._score_progress(trial),
            objective=build_objective(workload, self._dataset),
        )

    def _score_progress(self, trial: int) -> Callable[[int, int], None] | None:
        """Returns the function that shows how far the scores of a trial are, if any."""
        show, name = self._progress, self._specification.cell.sparsity_method
        if show is None or self._specification.cell.sparsity == 0:
            return None
        unit = sparsity.SPARSITY_METHODS[name].unit
        return lambda done, total: show(
            f"trial {trial} is pruned by {name}, {done} of {total} {unit}"
        )
