"""Exact evaluation of a network on a whole split, in large padded batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import VALIDATION, UserError
from dps_tf.objectives import Objective
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import PlacedData

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
    outputs = model(inputs, training=False)
    if not tf.is_tensor(outputs):
        raise UserError(
            f"model {model.name!r} has {len(outputs)} outputs, and an objective takes "
            "one: give it one output."
        )
    return tf.cast(outputs, tf.float32)


def compiled(
    strategy: tf.distribute.Strategy,
    replica: Callable[..., Any],
    build: Callable[[Any], Any],
    jit_compile: bool,
    signature: Sequence[Any],
) -> Any:
    """Returns `build(replica)` as one graph, compiled by XLA with `jit_compile`.

    XLA compiles for one device at a time. With several replicas it compiles the share
    of each replica, and TensorFlow's graph around the shares joins their results.
    """
    around = jit_compile and strategies.loops_in_replica(strategy)
    share = replica
    if jit_compile and not around:
        compiled = tf.function(replica, jit_compile=True, autograph=False)

        # `strategy.run` would pull a compiled function around all replicas.
        def share(*arguments: tf.Tensor) -> Any:
            return compiled(*arguments)

    return tf.function(
        build(share),
        jit_compile=around,
        autograph=False,
        input_signature=list(signature),
    )


class ExactEvaluator:
    """Computes exact metrics over a whole split, which the replicas share."""

    def __init__(
        self,
        model: keras.Model,
        data: PlacedData,
        objective: Objective,
        jit_compile: bool = False,
        split: str = VALIDATION,
    ):
        self._strategy = data.strategy
        self._name = split
        self._split = data.split(split)
        self._model = model
        self._objective = objective
        kinds = _kinds(model, self._split.labels, objective)
        self._row_kinds = kinds.pop("rows")
        self._kinds = kinds
        # The sums are a flat list, because TensorFlow is slow with nested arguments.
        flat = tf.nest.flatten(kinds)
        self._zeros = [tf.zeros(kind.shape, kind.dtype) for kind in flat]
        self._run = compiled(
            data.strategy,
            self._sum_share,
            self._build,
            jit_compile,
            [
                *(tf.TensorSpec(kind.shape, kind.dtype) for kind in flat),
                *self._split.signature,
            ],
        )

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that a trial keeps between evaluations: none."""
        return []

    def __call__(self) -> Evaluation:
        """Returns the exact metrics of the model's present weights."""
        sums, rows = self._zeros, []
        for piece in self._split.pieces():
            sums, piece_rows = self._run(*sums, *piece)
            rows.append(piece_rows)
        flat = [value.numpy() for value in sums]
        merged = tf.nest.pack_sequence_as(self._kinds, flat)
        merged["rows"] = [self._joined(rows, i) for i in range(len(self._row_kinds))]
        metrics = self._objective.values(self._name, merged)
        return Evaluation(metrics, float(merged["loss"]))

    def _joined(self, pieces: Sequence[Any], kind: int) -> dict[str, np.ndarray]:
        """Returns the rows of all examples, without those of padding."""

        def joined(name: str) -> np.ndarray:
            parts = []
            for rows, valid in pieces:
                is_valid, values = valid.numpy() > 0, rows[kind][name].numpy()
                flat = values.reshape(-1, *values.shape[is_valid.ndim :])
                parts.append(flat[is_valid.ravel()])
            return np.concatenate(parts)

        return {name: joined(name) for name in self._row_kinds[kind]}

    def _build(self, sum_share: Any) -> Any:
        strategy = self._strategy
        replicas = strategy.num_replicas_in_sync
        size = len(self._zeros)

        def replica(*values: tf.Tensor) -> Any:
            # The first replica continues the sums so far, so that the order of the sums
            # does not depend on the pieces.
            context = tf.distribute.get_replica_context()
            number = context.replica_id_in_sync_group
            before = [
                tf.where(tf.equal(number, 0), v, tf.zeros_like(v))
                for v in values[:size]
            ]
            sums, rows = sum_share(*before, *values[size:])
            return sums, tf.nest.map_structure(
                lambda v: in_place(v, number, replicas), rows
            )

        def run(*values: Any) -> Any:
            return tf.nest.map_structure(
                lambda share: strategy.reduce(
                    tf.distribute.ReduceOp.SUM, share, axis=None
                ),
                strategy.run(replica, args=values),
            )

        return run

    def _sum_share(self, *values: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
        """Returns (sums, kept) after the batches of a replica.

        `sums` is the flat list of the sums so far plus those over the batches. `kept`
        is (rows, valid) of all examples, [batches, batch, ...], or () without rows.
        """
        before, batches = values[: len(self._zeros)], values[len(self._zeros) :]
        total = tf.shape(batches[0])[0]
        kept = tf.nest.map_structure(
            lambda kind: tf.TensorArray(kind.dtype, total), self._row_kinds
        )

        def body(i: tf.Tensor, sums: list[tf.Tensor], kept: Any) -> Any:
            inputs, labels, valid = (tensor[i] for tensor in batches)
            outputs = outputs_of(self._model, inputs)
            batch_sums = self._objective.sums(labels, outputs, valid)
            rows = batch_sums.pop("rows")
            kept = tf.nest.map_structure(lambda a, row: a.write(i, row), kept, rows)
            more = tf.nest.flatten(batch_sums)
            return i + 1, [a + b for a, b in zip(sums, more, strict=True)], kept

        _, sums, kept = tf.while_loop(
            lambda i, *_: i < total,
            body,
            (tf.constant(0), list(before), kept),
            parallel_iterations=1,
        )
        rows = tf.nest.map_structure(lambda array: array.stack(), kept)
        return sums, (rows, tf.cast(batches[-1], tf.int32)) if rows else ()


def _kinds(model: keras.Model, labels: np.ndarray, objective: Objective) -> Any:
    """Returns the sums of a batch as tensors of a graph, to read their types."""
    function = tf.function(objective.sums, autograph=False)
    return function.get_concrete_function(
        tf.TensorSpec([None, *labels.shape[1:]], labels.dtype),
        tf.TensorSpec(model.outputs[0].shape, tf.float32),
        tf.TensorSpec([None], tf.bool),
    ).structured_outputs


def in_place(rows: tf.Tensor, replica: tf.Tensor, replicas: int) -> tf.Tensor:
    """Returns [replicas, ...] with the rows of one replica, zero for all others."""
    if replicas == 1:
        return rows[None]
    is_own = tf.reshape(tf.range(replicas) == replica, [-1] + [1] * rows.shape.rank)
    return tf.where(is_own, rows[None], tf.zeros_like(rows)[None])
