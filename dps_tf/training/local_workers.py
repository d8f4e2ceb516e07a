"""Local SGD: each worker trains its own weights, which are averaged at intervals.

Each of W workers begins a round of H steps at the same weights and makes H updates with
gradients of its own examples; then all weights are set to the average over the workers
(Lin et al. 2020, 'Don't use large mini-batches, use local SGD', algorithm 1; Stich
2019). A step is one update of every worker: worker w takes the w-th B / W examples of a
global batch of B, so a step costs as many examples as one of synchronous SGD, which is
the case H = 1. Slots (momentum, moments, averages, accumulated gradients) are not
averaged: each worker keeps its own over all rounds, the 'local momentum' of Lin et al.
Only slots that the weights are made of, as of schedule-free optimizers, are averaged.
Metaparameters and rates are those of the step, and each worker clips its gradients.

Evaluations, states and exports read the average of the workers' weights, also within a
round. One device trains the workers in turn. Several replicas train equally many
workers each, and communicate only at the ends of rounds and slices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.optim import TensorOptimizer


def check_shares(batch_size: int, workers: int, replicas: int = 1) -> None:
    """Raises UserError unless W workers divide a batch and the replicas divide W."""
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
    """The weights and slots of all workers, and the network that trains them in turn.

    All methods are parts of a graph and, except `starts`, run in a replica. Every
    replica has rows for all workers. The rows of its own workers are valid, and after
    `show` all rows.

    Attributes:
        count: W, the number of workers.
        turns: number of workers of a replica.
        variables: the workers' values [W, ...] of each trainable variable and then of
            each slot; zero before the first step.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: TensorOptimizer,
        strategy: tf.distribute.Strategy,
    ):
        """Makes variables in the strategy's scope; UserError for untrained ones."""
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
        slots = optimizer.named_slots(optimizer.slots)
        carried = [slots.pop(name) for name in optimizer.CARRIES_WEIGHTS]
        self._averaged = [*model.trainable_variables, *itertools.chain(*carried)]
        rest = [slot for slot in itertools.chain(*slots.values()) if slot is not None]
        self._shown = [*self._averaged, *rest]
        self.variables = [
            tf.Variable(
                tf.zeros([self.count, *shown.shape], shown.dtype),
                trainable=False,
                # Each replica has its own values until they are gathered.
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
        """Sets what is averaged of each worker to that of the network, the average."""
        for own, average in zip(self.variables, self._averaged, strict=False):
            own.assign(tf.broadcast_to(average, own.shape))

    def enter(self, turn: tf.Tensor) -> tf.Tensor:
        """Loads a worker into network and optimizer; returns its number, int32 [].

        `turn`: int32 [], number of the worker among those of the replica.
        """
        worker = self._first() + turn
        rows = [_row(own, worker) for own in self.variables]
        # The step number is put back, so that all workers make the same step.
        again = tf.cast(turn > 0, tf.int64)
        self._assign([*self._shown, self._iterations], [*rows, again])
        return worker

    def leave(self, worker: tf.Tensor) -> None:
        """Stores the values of network and optimizer as those of a worker."""
        for own, shown in zip(self.variables, self._shown, strict=True):
            tf.raw_ops.ResourceScatterUpdate(
                resource=own.handle, indices=worker, updates=shown.read_value()
            )

    def average(self) -> None:
        """Sets what is averaged of the network to the average over the workers."""
        self._assign(self._averaged, self._means(self.variables[: len(self._averaged)]))

    def show(self) -> None:
        """Sets weights and slots to their averages over the workers, to be read."""
        if self.turns < self.count:
            self._gather()
        self._assign(self._shown, self._means(self.variables))

    def _first(self) -> Any:
        """Returns the number of the first worker of a replica."""
        context = tf.distribute.get_replica_context()
        return tf.cast(context.replica_id_in_sync_group, tf.int32) * self.turns

    def _own(self, variable: tf.Variable) -> tf.Tensor:
        """Returns a variable with zeros in the rows of other replicas' workers."""
        number = tf.range(self.count) - self._first()
        is_own = tf.logical_and(number >= 0, number < self.turns)
        is_own = tf.reshape(is_own, [-1, *[1] * (len(variable.shape) - 1)])
        return tf.where(is_own, variable, tf.zeros([], variable.dtype))

    def _means(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        sums = [tf.reduce_sum(self._own(own), axis=0) for own in variables]
        return [total / float(self.count) for total in _sum_of_replicas(sums)]

    def _gather(self) -> None:
        whole = _sum_of_replicas([self._own(own) for own in self.variables])
        for own, value in zip(self.variables, whole, strict=True):
            own.assign(value)

    def _assign(
        self, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
    ) -> None:
        """Assigns a replica's values to its own copies of mirrored variables."""

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
    """Returns a row of a variable without reading the other rows."""
    row = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=number, dtype=variable.dtype
    )
    return tf.ensure_shape(row, variable.shape[1:])


def _sum_of_replicas(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return list(values)
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(values)))
