"""Pruning of the trials of a study: at their initial points, or while they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dps_tf import models, objectives
from dps_tf._keras import keras
from dps_tf.core import (
    Cell,
    StudySpecification,
    UserError,
    arguments_alone,
    derive_seed,
)
from dps_tf.data import Dataset
from dps_tf.sparsity.methods import check_pruning, check_reachable, masks_for
from dps_tf.sparsity.prunable import MaskSet, counts_of, roles
from dps_tf.sparsity.request import SPARSITY_METHODS, MaskRequest, ScoreCache
from dps_tf.sparsity.selection import SELECTIONS, kept_count
from dps_tf.store import FileSystem

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import Gradual


def prunes_while_training(cell: Cell) -> bool:
    """Returns whether the networks of a cell are pruned while they train, by tfmot."""
    if cell.sparsity == 0:
        return False
    return SPARSITY_METHODS[cell.sparsity_method].prunes_while_training


def check(study: StudySpecification) -> None:
    """Raises UserError if the method or the selection cannot prune as a study asks."""
    cell, workload = study.cell, study.workload
    if workload.fixed.get("workers", 1) > 1 and prunes_while_training(cell):
        raise UserError(
            f"sparsity method {cell.sparsity_method!r} prunes while it trains, and "
            "workers of local SGD keep the zeros that they begin with: leave "
            "workload.fixed.workers out, or use a method that prunes before."
        )
    budget = study.rule.last_evaluation
    check_pruning(cell.sparsity_method, cell.sparsity, study.pruning, budget)


def check_data(study: StudySpecification, dataset: Dataset) -> None:
    """Raises UserError if a selection cannot reach the sparsity in the network."""
    if study.cell.sparsity > 0 and not prunes_while_training(study.cell):
        of_data = dataset.input_shape, dataset.classes
        network = models.scratch_for(study.workload, *of_data)
        check_reachable(network, dataset, study.cell, study.pruning)


def gradual_of(study: StudySpecification) -> Callable[[keras.Model], Gradual] | None:
    """Returns the function from networks to tfmot's rule, where it prunes a study."""
    cell = study.cell
    if not prunes_while_training(cell):
        return None
    # Imported only here, as the library takes a second to import.
    from dps_tf.sparsity import tfmot

    budget = study.workload.step_budget
    method, sparsity = cell.sparsity_method, cell.sparsity
    return lambda network: tfmot.with_schedule(
        network, method, sparsity, study.pruning, budget
    )


def own_code(study: StudySpecification) -> str:
    """Returns the hash of a user's own code that prunes a study, or ''."""
    if study.cell.sparsity == 0:
        return ""
    method = SPARSITY_METHODS[study.cell.sparsity_method]
    selection = SELECTIONS[study.pruning.scope]
    return models.code_hash([type(method), vars(method), selection])


class Pruner:
    """Prunes the initial points of one cell's trials.

    Scores depend on the network, the data and the initial point alone, so their cache
    serves every batch size, optimizer and (one-shot methods) sparsity. `scores` is the
    folder of the cache, None for no cache; `progress` is called with a text on how far
    the scores of a trial are.
    """

    def __init__(
        self,
        study: StudySpecification,
        dataset: Dataset,
        scores: str | None,
        files: FileSystem,
        progress: Callable[[str], None] | None = None,
    ):
        self._study = study
        self._progress = progress
        self._dataset = dataset
        of_data = dataset.input_shape, dataset.classes
        self._network = models.scratch_for(study.workload, *of_data)
        self._cache = None if scores is None else ScoreCache(scores, files)
        self._is_own = bool(own_code(study))

    def __call__(self, trial: int, initial: list[np.ndarray]) -> MaskSet:
        """Returns the masks of a trial."""
        if not self._is_own:
            return self._masks(trial, initial, self._cache)
        with arguments_alone(may_time=True):
            return self._masks(trial, initial, self._cache)

    def check_repeats(self) -> None:
        """Raises UserError unless own code gives trial 0 the same masks twice."""
        name, seed = self._study.cell.sparsity_method, self._study.cell.seed
        if not self._is_own or prunes_while_training(self._study.cell):
            return
        seed = derive_seed(seed, 0, "initial point")
        initial = models.initial_point(self._network, seed)
        masks = [self._masks(0, initial, None).masks or [] for _ in range(2)]
        if not all(map(np.array_equal, *masks)):
            raise UserError(
                f"sparsity method {name!r} prunes one initial point twice, and not "
                "alike: it must depend on its request alone, and on no counter, "
                "variable or random number."
            )

    def _masks(
        self, trial: int, initial: list[np.ndarray], cache: ScoreCache | None
    ) -> MaskSet:
        cell, workload = self._study.cell, self._study.workload
        if prunes_while_training(cell):
            return self._counts()
        key = {
            "network": workload.network,
            "network_arguments": dict(workload.network_arguments),
            "initial_seed": derive_seed(cell.seed, trial, "initial point"),
        }
        # The keys of scores of the oldest objective do not name it.
        objective = workload.objective, dict(workload.objective_arguments)
        if objective != ("softmax_cross_entropy", {}):
            key["objective"] = objective
        request = MaskRequest(
            self._network,
            initial,
            self._dataset,
            cell.sparsity_method,
            cell.sparsity,
            self._study.pruning,
            key,
            objectives.build_for(workload, self._dataset.token_bytes),
        )
        return masks_for(request, cache, self._score_progress(trial))

    def _counts(self) -> MaskSet:
        """Returns how many entries per variable a trial keeps if pruned in training."""
        # A trial that misses these counts fails, so they can be recorded beforehand.
        trained = self._network.trainable_variables
        sizes = [int(np.prod(variable.shape)) for variable in trained]
        sparsity = self._study.cell.sparsity
        # tfmot keeps at least one entry of a variable.
        counts = [(size, max(1, kept_count(size, sparsity))) for size in sizes]
        return counts_of(counts, roles(self._network), self._study.pruning.prunable)

    def _score_progress(self, trial: int) -> Callable[[int, int], None] | None:
        """Returns the function that shows how far the scores of a trial are, if any."""
        show, name = self._progress, self._study.cell.sparsity_method
        if show is None or self._study.cell.sparsity == 0:
            return None
        unit = SPARSITY_METHODS[name].unit
        return lambda done, total: show(
            f"trial {trial} is pruned by {name}, {done} of {total} {unit}"
        )
