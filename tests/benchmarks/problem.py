"""What every candidate trains: simple-cnn on images of MNIST's shape and number."""

from __future__ import annotations

import time

import numpy as np

CLASSES = 10
SHAPE = (28, 28, 1)
TRAIN_EXAMPLES = 54_000
LEARNING_RATE = 0.01
BATCH_SIZES = (8, 64, 512)

# 22.5 MFLOP an example, forward and backward.
FLOP_PER_EXAMPLE = 22.5e6

# Steps of a turn: half a second to a second of one core, like the stretches between the
# evaluations of a study.
_EXAMPLES_PER_TURN = 3_200
_MOST_STEPS_PER_TURN = 400


def steps_per_turn(batch_size: int) -> int:
    """Returns the steps that a trial makes before another one has its turn."""
    steps = _EXAMPLES_PER_TURN // batch_size
    return max(8, min(_MOST_STEPS_PER_TURN, steps))


def examples(count: int = TRAIN_EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Returns (inputs float32 [count, 28, 28, 1], labels int32 [count])."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((count, *SHAPE), np.float32)
    labels = generator.integers(0, CLASSES, count).astype(np.int32)
    return inputs, labels


def now() -> float:
    """Returns seconds of the clock that all measurements share."""
    return time.perf_counter()
