"""A mask to be made: what it depends on, and the examples its scores read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dps_tf._keras import keras
from dps_tf.core.errors import UserError
from dps_tf.core.study import RESULTS_VERSION, Pruning
from dps_tf.objectives import Objective
from dps_tf.sparsity.gradients import BATCH, GradientProgram, program_of
from dps_tf.sparsity.prunable import (
    KERNEL,
    VariableRole,
    roles,
    trainable_positions,
)
from dps_tf.sparsity.selection import SELECTIONS, Candidates, choose


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


class ExampleReader(Protocol):
    """Decides which training examples the scores of a method read."""

    def count(self, request: MaskRequest) -> int:
        """Returns how many (per round), 0 for none; UserError for too many."""

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (inputs, labels) of round `turn` = 0, 1, ..."""


@dataclass(frozen=True)
class MaskRequest:
    """One mask to be made.

    Attributes:
        network: scratch; gives the order of the variables.
        initial: values in the order of `network.weights`.
        dataset: only its training examples are read.
        method: name of the sparsity method.
        arguments: those of the method, defaults filled in.
        reader: of its training examples.
        sparsity: fraction to remove, in (0, 1).
        pruning: prunable set, selection, examples and arguments.
        key_parts: JSON values that name the network, and `initial_seed`.
        objective: see `masks_for`.
    """

    network: keras.Model
    initial: Sequence[np.ndarray]
    dataset: TrainingData
    method: str
    arguments: Mapping[str, Any]
    reader: ExampleReader
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
    def selection_arguments(self) -> dict[str, Any]:
        """Those of the selection, defaults filled in."""
        return selection_arguments(self.pruning)

    @cached_property
    def theta(self) -> list[np.ndarray]:
        """The initial point of the trainable variables."""
        return [self.initial[i] for i in trainable_positions(self.network)]

    @property
    def program(self) -> GradientProgram:
        """The gradients of the network, traced once for the last few networks."""
        return program_of(self.network, self.objective)

    @cached_property
    def examples(self) -> int:
        """How many training examples the scores read, per round; 0 without data."""
        return self.reader.count(self)

    def data(self, turn: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns (inputs, labels) of the training examples that a round reads."""
        return self.reader.read(self, turn)

    def select(
        self,
        scores: Sequence[np.ndarray],
        sparsity: float | None = None,
        allowed: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Returns masks of all trainable variables, ones for those never pruned.

        Args:
            scores: of all trainable variables; the largest are kept.
            sparsity: to reach; that of the request if None.
            allowed: masks of what may be kept; None for everything.
        """
        candidates = Candidates(
            [scores[position] for position in self.positions],
            [self.roles[position] for position in self.positions],
            None if allowed is None else [allowed[i] for i in self.positions],
        )
        wanted = self.sparsity if sparsity is None else sparsity
        kept = choose(self.pruning.scope, candidates, wanted, self.selection_arguments)
        masks = [np.ones(np.shape(score), np.float32) for score in scores]
        for position, mask in zip(self.positions, kept, strict=True):
            masks[position] = mask
        return masks

    def score_key(self) -> dict[str, Any]:
        """Returns what the scores at the initial point depend on."""
        digest = hashlib.sha256()
        for value in self.initial:
            digest.update(f"{value.dtype.str} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        return {
            "results_version": RESULTS_VERSION,
            "network": dict(self.key_parts),
            "initial_point": digest.hexdigest(),
            "data": self.dataset.content_hash,
            "method": self.method,
            "arguments": dict(self.arguments),
            "examples": self.examples,
            "examples_per_batch": BATCH,
        }

    def mask_key(self) -> dict[str, Any]:
        """Returns what masks that depend on the selection depend on."""
        key = self.score_key()
        key["sparsity"] = self.sparsity
        key["prunable"] = self.pruning.prunable
        key["scope"] = self.pruning.scope
        # Left out where there are none, as in the keys before selections had any.
        if self.selection_arguments:
            key["selection_arguments"] = self.selection_arguments
        return key


def selection_arguments(pruning: Pruning) -> dict[str, Any]:
    """Returns the arguments of a selection; UserError for unknown names and values."""
    own = pruning.arguments.get(pruning.scope, {})
    return SELECTIONS.resolve(pruning.scope, own if isinstance(own, Mapping) else {})


class NoExamples:
    """Reads nothing: the scores are functions of the initial point."""

    def count(self, request: MaskRequest) -> int:
        """Returns 0."""
        del request
        return 0

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Raises TypeError."""
        raise TypeError(f"sparsity method {request.method!r} reads no examples")


class FirstExamples:
    """Reads the first of the training examples, all of them unless told."""

    def count(self, request: MaskRequest) -> int:
        """Returns how many."""
        available = len(request.dataset.train.inputs)
        return len(first(available, request.pruning.examples))

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns them, as views."""
        del turn
        train, count = request.dataset.train, self.count(request)
        return train.inputs[:count], train.labels[:count]


class BalancedExamples(FirstExamples):
    """Reads as many examples of each class; of sequences, the first ones.

    How many of a class is the argument `per_class` of the method, unless the number of
    examples is told.
    """

    def count(self, request: MaskRequest) -> int:
        """Returns how many of all classes."""
        if request.dataset.train.labels.ndim != 1:
            return super().count(request)
        classes = request.dataset.classes
        asked = request.pruning.examples or classes * request.arguments["per_class"]
        if asked < classes:
            raise UserError(
                f"{request.method} reads class-balanced examples: {asked} are fewer "
                f"than the {classes} classes"
            )
        return asked // classes * classes

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first of each class, by class."""
        train, classes = request.dataset.train, request.dataset.classes
        if train.labels.ndim != 1:
            return super().read(request, turn)
        chosen = balanced(train.labels, classes, self.count(request) // classes)
        return train.inputs[chosen], train.labels[chosen]


@dataclass(frozen=True)
class ExampleWindows:
    """Reads one stretch of the training examples after the other, round by round.

    Attributes:
        most: examples of a round unless told.
    """

    most: int

    def count(self, request: MaskRequest) -> int:
        """Returns how many examples a round reads."""
        available = len(request.dataset.train.inputs)
        return request.pruning.examples or min(self.most, available)

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns those of a round."""
        train = request.dataset.train
        chosen = window(len(train.inputs), self.count(request), turn)
        return train.inputs[chosen], train.labels[chosen]


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
