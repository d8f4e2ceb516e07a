"""Sources of examples, and how they are divided into disjoint splits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import tensorflow as tf

from dps_tf.core import UserError, examples_at, whole
from dps_tf.data.arrays import DecodedRows, MappedRows, Preprocess, read_rows
from dps_tf.data.transforms import Transform

_HASHED_BYTES = 1 << 24  # at a time, so that no array has to be in memory


@dataclass(frozen=True)
class Examples:
    """Inputs and labels of the same examples, in the same order.

    `inputs`: float32 [n, ...], or int32 [n, length] for tokens; `labels`: int32 or
    float32 [n, ...], as the objective takes them. Either may be `MappedRows`, which
    read only the rows that are indexed.
    """

    inputs: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"{len(self.inputs)} inputs, {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)


Given = tuple[np.ndarray, np.ndarray] | Callable[[], tuple[np.ndarray, np.ndarray]]
"""Inputs and labels of a split that a source has, or a function that reads them."""


@dataclass(frozen=True)
class Source:
    """All examples of a data set in file order, before they are split.

    `inputs`, and labels of sequences, may be larger than memory if they are mapped from
    a file (`data.open_arrays`, `numpy.load(path, mmap_mode="r")`) or are `DecodedRows`.

    Attributes:
        inputs: [n, ...], stored as they are, for example as bytes.
        labels: [n, ...], integers or floating-point numbers, as the objective requires.
        classes: number of classes, of tokens in the vocabulary, or of outputs.
        validation_examples: size of the validation split if a workload names none.
        preprocess: turns rows of `inputs` into what a network reads; None: no change.
        transform: augments and crops preprocessed examples, in training and evaluation.
        token_bytes: bytes of text that each token stands for; None: not applicable.
        given_validation, given_test: the source's own sets, or functions that read
            them, which are called only if a workload uses these sets.
        content: SHA-256 of the set by its manifest; with `content_of_given` it covers
            the source's own validation and test sets too.
        split_hashes: content hashes that were computed when the set was prepared, by
            `split_key`; like `content`, they spare reading the set to identify it.
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
        _check_arrays(self.inputs, self.labels)

    def examples(
        self, indices: np.ndarray | None = None, split: Given | None = None
    ) -> Examples:
        """Returns the preprocessed examples at `indices`, in that order; None: all.

        `split`: the source's own set to take them from; None: `inputs` and `labels`.
        """
        own = split() if callable(split) else split
        inputs, labels = (self.inputs, self.labels) if own is None else own
        _check_arrays(inputs, labels)
        if len(inputs) != len(labels):
            raise UserError(
                f"a set has {len(inputs)} inputs and {len(labels)} labels: give one of "
                "each for every example."
            )
        indices = np.arange(len(labels)) if indices is None else indices
        return Examples(
            _taken(inputs, indices, self.preprocess, "inputs"),
            _taken(labels, indices, None, "labels"),
        )


def _check_arrays(*arrays: Any) -> None:
    """Raises UserError unless inputs and labels are arrays with a row per example."""
    for name, value in zip(("inputs", "labels"), arrays, strict=True):
        # Rows of others go by labels (pandas), in order (h5py), or one by one (tf).
        is_array = isinstance(value, np.ndarray | DecodedRows | MappedRows)
        if not (is_array and value.shape):
            raise UserError(
                f"the {name} of a Source are {type(value).__name__} and no array with "
                "a row for each example: give numpy.asarray of them, or write a "
                "tf.data.Dataset or a generator once, by data.stored_once."
            )
        if 0 in value.shape[1:]:
            raise UserError(
                f"the {name} of a Source are of shape {list(value.shape)}, without a "
                "number in an example: give at least one."
            )


def _taken(
    array: np.ndarray, indices: np.ndarray, preprocess: Preprocess | None, name: str
) -> np.ndarray:
    """Returns rows as `read_rows` does; of an array on disk, rows read when indexed."""
    if preprocess is not None:
        _check_alone(array, indices[:8], preprocess, name)
    # Labels [n] are read into memory: they are small, and pruning reads all of them.
    if isinstance(array, np.memmap | DecodedRows) and array.ndim > 1:
        # Examples are indexed by slices or integers only, which MappedRows supports.
        return cast(np.ndarray, MappedRows(array, indices, preprocess, name))
    return read_rows(array, indices, preprocess, name)


def _check_alone(
    array: np.ndarray, indices: np.ndarray, preprocess: Preprocess, name: str
) -> None:
    """Raises UserError if rows that are preprocessed together are others than alone."""
    together = read_rows(array, indices, preprocess, name)
    for place, row in enumerate(indices):
        [alone] = read_rows(array, indices[place : place + 1], preprocess, name)
        # Sums of other lengths are rounded in another way.
        near = 1e-4 * np.abs(together[place], dtype=np.float64).max(initial=0)
        if not np.allclose(together[place], alone, rtol=0, atol=near):
            raise UserError(
                f"preprocess makes of example {row} alone something else than beside "
                "others: it must treat each row by itself, and draw nothing; give it "
                "statistics of the training set that were computed before."
            )


@dataclass(frozen=True)
class Dataset:
    """A data set divided into disjoint training, validation and test examples.

    `Source` describes `classes` and `token_bytes`. By `content_hash`, see `identity`, a
    study refuses other data of the same name. `split`: how the set was divided, for the
    record; `test`: None if the workload has no test set.

    `train`, `validation` and `test` are the examples as a network reads them in
    evaluation, without random augmentation. With a `transform`, each training step
    applies it to the same rows of `stored_train`.
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
        """Returns the examples of a split on which a network is evaluated.

        For `train`, a random subset, the same in each call, of as many examples as the
        validation split has. Raises UserError for a split that there is not.
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

        A length is None if training reads shorter sequences than evaluation.
        """
        shape = self.train.inputs.shape[1:]
        if getattr(self.transform, "shortens", False):
            return (None, *shape[1:])
        return tuple(shape)


class _EvaluatedRows:
    """Inputs (part 0) or labels (part 1), transformed for evaluation when read."""

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

    If the transform has a true attribute `keeps_labels`, labels are the stored ones.
    """
    if transform is None:
        return stored
    inputs, labels = (
        cast(
            np.ndarray,
            MappedRows(
                cast(np.ndarray, _EvaluatedRows(stored, transform, part)),
                np.arange(len(stored)),
                name=("inputs", "labels")[part],
            ),
        )
        for part in (0, 1)
    )
    if getattr(transform, "keeps_labels", False):
        return Examples(inputs, stored.labels)
    return Examples(inputs, np.asarray(labels) if labels.ndim == 1 else labels)


def split_key(described: str, parts: Sequence[Examples]) -> str:
    """Returns the key of a division in `split_hashes`: the split and the parts' sizes.

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
    """Returns the content hash of a divided set, hexadecimal.

    The hash is the SHA-256 of the arrays of all parts as stored; parts that `content`
    or `split_hashes` of the source cover are not read. With a transform, the first
    example as evaluation reads it is hashed too: it differs between two crops of one
    set. `given`: the parts that are the source's own validation or test set.
    """
    key = split_key(described, parts)
    digest = None if given else source.split_hashes.get(key)
    if digest is None and source.content is not None:
        # `content` may not cover the source's own sets: these have to be read.
        uncovered = () if source.content_of_given else given
        text = f"{source.content}/{key}/{_hash_of(uncovered)}"
        digest = hashlib.sha256(text.encode()).hexdigest()
    if digest is None:
        digest = _hash_of(parts)
    if source.transform is None:
        return digest
    evaluated, first = in_evaluation(parts[0], source.transform), np.arange(1)
    read = content_hash(evaluated.inputs[first], evaluated.labels[first])
    return hashlib.sha256(f"{digest}/{read}".encode()).hexdigest()


def _hash_of(parts: Sequence[Examples]) -> str:
    return content_hash(*(a for part in parts for a in (part.inputs, part.labels)))


def content_hash(*arrays: np.ndarray) -> str:
    """Returns the SHA-256 of types, shapes and bytes of `arrays`, hexadecimal."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        rows = max(1, _HASHED_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), rows):
            part = np.ascontiguousarray(array[start : start + rows])
            digest.update(part.data)
    return digest.hexdigest()


SEEDED_SPLITS = ("seeded", "first", "last")
"""Splits that order the training examples by a seed."""
SPLITS = (*SEEDED_SPLITS, "lee2021", "given")
"""Ways to choose validation examples: at random, the first or the last of the file, the
tenth that Lee et al. (2021) chose, or the source's own validation set."""


def divided(  # noqa: PLR0913 - the ways of dividing a set
    name: str,
    source: Source,
    split: str,
    seed: int,
    sizes: tuple[int | None, int | None],
    test: str = "none",
    training: int | None = None,
) -> list[Examples]:
    """Returns training, validation and, unless `test` is `none`, test examples.

    Args:
        name: of the data set, for messages.
        source: all examples.
        split: one of SPLITS.
        seed: of the order of examples.
        sizes: numbers of validation and of carved test examples; None: the source's
            `validation_examples`, and as many as for validation.
        test: `given`, `carved` or `none`, see `data.load`.
        training: number of training examples to keep, the first of the order: in a
            seeded split a random subset of every larger one. None: all.
    """
    for called, number, least in (
        ("classes", source.classes, 1),
        ("validation_examples", source.validation_examples, 0),
        ("validation_examples", sizes[0], 0),
        ("test_examples", sizes[1], 0),
        ("training_examples", training, 1),
    ):
        if number is not None:
            whole(f"{called} of data set {name!r}", number, least)
    examples = len(source.labels)
    default = examples // 10 if split == "lee2021" else source.validation_examples
    for_validation, for_test = sizes
    if test != "carved":
        for_test = 0
    elif for_test is None:
        for_test = for_validation or default
    if split == "given":
        if for_validation is not None:
            raise UserError(
                f"validation_examples is {for_validation}, and the split 'given' "
                "takes all of the validation set of the source: leave it out."
            )
        order = seeded_order(examples, seed)
        train, carved = order[for_test:], order[:for_test]
        validation = _given(name, source, "validation", source.given_validation)
    else:
        size = default if for_validation is None else for_validation
        train, held_out, carved = split_indices(split, examples, size, seed, for_test)
        validation = source.examples(held_out)
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


def _given(name: str, source: Source, split: str, own: Given | None) -> Examples:
    if own is None:
        raise UserError(
            f"data set {name!r} has no {split} set of its own: "
            + (
                "bind workload.test to 'carved'."
                if split == "test"
                else "bind workload.split to 'seeded'."
            )
        )
    examples = source.examples(split=own)
    if not len(examples):
        raise UserError(f"the {split} set of data set {name!r} has no example.")
    own_shape = examples.inputs.shape[1:]
    trained = source.examples(np.arange(1)).inputs.shape[1:]
    if own_shape != trained:
        raise UserError(
            f"data set {name!r} has inputs of shape {list(trained)} to train on, and "
            f"of {list(own_shape)} in its {split} set: give both one shape."
        )
    return examples


def split_indices(
    split: str,
    examples: int,
    validation_examples: int,
    seed: int,
    test_examples: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (train, validation, test): disjoint int64 indices into the file order.

    Together they hold each index below `examples` once; the validation split is the
    same whether a test set is carved from the rest or not.
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
    else:
        if validation_examples != examples // 10 or seed != 0:
            raise UserError(
                "the split 'lee2021' is the published one: a tenth of the examples "
                f"({examples // 10}) and seed 0, not {validation_examples} and {seed}"
            )
        # The published generator.
        order = np.arange(examples)
        np.random.RandomState(0).shuffle(order)  # noqa: NPY002
    return order[held:], order[:validation_examples], order[validation_examples:held]


def seeded_order(examples: int, seed: int) -> np.ndarray:
    """Returns the integers 0..examples-1 in a random order given by `seed`, int64."""
    # NumPy guarantees the raw stream of a bit generator, but not permutation().
    keys = np.random.PCG64(seed).random_raw(examples)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
