"""What a workload trains on and is judged by: two disjoint sets of examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from dps_tf.core.errors import UserError
from dps_tf.core.order import examples_at
from dps_tf.data.arrays import DecodedRows, MappedRows, Preprocess

if TYPE_CHECKING:
    from dps_tf.data.transforms import Transform

_HASHED_BYTES = 1 << 24  # at a time, so that no array has to be in memory


@dataclass(frozen=True)
class Examples:
    """Inputs and labels that belong together, in one order.

    `inputs`: float32 [n, ...], or int32 [n, length] for tokens; `labels`: int32 [n],
    or [n, length] for tokens, or what else the objective takes, int32 or float32
    [n, ...]. Either may be `MappedRows`, of which only what is indexed comes into
    memory.
    """

    inputs: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        """Refuses inputs and labels of different counts."""
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"{len(self.inputs)} inputs, {len(self.labels)} labels")

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.labels)


Given = tuple[np.ndarray, np.ndarray] | Callable[[], tuple[np.ndarray, np.ndarray]]
"""Inputs and labels of another split that a source has, or what reads them."""


@dataclass(frozen=True)
class Source:
    """What a loader gives: all examples in file order, before they are split.

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
    larger than memory; `preprocess` then sees a few at a
    time. `transform`: how the preprocessed examples are augmented and cropped,
    differently in training and in evaluation.

    `content`: SHA-256 of the whole set as its manifest tells (`content_of_given`: of
    its own validation and test sets too), and `split_hashes`: the
    content hashes of splits, by `split_key`, that were computed when it was prepared;
    with either of them a set is not read to know what it is.
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

    def examples(self, indices: np.ndarray) -> Examples:
        """Returns the preprocessed examples at `indices`, in that order."""
        return self._examples(self.inputs, self.labels, indices)

    def given(self, split: Given) -> Examples:
        """Returns the preprocessed examples of a split that the source has."""
        inputs, labels = split() if callable(split) else split
        return self._examples(inputs, labels, np.arange(len(labels)))

    def _examples(
        self, inputs: np.ndarray, labels: np.ndarray, indices: np.ndarray
    ) -> Examples:
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
    """Returns rows of an array, in memory unless the array is not.

    A label per example is little, and methods of pruning look through all of them.
    """
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
        """What training steps read, before `transform`."""
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
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: [height, width, channels], [features] or [length]."""
        return tuple(self.train.inputs.shape[1:])


class _EvaluatedRows:
    """Inputs or labels as a transform gives them in evaluation, made when read."""

    def __init__(self, stored: Examples, transform: Transform, part: int):
        self._stored = stored
        self._transform = transform
        self._part = part

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        with tf.device("CPU:0"):
            stored = self._stored.inputs[rows], self._stored.labels[rows]
            inputs, labels = map(tf.constant, stored)
            pair = self._transform(inputs, labels, None)
            return cast(np.ndarray, pair[self._part].numpy())


def in_evaluation(stored: Examples, transform: Transform | None) -> Examples:
    """Returns examples as a network reads them in evaluation.

    Inputs, and labels of sequences, are transformed whenever they are read, so that
    none of them has to be in memory. A transform that says it `keeps_labels` is not
    asked for them.
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

    SHA-256 over the arrays of all parts as stored, unless the source knows it, or has
    a `content` from which it follows together with the division. With a transform, an
    example that is read in evaluation is part of it: it tells how a set was cropped.
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
