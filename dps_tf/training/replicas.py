"""The replicas of a strategy, and functions that run in each of them.

A loop over steps stands inside the replica on one device and on the cores of a TPU,
where the host then launches no single steps. On mirrored devices an all-reduce cannot
be part of a compiled loop, so that the loop stands around the replicas.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from dps_tf._keras import own_settings
from dps_tf.training import strategy as strategies

_NUMBERS = itertools.count()


class Replicas:
    """Runs functions in the replicas of a strategy; `jit_compile` has XLA compile.

    Attributes:
        strategy: the strategy.
        count: number of replicas that share a batch.
        loops_inside: whether a loop over steps stands inside the replica.
    """

    def __init__(self, strategy: tf.distribute.Strategy, jit_compile: bool = False):
        self.strategy = strategy
        self.count = int(strategy.num_replicas_in_sync)
        self._kind = strategies.kind(strategy)
        self.loops_inside = self._kind.loops_inside
        self._jit_compile = jit_compile

    @property
    def uses_xla(self) -> bool:
        """Whether XLA compiles a part of the graph."""
        return self._kind.is_compiled or self._jit_compile

    @property
    def compiles_by_shape(self) -> bool:
        """Whether XLA compiles the whole graph, anew for every shape."""
        return self.uses_xla and self.loops_inside

    def compiled(self, function: Callable[..., Any], signature: Sequence[Any]) -> Any:
        """Returns a function around the replicas as one graph, traced here."""
        with own_settings():
            return tf.function(
                function,
                input_signature=list(signature),
                jit_compile=self._jit_compile and self.loops_inside,
                autograph=False,
            ).get_concrete_function()

    def part(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of one replica, without communication.

        XLA compiles for one device at a time, and no all-reduce: where it cannot
        compile the whole graph, it compiles such parts.
        """
        if not self._jit_compile or self.loops_inside:
            return function
        alone = tf.function(function, jit_compile=True, autograph=False)
        # `strategy.run` would pull a compiled function around all replicas.
        return lambda *arguments: alone(*arguments)

    def called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that a loop within a replica calls, where that pays.

        Without it the function's operations become part of the loop. The names of its
        operations are its own: see `step.Loop`.
        """
        if not self._kind.calls_pay or self.uses_xla or not self.loops_inside:
            return function
        scope, apart = f"called_{next(_NUMBERS)}", {"_noinline": True}

        def scoped(*arguments: Any) -> Any:
            with tf.name_scope(scope):
                return function(*arguments)

        return tf.function(scoped, autograph=False, experimental_attributes=apart)

    def spread(self, values: Any) -> list[Any]:
        """Returns copies of nested tensors, one for each replica of this process."""
        if self.loops_inside:
            return [values]
        copies = []
        for device in self.strategy.extended.worker_devices:
            with tf.device(device):
                copies.append(tf.nest.map_structure(tf.identity, values))
        return copies

    def run(
        self, function: Callable[..., Any], own: Sequence[Any], *values: Any
    ) -> list[Any]:
        """Returns what each replica returns for `function(own[replica], *values)`.

        `values` may differ by replica; `own` is made by `spread` or `run`.
        """

        def in_replica(*values: Any) -> Any:
            number = 0
            if len(own) > 1:
                context = tf.distribute.get_replica_context()
                static = tf.get_static_value(context.replica_id_in_sync_group)
                number = int(static) % len(own)
            return function(own[number], *values)

        result = self.strategy.run(in_replica, args=values)
        local = self.strategy.experimental_local_results
        parts = [local(part) for part in tf.nest.flatten(result)]
        return [
            tf.nest.pack_sequence_as(result, list(of_replica))
            for of_replica in zip(*parts, strict=True)
        ]


def number() -> tf.Tensor:
    """Returns the number of a replica, int64 []; to be called in it."""
    context = tf.distribute.get_replica_context()
    return tf.cast(context.replica_id_in_sync_group, tf.int64)


def summed(values: Any) -> Any:
    """Returns the sums over the replicas of nested tensors; to be called in each."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)
