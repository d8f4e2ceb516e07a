"""Local SGD: workers train weights of their own, which are averaged now and then.

Each of W workers begins a round of H steps at the same weights and makes H updates with
gradients of its own examples; then the weights become the average of all workers' (Lin
et al. 2020, 'Don't use large mini-batches, use local SGD', algorithm 1; Stich 2019). A
step is one update of every worker: of a global batch of B examples, worker w takes the
w-th B / W, so that a step costs as many examples as one of synchronous SGD, which H = 1
is. Slots (momentum, moments, averages, gradients that wait) are not averaged: each
worker keeps its own over all rounds, the 'local momentum' of Lin et al.; metaparameters
and rates are those of the step, gradients are clipped by each worker.

Evaluations, states and exports see the average of the workers' weights, also within a
round. One device trains the workers in turn. Of several replicas each trains as many,
and they communicate at the ends of rounds and slices only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.optim import TensorOptimizer


def check_shares(batch_size: int, workers: int, replicas: int = 1) -> None:
    """Raises UserError unless workers share a batch, and replicas the workers."""
    if batch_size % workers:
        raise UserError(
            f"batch size {batch_size} cannot be split over {workers} workers of local "
            "SGD: use a multiple of it, or fewer workers (workload.fixed.workers)."
        )
    if workers % replicas:
        raise UserError(
            f"{workers} workers of local SGD cannot be split over {replicas} replicas: "
            "use a multiple of it, fewer devices, or the strategy one_device."
        )


class LocalWorkers:
    """The weights and slots of all workers, and the network that each is trained in.

    All methods are parts of a graph; but for `starts` they are run in a replica. Every
    replica has rows for all workers and knows its own; after `show`, it knows all.

    Attributes:
        count: W.
        turns: workers of a replica.
        variables: of each trainable variable and each slot, in this order, the workers'
            own, [W, ...]; zero before the first step.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: TensorOptimizer,
        strategy: tf.distribute.Strategy,
    ):
        """Makes variables, in the strategy's scope; UserError for untrained state."""
        if model.non_trainable_variables:
            name = model.non_trainable_variables[0].name
            raise UserError(
                f"network {model.name!r} has {name}, which is not trained, and workers "
                "of local SGD average what is trained: use a network without batch "
                "normalization, or leave workload.fixed.workers out."
            )
        self.count = optimizer.workers
        self.turns = self.count // strategy.num_replicas_in_sync
        self._strategy = strategy
        self._iterations = optimizer.iterations
        self._local_steps = optimizer.metaparameters["local_steps"]
        self._trained = list(model.trainable_variables)
        self._shown = [*self._trained, *optimizer.slots]
        self.variables = [
            tf.Variable(
                tf.zeros([self.count, *shown.shape], shown.dtype),
                trainable=False,
                # Each replica has values of its own until they are gathered.
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            )
            for shown in self._shown
        ]

    def starts(self) -> tf.Tensor:
        """Returns bool []: whether the next step is the first of a round."""
        length = tf.cast(tf.convert_to_tensor(self._local_steps), tf.int64)
        return tf.equal(self._iterations.read_value() % length, 0)

    def begin(self) -> None:
        """Gives each worker the weights of the network, their average so far."""
        for own, weights in zip(self.variables, self._trained, strict=False):
            own.assign(tf.broadcast_to(weights, own.shape))

    def enter(self, turn: tf.Tensor) -> tf.Tensor:
        """Makes network and optimizer those of a worker; returns its number, int32 [].

        `turn`: int32 [], which of the replica's workers.
        """
        worker = self._first() + turn
        rows = [_row(own, worker) for own in self.variables]
        # What follows is the same step for each of the workers.
        again = tf.cast(turn > 0, tf.int64)
        self._assign([*self._shown, self._iterations], [*rows, again])
        return worker

    def leave(self, worker: tf.Tensor) -> None:
        """Keeps what network and optimizer have become for a worker."""
        for own, shown in zip(self.variables, self._shown, strict=True):
            tf.raw_ops.ResourceScatterUpdate(
                resource=own.handle, indices=worker, updates=shown.read_value()
            )

    def average(self) -> None:
        """Gives the network the average of the workers' weights."""
        self._assign(self._trained, self._means(self.variables[: len(self._trained)]))

    def show(self) -> None:
        """Gives network and optimizer the workers' averages, for whoever reads them."""
        if self.turns < self.count:
            self._gather()
        self._assign(self._shown, self._means(self.variables))

    def _first(self) -> Any:
        """Returns the number of the first worker of a replica."""
        context = tf.distribute.get_replica_context()
        return tf.cast(context.replica_id_in_sync_group, tf.int32) * self.turns

    def _own(self, variable: tf.Variable) -> tf.Tensor:
        """Returns a variable whose rows are zero but for the replica's own workers."""
        number = tf.range(self.count) - self._first()
        mine = tf.logical_and(number >= 0, number < self.turns)
        mine = tf.reshape(mine, [-1, *[1] * (len(variable.shape) - 1)])
        return tf.where(mine, variable, tf.zeros([], variable.dtype))

    def _means(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        sums = [tf.reduce_sum(self._own(own), axis=0) for own in variables]
        return [each / float(self.count) for each in _sum_of_replicas(sums)]

    def _gather(self) -> None:
        whole = _sum_of_replicas([self._own(own) for own in self.variables])
        for own, value in zip(self.variables, whole, strict=True):
            own.assign(value)

    def _assign(
        self, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
    ) -> None:
        """Gives variables, of which each replica has a copy, the replica's values."""

        def assign(strategy: tf.distribute.Strategy, values: Sequence[Any]) -> None:
            for variable, value in zip(variables, values, strict=True):
                change = _step_back if variable is self._iterations else _take
                strategy.extended.update(variable, change, args=(value,), group=False)

        tf.__internal__.distribute.interim.maybe_merge_call(
            assign, self._strategy, list(values)
        )


def _take(variable: tf.Variable, value: tf.Tensor) -> None:
    variable.assign(value)


def _step_back(iterations: tf.Variable, steps: tf.Tensor) -> None:
    iterations.assign_sub(steps)


def _row(variable: tf.Variable, number: tf.Tensor) -> tf.Tensor:
    """Returns a row of a variable, of which nothing else is read."""
    row = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=number, dtype=variable.dtype
    )
    return tf.ensure_shape(row, variable.shape[1:])


def _sum_of_replicas(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(values)
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(values)))
