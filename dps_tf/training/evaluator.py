"""Evaluation of a program's network on a split, compiled.

`ExactEvaluator` looks at every example. A `GoalEvaluator` stops as soon as the goal is
out of reach, looking first at what the trial got wrong the last time: it then reports
a bound. Whenever the goal may be within reach it evaluates exactly, so steps-to-result
are the same either way.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core.goal import Goal
from dps_tf.core.study import VALIDATION
from dps_tf.objectives import Objective
from dps_tf.training import evaluation
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import DeviceData
from dps_tf.training.evaluation import Evaluation, batch_against, batch_sums
from dps_tf.training.placed_data import PlacedData


def compiled(
    strategy: tf.distribute.Strategy,
    replica: Callable[..., Any],
    build: Callable[[Any], Any],
    jit_compile: bool,
    signature: Sequence[Any] = (),
) -> Any:
    """Returns `build(replica)` as one graph, by XLA if asked for.

    XLA compiles for one device at a time: what several replicas do together is a graph
    of TensorFlow around what XLA makes of each one's share.
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
    """Metrics over a whole split, shared out over the replicas."""

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
        # Flat, as TensorFlow takes its time over nested arguments.
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
        """What a trial has to carry from one evaluation to the next: nothing."""
        return []

    def __call__(self) -> Evaluation:
        """Returns the exact metrics for the weights that are loaded."""
        sums, rows = self._zeros, []
        for piece in self._split.pieces():
            sums, found = self._run(*sums, *piece)
            rows.append(found)
        flat = [value.numpy() for value in sums]
        merged = tf.nest.pack_sequence_as(self._kinds, flat)
        merged["rows"] = [self._joined(rows, i) for i in range(len(self._row_kinds))]
        metrics = self._objective.values(self._name, merged)
        return Evaluation(metrics, float(merged["loss"]))

    def _joined(self, pieces: Sequence[Any], kind: int) -> dict[str, np.ndarray]:
        """Returns the rows of all examples: those of the pieces without padding."""

        def joined(name: str) -> np.ndarray:
            parts = []
            for rows, valid in pieces:
                there, each = valid.numpy() > 0, rows[kind][name].numpy()
                parts.append(each.reshape(-1, *each.shape[there.ndim :])[there.ravel()])
            return np.concatenate(parts)

        return {name: joined(name) for name in self._row_kinds[kind]}

    def _build(self, sum_share: Any) -> Any:
        strategy = self._strategy
        replicas = strategy.num_replicas_in_sync
        size = len(self._zeros)

        def replica(*values: tf.Tensor) -> Any:
            # The first replica goes on from the sums so far, so that they run in one
            # order whatever the pieces.
            context = tf.distribute.get_replica_context()
            number = context.replica_id_in_sync_group
            before = [
                tf.where(tf.equal(number, 0), v, tf.zeros_like(v))
                for v in values[:size]
            ]
            sums, rows = sum_share(*before, *values[size:])
            return sums, tf.nest.map_structure(
                lambda v: _in_place(v, number, replicas), rows
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
        """Returns the sums so far plus those over the batches of a replica, flat.

        And (rows, valid) of all its examples, [batches, batch, ...], if any are kept.
        """
        before, batches = values[: len(self._zeros)], values[len(self._zeros) :]
        total = tf.shape(batches[0])[0]
        kept = tf.nest.map_structure(
            lambda kind: tf.TensorArray(kind.dtype, total), self._row_kinds
        )

        def body(i: tf.Tensor, sums: list[tf.Tensor], kept: Any) -> Any:
            found = batch_sums(
                self._model, self._objective, *(tensor[i] for tensor in batches)
            )
            rows = found.pop("rows")
            kept = tf.nest.map_structure(lambda a, row: a.write(i, row), kept, rows)
            more = tf.nest.flatten(found)
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
    """Returns the sums of a batch as tensors of a graph, for their types alone."""
    function = tf.function(objective.sums, autograph=False)
    return function.get_concrete_function(
        tf.TensorSpec([None, *labels.shape[1:]], labels.dtype),
        tf.TensorSpec(model.outputs[0].shape, tf.float32),
        tf.TensorSpec([None], tf.bool),
    ).structured_outputs


def _in_place(rows: tf.Tensor, replica: tf.Tensor, replicas: int) -> tf.Tensor:
    """Returns [replicas, ...]: rows of one replica, and zeros for those of others."""
    if replicas == 1:
        return rows[None]
    mine = tf.reshape(tf.range(replicas) == replica, [-1] + [1] * rows.shape.rank)
    return tf.where(mine, rows[None], tf.zeros_like(rows)[None])


class GoalEvaluator(abc.ABC):
    """Counts what is against the goal until that is too much.

    A goal whose metric is not decided by such a count is refused. How examples are
    looked at depends on where they lie; which ones does not. To be made outside of the
    strategy's scope.
    """

    def __init__(
        self,
        model: keras.Model,
        data: PlacedData,
        objective: Objective,
        goal: Goal,
        jit_compile: bool = False,
    ):
        self._metric = objective.bounded_metric(goal)
        self._exact = ExactEvaluator(model, data, objective, jit_compile)
        self._model = model
        self._objective = objective
        labels = data.split(VALIDATION).labels
        self._total = len(labels)
        self._positions = objective.positions(labels)
        allowed = self._metric.most_against(goal, self._positions)
        self._allowed = -1 if allowed is None else allowed
        self._batch_size = min(evaluation.GOAL_BATCH_SIZE, self._total)
        # One for all replicas. In the scope of a strategy of several processes there
        # could be none of this type, because TensorFlow cannot broadcast it.
        with tf.device("CPU:0"):
            self._last_wrong = tf.Variable(
                tf.zeros([self._total], tf.int8), trainable=False
            )

    @property
    def variables(self) -> list[tf.Variable]:
        """int8 [validation examples]: what the trial got wrong when last looked at."""
        return [self._last_wrong]

    def __call__(self) -> Evaluation:
        """Returns exact metrics if the goal may be met, else bounds that miss it."""
        against, loss = self._look()
        if against > self._allowed:
            bounds = self._objective.bounds(
                VALIDATION, self._metric, against, self._positions
            )
            return Evaluation(bounds, loss, is_bound=True)
        return self._exact()

    def _against(self, *batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (against the goal per example, loss sum) of inputs, labels, valid."""
        return batch_against(self._model, self._objective, self._metric, *batch)

    @abc.abstractmethod
    def _look(self) -> tuple[int, float]:
        """Returns (against the goal, loss sum) up to where the goal is out of reach.

        Looks at batches of `_batch_size`, what was wrong the last time first, and
        notes in `_last_wrong` what is wrong now.
        """


class ResidentGoalEvaluator(GoalEvaluator):
    """Looks at examples that lie on the device, in one graph.

    Each replica does the same work, so that no count has to be exchanged.
    """

    def __init__(
        self,
        model: keras.Model,
        data: DeviceData,
        objective: Objective,
        goal: Goal,
        jit_compile: bool = False,
    ):
        super().__init__(model, data, objective, goal, jit_compile)
        self._strategy = data.strategy
        self._held = data.split(VALIDATION).whole
        self._run = compiled(
            data.strategy,
            self._count_up_to_goal,
            self._build,
            jit_compile,
            [tf.TensorSpec([self._total], tf.int8)],
        )

    def _look(self) -> tuple[int, float]:
        wrong, loss, seen = self._run(self._last_wrong.numpy())
        self._last_wrong.assign(seen)
        return int(wrong), float(loss)

    def _build(self, count_up_to_goal: Any) -> Any:
        strategy = self._strategy

        def run(last_wrong: tf.Tensor) -> tuple[tf.Tensor, ...]:
            found = strategy.run(count_up_to_goal, args=(last_wrong, *self._held))
            return tuple(strategy.experimental_local_results(v)[0] for v in found)

        return run

    def _count_up_to_goal(
        self, last_wrong: tf.Tensor, inputs: tf.Tensor, labels: tf.Tensor
    ) -> Any:
        """Returns (against the goal, loss sum) of what was looked at, and the news."""
        total = self._total
        size = self._batch_size
        batches = -(-total // size)
        order = tf.argsort(last_wrong, direction="DESCENDING", stable=True)
        # Padding stands for an example behind the last, of which nothing is kept.
        missing = [[0, batches * size - total]]
        order = tf.pad(order, missing, constant_values=total)
        order = tf.reshape(order, [batches, size])
        seen = tf.pad(last_wrong, [[0, 1]])

        def body(i: tf.Tensor, wrong: tf.Tensor, sum_: tf.Tensor, seen: tf.Tensor):
            rows = order[i]
            there = tf.minimum(rows, total - 1)
            each, more = self._against(
                tf.gather(inputs, there), tf.gather(labels, there), rows < total
            )
            now = tf.cast(each > 0, tf.int8)
            seen = tf.tensor_scatter_nd_update(seen, rows[:, None], now)
            return i + 1, wrong + tf.reduce_sum(each), sum_ + more, seen

        zero = (tf.constant(0, tf.int64), tf.constant(0.0, tf.float64))
        _, wrong, loss, seen = tf.while_loop(
            lambda i, wrong, *_: tf.logical_and(i < batches, wrong <= self._allowed),
            body,
            (tf.constant(0), *zero, seen),
            parallel_iterations=1,
        )
        return wrong, loss, seen[:total]
