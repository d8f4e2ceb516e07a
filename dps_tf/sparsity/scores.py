"""The scores of shipped sparsity methods: SNIP, GraSP, SynFlow, FORCE and simple ones.

A score is a list of arrays, one per trainable variable, whether that one is prunable or
not; larger means kept. Notation: theta = initial point, g = gradient of the mean loss
of a batch of 100 examples, H = its Hessian, m = mask so far, s = target sparsity. The
round is k = 1, 2, ...; sums run over batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dps_tf.core import POSITIVE, Argument, Reads, UserError, derive_seed
from dps_tf.objectives import Progress
from dps_tf.sparsity.methods import (
    AT_LEAST_ONE,
    Iterative,
    Masks,
    OneShot,
    register_sparsity_method,
)
from dps_tf.sparsity.prunable import trainable_positions
from dps_tf.sparsity.request import BalancedExamples, ExampleWindows, MaskRequest

ROUND_EXAMPLES = 5_000  # this package's choice; published codes take a batch or a few


def snip(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns |sum theta g|: the absolute value after the sum over batches.

    Zero-initialized biases have a score of exactly 0, so with the prunable set
    `kernels_and_biases` they are the first to go: none is left at any real sparsity.

    Source: Lee, Ajanthan, Torr 2019, eq. 5 (d loss / d mask on one mini-batch); Lee et
    al. 2021, published code (one epoch). Deviation: not divided by the total, which
    changes no order.
    """
    return _sensitivity(request.theta, request.loss_gradient(progress))


def _sensitivity(theta: Masks, gradients: Masks) -> list[np.ndarray]:
    """Returns the absolute values of d loss / d mask = theta g."""
    pairs = zip(theta, gradients, strict=True)
    return [np.abs(part * gradient).astype(np.float32) for part, gradient in pairs]


def grasp(request: MaskRequest, progress: Progress | None) -> list[np.ndarray]:
    """Returns theta (H g) of examples of every class, at a temperature of the logits.

    Removing entry j changes |g|^2 by -2 theta_j (H g)_j in first order. The paper's
    score is -theta (H g), and entries with the largest scores, which harm gradient
    flow, are removed; here the sign is reversed, so that the largest are kept.

    Source: Wang, Zhang, Grosse 2020, eq. 8 and algorithm 1; temperature and class
    balance from the published code. Deviations: g and H are of all trainable variables,
    biases included. Dense layers are not drawn anew before scoring, because the mask is
    for the initial point that will be trained. Scores are divided by the largest
    absolute one (so that float32 holds them) and not by their sum, which changes no
    order. The examples are the first of each class, not random ones.
    """

    def half(first: int) -> Progress | None:
        if progress is None:
            return None
        return lambda done, batches: progress(first * batches + done, 2 * batches)

    program, temperature = request.program, request.arguments["temperature"]
    examples = request.data()
    with program.lock:
        program.set_point(request.initial)
        gradient = program.loss_gradient(*examples, temperature, half(0))
        product = program.hessian_product(*examples, gradient, temperature, half(1))
    parts = [t * p for t, p in zip(request.theta, product, strict=True)]
    largest = max((np.abs(part).max(initial=0.0) for part in parts), default=0.0)
    return [(part / (largest or 1.0)).astype(np.float32) for part in parts]


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


def exponential(sparsity: float, rounds: int) -> list[float]:
    """Returns the sparsity after each round: 1 - (1 - s)^(k / rounds); the last is s.

    Source: Tanaka et al. 2020, algorithm 1; de Jorge et al. 2021, eq. 9.

    >>> exponential(0.75, 2)
    [0.5, 0.75]
    """
    density = 1 - sparsity
    return [1 - density ** (k / rounds) for k in range(1, rounds)] + [sparsity]


def halving(sparsity: float, halvings: int = 5) -> list[float]:
    """Returns s - (s - start) / 2^i for i = 0 .. halvings, then s, for start = 0.5.

    Source: published code of Verdenius, Stol, Forre 2020 (SNIP-it). Deviation: theirs
    starts at 0.5 even if s is lower, which would prune too much; here the start is then
    s / 2.

    >>> halving(0.9, 2)
    [0.5, 0.7, 0.8, 0.9]
    """
    start = 0.5 if sparsity > 0.5 else sparsity / 2
    return [sparsity - (sparsity - start) * 0.5**i for i in range(halvings + 1)] + [
        sparsity
    ]


def _snip_of_masked(request: MaskRequest, turn: int, masks: Masks) -> list[np.ndarray]:
    """Returns |sum theta g(theta m)|; each round reads other examples.

    Pruned entries have scores too, so that the method `force` may keep them again.

    Sources: Verdenius, Stol, Forre 2020 (SNIP-it, unstructured, before training); de
    Jorge et al. 2021, eq. 7 and algorithm 1. Deviation: not divided by the loss or by
    the number of batches, which changes no order.
    """
    gradients = request.loss_gradient(turn=turn, masks=masks)
    return _sensitivity(request.theta, gradients)


def synflow(request: MaskRequest, turn: int, masks: Masks) -> list[np.ndarray]:
    """Returns |theta m| d R / d |theta m|, float64; reads no data.

    R is the sum of the outputs of the network with all weights replaced by their
    absolute values, on one input of ones. The sums of the scores of a hidden unit's
    incoming weights (bias included) and of its outgoing ones are equal.

    Source: Tanaka et al. 2020, eq. 3 and algorithm 1. Selection never returns what was
    pruned, as in the paper, whose pruned entries have score 0.
    """
    del turn
    program, positive = request.program, [np.abs(value) for value in request.initial]
    program.set_point(positive, masks or None)
    gradients = program.output_gradient()
    scores = []
    for i, place in enumerate(trainable_positions(request.network)):
        mask = masks[i] if masks else 1.0
        scores.append(positive[place].astype(np.float64) * mask * gradients[i])
    if not all(np.isfinite(part).all() for part in scores):
        raise UserError(
            "synflow scores overflow: the sum of this network's outputs with absolute "
            "weights is not finite in float32; use another method for it"
        )
    return scores


# Ten examples a class, temperature 200: published code of Wang et al. 2020.
_GRASP: Reads = {
    "temperature": Argument(200.0, POSITIVE),
    "per_class": Argument(10, AT_LEAST_ONE),
}


def _in_rounds(sparsity: float, given: Mapping[str, Any]) -> list[float]:
    return exponential(sparsity, given["rounds"])


def _in_halvings(sparsity: float, given: Mapping[str, Any]) -> list[float]:
    return halving(sparsity, given["halvings"])


_WINDOWS = ExampleWindows(ROUND_EXAMPLES)
# Rounds: Tanaka et al. 2020, section 5, and the default of the published code of de
# Jorge et al. 2021. Five halvings of the distance from 0.5: published code of SNIP-it.
_SYNFLOW: Reads = {"rounds": Argument(100, AT_LEAST_ONE)}
_FORCE: Reads = {"rounds": Argument(10, AT_LEAST_ONE)}
_HALVINGS: Reads = {"halvings": Argument(5, AT_LEAST_ONE)}
for _name, _method in {
    "snip": OneShot(snip, reader=ExampleWindows()),
    "grasp": OneShot(grasp, _GRASP, BalancedExamples()),
    "magnitude": OneShot(_magnitude),
    "random": OneShot(_random),
    "synflow": Iterative(synflow, _in_rounds, reads=_SYNFLOW),
    "iterative_snip": Iterative(
        _snip_of_masked, _in_halvings, reads=_HALVINGS, reader=_WINDOWS
    ),
    "force": Iterative(_snip_of_masked, _in_rounds, True, _FORCE, _WINDOWS),
}.items():
    register_sparsity_method(_name, _method)
