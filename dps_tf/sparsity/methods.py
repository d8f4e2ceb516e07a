"""Sparsity methods by name; the `prune` of a method makes the masks of a trial.

A method scores once, or in rounds: score, select, score what is left. The scores of
shipped methods are in `scores`; tfmot's schedules are in `pruning_schedule`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dps_tf._keras import keras, own_settings
from dps_tf.core import Cell, Pruning, Range, Reads
from dps_tf.data import Dataset
from dps_tf.objectives import Progress
from dps_tf.sparsity.prunable import MaskSet, describe
from dps_tf.sparsity.request import (
    SPARSITY_METHODS,
    ExampleReader,
    MaskRequest,
    ScoreCache,
    own_arguments,
    selection_arguments,
)

Masks = list[np.ndarray]
AT_LEAST_ONE = Range(low=1, whole=True)


class SparsityMethod(abc.ABC):
    """A way to prune a network.

    Attributes:
        reads: names, defaults and ranges of the method's arguments.
        reader: decides which training examples are read; see `request`.
        unit: what progress counts, in words.
        prunes_while_training: whether masks move during training, so that there are
            none at the initial point (`pruning_schedule`).
    """

    reads: Reads
    reader: ExampleReader
    unit: ClassVar[str] = "batches"
    prunes_while_training: ClassVar[bool] = False

    @abc.abstractmethod
    def prune(
        self, request: MaskRequest, cache: ScoreCache | None, progress: Progress | None
    ) -> list[np.ndarray]:
        """Returns float32 0/1 masks at the initial point, one per trainable variable.

        A pure function of the request: `cache` only saves work.
        """

    def check(
        self, name: str, sparsity: float, pruning: Pruning, step_budget: int
    ) -> None:
        """Raises UserError, before training, for arguments that the method lacks."""
        del sparsity, step_budget
        own_arguments(name, pruning)


def register_sparsity_method(name: str, method: SparsityMethod) -> None:
    """Makes `sweep.sparsity_methods` take a name, in this process.

    Registering the same object again changes nothing; another object under a taken name
    is refused. The sweep stores scores by this name: rename a method when it changes.

    Examples:
        >>> import dps_tf
        >>> def squares(request, progress):
        ...     return [weights**2 for weights in request.theta]
        >>> dps_tf.register_sparsity_method("squares", OneShot(squares))
    """
    SPARSITY_METHODS.register(name, method, method.reads)


def check_pruning(
    method: str, sparsity: float, pruning: Pruning, step_budget: int
) -> None:
    """Raises UserError if a method or a selection cannot prune as asked.

    Sparsity 0 needs no method and checks none; a trial may make `step_budget` updates.
    """
    selection_arguments(pruning)
    if sparsity > 0:
        SPARSITY_METHODS[method].check(method, sparsity, pruning, step_budget)


def check_reachable(
    network: keras.Model, dataset: Dataset, cell: Cell, pruning: Pruning
) -> None:
    """Raises UserError for a sparsity that a selection cannot reach in a network."""
    asked = cell.sparsity_method, cell.sparsity, pruning
    request = MaskRequest(network, (), dataset, *asked, {})
    request.select([np.ones(weight.shape) for weight in network.trainable_variables])


@own_settings()
def masks_for(
    request: MaskRequest,
    cache: ScoreCache | None = None,
    progress: Progress | None = None,
) -> MaskSet:
    """Returns the masks of one initial point, one per trainable variable.

    Masks are bool arrays, True where an entry is kept or its variable not prunable.
    Training multiplies the initial point and every gradient by them, so gradients,
    gradient norms and clipping see kept parameters only. Sparsity 0 computes no scores.

    Args:
        request: what the masks depend on.
        cache: stores scores; None computes them.
        progress: called with (done, total) in the method's unit, but not for scores
            that are cached or take no gradient.

    Raises:
        UserError: the method or selection does not exist, or nothing would be kept.
    """
    if request.sparsity == 0:
        variables = request.network.trainable_variables
        masks = [np.ones(variable.shape, np.float32) for variable in variables]
        return describe(masks, request.roles, request.pruning.prunable)
    masks = SPARSITY_METHODS[request.method].prune(request, cache, progress)
    prunable = request.pruning.prunable
    return describe(masks, request.roles, prunable, request.examples)


def cached(
    cache: ScoreCache | None,
    key: Callable[[], Mapping[str, Any]],
    compute: Callable[[], Sequence[np.ndarray]],
) -> list[np.ndarray]:
    """Returns the arrays of a key from the cache, or computes them."""
    return list(compute()) if cache is None else cache.get(key(), compute)


@dataclass(frozen=True)
class OneShot(SparsityMethod):
    """Scores the initial point once; the selection keeps the largest scores.

    Scores are looked up or computed once per (network, data, initial point, method,
    arguments, examples) and serve every sparsity, prunable set and selection.

    Attributes:
        score: (request, progress) -> scores of all trainable variables.
        reads: names, defaults and ranges of the method's arguments.
        reader: decides which training examples are read.
    """

    score: Callable[[MaskRequest, Progress | None], list[np.ndarray]]
    reads: Reads = field(default_factory=dict)
    reader: ExampleReader = field(default_factory=ExampleReader)

    def prune(
        self, request: MaskRequest, cache: ScoreCache | None, progress: Progress | None
    ) -> list[np.ndarray]:
        """Returns the masks of the largest scores."""
        key = request.score_key
        # Checked before they are kept, or a mended method would find them again.
        scores = cached(
            cache, key, lambda: request.checked(self.score(request, progress))
        )
        return request.select(scores)


@dataclass(frozen=True)
class Iterative(SparsityMethod):
    """Scores and selects in rounds of growing sparsity.

    Masks are looked up or computed once per (network, data, initial point, method,
    arguments, examples, sparsity, prunable set, selection).

    Attributes:
        score: (request, round 0, 1, ..., masks of the round before, empty for the
            first) -> scores of all trainable variables.
        sparsities: (target sparsity, arguments) -> sparsity after each round, which
            never falls.
        may_return: whether an entry that was pruned may be kept again.
        reads: names, defaults and ranges of the method's arguments.
        reader: decides which training examples are read.
    """

    score: Callable[[MaskRequest, int, Masks], list[np.ndarray]]
    sparsities: Callable[[float, Mapping[str, Any]], Sequence[float]]
    may_return: bool = False
    reads: Reads = field(default_factory=dict)
    reader: ExampleReader = field(default_factory=ExampleReader)
    unit: ClassVar[str] = "rounds"

    def prune(
        self, request: MaskRequest, cache: ScoreCache | None, progress: Progress | None
    ) -> list[np.ndarray]:
        """Returns the masks after the last round."""
        return cached(cache, request.mask_key, lambda: self._iterate(request, progress))

    def _iterate(self, request: MaskRequest, progress: Progress | None) -> Masks:
        sparsities = self.sparsities(request.sparsity, request.arguments)
        masks: Masks = []
        with request.program.lock:
            for turn, sparsity in enumerate(sparsities):
                scores = self.score(request, turn, masks)
                allowed = None if self.may_return or not masks else masks
                masks = request.select(scores, sparsity, allowed)
                if progress is not None:
                    progress(turn + 1, len(sparsities))
        return masks
