"""K* of the noisy quadratic model by a plain search of its expected loss."""

from __future__ import annotations

import numpy as np

from dps_tf.core import NoisyQuadratic


def steps_to_loss(
    problem: NoisyQuadratic,
    optimizer: str,
    learning_rate: float,
    momentum: float,
    batch_size: int,
    *,
    target: float = 0.01,
    maximum_steps: int = 10**7,
) -> int | None:
    """Returns the first step at which the expected loss is below the target.

    Exact up to step 256, and beyond where the loss falls monotonically: it is looked
    for between the last step above the target and the first below it. None if it is not
    met within maximum_steps.
    """
    arguments = (optimizer, learning_rate, momentum, batch_size)
    low, high = -1, maximum_steps
    while high - low > 1:
        steps = np.geomspace(low + 2, high + 1, 17).astype(np.int64) - 1
        steps = np.unique([*(range(257) if low < 0 else ()), *steps, high])
        steps = steps[steps <= high]
        below = np.flatnonzero(problem.loss(*arguments, steps) < target)
        if not len(below):
            return None
        place = int(below[0])
        low, high = int(steps[place - 1]) if place else low, int(steps[place])
    return high
