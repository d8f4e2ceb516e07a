"""What a mask depends on: its key in the cache, and the examples its scores read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dps_tf._keras import keras
from dps_tf.core.errors import UserError
from dps_tf.core.study import Pruning
from dps_tf.core.version import RESULTS_VERSION
from dps_tf.objectives import Objective
from dps_tf.sparsity.gradients import BATCH
from dps_tf.sparsity.methods import ITERATIVE, Method
from dps_tf.sparsity.prunable import (
    KERNEL,
    VariableRole,
    roles,
    trainable_positions,
)


class ScoreExamples(Protocol):
    """Training examples: `inputs` [n, ...] and what the objective takes: `labels`."""

    @property
    def inputs(self) -> np.ndarray:
        """Returns what the network reads."""

    @property
    def labels(self) -> np.ndarray:
        """Returns classes, or numbers."""


class TrainingData(Protocol):
    """What scores read of a `dps_tf.data.Dataset`: never its validation examples."""

    @property
    def train(self) -> ScoreExamples:
        """Returns the training examples."""

    @property
    def classes(self) -> int:
        """Returns the number of classes."""

    @property
    def content_hash(self) -> str:
        """Returns the SHA-256 over the examples."""


@dataclass(frozen=True)
class MaskRequest:
    """One mask to be made.

    Attributes:
        network: scratch; gives the order of the variables.
        initial: values in the order of `network.weights`.
        dataset: only its training examples are read.
        method: one-shot or iterative.
        sparsity: fraction to remove, in (0, 1).
        pruning: prunable set, scope, examples and arguments.
        key_parts: JSON values that name the network, and `initial_seed`.
        objective: see `masks_for`.
    """

    network: keras.Model
    initial: Sequence[np.ndarray]
    dataset: TrainingData
    method: Method
    sparsity: float
    pruning: Pruning
    key_parts: Mapping[str, Any]
    objective: Objective | None = None

    @cached_property
    def roles(self) -> tuple[VariableRole, ...]:
        """One per trainable variable."""
        return roles(self.network)

    @cached_property
    def positions(self) -> list[int]:
        """Where the prunable variables stand: kernels, then biases, each in order.

        The order matters for ties only: of entries without any score (zero biases,
        weights of units that are dead at the initial point) biases go first, as in the
        published code of Lee et al. 2021. UserError if there are none.
        """
        found = [
            position
            for position, role in enumerate(self.roles)
            if role.is_in(self.pruning.prunable)
        ]
        if not found:
            raise UserError(
                f"network {self.network.name!r} has no variable in the prunable set "
                f"{self.pruning.prunable!r}: sparsity {self.sparsity!r} has no meaning "
                "for it"
            )
        return sorted(found, key=lambda i: self.roles[i].role != KERNEL)

    @cached_property
    def layers(self) -> list[str] | None:
        """The layer of each of `positions`, or None for a global ranking."""
        if self.pruning.scope == "global":
            return None
        return [self.roles[position].layer for position in self.positions]

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Those of the method, defaults filled in."""
        return self.method.resolve(self.pruning.arguments)

    @cached_property
    def theta(self) -> list[np.ndarray]:
        """The initial point of the trainable variables."""
        return [self.initial[i] for i in trainable_positions(self.network)]

    @cached_property
    def is_balanced(self) -> bool:
        """Whether the scores read as many examples of each class; not for sequences."""
        return self.method.name == "grasp" and self.dataset.train.labels.ndim == 1

    @cached_property
    def examples(self) -> int:
        """How many training examples the scores read, per round; 0 without data."""
        classes = self.dataset.classes
        if not self.method.reads_data:
            return 0
        if self.is_balanced:
            asked = self.pruning.examples or classes * self.arguments["per_class"]
            if asked < classes:
                raise UserError(
                    f"grasp reads class-balanced examples: {asked} are fewer than the "
                    f"{classes} classes"
                )
            return asked // classes * classes
        available = len(self.dataset.train.inputs)
        return self.pruning.examples or min(
            self.method.examples or available, available
        )

    def data(self, turn: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns (inputs, labels) of the training examples that a round reads."""
        train = self.dataset.train
        available = len(train.inputs)
        if self.is_balanced:
            classes = self.dataset.classes
            chosen = balanced(train.labels, classes, self.examples // classes)
        elif self.method.kind == ITERATIVE:
            chosen = window(available, self.examples, turn)
        else:
            count = len(first(available, self.examples))
            return train.inputs[:count], train.labels[:count]  # views, no copies
        return train.inputs[chosen], train.labels[chosen]

    def key(self) -> dict[str, Any]:
        """Returns what the scores depend on; for iterative methods, the masks."""
        digest = hashlib.sha256()
        for value in self.initial:
            digest.update(f"{value.dtype.str} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        key = {
            "results_version": RESULTS_VERSION,
            "network": dict(self.key_parts),
            "initial_point": digest.hexdigest(),
            "data": self.dataset.content_hash,
            "method": self.method.name,
            "arguments": self.arguments,
            "examples": self.examples,
            "examples_per_batch": BATCH,
        }
        if self.method.kind == ITERATIVE:
            key["sparsity"] = self.sparsity
            key["prunable"] = self.pruning.prunable
            key["scope"] = self.pruning.scope
        return key


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
