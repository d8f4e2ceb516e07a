"""Sparsity methods by name; the `prune` of a method makes the masks of a trial.

One-shot scores are computed at the initial point; larger means kept. Notation: theta =
initial point, g = gradient of the mean loss of a batch of 100 examples, H = its
Hessian; sums run over batches. A score is a list of float32 arrays, one per trainable
variable, whether that one is prunable or not.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dps_tf._keras import keras, own_settings
from dps_tf.core import (
    DENSE,
    POSITIVE,
    Argument,
    Cell,
    Pruning,
    Range,
    Reads,
    Registry,
    UserError,
    check_known,
    derive_seed,
)
from dps_tf.data import Dataset
from dps_tf.objectives import Objective, Progress
from dps_tf.sparsity.prunable import MaskSet, describe, roles
from dps_tf.sparsity.request import (
    BalancedExamples,
    ExampleReader,
    ExampleWindows,
    MaskRequest,
    ScoreCache,
    selection_arguments,
)
from dps_tf.sparsity.score_gradients import GradientProgram
from dps_tf.sparsity.selection import SELECTIONS

Arrays = Sequence[np.ndarray]
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


SPARSITY_METHODS: Registry[SparsityMethod] = Registry("sparsity method")


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


def own_arguments(name: str, pruning: Pruning) -> dict[str, Any]:
    """Returns the arguments of a method, defaults filled in.

    A sweep over several methods gives arguments of one method or selection by its name:
    {"force": {"rounds": 20}, "n_of_m": {"m": 8}}.

    Raises:
        UserError: unknown names, or values out of range.
    """
    own: dict[str, Any] = {}
    names = (*SPARSITY_METHODS.names(), *SELECTIONS.names())
    for key, value in pruning.arguments.items():
        if not isinstance(value, Mapping):
            own[key] = value
        elif key == name:
            own.update(value)
        else:
            check_known("sparsity method or selection of pruning.arguments", key, names)
    return SPARSITY_METHODS.resolve(name, own)


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
    request = MaskRequest(
        network,
        (),
        dataset,
        cell.sparsity_method,
        {},
        SPARSITY_METHODS[cell.sparsity_method].reader,
        cell.sparsity,
        pruning,
        {},
    )
    request.select([np.ones(weight.shape) for weight in network.trainable_variables])


@own_settings()
def masks_for(  # noqa: PLR0913 - the fields of a MaskRequest, and who is served
    network: keras.Model,
    initial: Sequence[np.ndarray],
    dataset: Dataset,
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

    See `MaskRequest` for the arguments; sparsity 0 computes no scores. `cache` stores
    scores; None computes them. `progress` is called with (done, total) in the method's
    unit, but not for scores that are cached or take no gradient.

    Raises:
        UserError: the method or selection does not exist, or nothing would be kept.
    """
    if sparsity == 0 or method == DENSE:
        if sparsity:
            raise UserError(f"sparsity {sparsity!r} needs a sparsity method")
        variables = network.trainable_variables
        ones = [np.ones(variable.shape, np.float32) for variable in variables]
        return describe(ones, roles(network), pruning.prunable)
    registered = SPARSITY_METHODS[method]
    request = MaskRequest(
        network,
        initial,
        dataset,
        method,
        own_arguments(method, pruning),
        registered.reader,
        sparsity,
        pruning,
        key_parts,
        objective,
    )
    masks = registered.prune(request, cache, progress)
    return describe(masks, request.roles, pruning.prunable, request.examples)


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


def mask_gradient_sum(
    program: GradientProgram,
    theta: Arrays,
    inputs: np.ndarray,
    labels: np.ndarray,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Returns the signed sum over batches of d loss / d mask, float64.

    d loss / d mask_j = theta_j g_j, where g is taken at the point of the program:
    theta itself for mask = 1, theta times mask for others. `theta` is of the trainable
    variables, unmasked; examples are read in their order.

    Source: Lee, Ajanthan, Torr 2019, eq. 5; summed over an epoch in Lee et al. 2021,
    published code.
    """
    gradients = program.loss_gradient(inputs, labels, progress=progress)
    return [t * g for t, g in zip(theta, gradients, strict=True)]


def snip(
    program: GradientProgram,
    theta: Arrays,
    inputs: np.ndarray,
    labels: np.ndarray,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Returns |sum theta g|: the absolute value after the sum over batches.

    Zero-initialized biases have a score of exactly 0, so with the prunable set
    `kernels_and_biases` they are the first to go: none is left at any real sparsity.

    Source: Lee, Ajanthan, Torr 2019 (one mini-batch); Lee et al. 2021, published code
    (one epoch). Deviation: not divided by the total, which changes no order.
    """
    sums = mask_gradient_sum(program, theta, inputs, labels, progress)
    return [np.abs(part).astype(np.float32) for part in sums]


def grasp(  # noqa: PLR0913 - the arguments of every score, and its own
    program: GradientProgram,
    theta: Arrays,
    inputs: np.ndarray,
    labels: np.ndarray,
    temperature: float,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Returns theta (H g) with logits divided by `temperature`.

    Removing entry j changes |g|^2 by -2 theta_j (H g)_j in first order. The paper's
    score is -theta (H g), and entries with the largest scores, which harm gradient
    flow, are removed; here the sign is reversed, so that the largest are kept.

    Source: Wang, Zhang, Grosse 2020, eq. 8 and algorithm 1; temperature and class
    balance from the published code. Deviations: g and H are of all trainable variables,
    biases included, and dense layers are not drawn anew before scoring, because the
    mask is for the initial point that will be trained; divided by the largest absolute
    score (so that float32 holds them) and not by their sum, which changes no order; the
    examples are the first of each class, not random ones.
    """

    def half(first: int) -> Progress | None:
        if progress is None:
            return None
        return lambda done, batches: progress(first * batches + done, 2 * batches)

    gradient = program.loss_gradient(inputs, labels, temperature, half(0))
    product = program.hessian_product(inputs, labels, gradient, temperature, half(1))
    parts = [t * p for t, p in zip(theta, product, strict=True)]
    largest = max((np.abs(part).max(initial=0.0) for part in parts), default=0.0)
    return [(part / (largest or 1.0)).astype(np.float32) for part in parts]


def _snip(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns |sum theta g| of the first training examples; see `snip`."""
    program = request.program
    with program.lock:
        program.set_point(request.initial)
        return snip(program, request.theta, *request.data(), progress)


def _grasp(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns theta (H g) of examples of every class; see `grasp`."""
    program, temperature = request.program, request.arguments["temperature"]
    with program.lock:
        program.set_point(request.initial)
        return grasp(program, request.theta, *request.data(), temperature, progress)


def _magnitude(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns |theta| of the initial weights."""
    del progress
    return [np.abs(part).astype(np.float32) for part in request.theta]


def _random(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns uniform random numbers, a function of the trial's initial seed."""
    del progress
    seed = derive_seed(request.key_parts["initial_seed"], 0, "random scores")
    generator = np.random.default_rng(seed)
    return [generator.random(np.shape(part), np.float32) for part in request.theta]


# Ten examples a class, temperature 200: published code of Wang et al. 2020.
_GRASP: Reads = {
    "temperature": Argument(200.0, POSITIVE),
    "per_class": Argument(10, AT_LEAST_ONE),
}
register_sparsity_method("snip", OneShot(_snip, reader=ExampleWindows()))
register_sparsity_method("grasp", OneShot(_grasp, _GRASP, BalancedExamples()))
register_sparsity_method("magnitude", OneShot(_magnitude))
register_sparsity_method("random", OneShot(_random))
