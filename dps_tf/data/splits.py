"""Which examples decide whether the goal is met, and which are kept for the end?"""

from __future__ import annotations

import numpy as np

from dps_tf.core.errors import UserError, near_matches
from dps_tf.data.dataset import Examples, Given, Source

SPLITS = ("seeded", "lee2021", "given")
"""Ways to take a validation split; `given` is the one that a source has."""


def divided(  # noqa: PLR0913 - the ways of dividing a set
    name: str,
    source: Source,
    split: str,
    seed: int,
    sizes: tuple[int | None, int | None],
    test: str = "none",
    training: int | None = None,
) -> list[Examples]:
    """Returns the training, validation and, if there is to be one, test examples.

    Args:
        name: of the data set, for messages.
        source: its examples.
        split: one of SPLITS.
        seed: of a seeded split.
        sizes: examples for validation and for a carved test set; None is the source's
            own number, and as many as for validation.
        test: `given`, `carved` or `none`.
        training: keeps so many training examples, the first of their order: those of a
            seeded split are a random subset, nested in every larger one. None: all.

    Raises:
        UserError: what is asked for is not there, or leaves nothing for training.
    """
    examples = len(source.labels)
    given = split == "given"
    asked, for_test = sizes
    if given and asked is not None:
        raise UserError(
            f"validation_examples is {asked}, and the split 'given' takes all of the "
            "validation set of the source: leave it out."
        )
    default = examples // 10 if split == "lee2021" else source.validation_examples
    validation = 0 if given else default if asked is None else asked
    if test != "carved":
        for_test = 0
    elif for_test is None:
        for_test = validation or default
    if given:
        order = seeded_order(examples, seed)
        rows = [order[for_test:], order[:for_test]]
        parts = [_given(name, source, "validation", source.given_validation)]
    else:
        train, held, carved = split_indices(split, examples, validation, seed, for_test)
        rows = [train, carved]
        parts = [source.examples(held)]
    parts.insert(0, source.examples(_first(name, rows[0], training)))
    if test == "carved":
        parts.append(source.examples(rows[1]))
    elif test == "given":
        parts.append(_given(name, source, "test", source.given_test))
    return parts


def _first(name: str, rows: np.ndarray, wanted: int | None) -> np.ndarray:
    if wanted is not None and wanted > len(rows):
        raise UserError(
            f"training_examples is {wanted}, and the training split of {name!r} has "
            f"{len(rows)}: give a number up to that."
        )
    return rows[:wanted]


def _given(name: str, source: Source, split: str, found: Given | None) -> Examples:
    if found is None:
        raise UserError(
            f"data set {name!r} has no {split} set of its own: "
            + (
                "bind workload.test to 'carved'."
                if split == "test"
                else "bind workload.split to 'seeded'."
            )
        )
    return source.given(found)


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
        order = seeded_order(examples, seed)
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


def seeded_order(examples: int, seed: int) -> np.ndarray:
    """Returns the numbers 0..examples-1 in an order that a seed decides, int64."""
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
