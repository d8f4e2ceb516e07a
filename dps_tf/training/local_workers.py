"""Local SGD: each worker trains its own weights, which are averaged at intervals.

Each of W workers begins a round of H steps at the same weights and makes H updates with
gradients of its own examples. Then all weights are set to the average over the workers
(Lin et al. 2020, 'Don't use large mini-batches, use local SGD', algorithm 1; Stich
2019). A step is one update of every worker: worker w takes the w-th B / W examples of a
global batch of B. So a step costs as many examples as one of synchronous SGD, which is
the case H = 1. Slots (momentum, moments, averages, accumulated gradients) are not
averaged: each worker keeps its own over all rounds, the 'local momentum' of Lin et al.
Only slots that the weights are made of, as of schedule-free optimizers, are averaged.
Metaparameters and rates follow the step, and each worker clips its gradients.

Evaluations, states and exports read the average of the workers' weights, also within a
round. One device trains the workers in turn, and several replicas train equally many
workers each.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from dps_tf.core import UserError
from dps_tf.training import replicas as of_replica
from dps_tf.training.step import Examples, State, Step, Trial


class LocalWorkers:
    """A step of all workers: each of them makes the step of one.

    `State.workers` has the values [W, ...] of each array that is averaged, the trained
    weights first, and then of each other slot. In a replica the rows of its own workers
    are valid, and after `shown` all rows.
    """

    def __init__(self, step: Step):
        """`step`: one worker's step; UserError for a network with untrained weights."""
        network, optimizer = step.network, step.optimizer
        if network.non_trainable_variables:
            name = network.non_trainable_variables[0].name
            raise UserError(
                f"network {network.name!r} has {name}, which is not trained, and "
                "workers of local SGD average what is trained: use a network without "
                "batch normalization, or leave workload.fixed.workers out."
            )
        self._step, self._count = step, optimizer.workers
        self._turns = self._count // step.replicas.count
        forms = optimizer.named(itertools.count(), step.variables)
        carried = [forms.pop(name) for name in optimizer.rule.carries_weights]
        rest = itertools.chain(*carried, *forms.values())
        self._order = [place for place in rest if place is not None]
        self._averaged = len(step.variables) + sum(map(len, carried))

    def fresh(self, state: Sequence[Any]) -> list[Any]:
        """Returns `State.workers` before the first step, for (weights, slots)."""
        shown = self._arrays(State(0, state[0], state[1], [], [], []))
        return [tf.zeros([self._count, *a.shape], a.dtype).numpy() for a in shown]

    def _arrays(self, state: State) -> list[tf.Tensor]:
        """Returns what workers have each for themselves, in the order of their rows."""
        weights = [state.weights[i] for i in self._step.places]
        return [*weights, *(state.slots[i] for i in self._order)]

    def _state(self, state: State, arrays: Sequence[tf.Tensor]) -> State:
        """Returns a state with other `_arrays`."""
        weights, slots = list(state.weights), list(state.slots)
        for i, value in zip(self._step.places, arrays, strict=False):
            weights[i] = value
        for i, value in zip(self._order, arrays[len(self._step.places) :], strict=True):
            slots[i] = value
        return state._replace(weights=weights, slots=slots)

    def __call__(
        self, state: State, batch: Callable[..., Examples], trial: Trial
    ) -> tuple[State, tf.Tensor]:
        """Makes one update of each worker of a replica; returns also the mean loss."""
        length = _round(trial)
        begins = tf.equal(state.step % length, 0)
        arrays, rows = self._arrays(state), list(state.workers)
        for i, average in enumerate(arrays[: self._averaged]):
            rows[i] = tf.where(begins, average, rows[i])

        def one(turn: tf.Tensor, loss: tf.Tensor, rows: list[tf.Tensor]) -> Any:
            worker = self._first() + turn
            own = self._state(state, [row[worker] for row in rows])
            part = functools.partial(batch, part=(turn, self._turns))
            own, more = self._step(own, part, trial, tf.cast(worker, tf.int64))
            rows = [
                tf.tensor_scatter_nd_update(row, [[worker]], [value])
                for row, value in zip(rows, self._arrays(own), strict=True)
            ]
            return turn + 1, loss + more / float(self._count), rows

        _, loss, rows = tf.while_loop(
            lambda turn, *_: turn < self._turns,
            one,
            (tf.constant(0), tf.constant(0.0), rows),
            parallel_iterations=1,
        )
        ends = tf.equal((state.step + 1) % length, 0)
        for i, mean in enumerate(self._means(rows[: self._averaged])):
            arrays[i] = tf.where(ends, mean, arrays[i])
        state = self._state(state, arrays)
        loss = of_replica.summed(loss)
        return state._replace(step=state.step + 1, workers=rows), loss

    def shown(self, own: tuple[State, Trial]) -> State:
        """Returns the state with weights and slots that are means, and all rows."""
        (state, trial), rows = own, own[0].workers
        if self._turns < self._count:
            rows = of_replica.summed([self._own(row) for row in rows])
        # Between rounds they are already, and may round otherwise when added up anew.
        are_means = tf.equal(state.step % _round(trial), 0)
        means = self._means(state.workers)
        for i, average in enumerate(self._arrays(state)[: self._averaged]):
            means[i] = tf.where(are_means, average, means[i])
        return self._state(state, means)._replace(workers=rows)

    def _first(self) -> tf.Tensor:
        """Returns the number of the first worker of a replica."""
        return tf.cast(of_replica.number(), tf.int32) * self._turns

    def _own(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows with zeros for other replicas' workers."""
        number = tf.range(self._count) - self._first()
        is_own = tf.logical_and(number >= 0, number < self._turns)
        is_own = tf.reshape(is_own, [-1, *[1] * (len(rows.shape) - 1)])
        return tf.where(is_own, rows, tf.zeros([], rows.dtype))

    def _means(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        sums = [tf.reduce_sum(self._own(own), axis=0) for own in rows]
        return [total / float(self._count) for total in of_replica.summed(sums)]


def _round(trial: Trial) -> tf.Tensor:
    """Returns the number of steps of a round, int64 []."""
    return tf.cast(trial.point["local_steps"], tf.int64)
