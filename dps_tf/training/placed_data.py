"""What a program asks of a data set, wherever that lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

Values = tuple[Any, ...]
"""Tensors, or one tensor for each replica of this process."""

Part = tuple[tf.Tensor, int]
"""(k, n): the k-th of n equal parts of a replica's examples."""


def part_of(examples: tf.Tensor, part: Part | None) -> tf.Tensor:
    """Returns a part of some examples; None: all."""
    if part is None:
        return examples
    turn, parts = part
    return tf.reshape(examples, [parts, -1, *examples.shape[1:]])[turn]


class TrainBatches(Protocol):
    """The training batches of one size, for the loop over steps of a slice.

    They come in pieces of several steps, each one call of the compiled loop.
    """

    @property
    def signature(self) -> list[Any]:
        """Returns the types of the values of a piece."""

    @property
    def held(self) -> Values:
        """Returns what lies on the devices already, and goes with every piece."""

    @property
    def most_steps(self) -> int | None:
        """Returns the steps of every piece but the last; None for one piece."""

    def pieces(self, indices: np.ndarray) -> Iterator[tuple[int, Values]]:
        """Yields (steps, values) of pieces that follow each other.

        Args:
            indices: int32 [steps, batch_size], examples of the training split.
        """

    def batch(
        self, step: tf.Tensor, *arrays: tf.Tensor, part: Part | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a replica's (inputs, labels) of a step of a piece, in its graph.

        Args:
            step: number of the step inside the piece.
            arrays: the replica's own of the piece's values, then of `held`.
            part: which of them; None: all.
        """


class PlacedSplit(Protocol):
    """A split for evaluation: every example once, in one order."""

    @property
    def labels(self) -> np.ndarray:
        """Returns the labels, on the host."""

    @property
    def signature(self) -> list[Any]:
        """Returns the types of the values of a piece."""

    def pieces(self) -> Iterator[Values]:
        """Yields (inputs, labels, valid), [batches, batch, ...], of each replica.

        Replicas take turns in the order of the split; all pieces together hold each
        example once. What is not `valid` only fills the last batches.
        """


class PlacedData(Protocol):
    """Training examples, and splits for evaluation, for the devices of a strategy.

    Every placement hands over the same examples in the same order: none of them changes
    a bit of a trial on one device.
    """

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """Returns the strategy whose replicas read the data."""

    @property
    def placement(self) -> str:
        """Returns `device` or `stream`."""

    @property
    def train_count(self) -> int:
        """Returns the number of training examples."""

    @property
    def labels_per_example(self) -> int:
        """Returns 1, or the length of a sequence."""

    def train_batches(self, batch_size: int) -> TrainBatches:
        """Returns the training batches of a global batch size."""

    def split(self, name: str) -> PlacedSplit:
        """Returns a split, the same one every time; see `Dataset.evaluated`."""
