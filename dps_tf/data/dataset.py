"""What a workload trains on and is judged by: two disjoint sets of examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Examples:
    """Inputs and labels that belong together, in one order.

    `inputs`: float32 [n, ...], or int32 [n, length] for tokens; `labels`: int32 [n],
    or [n, length] for tokens.
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


@dataclass(frozen=True)
class Source:
    """What a loader gives: all examples in file order, before they are split.

    `labels`: integers; `validation_examples`: how many the seeded split takes unless
    asked for another number; `preprocess`: turns a subset of `inputs` into what the
    network reads (None: `inputs` are that already), so that bytes stay bytes until
    they are split.
    """

    inputs: np.ndarray
    labels: np.ndarray
    classes: int
    validation_examples: int
    preprocess: Callable[[np.ndarray], np.ndarray] | None = None

    def examples(self, indices: np.ndarray) -> Examples:
        """Returns the preprocessed examples at `indices`, in that order."""
        inputs = self.inputs[indices]
        if self.preprocess is not None:
            inputs = self.preprocess(inputs)
        return Examples(inputs, self.labels[indices].astype(np.int32))


@dataclass(frozen=True)
class Dataset:
    """Training and validation examples, disjoint, with what identifies them.

    `classes`: number of classes, or of tokens in the vocabulary; `content_hash`:
    SHA-256 over the four arrays, so a study can refuse other data of the same name;
    `split`: how they were divided, for the record.
    """

    name: str
    train: Examples
    validation: Examples
    classes: int
    content_hash: str
    split: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: [height, width, channels], [features] or [length]."""
        return tuple(self.train.inputs.shape[1:])


def content_hash(*arrays: np.ndarray) -> str:
    """Returns the SHA-256 of types, shapes and bytes of `arrays`, as hexadecimal."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
