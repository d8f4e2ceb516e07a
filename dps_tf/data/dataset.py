"""A data set is disjoint sets of examples, for training and for evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import tensorflow as tf

from dps_tf.core import UserError, examples_at, near_matches
from dps_tf.data.arrays import DecodedRows, MappedRows, Preprocess
from dps_tf.data.transforms import Transform

_HASHED_BYTES = 1 << 24  # at a time, so that no array has to be in memory


@dataclass(frozen=True)
class Examples:
    """Inputs and labels that belong together, in one order.

    `inputs`: float32 [n, ...], or int32 [n, length] for tokens; `labels`: int32 or
    float32 [n, ...], as the objective takes them. Either may be `MappedRows`, of which
    only what is indexed comes into memory.
    """

    inputs: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"{len(self.inputs)} inputs, {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)


Given = tuple[np.ndarray, np.ndarray] | Callable[[], tuple[np.ndarray, np.ndarray]]
"""Inputs and labels of another split that a source has, or what reads them."""


@dataclass(frozen=True)
class Source:
    """A source holds all examples of a set in file order, before they are split.

    `labels`: integers or floating-point numbers, of the kind that the objective takes;
    `classes`: their number, or that of tokens in the vocabulary, or of the outputs that
    are predicted; `token_bytes`: bytes of text that each token stands for, if that is
    known; `given_validation`, `given_test`: the source's own sets, or functions that
    read them when a workload asks for them; `validation_examples`: how many the seeded
    split takes unless asked for another number; `preprocess`: turns a subset of
    `inputs` into what the network reads (None: `inputs` are that already), so that
    bytes stay bytes until they are split. `inputs`, and labels of sequences, that are
    mapped from a file (`data.open_arrays`, `numpy.load(path, mmap_mode="r")`) or are
    records (`data.DecodedRows`) stay there until they are used, so that a set may be
    larger than memory; `preprocess` then sees a few at a time. `transform`: how the
    preprocessed examples are augmented and cropped, in training and in evaluation.

    `content`: SHA-256 of the whole set as its manifest tells (`content_of_given`: of
    its own validation and test sets too), and `split_hashes`: the content hashes of
    splits, by `split_key`, that were computed when it was prepared; with either of them
    a set is not read to know what it is.
    """

    inputs: np.ndarray
    labels: np.ndarray
    classes: int
    validation_examples: int
    preprocess: Preprocess | None = None
    transform: Transform | None = None
    token_bytes: Sequence[int] | None = None
    given_validation: Given | None = None
    given_test: Given | None = None
    content: str | None = None
    content_of_given: bool = False
    split_hashes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("inputs", "labels"):
            value = getattr(self, name)
            if not (hasattr(value, "dtype") and hasattr(value, "shape")):
                raise UserError(
                    f"the {name} of a Source are {type(value).__name__} and no array "
                    "with a row for each example: write a tf.data.Dataset or a "
                    "generator once, by data.stored_once."
                )

    def examples(
        self, indices: np.ndarray | None = None, split: Given | None = None
    ) -> Examples:
        """Returns preprocessed examples of the whole source, or of a split that it has.

        Those at `indices`, in that order; None for all.
        """
        found = split() if callable(split) else split
        inputs, labels = (self.inputs, self.labels) if found is None else found
        indices = np.arange(len(labels)) if indices is None else indices
        return Examples(
            _taken(inputs, indices, self.preprocess),
            _taken(labels, indices, _as_labels),
        )


def _as_labels(labels: np.ndarray) -> np.ndarray:
    kind = labels.dtype.kind
    if kind not in "iubf":
        raise UserError(
            f"labels are {labels.dtype.name}: they have to be whole numbers or "
            "floating-point numbers."
        )
    return labels.astype(np.float32 if kind == "f" else np.int32)


def _taken(
    array: np.ndarray, indices: np.ndarray, preprocess: Preprocess | None
) -> np.ndarray:
    """Returns rows of an array, in memory unless the array is not."""
    # A label per example is little, and methods of pruning look through all of them.
    if isinstance(array, np.memmap | DecodedRows) and array.ndim > 1:
        # Whoever reads examples indexes them by slices or whole numbers.
        return cast(np.ndarray, MappedRows(array, indices, preprocess))
    taken = np.asarray(array[indices])
    return taken if preprocess is None else preprocess(taken)


@dataclass(frozen=True)
class Dataset:
    """Training and validation examples, disjoint, with what identifies them.

    `classes`, `token_bytes`: see `Source`; `content_hash`: see `identity`, so that a
    study can refuse other data of the same name; `split`: how they were divided, for
    the record; `test`: None where none was asked for.

    `train`, `validation` and `test` are what a network reads in evaluation, where
    nothing is drawn. With a `transform`, each training step makes its examples anew
    from those at the same places of `stored_train`.
    """

    name: str
    train: Examples
    validation: Examples
    classes: int
    content_hash: str
    split: str
    transform: Transform | None = None
    stored_train: Examples | None = None
    token_bytes: Sequence[int] | None = None
    test: Examples | None = None

    @property
    def step_examples(self) -> Examples:
        """The examples that training steps read, before `transform`."""
        return self.train if self.stored_train is None else self.stored_train

    def evaluated(self, split: str) -> Examples:
        """Returns what is looked at in an evaluation of a split.

        Of `train` that is a fixed part, drawn from a fixed seed, of as many examples as
        the validation split has. UserError for `test` if there is none.
        """
        if split == "validation":
            return self.validation
        if split == "test" and self.test is not None:
            return self.test
        if split != "train":
            raise UserError(f"data set {self.name!r} has no split {split!r}.")
        count = len(self.train)
        rows = examples_at(0, 1, 0, count, count)[0][: len(self.validation)]
        return Examples(self.train.inputs[rows], self.train.labels[rows])

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """The shape of one input: [height, width, channels], [features] or [length].

        [None] for sequences that training reads shortened and evaluation whole.
        """
        shape = self.train.inputs.shape[1:]
        if getattr(self.transform, "shortens", False):
            return (None, *shape[1:])
        return tuple(shape)


class _EvaluatedRows:
    """Inputs or labels as a transform gives them in evaluation, made when read."""

    def __init__(self, stored: Examples, transform: Transform, part: int):
        self._stored = stored
        self._transform = transform
        self._part = part

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        with tf.device("CPU:0"):
            stored = self._stored.inputs[rows], self._stored.labels[rows]
            inputs, labels = map(tf.constant, stored)
            pair = self._transform(inputs, labels, None)
            return cast(np.ndarray, pair[self._part].numpy())


def in_evaluation(stored: Examples, transform: Transform | None) -> Examples:
    """Returns examples as a network reads them in evaluation, transformed when read.

    A transform that says it `keeps_labels` is not asked for them.
    """
    if transform is None:
        return stored
    inputs, labels = (
        cast(
            np.ndarray,
            MappedRows(
                cast(np.ndarray, _EvaluatedRows(stored, transform, part)),
                np.arange(len(stored)),
            ),
        )
        for part in (0, 1)
    )
    if getattr(transform, "keeps_labels", False):
        return Examples(inputs, stored.labels)
    return Examples(inputs, np.asarray(labels) if labels.ndim == 1 else labels)


def split_key(described: str, parts: Sequence[Examples]) -> str:
    """Returns what names a division of a set: how it was made and into how much.

    >>> split_key("seeded(0)", [Examples(np.zeros(n), np.zeros(n)) for n in (9, 1)])
    'seeded(0)/9/1'
    """
    return "/".join([described, *(str(len(part)) for part in parts)])


def identity(
    source: Source,
    described: str,
    parts: Sequence[Examples],
    given: Sequence[Examples] = (),
) -> str:
    """Returns the content hash of a set that was divided, as hexadecimal.

    SHA-256 over the arrays of all parts as stored; a source with `split_hashes` or
    `content` is not read for it. With a transform, the first example as evaluation
    reads it is hashed too, which differs between two crops of one set.
    `given`: those of the parts that are sets of their own, beside the source's arrays.
    """
    key = split_key(described, parts)
    found = None if given else source.split_hashes.get(key)
    if found is None and source.content is not None:
        # Of sets that the manifest does not describe, there is nothing but themselves.
        unknown = () if source.content_of_given else given
        text = f"{source.content}/{key}/{_hash_of(unknown)}"
        found = hashlib.sha256(text.encode()).hexdigest()
    if found is None:
        found = _hash_of(parts)
    if source.transform is None:
        return found
    evaluated, first = in_evaluation(parts[0], source.transform), np.arange(1)
    read = content_hash(evaluated.inputs[first], evaluated.labels[first])
    return hashlib.sha256(f"{found}/{read}".encode()).hexdigest()


def _hash_of(parts: Sequence[Examples]) -> str:
    return content_hash(*(a for part in parts for a in (part.inputs, part.labels)))


def content_hash(*arrays: np.ndarray) -> str:
    """Returns the SHA-256 of types, shapes and bytes of `arrays`, as hexadecimal."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        rows = max(1, _HASHED_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), rows):
            part = np.ascontiguousarray(array[start : start + rows])
            digest.update(part.data)
    return digest.hexdigest()


SEEDED_SPLITS = ("seeded", "first", "last")
"""The splits whose order of training examples a seed decides."""
SPLITS = (*SEEDED_SPLITS, "lee2021", "given")
"""Ways to take a validation split: a random one, the first or the last examples of the
file, a tenth as Lee et al. (2021) took it, or the one that a source has."""


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
    """
    examples = len(source.labels)
    default = examples // 10 if split == "lee2021" else source.validation_examples
    asked, for_test = sizes
    if test != "carved":
        for_test = 0
    elif for_test is None:
        for_test = asked or default
    if split == "given":
        if asked is not None:
            raise UserError(
                f"validation_examples is {asked}, and the split 'given' takes all of "
                "the validation set of the source: leave it out."
            )
        order = seeded_order(examples, seed)
        train, carved = order[for_test:], order[:for_test]
        validation = _given(name, source, "validation", source.given_validation)
    else:
        wanted = default if asked is None else asked
        train, held, carved = split_indices(split, examples, wanted, seed, for_test)
        validation = source.examples(held)
    if training is not None and training > len(train):
        raise UserError(
            f"training_examples is {training}, and the training split of {name!r} has "
            f"{len(train)}: give a number up to that."
        )
    parts = [source.examples(train[:training]), validation]
    if test == "carved":
        parts.append(source.examples(carved))
    elif test == "given":
        parts.append(_given(name, source, "test", source.given_test))
    return parts


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
    return source.examples(split=found)


def split_indices(
    split: str,
    examples: int,
    validation_examples: int,
    seed: int,
    test_examples: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (train, validation, test): disjoint int64 indices into the file order.

    Together they hold each of the `examples` once; the validation split is the same
    whether a test set is carved from the rest or not.
    """
    held = validation_examples + test_examples
    if not (validation_examples > 0 and test_examples >= 0 and held < examples):
        raise UserError(
            f"validation_examples is {validation_examples} and test_examples "
            f"{test_examples}: they must leave at least one of {examples} examples to "
            "each split"
        )
    if split in SEEDED_SPLITS:
        order = seeded_order(examples, seed)
        if split != "seeded":
            start = 0 if split == "first" else examples - validation_examples
            chosen = (order >= start) & (order < start + validation_examples)
            order = np.concatenate([order[chosen], order[~chosen]])
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
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def _lee2021_order(examples: int) -> np.ndarray:
    """Returns the published order; validation is its first tenth."""
    order = list(range(examples))
    np.random.RandomState(0).shuffle(order)  # noqa: NPY002 (the published generator)
    return np.asarray(order, np.int64)
