"""Sparsity methods: each is one object whose `prune` makes the masks of a trial."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dps_tf._keras import keras
from dps_tf.core.cell import DENSE
from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.registry import POSITIVE, Argument, Range, Reads, Registry
from dps_tf.core.study import Pruning
from dps_tf.objectives import Objective
from dps_tf.objectives.batch_sums import Progress
from dps_tf.sparsity import scores
from dps_tf.sparsity.cache import ScoreCache
from dps_tf.sparsity.prunable import MaskSet, describe, roles
from dps_tf.sparsity.request import (
    BalancedExamples,
    ExampleReader,
    FirstExamples,
    MaskRequest,
    NoExamples,
    TrainingData,
    selection_arguments,
)
from dps_tf.sparsity.selection import SELECTIONS

Arrays = Sequence[np.ndarray]
AT_LEAST_ONE = Range(low=1, whole=True)


class SparsityMethod(abc.ABC):
    """A way to prune a network.

    Attributes:
        reads: names, defaults and ranges of its arguments.
        reader: of training examples: `NoExamples()`, or another one of `request`.
        unit: of its progress.
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

        A pure function of the request: `cache` only saves work. `progress` is called
        with (done, total).
        """

    def check(
        self, name: str, sparsity: float, pruning: Pruning, step_budget: int
    ) -> None:
        """Raises UserError for arguments that it does not take, before training."""
        del sparsity, step_budget
        own_arguments(name, pruning)


SPARSITY_METHODS: Registry[SparsityMethod] = Registry("sparsity method")


def register_sparsity_method(name: str, method: SparsityMethod) -> None:
    """Makes `sweep.sparsity_methods` take a name.

    Side effect: changes the registry of this process. Registering the same object again
    changes nothing; another one under a taken name is refused. Scores are kept in the
    sweep under the name: give a method that changes another one.
    """
    SPARSITY_METHODS.register(name, method, method.reads)


def own_arguments(name: str, pruning: Pruning) -> dict[str, Any]:
    """Returns the arguments of a method, defaults filled in.

    Arguments for one method or selection only stand under its name, so that a sweep
    over several methods can have them: {"force": {"rounds": 20}, "n_of_m": {"m": 8}}.

    Raises:
        UserError: unknown names, or values out of range.
    """
    own: dict[str, Any] = {}
    known = (*SPARSITY_METHODS.names(), *SELECTIONS.names())
    for key, value in pruning.arguments.items():
        if not isinstance(value, Mapping):
            own[key] = value
        elif key == name:
            own.update(value)
        elif key not in known:
            raise UserError(
                f"pruning.arguments has values for {key!r}, which is no sparsity "
                f"method or selection: {near_matches(key, known)}"
            )
    return SPARSITY_METHODS.resolve(name, own)


def check_pruning(
    method: str, sparsity: float, pruning: Pruning, step_budget: int
) -> None:
    """Raises UserError for what cannot be asked of a method and a selection.

    Args:
        method: name of the sparsity method; not looked at for sparsity 0.
        sparsity: fraction to remove.
        pruning: what is asked.
        step_budget: updates that a trial may make.
    """
    selection_arguments(pruning)
    if sparsity > 0:
        SPARSITY_METHODS[method].check(method, sparsity, pruning, step_budget)


def masks_for(  # noqa: PLR0913 - the fields of a MaskRequest, and who is served
    network: keras.Model,
    initial: Sequence[np.ndarray],
    dataset: TrainingData,
    method: str,
    sparsity: float,
    pruning: Pruning,
    key_parts: Mapping[str, Any],
    cache: ScoreCache | None = None,
    progress: Progress | None = None,
    objective: Objective | None = None,
) -> MaskSet:
    """Returns the masks of one initial point, one per trainable variable.

    Masks are float32 arrays of zeros and ones, ones where a variable is not prunable.
    Training multiplies the initial point and every gradient by them, so gradients,
    gradient norms and clipping see kept parameters only.

    Args:
        network: scratch; its weights are overwritten. Pass the same object for all
            trials: its passes are traced once.
        initial: values in the order of `network.weights`.
        dataset: scores read its training examples only.
        method: name of a sparsity method that does not prune while training.
        sparsity: fraction to remove, in [0, 1); 0 computes no scores.
        pruning: prunable set, selection, examples (0: the method's own number) and
            arguments.
        key_parts: JSON values that name the network and its arguments, and
            `initial_seed`; part of the key of the cache, beside the initial point and
            the content of the data themselves.
        cache: where scores are kept; None computes them anew.
        progress: called with (done, total) of the method's unit; not at all for what
            is in the cache or takes no gradient.
        objective: whose loss scores are of; None is softmax cross-entropy. Another one
            has to be named in `key_parts`. Pass the same object for all trials.

    Raises:
        UserError: what is asked for does not exist or keeps nothing.
    """
    if sparsity == 0 or method == DENSE:
        if sparsity:
            raise UserError(f"sparsity {sparsity!r} needs a sparsity method")
        ones = scores.ones_like(network.trainable_variables)
        return describe(ones, roles(network), pruning.prunable)
    known = SPARSITY_METHODS[method]
    request = MaskRequest(
        network,
        initial,
        dataset,
        method,
        own_arguments(method, pruning),
        known.reader,
        sparsity,
        pruning,
        key_parts,
        objective,
    )
    masks = known.prune(request, cache, progress)
    return describe(masks, request.roles, pruning.prunable, request.examples)


def cached(
    cache: ScoreCache | None,
    key: Callable[[], Mapping[str, Any]],
    compute: Callable[[], Sequence[np.ndarray]],
) -> list[np.ndarray]:
    """Returns the arrays of a key from the cache, or what is computed."""
    return list(compute()) if cache is None else cache.get(key(), compute)


@dataclass(frozen=True)
class OneShot(SparsityMethod):
    """Scores the initial point once; the selection keeps the largest.

    Scores are looked up or computed once per (network, data, initial point, method,
    arguments, examples) and serve every sparsity, prunable set and selection.

    Attributes:
        score: (request, progress) -> scores of all trainable variables.
        reads: see `SparsityMethod`.
        reader: see `SparsityMethod`.
    """

    score: Callable[[MaskRequest, Progress | None], list[np.ndarray]]
    reads: Reads = field(default_factory=dict)
    reader: ExampleReader = field(default_factory=NoExamples)

    def prune(
        self, request: MaskRequest, cache: ScoreCache | None, progress: Progress | None
    ) -> list[np.ndarray]:
        """Returns the masks of the largest scores."""
        found = cached(cache, request.score_key, lambda: self.score(request, progress))
        return request.select(found)


def _snip(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns |sum theta g| of the first training examples; see `scores.snip`."""
    program = request.program
    with program.lock:
        program.set_point(request.initial)
        return scores.snip(program, request.theta, *request.data(), progress)


def _grasp(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns theta (H g) of examples of every class; see `scores.grasp`."""
    program, temperature = request.program, request.arguments["temperature"]
    with program.lock:
        program.set_point(request.initial)
        return scores.grasp(
            program, request.theta, *request.data(), temperature, progress
        )


def _magnitude(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns |theta| of the initial weights."""
    del progress
    return scores.magnitude(request.theta)


def _random(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns uniform random numbers, a function of the trial's initial seed."""
    del progress
    return scores.random(request.theta, request.key_parts["initial_seed"])


# Ten examples a class, temperature 200: published code of Wang et al. 2020.
_GRASP: Reads = {
    "temperature": Argument(200.0, POSITIVE),
    "per_class": Argument(10, AT_LEAST_ONE),
}
register_sparsity_method("snip", OneShot(_snip, reader=FirstExamples()))
register_sparsity_method("grasp", OneShot(_grasp, _GRASP, BalancedExamples()))
register_sparsity_method("magnitude", OneShot(_magnitude))
register_sparsity_method("random", OneShot(_random))
