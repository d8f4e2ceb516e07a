"""Evaluation of a program's network on the validation split, compiled.

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
from dps_tf.core.errors import UserError
from dps_tf.core.goal import Goal
from dps_tf.training import evaluation
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import DeviceData
from dps_tf.training.evaluation import Evaluation, batch_counts
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
    """Counts over the whole validation split, shared out over the replicas."""

    def __init__(self, model: keras.Model, data: PlacedData, jit_compile: bool = False):
        self._data = data
        self._model = model
        self._count = data.validation_count * data.labels_per_example
        self._run = compiled(
            data.strategy,
            self._count_share,
            self._build,
            jit_compile,
            [
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([], tf.float64),
                *data.validation_signature,
            ],
        )

    @property
    def variables(self) -> list[tf.Variable]:
        """What a trial has to carry from one evaluation to the next: nothing."""
        return []

    def __call__(self) -> Evaluation:
        """Returns the exact counts for the weights that are loaded."""
        wrong, loss = np.int64(0), np.float64(0.0)
        for piece in self._data.validation_pieces():
            wrong, loss = self._run(wrong, loss, *piece)
        return Evaluation(int(wrong), self._count, float(loss))

    def _build(self, count_share: Any) -> Any:
        strategy = self._data.strategy

        def replica(wrong: tf.Tensor, loss: tf.Tensor, *batches: tf.Tensor) -> Any:
            # The first replica goes on from the sums so far, so that they run in one
            # order whatever the pieces.
            context = tf.distribute.get_replica_context()
            is_first = tf.equal(context.replica_id_in_sync_group, 0)
            return count_share(
                tf.where(is_first, wrong, tf.zeros_like(wrong)),
                tf.where(is_first, loss, tf.zeros_like(loss)),
                *batches,
            )

        def run(wrong: tf.Tensor, loss: tf.Tensor, *piece: Any) -> Any:
            sums = strategy.run(replica, args=(wrong, loss, *piece))
            return tuple(
                strategy.reduce(tf.distribute.ReduceOp.SUM, share, axis=None)
                for share in sums
            )

        return run

    def _count_share(
        self, wrong: tf.Tensor, loss: tf.Tensor, *batches: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the sums so far plus those over the batches of a replica."""
        total = tf.shape(batches[0])[0]

        def body(i: tf.Tensor, wrong: tf.Tensor, loss: tf.Tensor) -> Any:
            more_wrong, more_loss = batch_counts(
                self._model, *(tensor[i] for tensor in batches)
            )
            return i + 1, wrong + tf.reduce_sum(more_wrong), loss + more_loss

        _, wrong, loss = tf.while_loop(
            lambda i, wrong, loss: i < total,
            body,
            (tf.constant(0), wrong, loss),
            parallel_iterations=1,
        )
        return wrong, loss


class GoalEvaluator(abc.ABC):
    """Counts wrong answers until there are too many for the goal.

    A metric has to be decided by a wrong count, so goals on cross-entropy are refused.
    How examples are looked at depends on where they lie; which ones does not. To be
    made outside of the strategy's scope.
    """

    def __init__(
        self,
        model: keras.Model,
        data: PlacedData,
        goal: Goal,
        jit_compile: bool = False,
    ):
        self._exact = ExactEvaluator(model, data, jit_compile)
        self._model = model
        self._total = data.validation_count
        self._count = data.validation_count * data.labels_per_example
        try:
            allowed = evaluation.most_wrong_allowed(goal, self._count)
        except ValueError as error:
            raise UserError(
                f"evaluation = 'goal' cannot decide a goal on {goal.metric}: use "
                "evaluation = 'exact'."
            ) from error
        self._allowed = -1 if allowed is None else allowed
        self._batch_size = min(evaluation.GOAL_BATCH_SIZE, data.validation_count)
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
        """Returns exact counts if the goal may be met, else a bound above it."""
        wrong, loss = self._look()
        if wrong > self._allowed:
            return Evaluation(wrong, self._count, loss, is_bound=True)
        return self._exact()

    @abc.abstractmethod
    def _look(self) -> tuple[int, float]:
        """Returns (wrong, cross-entropy sum) up to where the goal is out of reach.

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
        goal: Goal,
        jit_compile: bool = False,
    ):
        super().__init__(model, data, goal, jit_compile)
        self._strategy = data.strategy
        self._held = data.validation
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
        """Returns (wrong, cross-entropy sum) of what was looked at, and the news."""
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
            each, more = batch_counts(
                self._model,
                tf.gather(inputs, there),
                tf.gather(labels, there),
                rows < total,
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
