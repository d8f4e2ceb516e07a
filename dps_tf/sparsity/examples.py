"""Which training examples does a score read? Pure functions of arrays."""

from __future__ import annotations

import numpy as np

from dps_tf.core.errors import UserError


def first(available: int, examples: int) -> np.ndarray:
    """Returns the indices of the first `examples`, int64; 0 takes all."""
    return np.arange(_checked(examples, available) or available)


def window(available: int, examples: int, turn: int) -> np.ndarray:
    """Returns the indices that round `turn` = 0, 1, ... reads, int64 [examples].

    Rounds read consecutive stretches and start again at the front, so each sees fresh
    examples, as the loaders of the published codes give, but the same ones every time.
    """
    examples = _checked(examples, available) or available
    return (turn * examples + np.arange(examples)) % available


def balanced(labels: np.ndarray, classes: int, per_class: int) -> np.ndarray:
    """Returns the indices of the first `per_class` of each class, int64, by class.

    `labels`: int [n]. Raises UserError if a class has fewer examples.
    """
    if labels.ndim != 1:
        raise UserError(
            "class-balanced examples need one label per example; for sequences set "
            "the number of examples of pruning instead"
        )
    chosen = []
    for label in range(classes):
        found = np.flatnonzero(labels == label)[:per_class]
        if found.size < per_class:
            raise UserError(
                f"class {label} has {found.size} training examples, but {per_class} of "
                "each class are to be read: ask for fewer"
            )
        chosen.append(found)
    return np.concatenate(chosen)


def _checked(examples: int, available: int) -> int:
    if not 0 <= examples <= available:
        raise UserError(
            f"{examples} examples for scores are asked for, but there are {available} "
            "training examples: choose between 1 and that, or 0 for the default"
        )
    return examples
