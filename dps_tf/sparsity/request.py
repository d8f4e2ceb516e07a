"""Requests for masks, the training examples that scores read, and the score cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from dps_tf._keras import keras
from dps_tf.core import RESULTS_VERSION, Pruning, Registry, UserError, check_known
from dps_tf.data import Dataset
from dps_tf.objectives import Objective, Progress
from dps_tf.sparsity.prunable import KERNEL, VariableRole, roles, trainable_positions
from dps_tf.sparsity.score_gradients import BATCH, GradientProgram, program_of
from dps_tf.sparsity.selection import SELECTIONS, Candidates, choose
from dps_tf.store import (
    FORMAT,
    DamagedError,
    FileSystem,
    LocalFiles,
    State,
    absolute,
    canonical,
    decode_state,
    encode_state,
    fingerprint,
    set_aside,
)

if TYPE_CHECKING:
    from dps_tf.sparsity.methods import SparsityMethod

SPARSITY_METHODS: Registry[SparsityMethod] = Registry("sparsity method")


def own_arguments(name: str, pruning: Pruning) -> dict[str, Any]:
    """Returns the arguments of a method, defaults filled in.

    A sweep over several methods gives arguments of one method or selection by its name:
    {"force": {"rounds": 20}, "n_of_m": {"m": 8}}.

    Raises:
        UserError: unknown names, or values out of range.
    """
    own: dict[str, Any] = {}
    names = (*SPARSITY_METHODS.names(), *SELECTIONS.names())
    for key, value in pruning.arguments.items():
        if not isinstance(value, Mapping):
            own[key] = value
        elif key == name:
            own.update(value)
        else:
            check_known("sparsity method or selection of pruning.arguments", key, names)
    return SPARSITY_METHODS.resolve(name, own)


@dataclass(frozen=True)
class MaskRequest:
    """All that the masks of one initial point depend on.

    Attributes:
        network: scratch; its weights are overwritten. The same object for all trials,
            so that its passes are traced once.
        initial: values in the order of `network.weights`.
        dataset: only its training examples are read.
        method: name of a sparsity method that does not prune while training.
        sparsity: fraction to remove, in [0, 1).
        pruning: prunable set, selection, examples (0: the method's own number) and
            arguments.
        key_parts: JSON values that name the network and its arguments, and
            `initial_seed`; part of the key of the cache, beside the initial point and
            the content of the data themselves.
        objective: gives the loss that is scored, the same object for all trials; None
            is softmax cross-entropy. `key_parts` has to name any other objective.
    """

    network: keras.Model
    initial: Sequence[np.ndarray]
    dataset: Dataset
    method: str
    sparsity: float
    pruning: Pruning
    key_parts: Mapping[str, Any]
    objective: Objective | None = None

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the method, defaults filled in."""
        return own_arguments(self.method, self.pruning)

    @property
    def reader(self) -> ExampleReader:
        """What decides which training examples the method reads."""
        return SPARSITY_METHODS[self.method].reader

    @cached_property
    def roles(self) -> tuple[VariableRole, ...]:
        """The role of each trainable variable."""
        return roles(self.network)

    @cached_property
    def positions(self) -> list[int]:
        """The places of the prunable variables: kernels, then biases, each in order.

        The order matters for ties only. Of entries without any score (zero biases,
        weights of units that are dead at the initial point) biases go first, as in the
        published code of Lee et al. 2021. UserError if there are none.
        """
        prunable = [
            position
            for position, role in enumerate(self.roles)
            if role.is_in(self.pruning.prunable)
        ]
        if not prunable:
            raise UserError(
                f"network {self.network.name!r} has no variable in the prunable set "
                f"{self.pruning.prunable!r}: sparsity {self.sparsity!r} has no meaning "
                "for it"
            )
        return sorted(prunable, key=lambda i: self.roles[i].role != KERNEL)

    @cached_property
    def selection_arguments(self) -> dict[str, Any]:
        """The arguments of the selection, defaults filled in."""
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
        """The number of training examples that scores read a round; 0 without data."""
        return self.reader.count(self)

    def data(self, turn: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns (inputs, labels) of the training examples that a round reads."""
        return self.reader.read(self, turn)

    def loss_gradient(
        self,
        progress: Progress | None = None,
        turn: int = 0,
        masks: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Returns the gradient of the loss at the initial point, per variable.

        float64, summed over batches (`score_gradients.batch_size`) of the examples that
        the method reads in a round: each batch counts the gradient of its mean loss.
        The initial point is multiplied by `masks` if they are given.
        """
        with self.program.lock:
            self.program.set_point(self.initial, masks or None)
            return self.program.loss_gradient(*self.data(turn), progress=progress)

    def checked(self, scores: Any) -> list[np.ndarray]:
        """Returns scores as arrays; UserError unless each variable has its own."""
        wanted = [tuple(v.shape) for v in self.network.trainable_variables]
        is_iterable = isinstance(scores, Iterable)
        arrays = [np.asarray(part) for part in scores] if is_iterable else []
        shapes = [part.shape for part in arrays]
        if shapes != wanted:
            found = f"of shapes {shapes}" if is_iterable else repr(scores)
            raise UserError(
                f"the scores of {self.method} are {found}: return one array for each "
                f"of the {len(wanted)} trainable variables, of shapes {wanted}."
            )
        return arrays

    def select(
        self,
        scores: Sequence[np.ndarray],
        sparsity: float | None = None,
        allowed: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Returns masks of all trainable variables, all ones where one is not prunable.

        The largest scores are kept, of what is `allowed`. Without `sparsity`, the
        request's own is reached.
        """
        scores = self.checked(scores)
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
            "format": FORMAT,
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
        """Returns what masks depend on: `score_key` and the selection."""
        key = self.score_key()
        key["sparsity"] = self.sparsity
        key["prunable"] = self.pruning.prunable
        key["scope"] = self.pruning.scope
        key["selection_arguments"] = self.selection_arguments
        return key


def selection_arguments(pruning: Pruning) -> dict[str, Any]:
    """Returns the arguments of a selection; UserError for unknown names and values."""
    own = pruning.arguments.get(pruning.scope, {})
    return SELECTIONS.resolve(pruning.scope, own if isinstance(own, Mapping) else {})


class ExampleReader:
    """Decides which training examples the scores of a method read: here none."""

    def count(self, request: MaskRequest) -> int:
        """Returns the number of examples per round; UserError for too many."""
        del request
        return 0

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (inputs, labels) of round `turn` = 0, 1, ..."""
        raise TypeError(f"sparsity method {request.method!r} reads no examples")


@dataclass(frozen=True)
class ExampleWindows(ExampleReader):
    """Reads consecutive stretches of the training examples, one in each round.

    Attributes:
        most: number of examples per round if `pruning.examples` is 0; None is all.

    Examples:
        >>> import dps_tf
        >>> from dps_tf.sparsity import OneShot
        >>> def spread(request, progress):
        ...     inputs, _ = request.data()
        ...     return [np.abs(weights) * inputs.std() for weights in request.theta]
        >>> dps_tf.register_sparsity_method(
        ...     "spread", OneShot(spread, reader=ExampleWindows(500))
        ... )
    """

    most: int | None = None

    def count(self, request: MaskRequest) -> int:
        """Returns how many examples a round reads."""
        asked, available = request.pruning.examples, len(request.dataset.train.inputs)
        if not 0 <= asked <= available:
            raise UserError(
                f"{asked} examples for scores are asked for, but there are "
                f"{available} training examples: choose between 1 and that, or 0 for "
                "the default"
            )
        return asked or min(self.most or available, available)

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples of a round, as views where they lie together."""
        train = request.dataset.train
        chosen = window(len(train.inputs), self.count(request), turn)
        return train.inputs[chosen], train.labels[chosen]


class BalancedExamples(ExampleWindows):
    """Reads equally many examples of each class; for sequences, the first examples.

    The number per class is the method's argument `per_class`, unless
    `pruning.examples` gives the number of all examples.
    """

    def count(self, request: MaskRequest) -> int:
        """Returns the number of examples of all classes together."""
        if request.dataset.train.labels.ndim != 1:
            return super().count(request)
        classes = request.dataset.classes
        asked = request.pruning.examples
        if not asked and "per_class" not in request.arguments:
            raise UserError(
                f"{request.method} reads class-balanced examples and has no argument "
                "'per_class': register it with reads={'per_class': Argument(...)}, or "
                "bind pruning.examples."
            )
        asked = asked or classes * request.arguments["per_class"]
        if asked < classes:
            raise UserError(
                f"{request.method} reads class-balanced examples: {asked} are fewer "
                f"than the {classes} classes"
            )
        return asked // classes * classes

    def read(self, request: MaskRequest, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first examples of each class, class by class."""
        train, classes = request.dataset.train, request.dataset.classes
        if train.labels.ndim != 1:
            return super().read(request, turn)
        chosen = balanced(train.labels, classes, self.count(request) // classes)
        return train.inputs[chosen], train.labels[chosen]


def window(available: int, examples: int, turn: int) -> slice | np.ndarray:
    """Returns the indices that round `turn` = 0, 1, ... reads.

    Rounds read consecutive stretches and start again at the front. Each round therefore
    reads fresh examples, as in the published codes, but the same ones in every run.
    """
    start = turn * examples % available
    if start + examples <= available:
        return slice(start, start + examples)
    return np.arange(start, start + examples) % available


def balanced(labels: np.ndarray, classes: int, per_class: int) -> np.ndarray:
    """Returns the indices of the first `per_class` examples of each class, int64.

    `labels`: int [n]. Raises UserError if a class has fewer examples.
    """
    chosen = []
    for label in range(classes):
        rows = np.flatnonzero(labels == label)[:per_class]
        if rows.size < per_class:
            raise UserError(
                f"class {label} has {rows.size} training examples, but {per_class} of "
                "each class are to be read: ask for fewer"
            )
        chosen.append(rows)
    return np.concatenate(chosen)


class ScoreCache:
    """Scores and iterative masks on disk, computed once and shared by workers.

    The name of a file is the SHA-256 of its key, so a change of anything that arrays
    depend on makes a new file. Two workers that compute the same arrays at once write
    the same file, each atomically.
    """

    def __init__(
        self,
        directory: str,
        files: FileSystem | None = None,
        report: Callable[[str], None] = logging.warning,
    ):
        """`directory`: `SweepLayout.scores`, made when needed; `report`: for damage."""
        self._directory = absolute(directory)
        self._files = LocalFiles() if files is None else files
        self._report = report

    def get(
        self, key: Mapping[str, Any], compute: Callable[[], Sequence[np.ndarray]]
    ) -> list[np.ndarray]:
        """Returns the arrays of a key; computes and saves them if they are missing.

        `key`: JSON values. An error of `compute` is passed on and nothing saved;
        StoreError if the file system refuses.
        """
        kept = self._read(key)
        if kept is not None:
            return kept
        arrays = [np.asarray(array) for array in compute()]
        state = State(0, arrays, {"key": dict(key)})
        self._files.write_atomic(self.path(key), encode_state(0, state))
        return arrays

    def path(self, key: Mapping[str, Any]) -> str:
        """Returns the path of the file for a key."""
        return f"{self._directory}/{fingerprint(dict(key))}.npz"

    def _read(self, key: Mapping[str, Any]) -> list[np.ndarray] | None:
        path = self.path(key)
        try:
            state = decode_state(path, 0, 0, self._files.read_bytes(path))
            if canonical(state.meta.get("key")) != canonical(dict(key)):
                raise DamagedError(path, "it holds the scores of another key")
        except FileNotFoundError:
            return None
        except DamagedError as error:
            try:
                kept = set_aside(self._files, path)
            except FileNotFoundError:  # another worker was quicker
                kept = "damaged"
            self._report(
                f"Pruning scores in {path} are damaged ({error.reason}); the file was "
                f"set aside as {kept} and they are computed anew."
            )
            return None
        return state.arrays
