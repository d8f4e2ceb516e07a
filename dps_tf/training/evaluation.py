"""Exact evaluation of a network on a whole split, in large padded batches."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import VALIDATION
from dps_tf.models import given
from dps_tf.objectives import Objective
from dps_tf.training import replicas as of_replica
from dps_tf.training.device_data import PlacedData
from dps_tf.training.lanes import vectorized
from dps_tf.training.replicas import Replicas

GOAL_BATCH_SIZE = 200
"""Examples per batch of an evaluation that may stop early; less than `BATCH_SIZE`."""


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a network on a split.

    Attributes:
        metrics: values by column `split/metric`; see `is_bound`.
        loss_sum: sum of the loss over all evaluated positions, without penalties.
        is_bound: whether evaluation stopped because the goal was out of reach. Then the
            metrics that follow from the goal's count are bounds, and the others NaN.
    """

    metrics: Mapping[str, float]
    loss_sum: float
    is_bound: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether the loss of all evaluated examples is finite."""
        return math.isfinite(self.loss_sum)


def outputs_of(model: keras.Model, inputs: tf.Tensor) -> tf.Tensor:
    """Returns the network's outputs in evaluation mode, float32 [batch, ...]."""
    return tf.cast(model(inputs, training=False), tf.float32)


@dataclass(frozen=True)
class Evaluated:
    """What evaluations need: a network of `models.functional`, data and objective.

    With several lanes, weights, sums and counts have a first dimension of them.
    """

    network: keras.Model
    data: PlacedData
    objective: Objective
    replicas: Replicas
    lanes: int = 1
    tracing: threading.Lock = field(default_factory=threading.Lock)
    """Threads may share a network, which reads the weights of one of them at a time."""

    @property
    def sides(self) -> list[int]:
        """The first dimension of the arrays of several lanes."""
        return [self.lanes] if self.lanes > 1 else []

    def each(self, function: Callable[..., Any], *own: Any) -> Any:
        """Returns the results of a function of a trial's tensors, for each lane."""
        if self.lanes == 1:
            return function(*own)
        return vectorized(function, *own, in_groups=self.replicas.uses_xla)

    def outputs(self, weights: Sequence[tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
        """Returns the network's outputs at some weights, float32 [batch, ...]."""
        with given(self.network, weights):
            return outputs_of(self.network, inputs)

    @property
    def types(self) -> list[tf.TensorSpec]:
        """The types of the network's weights."""
        weights = self.network.weights
        return [tf.TensorSpec([*self.sides, *w.shape], w.dtype) for w in weights]


class ExactEvaluator:
    """Computes exact metrics over a whole split, which the replicas share."""

    def __init__(self, evaluated: Evaluated, split: str = VALIDATION):
        self._of = evaluated
        self._name = split
        self._split = evaluated.data.split(split)
        kinds = _kinds(evaluated.network, self._split.labels, evaluated.objective)
        self._row_kinds = kinds.pop("rows")
        self._kinds = kinds
        # The sums are a flat list, because TensorFlow is slow with nested arguments.
        flat = tf.nest.flatten(kinds)
        sides = evaluated.sides
        self._zeros = [tf.zeros([*sides, *kind.shape], kind.dtype) for kind in flat]

    @functools.cached_property
    def _run(self) -> Any:
        kinds = [tf.TensorSpec(zero.shape, zero.dtype) for zero in self._zeros]
        with self._of.tracing:
            return self._of.replicas.compiled(
                lambda weights, sums, *piece: self._sums(weights, sums, True, piece),
                [self._of.types, kinds, *self._split.signature],
            )

    def fresh(self) -> list[np.ndarray]:
        """Returns what a trial remembers of its evaluations: nothing."""
        return []

    def __call__(
        self, weights: Sequence[Any], memory: Sequence[Any]
    ) -> tuple[Evaluation, Sequence[Any]]:
        """Returns (the exact metrics at some weights, memory)."""
        return self.of_lanes(weights, [0])[0], memory

    def of_lanes(
        self, weights: Sequence[Any], lanes: Sequence[int]
    ) -> dict[int, Evaluation]:
        """Returns the exact metrics at the weights of lanes."""
        sums, rows = self._zeros, []
        for piece in self._split.pieces():
            sums, of_piece = self._run(list(weights), sums, *piece)
            rows.append(of_piece)
        return self._measured(sums, rows, lanes)

    def graph(
        self, weights: Sequence[tf.Tensor], memory: list[tf.Tensor], wanted: tf.Tensor
    ) -> tuple[Any, list[tf.Tensor]]:
        """Returns (what `results` reads, memory) in a graph, for data on the device.

        Nothing is computed unless `wanted`, bool [] or [lanes].
        """
        (piece,) = self._split.pieces()
        wanted = tf.reduce_any(wanted)
        return self._sums(weights, self._zeros, wanted, piece), memory

    def results(self, values: Any, lanes: Sequence[int]) -> dict[int, Evaluation]:
        """Returns the metrics of lanes that the values of `graph` stand for."""
        sums, rows = values
        return self._measured(sums, [rows], lanes)

    def _measured(
        self, sums: Sequence[Any], rows: Sequence[Any], lanes: Sequence[int]
    ) -> dict[int, Evaluation]:
        """Returns metrics from sums over all batches and the rows of each piece."""
        whole = [np.asarray(value) for value in sums]  # once for all lanes
        found = {}
        for lane in lanes:
            flat = [value[lane] for value in whole] if self._of.lanes > 1 else whole
            merged = _filled(self._kinds, iter(flat))
            kinds = range(len(self._row_kinds))
            merged["rows"] = [self._joined(rows, kind, lane) for kind in kinds]
            metrics = self._of.objective.values(self._name, merged)
            found[lane] = Evaluation(metrics, float(merged["loss"]))
        return found

    def _joined(
        self, pieces: Sequence[Any], kind: int, lane: int
    ) -> dict[str, np.ndarray]:
        """Returns the rows of all examples, without rows of padding."""

        def joined(name: str) -> np.ndarray:
            parts = []
            for rows, valid in pieces:
                is_valid, values = np.asarray(valid), np.asarray(rows[kind][name])
                if self._of.lanes > 1:  # [replicas, batches, lanes, batch, ...]
                    values = values[:, :, lane]
                flat = values.reshape(-1, *values.shape[is_valid.ndim :])
                parts.append(flat[is_valid.ravel()])
            return np.concatenate(parts)

        return {name: joined(name) for name in self._row_kinds[kind]}

    def _sums(
        self,
        weights: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        wanted: tf.Tensor | bool,
        piece: Sequence[Any],
    ) -> tuple[list[tf.Tensor], Any]:
        """Returns (sums so far and of a piece, (rows, valid) of each replica)."""
        replicas = self._of.replicas
        share = replicas.part(self._sum_share)
        own = replicas.spread(
            (list(weights), list(before), tf.convert_to_tensor(wanted))
        )
        parts = replicas.run(lambda own, *batches: share(*own, *batches), own, *piece)
        sums = [
            functools.reduce(tf.add, values)
            for values in zip(*(p[0] for p in parts), strict=True)
        ]
        rows = tf.nest.map_structure(lambda *v: tf.stack(v), *[p[1] for p in parts])
        return sums, rows

    def _sum_share(
        self,
        weights: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        wanted: tf.Tensor,
        *batches: tf.Tensor,
    ) -> tuple[list[tf.Tensor], Any]:
        """Returns (sums, kept) after the batches of a replica.

        `sums` is the flat list of the sums so far plus the sums over the batches.
        `kept` is (rows, valid) of all examples, [batches, batch, ...], or () without
        rows.
        """
        # The first replica continues the sums so far, so that the order of the sums
        # does not depend on the pieces.
        is_first = tf.equal(of_replica.number(), 0)
        before = [tf.where(is_first, v, tf.zeros_like(v)) for v in before]
        total = tf.where(wanted, tf.shape(batches[0])[0], 0)
        kept = tf.nest.map_structure(
            lambda kind: tf.TensorArray(
                kind.dtype, total, element_shape=[*self._of.sides, *kind.shape]
            ),
            self._row_kinds,
        )

        def of_batch(inputs: Any, labels: Any, valid: Any, *weights: Any) -> Any:
            outputs = self._of.outputs(weights, inputs)
            sums = self._of.objective.sums(labels, outputs, valid)
            rows = sums.pop("rows")
            return tf.nest.flatten(sums), rows

        def body(i: tf.Tensor, sums: list[tf.Tensor], kept: Any) -> Any:
            batch = [tensor[i] for tensor in batches]
            more, rows = self._of.each(functools.partial(of_batch, *batch), *weights)
            kept = tf.nest.map_structure(lambda a, row: a.write(i, row), kept, rows)
            return i + 1, [a + b for a, b in zip(sums, more, strict=True)], kept

        _, sums, kept = tf.while_loop(
            lambda i, *_: i < total,
            body,
            (tf.constant(0), before, kept),
            parallel_iterations=1,
        )
        rows = tf.nest.map_structure(lambda array: array.stack(), kept)
        return sums, (rows, batches[-1]) if rows else ()


def _filled(kinds: Any, values: Iterator[Any]) -> Any:
    """Returns what tf.nest.pack_sequence_as does, in a tenth of its time."""
    if isinstance(kinds, dict):
        return {name: _filled(kinds[name], values) for name in sorted(kinds)}
    if isinstance(kinds, list | tuple):
        return [_filled(kind, values) for kind in kinds]
    return next(values)


def _kinds(model: keras.Model, labels: np.ndarray, objective: Objective) -> Any:
    """Returns the sums of a batch as tensors of a graph, to read their types."""
    function = tf.function(objective.sums, autograph=False)
    return function.get_concrete_function(
        tf.TensorSpec([None, *labels.shape[1:]], labels.dtype),
        tf.TensorSpec(model.outputs[0].shape, tf.float32),
        tf.TensorSpec([None], tf.bool),
    ).structured_outputs
