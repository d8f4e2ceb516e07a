"""Masks that are reached in rounds: score, select, score what is left.

Notation: theta = initial point, m = mask so far, L = loss, s = target sparsity, k = 1,
2, ... the round. A round is a function (turn, masks) -> scores, so that schedules and
selection know nothing of networks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from dps_tf.core.errors import UserError
from dps_tf.objectives.batch_sums import Progress
from dps_tf.sparsity.gradients import GradientProgram
from dps_tf.sparsity.selection import select

Masks = list[np.ndarray]
Score = Callable[[int, Masks], list[np.ndarray]]


def exponential(sparsity: float, rounds: int) -> list[float]:
    """Returns the sparsity after each round: 1 - (1 - s)^(k / rounds); the last is s.

    Source: Tanaka et al. 2020, algorithm 1; de Jorge et al. 2021, eq. 9.

    >>> exponential(0.75, 2)
    [0.5, 0.75]
    """
    density = 1 - sparsity
    return [1 - density ** (k / rounds) for k in range(1, rounds)] + [sparsity]


def halving(sparsity: float, halvings: int = 5) -> list[float]:
    """Returns s - (s - start) / 2^i for i = 0 .. halvings, then s; start = 0.5.

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


@dataclass(frozen=True)
class Rounds:
    """What the rounds of an iterative method have in common.

    Attributes:
        sparsities: after each round, not falling.
        positions: of the prunable variables among the trainable ones, in the order of
            the ranking; the others keep a mask of ones.
        layers: of each of `positions`, for a ranking inside each layer; None ranks all
            entries together.
        may_return: whether an entry that was pruned may be kept again.
    """

    sparsities: Sequence[float]
    positions: Sequence[int]
    layers: Sequence[Hashable] | None = None
    may_return: bool = False


def iterate(score: Score, rounds: Rounds, progress: Progress | None = None) -> Masks:
    """Returns the masks after the last round, one per trainable variable.

    Args:
        score: given the round, 0, 1, ..., and the masks before it (none before the
            first), returns scores of all trainable variables, the largest to be kept.
        rounds: at least one.
        progress: called with (rounds done, rounds).
    """
    positions = rounds.positions
    masks: Masks = []
    for turn, sparsity in enumerate(rounds.sparsities):
        scores = score(turn, masks)
        masks = masks or [np.ones(np.shape(part), np.float32) for part in scores]
        among = None if rounds.may_return else [masks[i] for i in positions]
        chosen = [scores[i] for i in positions]
        kept = select(chosen, sparsity, rounds.layers, among)
        masks = list(masks)
        for position, mask in zip(positions, kept, strict=True):
            masks[position] = mask
        if progress is not None:
            progress(turn + 1, len(rounds.sparsities))
    return masks


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
        positions: of the trainable variables among them.
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
