"""The mask of a trial: a pure function of its network, initial point, data and method.

Masks are float32 arrays of zeros and ones, one per trainable variable, ones where a
variable is not prunable. Training multiplies the initial point and every gradient by
them, so gradients, gradient norms and clipping see kept parameters only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps_tf._keras import keras
from dps_tf.core.cell import DENSE
from dps_tf.core.errors import UserError
from dps_tf.core.study import Pruning
from dps_tf.objectives import Objective
from dps_tf.objectives.batch_sums import Progress
from dps_tf.sparsity import iterative, methods, scores
from dps_tf.sparsity.cache import ScoreCache
from dps_tf.sparsity.gradients import program_of
from dps_tf.sparsity.prunable import MaskSet, describe, roles, trainable_positions
from dps_tf.sparsity.request import MaskRequest, TrainingData
from dps_tf.sparsity.selection import select


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
    """Returns the masks of one initial point.

    One-shot scores are looked up or computed once per (network, data, initial point,
    method, examples) and serve every sparsity and prunable set; masks of iterative
    methods once more per sparsity.

    Args:
        network: scratch; its weights are overwritten. Pass the same object for all
            trials: its passes are traced once.
        initial: values in the order of `network.weights`.
        dataset: scores read its training examples only.
        method: one of `methods.names()` that is not scheduled by tfmot.
        sparsity: fraction to remove, in [0, 1); 0 computes no scores.
        pruning: prunable set, scope, examples (0: the method's own number) and
            arguments of the method.
        key_parts: JSON values that name the network and its arguments, and
            `initial_seed`; part of the key of the cache, beside the initial point and
            the content of the data themselves.
        cache: where scores are kept; None computes them anew.
        progress: called with (done, total) of rounds of an iterative method, else of
            batches; not at all for what is in the cache or takes no gradient.
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
    known = methods.method(method)
    if known.kind == methods.SCHEDULED:
        raise UserError(
            f"sparsity method {method!r} prunes during training and has no mask at "
            "the initial point: train it inside the wrappers of dps_tf.sparsity.tfmot"
        )
    request = MaskRequest(
        network, initial, dataset, known, sparsity, pruning, key_parts, objective
    )
    compute = _rounds if known.kind == methods.ITERATIVE else _scores
    if cache is None:
        found = compute(request, progress)
    else:
        found = cache.get(request.key(), lambda: compute(request, progress))
    if known.kind == methods.ONE_SHOT:
        found = _selected(request, found)
    return describe(found, request.roles, pruning.prunable, request.examples)


def _selected(request: MaskRequest, found: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns one mask per trainable variable from one-shot scores of all of them."""
    masks = scores.ones_like(found)
    chosen = [found[position] for position in request.positions]
    kept = select(chosen, request.sparsity, request.layers)
    for position, mask in zip(request.positions, kept, strict=True):
        masks[position] = mask
    return masks


def _scores(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns one-shot scores of all trainable variables."""
    name, theta = request.method.name, request.theta
    if name == "magnitude":
        return scores.magnitude(theta)
    if name == "random":
        return scores.random(theta, request.key_parts["initial_seed"])
    inputs, labels = request.data()
    program = program_of(request.network, request.objective)
    with program.lock:
        program.set_point(request.initial)
        if name == "snip":
            return scores.snip(program, theta, inputs, labels, progress)
        temperature = request.arguments["temperature"]
        return scores.grasp(program, theta, inputs, labels, temperature, progress)


def _rounds(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns the masks of an iterative method, one per trainable variable.

    With m the mask so far: iterative_snip ranks |sum (theta m) g(theta m)| and never
    returns what it pruned; force ranks |sum theta g(theta m)|, so that pruned entries
    have a score too and may return. Each round reads examples of its own.

    Sources: Verdenius, Stol, Forre 2020 (SNIP-it, unstructured, before training); de
    Jorge et al. 2021, eq. 7 and algorithm 1. Deviation: not divided by the loss or by
    the number of batches, which changes no order.
    """
    name, program = request.method.name, program_of(request.network, request.objective)
    positions = trainable_positions(request.network)

    def score(turn: int, masks: list[np.ndarray]) -> list[np.ndarray]:
        if name == "synflow":
            return iterative.synflow_scores(program, request.initial, positions, masks)
        program.set_point(request.initial, masks or None)
        return scores.snip(program, request.theta, *request.data(turn))

    arguments = request.arguments
    if name == "iterative_snip":
        sparsities = iterative.halving(request.sparsity, arguments["halvings"])
    else:
        sparsities = iterative.exponential(request.sparsity, arguments["rounds"])
    with program.lock:
        return iterative.iterate(
            score,
            iterative.Rounds(
                sparsities, request.positions, request.layers, name == "force"
            ),
            progress,
        )
