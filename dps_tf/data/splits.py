"""Which examples decide whether the goal is met? Two ways to take them from a set."""

from __future__ import annotations

import numpy as np

from dps_tf.core.errors import UserError, near_matches

SPLITS = ("seeded", "lee2021")


def split_indices(
    split: str, examples: int, validation_examples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (train, validation): disjoint int64 indices into the file order.

    Together they hold each of the `examples` once. Raises UserError for an unknown
    split, or one that cannot give `validation_examples` (or that `seed`).
    """
    if not 0 < validation_examples < examples:
        raise UserError(
            f"validation_examples is {validation_examples}: it must leave at least one "
            f"of {examples} examples on each side"
        )
    if split == "seeded":
        order = _seeded_order(examples, seed)
    elif split == "lee2021":
        if validation_examples != examples // 10 or seed != 0:
            raise UserError(
                "the split 'lee2021' is the published one: a tenth of the examples "
                f"({examples // 10}) and seed 0, not {validation_examples} and {seed}"
            )
        order = _lee2021_order(examples)
    else:
        raise UserError(f"no split is named {split!r}: {near_matches(split, SPLITS)}")
    return order[validation_examples:], order[:validation_examples]


def _seeded_order(examples: int, seed: int) -> np.ndarray:
    # NumPy keeps the raw stream of a bit generator for ever, permutation() not.
    keys = np.random.PCG64(seed).random_raw(examples)
    return np.argsort(keys, kind="stable").astype(np.int64)


def _lee2021_order(examples: int) -> np.ndarray:
    """Returns the published order; validation is its first tenth.

    Source: Lee et al. 2021, published code: RandomState(0).shuffle of the list of
    train indices in file order.
    """
    order = list(range(examples))
    np.random.RandomState(0).shuffle(order)  # noqa: NPY002 (the published generator)
    return np.asarray(order, np.int64)
