"""Evaluation that stops as soon as the goal is out of reach, and then reports a bound.

Examples that were wrong, or nearly wrong, in the trial's last evaluation are evaluated
first. If the goal may be within reach, the whole split is evaluated. So steps-to-result
are the same as with exact evaluation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core import VALIDATION, Goal
from dps_tf.training import evaluation
from dps_tf.training.device_data import padded_rows
from dps_tf.training.evaluation import Evaluated, Evaluation, ExactEvaluator
from dps_tf.training.lanes import chosen


class GoalEvaluator:
    """Counts the examples or positions against the goal until the goal is out of reach.

    The subclasses read examples from different places, but the same examples in the
    same order. A trial remembers the latest `_ranks` of the validation examples, int8
    [examples].

    Raises:
        UserError: such a count does not decide the metric of the goal.
    """

    def __init__(self, evaluated: Evaluated, goal: Goal):
        self._of = evaluated
        self._data: Any = evaluated.data
        self._metric = evaluated.objective.bounded_metric(goal)
        self._exact = ExactEvaluator(evaluated)
        labels = evaluated.data.split(VALIDATION).labels
        self._total = len(labels)
        self._positions = evaluated.objective.positions(labels)
        allowed = self._metric.most_against(goal, self._positions)
        self._allowed = -1 if allowed is None else allowed
        self._batch_size = evaluation.GOAL_BATCH_SIZE

    def fresh(self) -> list[np.ndarray]:
        """Returns the ranks before the first evaluation, zero."""
        return [np.zeros([self._total], np.int8)]

    def _bounds(self, against: int, loss: float) -> Evaluation:
        """Returns bounds on the metrics that miss the goal."""
        bounds = self._of.objective.bounds(
            VALIDATION, self._metric, against, self._positions
        )
        return Evaluation(bounds, loss, is_bound=True)

    def _against(
        self,
        weights: Sequence[tf.Tensor],
        inputs: tf.Tensor,
        labels: tf.Tensor,
        valid: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns (count int64 [batch], ranks int8 [batch], loss sum float64 []).

        The count of an example is the number of its positions against the goal, zero if
        the example is not valid.
        """
        objective, outputs = self._of.objective, self._of.outputs(weights, inputs)
        weight = objective.valid_weights(labels, valid)
        assert self._metric.counts_against is not None
        against = self._metric.counts_against(labels, outputs)
        loss = objective.weighted_loss(labels, outputs, weight)
        positions = list(range(1, labels.shape.rank))
        counts = tf.reduce_sum(
            tf.cast(tf.logical_and(against, weight > 0), tf.int64), positions
        )
        ranks = _ranks(counts > 0, tf.cast(tf.reduce_mean(loss, positions), tf.float32))
        return counts, ranks, tf.reduce_sum(loss)


def _ranks(is_against: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    """Returns ranks of examples for the next evaluation, int8 [batch]; high is first.

    `loss` is the mean over the positions of each example. Examples against the goal
    rank above the others. In both parts, a high loss ranks above a low one, in quarter
    octaves from 2^-12 to 2^4: coarse, so that rounding seldom moves an example. Zero is
    the rank of an example that was never evaluated, and of a loss of 1/16.
    """
    loss = tf.where(tf.math.is_nan(loss), tf.ones_like(loss), loss)
    octaves = tf.math.log(tf.clip_by_value(loss, 2.0**-12, 15.9)) / math.log(2.0)
    grade = tf.cast(tf.floor(4.0 * (octaves + 4.0)), tf.int8)
    return grade + 64 * tf.cast(is_against, tf.int8)


class ResidentGoalEvaluator(GoalEvaluator):
    """Evaluates examples that lie on the device, in one graph.

    Each replica does the same work, so replicas exchange no counts.
    """

    def __init__(self, evaluated: Evaluated, goal: Goal):
        super().__init__(evaluated, goal)
        self._held = self._data.validation

    def graph(
        self, weights: Sequence[tf.Tensor], memory: list[tf.Tensor], wanted: tf.Tensor
    ) -> tuple[Any, list[tf.Tensor]]:
        """Returns (what `results` reads, memory) in a graph.

        Nothing is computed unless `wanted`, bool [] or [lanes].
        """
        replicas, held = self._of.replicas, self._held
        count = replicas.part(self._count_up_to_goal)
        own = replicas.spread((list(weights), memory[0], wanted))
        counts = replicas.run(lambda own, *held: count(*own, *held), own, *held)
        against, loss, rank = counts[0]
        is_open = tf.logical_and(wanted, against <= self._allowed)
        exact, _ = self._exact.graph(weights, [], is_open)
        return (against, loss, exact), [rank]

    def results(self, values: Any, lanes: Sequence[int]) -> dict[int, Evaluation]:
        """Returns exact metrics where the goal may be met, else bounds that miss it."""
        against, loss = (np.ravel(value) for value in values[:2])
        is_out = {lane: int(against[lane]) > self._allowed for lane in lanes}
        found = self._exact.results(values[2], [i for i in lanes if not is_out[i]])
        return {
            lane: self._bounds(int(against[lane]), float(loss[lane]))
            if is_out[lane]
            else found[lane]
            for lane in lanes
        }

    def _count_up_to_goal(
        self,
        weights: Sequence[tf.Tensor],
        rank: tf.Tensor,
        wanted: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
    ) -> Any:
        """Returns (count against the goal, loss sum, new ranks).

        Evaluates batches of `_batch_size`, highest rank first, until the goal is out of
        reach; what is returned of a lane is as it was then.
        """
        total = self._total
        size = self._batch_size
        batches = -(-total // size)
        sides = self._of.sides
        order = tf.argsort(rank, direction="DESCENDING", stable=True)
        # Padding is an index after the last example; its rank is dropped at the end.
        missing = [*[[0, 0]] * len(sides), [0, batches * size - total]]
        order = tf.pad(order, missing, constant_values=total)
        order = tf.reshape(order, [*sides, batches, size])
        noted = tf.pad(rank, [*[[0, 0]] * len(sides), [0, 1]])

        def of_batch(rows: tf.Tensor, noted: tf.Tensor, *weights: tf.Tensor) -> Any:
            places = tf.minimum(rows, total - 1)
            counts, ranks, more = self._against(
                weights,
                tf.gather(inputs, places),
                tf.gather(labels, places),
                rows < total,
            )
            noted = tf.tensor_scatter_nd_update(noted, rows[:, None], ranks)
            return tf.reduce_sum(counts), more, noted

        def is_open(wrong: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(wanted, wrong <= self._allowed)

        def body(i: tf.Tensor, *before: tf.Tensor) -> Any:
            wrong, loss, noted = before
            rows = order[:, i] if sides else order[i]
            counts, more, noted = self._of.each(of_batch, rows, noted, *weights)
            after = wrong + counts, loss + more, noted
            if sides:
                after = chosen(is_open(wrong), after, before)
            return i + 1, *after

        zero = (tf.zeros(sides, tf.int64), tf.zeros(sides, tf.float64))
        _, wrong, loss, noted = tf.while_loop(
            lambda i, wrong, *_: (i < batches) & tf.reduce_any(is_open(wrong)),
            body,
            (tf.constant(0), *zero, noted),
            parallel_iterations=1,
        )
        return wrong, loss, noted[..., :total]


class StreamedGoalEvaluator(GoalEvaluator):
    """Evaluates batches one after another as they arrive from the host.

    The host orders the examples, because it reads their ranks anyway. Replicas share
    each batch.
    """

    def __init__(self, evaluated: Evaluated, goal: Goal):
        super().__init__(evaluated, goal)
        self._stream = self._data.shared_validation(self._batch_size)
        self._run = evaluated.replicas.compiled(
            self._count, [evaluated.types, *self._stream.signature]
        )

    def __call__(
        self, weights: Sequence[Any], memory: Sequence[Any]
    ) -> tuple[Evaluation, Sequence[Any]]:
        """Returns (exact metrics if the goal may be met, else bounds; memory)."""
        rank = np.array(memory[0])
        rows = self._rows(rank)
        wrong, loss, weights = 0, 0.0, list(weights)
        for asked, (_, values) in zip(rows, self._stream.pieces(rows), strict=True):
            if wrong > self._allowed:
                break
            against, ranks, more = self._run(weights, *values)
            is_valid = asked >= 0
            rank[asked[is_valid]] = ranks.numpy()[is_valid]
            wrong, loss = wrong + int(against), loss + float(more)
        if wrong > self._allowed:
            return self._bounds(wrong, loss), [rank]
        return self._exact(weights, [])[0], [rank]

    def _count(self, weights: Sequence[tf.Tensor], *piece: Any) -> Any:
        """Returns (count against the goal, ranks, loss sum) of a batch."""
        replicas = self._of.replicas
        share = replicas.part(self._count_share)
        counts = replicas.run(share, replicas.spread(list(weights)), *piece)
        against, ranks, losses = zip(*counts, strict=True)
        total = functools.reduce(tf.add, losses)
        return tf.add_n(against), tf.concat(ranks, 0), total

    def _rows(self, rank: np.ndarray) -> np.ndarray:
        """Returns the order of evaluation, int32 [batches, batch]; -1 is padding."""
        order = np.argsort(-rank, kind="stable")
        rows = padded_rows(order, self._batch_size)
        missing = -self._batch_size % self._of.replicas.count
        return np.pad(rows, [(0, 0), (0, missing)], constant_values=-1)

    def _count_share(
        self,
        weights: Sequence[tf.Tensor],
        inputs: tf.Tensor,
        labels: tf.Tensor,
        valid: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns (count, ranks, loss sum) of a replica's share of a batch."""
        counts, ranks, loss = self._against(weights, inputs[0], labels[0], valid[0])
        return tf.reduce_sum(counts), ranks, loss


def evaluator_for(
    evaluated: Evaluated, goal: Goal | None
) -> ExactEvaluator | GoalEvaluator:
    """Returns what evaluates the validation split: exactly, or as far as a goal asks.

    A split of one batch is counted whole in any case, so it is evaluated exactly.
    """
    examples = len(evaluated.data.split(VALIDATION).labels)
    if goal is None or examples <= evaluation.GOAL_BATCH_SIZE:
        return ExactEvaluator(evaluated)
    if evaluated.data.placement == "stream":
        return StreamedGoalEvaluator(evaluated, goal)
    return ResidentGoalEvaluator(evaluated, goal)
