"""How the trials of a cell are pruned: masks by initial point, through the cache."""

from __future__ import annotations

import functools
import json

import numpy as np

from dps_tf import models
from dps_tf._keras import keras
from dps_tf.core.seeds import derive_seed
from dps_tf.core.study import StudySpecification
from dps_tf.core.workload import Workload
from dps_tf.data.dataset import Dataset
from dps_tf.sparsity import ScoreCache, masks_for
from dps_tf.store.files import FileSystem
from dps_tf.training.runner import PrunedPoint


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
    ):
        """Computes nothing yet.

        Args:
            specification: of the cell.
            dataset: whose training examples scores are computed on.
            scores: folder of the cache.
            files: where it is.
        """
        self._specification = specification
        self._dataset = dataset
        self._network = scratch_network(specification.workload, dataset)
        self._cache = ScoreCache(scores, files)

    def __call__(self, trial: int, initial: list[np.ndarray]) -> PrunedPoint:
        """Returns the masks of a trial."""
        cell, workload = self._specification.cell, self._specification.workload
        found = masks_for(
            self._network,
            initial,
            self._dataset,
            cell.sparsity_method,
            cell.sparsity,
            self._specification.pruning,
            {
                "network": workload.network,
                "network_arguments": dict(workload.network_arguments),
                "initial_seed": derive_seed(cell.seed, trial, "initial point"),
            },
            cache=self._cache,
        )
        return PrunedPoint(
            masks=tuple(found.masks),
            realised_sparsity=found.realised_sparsity,
            layers=tuple(found.layers),
            examples=found.examples,
        )
