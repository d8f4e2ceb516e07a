"""Evaluation that stops as soon as the goal is out of reach, and then reports a bound.

Examples that were wrong, or nearly wrong, in the trial's last evaluation are evaluated
first. If the goal may be within reach, the whole split is evaluated, so steps-to-result
equal those of exact evaluation.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import VALIDATION, Goal
from dps_tf.objectives import Objective
from dps_tf.training import evaluation
from dps_tf.training.device_data import DeviceData, PlacedData, padded_rows
from dps_tf.training.evaluation import Evaluation, ExactEvaluator, compiled, in_place
from dps_tf.training.streamed_data import StreamedData


class GoalEvaluator(abc.ABC):
    """Counts the examples or positions against the goal until the goal is out of reach.

    The subclasses read examples from different places, but the same examples in the
    same order. An evaluator must be made outside of the strategy's scope.

    Raises:
        UserError: such a count does not decide the metric of the goal.
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
        # All replicas use one variable, so it is outside of the strategy's scope.
        with tf.device("CPU:0"):
            self._rank = tf.Variable(tf.zeros([self._total], tf.int8), trainable=False)
        self._run = self._compiled(data, jit_compile)

    @property
    def variables(self) -> list[tf.Variable]:
        """The latest `_ranks` of the validation examples, int8 [examples]."""
        return [self._rank]

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
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns (count int64 [batch], ranks int8 [batch], loss sum float64 []).

        The count is that of an example's positions against the goal; it is zero for
        invalid examples.
        """
        outputs = evaluation.outputs_of(self._model, inputs)
        weights = self._objective.valid_weights(labels, valid)
        assert self._metric.counts_against is not None
        against = self._metric.counts_against(labels, outputs)
        loss = self._objective.weighted_loss(labels, outputs, weights)
        positions = list(range(1, labels.shape.rank))
        counts = tf.reduce_sum(
            tf.cast(tf.logical_and(against, weights > 0), tf.int64), positions
        )
        ranks = _ranks(counts > 0, tf.cast(tf.reduce_mean(loss, positions), tf.float32))
        return counts, ranks, tf.reduce_sum(loss)

    @abc.abstractmethod
    def _compiled(self, data: Any, jit_compile: bool) -> Any:
        """Returns the compiled graph that counts over batches of the placed `data`."""

    @abc.abstractmethod
    def _look(self) -> tuple[int, float]:
        """Returns (count against the goal, loss sum) of the evaluated batches.

        Evaluates batches of `_batch_size`, highest rank first, until the goal is out of
        reach, and stores the new ranks in `_rank`.
        """


def _ranks(is_against: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Returns ranks of examples for the next evaluation, int8 [batch]; high is first.

    `loss` is the mean over the positions of each example. Examples against the goal
    rank above the others; among each, a high loss ranks above a low one, in quarter
    octaves from 2^-12 to 2^4: coarse, so that rounding seldom moves an example. Zero,
    the rank of an example that was never evaluated, is also that of a loss of 1/16.
    """
    loss = tf.where(tf.math.is_nan(loss), tf.ones_like(loss), loss)
    octaves = tf.math.log(tf.clip_by_value(loss, 2.0**-12, 15.9)) / math.log(2.0)
    grade = tf.cast(tf.floor(4.0 * (octaves + 4.0)), tf.int8)
    return grade + 64 * tf.cast(is_against, tf.int8)


class ResidentGoalEvaluator(GoalEvaluator):
    """Evaluates examples that lie on the device, in one graph.

    Each replica does the same work, so replicas exchange no counts.
    """

    def _compiled(self, data: DeviceData, jit_compile: bool) -> Any:
        strategy, held = self._strategy, data.validation

        def build(count_up_to_goal: Any) -> Any:
            def run(rank: tf.Tensor) -> tuple[tf.Tensor, ...]:
                values = strategy.run(count_up_to_goal, args=(rank, *held))
                return tuple(strategy.experimental_local_results(v)[0] for v in values)

            return run

        signature = [tf.TensorSpec([self._total], tf.int8)]
        return compiled(strategy, self._count_up_to_goal, build, jit_compile, signature)

    def _look(self) -> tuple[int, float]:
        wrong, loss, rank = self._run(self._rank.numpy())
        self._rank.assign(rank)
        return int(wrong), float(loss)

    def _count_up_to_goal(
        self, rank: tf.Tensor, inputs: tf.Tensor, labels: tf.Tensor
    ) -> Any:
        """Returns (count against the goal, loss sum, new ranks); see `_look`."""
        total = self._total
        size = self._batch_size
        batches = -(-total // size)
        order = tf.argsort(rank, direction="DESCENDING", stable=True)
        # Padding is an index after the last example; its rank is dropped at the end.
        missing = [[0, batches * size - total]]
        order = tf.pad(order, missing, constant_values=total)
        order = tf.reshape(order, [batches, size])
        noted = tf.pad(rank, [[0, 1]])

        def body(i: tf.Tensor, wrong: tf.Tensor, sum_: tf.Tensor, noted: tf.Tensor):
            rows = order[i]
            places = tf.minimum(rows, total - 1)
            counts, ranks, more = self._against(
                tf.gather(inputs, places), tf.gather(labels, places), rows < total
            )
            noted = tf.tensor_scatter_nd_update(noted, rows[:, None], ranks)
            return i + 1, wrong + tf.reduce_sum(counts), sum_ + more, noted

        zero = (tf.constant(0, tf.int64), tf.constant(0.0, tf.float64))
        _, wrong, loss, noted = tf.while_loop(
            lambda i, wrong, *_: tf.logical_and(i < batches, wrong <= self._allowed),
            body,
            (tf.constant(0), *zero, noted),
            parallel_iterations=1,
        )
        return wrong, loss, noted[:total]


class StreamedGoalEvaluator(GoalEvaluator):
    """Evaluates batches one after another as they arrive from the host.

    The host orders the examples, because it reads their ranks anyway. Replicas share
    each batch.
    """

    def _compiled(self, data: StreamedData, jit_compile: bool) -> Any:
        self._stream = data.shared_validation(self._batch_size)
        strategy = self._strategy
        replicas = strategy.num_replicas_in_sync

        def build(count_share: Any) -> Any:
            def replica(*values: tf.Tensor) -> tuple[tf.Tensor, ...]:
                counts, ranks, loss = count_share(*values)
                context = tf.distribute.get_replica_context()
                number = context.replica_id_in_sync_group
                # int64 like the counts: collectives support no narrower integers.
                ranks = in_place(tf.cast(ranks, tf.int64), number, replicas)
                return tf.reduce_sum(counts), ranks, loss

            def run(*piece: Any) -> tuple[tf.Tensor, ...]:
                wrong, ranks, loss = (
                    strategy.reduce(tf.distribute.ReduceOp.SUM, share, axis=None)
                    for share in strategy.run(replica, args=piece)
                )
                return wrong, tf.reshape(ranks, [-1]), loss

            return run

        signature = self._stream.signature
        return compiled(strategy, self._count_share, build, jit_compile, signature)

    def _look(self) -> tuple[int, float]:
        rank = np.array(self._rank.numpy())
        rows = self._rows(rank)
        wrong, loss = 0, 0.0
        for asked, (_, values) in zip(rows, self._stream.pieces(rows), strict=True):
            if wrong > self._allowed:
                break
            against, ranks, more = self._run(*values)
            is_valid = asked >= 0
            rank[asked[is_valid]] = ranks.numpy()[is_valid]
            wrong, loss = wrong + int(against), loss + float(more)
        self._rank.assign(rank)
        return wrong, loss

    def _rows(self, rank: np.ndarray) -> np.ndarray:
        """Returns the order of evaluation, int32 [batches, batch]; -1 is padding."""
        order = np.argsort(-rank, kind="stable")
        rows = padded_rows(order, self._batch_size)
        missing = -self._batch_size % self._strategy.num_replicas_in_sync
        return np.pad(rows, [(0, 0), (0, missing)], constant_values=-1)

    def _count_share(
        self, inputs: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `_against` of a replica's share of a batch."""
        return self._against(inputs[0], labels[0], valid[0])
