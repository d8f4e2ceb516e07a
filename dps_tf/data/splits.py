"""Which examples decide whether the goal is met, and which are kept for the end?"""

from __future__ import annotations

import numpy as np

from dps_tf.core.errors import UserError, near_matches

SPLITS = ("seeded", "lee2021", "given")
"""Ways to take a validation split; `given` is the one that a source has."""


def split_indices(
    split: str,
    examples: int,
    validation_examples: int,
    seed: int,
    test_examples: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (train, validation, test): disjoint int64 indices into the file order.

    Together they hold each of the `examples` once; the validation split is the same
    whether a test set is carved from the rest or not. Raises UserError for an unknown
    split, or one that cannot give `validation_examples` (or that `seed`).
    """
    held = validation_examples + test_examples
    if not (validation_examples > 0 and test_examples >= 0 and held < examples):
        raise UserError(
            f"validation_examples is {validation_examples} and test_examples "
            f"{test_examples}: they must leave at least one of {examples} examples to "
            "each split"
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
    return order[held:], order[:validation_examples], order[validation_examples:held]


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
