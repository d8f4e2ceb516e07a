"""K* of the noisy quadratic model, for one point and over a grid of them.

A K* is the first step below the target, where the bisection of the published code
(Zhang et al. 2019) returns the one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dps_tf.core import NoisyQuadratic
from dps_tf.core import noisy_quadratic as maps
from dps_tf.core.noisy_quadratic import Codes, Floats, check_arguments

TARGET_LOSS = 0.01
MAXIMUM_STEPS = 10**7  # The published code's upper end with momentum.
LEARNING_RATES = {
    "sgd": np.logspace(-5, 0.5, 100),
    "momentum": np.logspace(-8, 1, 100),
    "ema": np.logspace(-8, 1, 100),
}
"""Grids of the published code."""
MOMENTA = 1 - np.logspace(-5, 0, 20)
"""Of momentum, and decays of the moving average; grid of the published code."""


def steps_to_loss(
    problem: NoisyQuadratic,
    optimizer: str,
    learning_rate: float,
    momentum: float,
    batch_size: int,
    *,
    target: float = TARGET_LOSS,
    maximum_steps: int = MAXIMUM_STEPS,
) -> int | None:
    """Returns the first step at which the expected loss is below the target.

    Looked for at every step up to 256, then at 64 steps per octave and between two
    of them by bisection: exact where the loss falls monotonically, at most 1/64
    octave late where it oscillates. None if it is not met within maximum_steps.
    """
    octaves = max(np.log2(max(maximum_steps, 1)) - 8, 0)
    points = np.arange(1, int(octaves * 64) + 2) / 64
    scan = np.concatenate([np.arange(257), np.round(256 * np.exp2(points))])
    scan = np.unique(np.minimum(scan, maximum_steps)).astype(np.int64)
    arguments = (optimizer, learning_rate, momentum, batch_size)
    below = problem.loss(*arguments, scan) < target
    if not below.any():
        return None
    place = int(np.argmax(below))
    high = int(scan[place])
    low = int(scan[place - 1]) if place else high - 1
    while high - low > 1:
        middle = (low + high) // 2
        if problem.loss(*arguments, [middle])[0] < target:
            high = middle
        else:
            low = middle
    return high


def information_bound(
    problem: NoisyQuadratic, batch_size: float, target: float = TARGET_LOSS
) -> float:
    """Returns the steps below which no optimizer can reach the target.

    dimensions / (2 target B): so many examples are needed to know the optimum.
    """
    return problem.dimensions / (2 * target * batch_size)


def best_steps(
    problem: NoisyQuadratic,
    optimizer: str,
    batch_size: int,
    *,
    target: float = TARGET_LOSS,
    learning_rates: ArrayLike | None = None,
    momenta: ArrayLike | None = None,
) -> tuple[int, float, float] | None:
    """Returns K*(B) over a grid, with its learning rate and momentum.

    By bisection over the steps, as published: valid where the loss falls monotonically
    until it is below the target.

    Args:
        problem: the model.
        optimizer: `sgd`, `momentum` or `ema`.
        batch_size: at least 1.
        target: expected loss to be below of.
        learning_rates: by default those of the published code.
        momenta: by default those of the published code; not used by `sgd`.

    Returns:
        (steps, learning rate, momentum), ties to the first of the grid; None if no
        point reaches the target within MAXIMUM_STEPS.
    """
    check_arguments(optimizer, 1.0, 0.0, batch_size)
    grid = LEARNING_RATES[optimizer] if learning_rates is None else learning_rates
    rates = np.atleast_1d(np.asarray(grid, np.float64))
    decays = np.atleast_1d(np.asarray(MOMENTA if momenta is None else momenta))
    # SGD is momentum of 0.
    name = "momentum" if optimizer == "sgd" else optimizer
    best: tuple[int, float, float] | None = None
    for momentum in [0.0] if optimizer == "sgd" else decays:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = problem.scaled(rates, batch_size)
            found = _bisect(problem, name, scaled, float(momentum), target)
        place = int(np.argmin(found))
        steps = int(found[place])
        if steps <= MAXIMUM_STEPS and (best is None or steps < best[0]):
            best = (steps, float(rates[place]), float(momentum))
    return best


def _bisect(
    problem: NoisyQuadratic,
    optimizer: str,
    scaled: tuple[Floats, Floats],
    momentum: float,
    target: float,
) -> Codes:
    """Returns the first step below the target per learning rate, [r].

    From the highest bit down: a number of steps is kept while the loss after it is
    still not below the target. Above MAXIMUM_STEPS where it never is.
    """
    bits = MAXIMUM_STEPS.bit_length()
    matrix = maps.one_step(optimizer, *scaled, momentum)
    powers = maps.powers(matrix, (1 << bits) - 1)
    state = np.broadcast_to(maps.start(optimizer, momentum), matrix.shape[:-1])
    last = np.zeros(len(matrix), np.int64)
    for bit in reversed(range(bits)):
        moved = np.einsum("rbij,rbj->rbi", powers[bit], state)
        loss = problem.loss_of(problem.moment(optimizer, momentum, moved))
        # Not `>=`: what has diverged is not a number, and not below the target.
        above = ~(loss < target)
        state = np.where(above[:, None, None], moved, state)
        last = np.where(above, last + (1 << bit), last)
    return last + 1
