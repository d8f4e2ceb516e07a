"""Evaluation that stops at the goal, on a validation split that is streamed."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core.goal import Goal
from dps_tf.core.study import VALIDATION
from dps_tf.objectives import Objective
from dps_tf.training.evaluator import GoalEvaluator, compiled
from dps_tf.training.streamed_data import StreamedData, padded_rows


class StreamedGoalEvaluator(GoalEvaluator):
    """Looks at one batch after the other as they arrive from the host.

    The order is known to the host alone, which has to see what was wrong anyway.
    Replicas share each batch.
    """

    def __init__(
        self,
        model: keras.Model,
        data: StreamedData,
        objective: Objective,
        goal: Goal,
        jit_compile: bool = False,
    ):
        super().__init__(model, data, objective, goal, jit_compile)
        self._strategy = data.strategy
        self._stream = data.split(VALIDATION).shared(self._batch_size)
        self._run = compiled(
            data.strategy,
            self._count_share,
            self._build,
            jit_compile,
            self._stream.signature,
        )

    def _look(self) -> tuple[int, float]:
        seen = np.array(self._last_wrong.numpy())
        rows = self._rows(seen)
        wrong, loss = 0, 0.0
        for asked, (_, values) in zip(rows, self._stream(rows), strict=True):
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

    def _build(self, count_share: Any) -> Any:
        strategy = self._strategy
        replicas = strategy.num_replicas_in_sync

        def replica(*values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            each, loss = count_share(*values)
            context = tf.distribute.get_replica_context()
            mine = tf.one_hot(
                context.replica_id_in_sync_group, replicas, dtype=each.dtype
            )
            return mine[:, None] * each, loss

        def run(*piece: Any) -> tuple[tf.Tensor, tf.Tensor]:
            each, loss = (
                strategy.reduce(tf.distribute.ReduceOp.SUM, share, axis=None)
                for share in strategy.run(replica, args=piece)
            )
            return tf.reshape(each, [-1]), loss

        return run

    def _count_share(
        self, inputs: tf.Tensor, labels: tf.Tensor, valid: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (against the goal per example, loss sum) of a replica's share."""
        return self._against(inputs[0], labels[0], valid[0])
