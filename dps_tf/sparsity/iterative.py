"""Masks that are reached in rounds: score, select, score what is left.

Notation: theta = initial point, m = mask so far, L = loss, s = target sparsity, k = 1,
2, ... the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dps_tf.core import Argument, Reads, UserError
from dps_tf.objectives import Progress
from dps_tf.sparsity.methods import (
    AT_LEAST_ONE,
    SparsityMethod,
    cached,
    register_sparsity_method,
    snip,
)
from dps_tf.sparsity.prunable import trainable_positions
from dps_tf.sparsity.request import (
    ExampleReader,
    ExampleWindows,
    MaskRequest,
    ScoreCache,
)
from dps_tf.sparsity.score_gradients import GradientProgram

Masks = list[np.ndarray]
ROUND_EXAMPLES = 5_000  # this package's choice; published codes take a batch or a few


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
    program = request.program
    program.set_point(request.initial, masks or None)
    return snip(program, request.theta, *request.data(turn))


def _flow_of_masked(request: MaskRequest, turn: int, masks: Masks) -> list[np.ndarray]:
    """Returns |theta m| d R / d |theta m|; reads no data. See `synflow_scores`."""
    del turn
    positions = trainable_positions(request.network)
    program = request.program
    return synflow_scores(program, request.initial, positions, masks)


def synflow_scores(
    program: GradientProgram,
    values: Sequence[np.ndarray],
    positions: Sequence[int],
    masks: Masks,
) -> list[np.ndarray]:
    """Returns |theta m| d R / d |theta m|, float64; reads no data.

    R is the sum of the outputs of the network with all weights replaced by their
    absolute values, on one input of ones. The sums of the scores of a hidden unit's
    incoming weights (bias included) and of its outgoing ones are equal.

    Source: Tanaka et al. 2020, eq. 3 and algorithm 1. Selection never returns what was
    pruned, as in the paper, whose pruned entries have score 0.

    Args:
        program: its point is overwritten.
        values: the initial point, in the order of the network's weights.
        positions: those of the trainable variables in `values`.
        masks: one per trainable variable; empty for ones.
    """
    positive = [np.abs(value) for value in values]
    program.set_point(positive, masks or None)
    gradients = program.output_gradient()
    scores = []
    for i, (position, gradient) in enumerate(zip(positions, gradients, strict=True)):
        mask = masks[i] if masks else 1.0
        scores.append(positive[position].astype(np.float64) * mask * gradient)
    if not all(np.isfinite(part).all() for part in scores):
        raise UserError(
            "synflow scores overflow: the sum of this network's outputs with absolute "
            "weights is not finite in float32; use another method for it"
        )
    return scores


register_sparsity_method(
    "synflow",
    Iterative(
        _flow_of_masked,
        lambda sparsity, given: exponential(sparsity, given["rounds"]),
        # Rounds: Tanaka et al. 2020, section 5.
        reads={"rounds": Argument(100, AT_LEAST_ONE)},
    ),
)
register_sparsity_method(
    "iterative_snip",
    Iterative(
        _snip_of_masked,
        lambda sparsity, given: halving(sparsity, given["halvings"]),
        # Five halvings of the distance from 0.5: published code of SNIP-it.
        reads={"halvings": Argument(5, AT_LEAST_ONE)},
        reader=ExampleWindows(ROUND_EXAMPLES),
    ),
)
register_sparsity_method(
    "force",
    Iterative(
        _snip_of_masked,
        lambda sparsity, given: exponential(sparsity, given["rounds"]),
        may_return=True,
        # Rounds: default of the published code of de Jorge et al. 2021.
        reads={"rounds": Argument(10, AT_LEAST_ONE)},
        reader=ExampleWindows(ROUND_EXAMPLES),
    ),
)
