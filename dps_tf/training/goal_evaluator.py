"""Evaluation that stops as soon as the goal is out of reach; it then reports a bound.

It looks first at what the trial got wrong the last time. Where the goal may be within
reach it evaluates exactly, so steps-to-result are those of exact evaluation.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core.goal import Goal
from dps_tf.core.study import VALIDATION
from dps_tf.objectives import Objective
from dps_tf.training import evaluation
from dps_tf.training.device_data import DeviceData, PlacedData, padded_rows
from dps_tf.training.evaluation import Evaluation, ExactEvaluator, compiled, in_place
from dps_tf.training.streamed_data import StreamedData


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
        self._strategy = data.strategy
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
        self._run = self._compiled(data, jit_compile)

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

    def _against(
        self, inputs: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (against the goal per example int64 [batch], loss sum float64 []).

        Positions of sequences are summed over; invalid examples count nothing.
        """
        outputs = evaluation.outputs_of(self._model, inputs)
        weights = self._objective.valid_weights(labels, valid)
        assert self._metric.counts_against is not None
        against = self._metric.counts_against(labels, outputs)
        each = tf.reduce_sum(
            tf.cast(tf.logical_and(against, weights > 0), tf.int64),
            axis=list(range(1, labels.shape.rank)),
        )
        return each, self._objective.loss_sum(labels, outputs, weights)

    @abc.abstractmethod
    def _compiled(self, data: Any, jit_compile: bool) -> Any:
        """Returns the graph that looks at examples, compiled for where they lie."""

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

    def _compiled(self, data: DeviceData, jit_compile: bool) -> Any:
        strategy, held = self._strategy, data.validation

        def build(count_up_to_goal: Any) -> Any:
            def run(last_wrong: tf.Tensor) -> tuple[tf.Tensor, ...]:
                found = strategy.run(count_up_to_goal, args=(last_wrong, *held))
                return tuple(strategy.experimental_local_results(v)[0] for v in found)

            return run

        signature = [tf.TensorSpec([self._total], tf.int8)]
        return compiled(strategy, self._count_up_to_goal, build, jit_compile, signature)

    def _look(self) -> tuple[int, float]:
        wrong, loss, seen = self._run(self._last_wrong.numpy())
        self._last_wrong.assign(seen)
        return int(wrong), float(loss)

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


class StreamedGoalEvaluator(GoalEvaluator):
    """Looks at one batch after the other as they arrive from the host.

    The order is known to the host alone, which has to see what was wrong anyway.
    Replicas share each batch.
    """

    def _compiled(self, data: StreamedData, jit_compile: bool) -> Any:
        self._stream = data.shared_validation(self._batch_size)
        strategy = self._strategy
        replicas = strategy.num_replicas_in_sync

        def build(count_share: Any) -> Any:
            def replica(*values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                each, loss = count_share(*values)
                context = tf.distribute.get_replica_context()
                number = context.replica_id_in_sync_group
                return in_place(each, number, replicas), loss

            def run(*piece: Any) -> tuple[tf.Tensor, tf.Tensor]:
                each, loss = (
                    strategy.reduce(tf.distribute.ReduceOp.SUM, share, axis=None)
                    for share in strategy.run(replica, args=piece)
                )
                return tf.reshape(each, [-1]), loss

            return run

        signature = self._stream.signature
        return compiled(strategy, self._count_share, build, jit_compile, signature)

    def _look(self) -> tuple[int, float]:
        seen = np.array(self._last_wrong.numpy())
        rows = self._rows(seen)
        wrong, loss = 0, 0.0
        for asked, (_, values) in zip(rows, self._stream.pieces(rows), strict=True):
            if wrong > self._allowed:
                break
            each, more = self._run(*values)
            there = asked >= 0
            seen[asked[there]] = each.numpy()[there] > 0
            wrong, loss = wrong + int(tf.reduce_sum(each)), loss + float(more)
        self._last_wrong.assign(seen)
        return wrong, loss

    def _rows(self, seen: np.ndarray) -> np.ndarray:
        """Returns the order to look in, int32 [batches, batch]; -1 is padding."""
        order = np.argsort(-seen, kind="stable")
        rows = padded_rows(order, self._batch_size)
        missing = -self._batch_size % self._strategy.num_replicas_in_sync
        return np.pad(rows, [(0, 0), (0, missing)], constant_values=-1)

    def _count_share(
        self, inputs: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (against the goal per example, loss sum) of a replica's share."""
        return self._against(inputs[0], labels[0], valid[0])
