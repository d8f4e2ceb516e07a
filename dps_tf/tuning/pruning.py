"""How the trials of a cell are pruned: masks by initial point, through the cache."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core.seeds import derive_seed
from dps_tf.core.study import StudySpecification
from dps_tf.core.workload import Workload
from dps_tf.data.dataset import Dataset
from dps_tf.sparsity import SPARSITY_METHODS, MaskSet, ScoreCache, masks_for
from dps_tf.sparsity.prunable import roles
from dps_tf.sparsity.selection import kept_count
from dps_tf.store.files import FileSystem
from dps_tf.tuning import build

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import PrunedModel


@functools.lru_cache(maxsize=2)
def _scratch_network(
    network: str, arguments: str, input_shape: tuple[int, ...], classes: int
) -> keras.Model:
    """Returns the model whose passes are traced once for all cells of a network."""
    return models.build(network, input_shape, classes, **json.loads(arguments))


def scratch_network(workload: Workload, dataset: Dataset) -> keras.Model:
    """Returns a model of a workload's network, for scores; its weights mean nothing."""
    arguments = json.dumps(dict(workload.network_arguments), sort_keys=True)
    return _scratch_network(
        workload.network, arguments, dataset.input_shape, dataset.classes
    )


def is_scheduled(specification: StudySpecification) -> bool:
    """Returns whether a cell's networks are pruned while they train, by tfmot."""
    cell = specification.cell
    if cell.sparsity == 0:
        return False
    return SPARSITY_METHODS[cell.sparsity_method].prunes_while_training


def pruning_wrapper_of(
    specification: StudySpecification,
) -> Callable[[keras.Model], PrunedModel] | None:
    """Returns what puts a cell's networks into tfmot's wrappers, if it is scheduled."""
    if not is_scheduled(specification):
        return None
    # Only now: the library takes a second to import.
    from dps_tf.sparsity import tfmot

    cell, pruning = specification.cell, specification.pruning
    return lambda network: tfmot.wrap_with_schedule(
        network,
        cell.sparsity_method,
        cell.sparsity,
        pruning,
        specification.workload.step_budget,
    )


def scheduled_point(specification: StudySpecification, dataset: Dataset) -> MaskSet:
    """Returns how a trial will be pruned while it trains: variable by variable.

    A trial that does not arrive there fails, so this can be said beforehand. tfmot
    keeps one entry of a variable at least.
    """
    network = scratch_network(specification.workload, dataset)
    prunable = specification.pruning.prunable
    layers: list[dict[str, Any]] = []
    for variable, role in zip(network.trainable_variables, roles(network), strict=True):
        if role.is_in(prunable):
            size = int(np.prod(variable.shape))
            kept = max(1, kept_count(size, specification.cell.sparsity))
            layers.append(
                {
                    "name": role.name,
                    "role": role.role,
                    "parameters": size,
                    "kept": kept,
                    "emptied": False,
                }
            )
    parameters = sum(layer["parameters"] for layer in layers)
    kept = sum(layer["kept"] for layer in layers)
    return MaskSet(None, 1 - kept / parameters, layers)


class Pruner:
    """Prunes the initial points of one cell's trials.

    Scores depend on the network, the data and the initial point alone, so the cache
    serves every batch size, optimizer and (one-shot methods) sparsity.
    """

    def __init__(
        self,
        specification: StudySpecification,
        dataset: Dataset,
        scores: str,
        files: FileSystem,
        progress: Callable[[str], None] | None = None,
    ):
        """Computes nothing yet.

        Args:
            specification: of the cell.
            dataset: whose training examples scores are computed on.
            scores: folder of the cache.
            files: where it is.
            progress: is told how far the scores of a trial are.
        """
        self._specification = specification
        self._progress = progress
        self._dataset = dataset
        self._network = scratch_network(specification.workload, dataset)
        self._cache = ScoreCache(scores, files)

    def __call__(self, trial: int, initial: list[np.ndarray]) -> MaskSet:
        """Returns the masks of a trial."""
        if is_scheduled(self._specification):
            return scheduled_point(self._specification, self._dataset)
        cell, workload = self._specification.cell, self._specification.workload
        key = {
            "network": workload.network,
            "network_arguments": dict(workload.network_arguments),
            "initial_seed": derive_seed(cell.seed, trial, "initial point"),
        }
        # Scores of the first objective that there was are known without its name.
        objective = workload.objective, dict(workload.objective_arguments)
        if objective != ("softmax_cross_entropy", {}):
            key["objective"] = objective
        return masks_for(
            self._network,
            initial,
            self._dataset,
            cell.sparsity_method,
            cell.sparsity,
            self._specification.pruning,
            key,
            cache=self._cache,
            progress=self._told(trial),
            objective=build.build_objective(workload, self._dataset),
        )

    def _told(self, trial: int) -> Callable[[int, int], None] | None:
        """Returns what tells how far the scores of a trial are, if anybody listens."""
        tell, name = self._progress, self._specification.cell.sparsity_method
        if tell is None or self._specification.cell.sparsity == 0:
            return None
        unit = SPARSITY_METHODS[name].unit
        return lambda done, total: tell(
            f"trial {trial} is pruned by {name}, {done} of {total} {unit}"
        )
