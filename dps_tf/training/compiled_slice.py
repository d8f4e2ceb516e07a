"""A compiled slice: many steps of one trial in one graph.

Weights, slots, masks, metaparameters, batches and their number are variables or inputs
of the graph, so the graph is traced once for all trials. Batches are gathered on the
device, or come from the host several steps at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.data import Transform
from dps_tf.models import StepDraws, check_graph
from dps_tf.objectives import Objective, penalty
from dps_tf.optim import TensorOptimizer
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import PlacedData
from dps_tf.training.local_workers import LocalWorkers

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import PrunedModel

_NUMBERS = itertools.count()

Place = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""(seed of the trial, step, number of the replica or worker) that decide the draws."""


@dataclass(frozen=True)
class Trained:
    """The model, optimizer and variables that the steps of a slice read and change."""

    model: keras.Model
    optimizer: TensorOptimizer  # built for the trainable variables
    objective: Objective  # its loss is minimized
    masks: Sequence[tf.Variable]  # float32 0/1, one per trainable variable
    seed: tf.Variable  # int64; decides the random numbers of all steps
    loss_metaparameters: dict[str, tf.Variable]  # read by the loss, by name
    pruning_wrapper: PrunedModel | None  # None for a plain network
    transform: Transform | None  # applied to the examples of each step
    workers: LocalWorkers | None  # of local SGD, each with its own weights


class CompiledSlice:
    """Trains on given batches, and ends early at a loss that is not finite.

    On one device and on a TPU the loop over steps runs inside the replica. On mirrored
    devices it runs around `strategy.run`, because their all-reduce cannot be part of a
    compiled loop.

    Attributes:
        traces: number of times the graph was traced; stays at 1.
    """

    def __init__(
        self,
        trained: Trained,
        data: PlacedData,
        batch_size: int,
        jit_compile: bool = False,
    ):
        """Traces the slice; with `jit_compile`, XLA compiles the parts that it can.

        Raises:
            UserError: the step draws random numbers that no seed decides.
        """
        self.traces = 0
        self._trained = trained
        self._variables = trained.model.trainable_variables
        self._batches = data.train_batches(batch_size)
        self._strategy = data.strategy
        self._replicas = self._strategy.num_replicas_in_sync
        # Replicas share the gradient of the global batch; each worker has its own.
        own = batch_size // (trained.workers.count if trained.workers else 1)
        self._sharing = 1 if trained.workers else self._replicas
        self._share = own // self._sharing
        self._loops_inside = strategies.loops_in_replica(self._strategy)
        around = jit_compile and self._loops_inside
        on_tpu = isinstance(self._strategy, tf.distribute.TPUStrategy)
        self._is_compiled_by_shape = around or on_tpu
        # TensorFlow turns AddN into temporary variables. All functions of its graphs
        # that run at once share the names of these, so each slice has its own scope.
        self._scope = f"slice_{next(_NUMBERS)}"
        self._averages = _averages(trained.model)
        # XLA compiles for one device at a time, and no all-reduce.
        self._gradient = self._loss_and_gradients
        if jit_compile and not around:
            alone = tf.function(self._gradient, jit_compile=True, autograph=False)
            self._gradient = alone
        self._run = tf.function(
            self._trace,
            input_signature=[*self._batches.signature, tf.TensorSpec([], tf.int32)],
            jit_compile=around,
            autograph=False,
        )
        # Traced now, so that a graph without seeds is refused before any trial.
        check_graph(self._run.get_concrete_function().graph, trained.model)

    def __call__(self, indices: np.ndarray) -> tuple[int, float]:
        """Returns (steps made, loss of the last step before its update).

        `indices`: int32 [steps, batch_size], positions in the training split.
        """
        steps, rows = len(indices), indices.astype(np.int32, copy=False)
        if self._is_compiled_by_shape:
            rows = np.pad(rows, [(0, self._missing(steps)), (0, 0)])
        done, loss = 0, 0.0
        for length, values in self._batches.pieces(rows):
            if done == steps:  # the remaining pieces are padding
                break
            made, last = self._run(*values, np.int32(min(length, steps - done)))
            done, loss = done + int(made), float(last)
            if not np.isfinite(loss):
                break
        return done, loss

    def _missing(self, steps: int) -> int:
        """Returns how many steps pad the last piece to a power of two."""
        # XLA compiles once for every shape. The other pieces are powers of two as well,
        # so a few compilations serve slices of all lengths.
        most = self._batches.most_steps
        last = steps if most is None else steps % most
        return (1 << (last - 1).bit_length()) - last if last else 0

    def _trace(self, *arguments: Any) -> tuple[tf.Tensor, Any]:
        self.traces += 1
        *values, steps = arguments
        values += self._batches.held
        if not self._loops_inside:
            return self._steps(steps, values, self._on_replicas)
        done, loss = self._strategy.run(self._inside, args=(steps, *values))
        first = self._strategy.experimental_local_results
        return first(done)[0], first(loss)[0]

    def _inside(self, steps: tf.Tensor, *values: tf.Tensor) -> Any:
        """Runs the whole loop inside a replica."""
        return self._steps(steps, values, lambda function, *given: function(*given))

    def _steps(
        self, steps: tf.Tensor, values: Sequence[Any], run: Callable[..., Any]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (steps made, last loss); `run` calls a function on the replicas."""
        workers = self._trained.workers

        def step(done: tf.Tensor) -> tf.Tensor:
            if workers is not None:
                loss = self._steps_of_workers(done, values, run)
            else:
                loss = run(self._step, done, *values)
            if self._loops_inside and self._replicas > 1:
                context = tf.distribute.get_replica_context()
                loss = context.all_reduce(tf.distribute.ReduceOp.SUM, loss)
            return loss

        ended = self._loop(steps, step)
        if workers is not None:
            run(workers.show)
        return ended

    def _on_replicas(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the sum of the replicas' results, or None if they return nothing."""
        results = self._strategy.run(function, args=arguments)
        if results is None:
            return None
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, results, axis=None)

    def _loop(self, steps: tf.Tensor, step: Any) -> tuple[tf.Tensor, tf.Tensor]:
        def goes_on(done: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(done < steps, tf.math.is_finite(loss))

        def body(done: tf.Tensor, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            del loss
            with tf.name_scope(self._scope):
                return done + 1, step(done)

        return tf.while_loop(
            goes_on, body, (tf.constant(0), tf.constant(0.0)), parallel_iterations=1
        )

    def _step(self, done: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
        """Makes one update in a replica and returns its share of the loss."""
        if self._trained.pruning_wrapper is not None:
            self._trained.pruning_wrapper.before_step(
                self._trained.optimizer.iterations
            )
        context = tf.distribute.get_replica_context()
        place = (
            self._trained.seed.read_value(),
            self._trained.optimizer.iterations.read_value(),
            tf.cast(context.replica_id_in_sync_group, tf.int64),
        )
        loss, gradients = self._gradient_of(place, self._batches.batch(done, *values))
        self._trained.optimizer.apply_gradients(
            zip(gradients, self._variables, strict=True)
        )
        self._keep_zeros()
        if self._replicas > 1 and self._averages:
            self._agree_on_averages()
        return loss

    def _gradient_of(self, place: Place, examples: Any) -> Any:
        """Returns (loss, gradients) of a share of a batch; `place` seeds its draws."""
        inputs, labels = examples
        if self._trained.transform is not None:
            draws = self._draws(*place)
            inputs, labels = self._trained.transform(inputs, labels, draws)
        return self._gradient(*place, inputs, labels, *self._weight(labels))

    def _steps_of_workers(
        self, done: tf.Tensor, values: Sequence[Any], run: Callable[..., Any]
    ) -> tf.Tensor:
        """Makes one update of each worker on the replicas; returns their mean loss."""
        workers = self._trained.workers
        assert workers is not None

        def worker(turn: tf.Tensor, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return turn + 1, loss + run(self._worker_step, done, turn, *values)

        self._if(workers.starts(), lambda: run(workers.begin))
        _, loss = tf.while_loop(
            lambda turn, _: turn < workers.turns,
            worker,
            (tf.constant(0), tf.constant(0.0)),
            parallel_iterations=1,
        )
        self._if(workers.starts(), lambda: run(workers.average))
        return loss

    def _if(self, condition: tf.Tensor, run: Callable[[], Any]) -> None:
        def branch() -> tf.Tensor:
            run()
            return tf.constant(0)

        tf.cond(condition, branch, lambda: tf.constant(0))

    def _worker_step(
        self, done: tf.Tensor, turn: tf.Tensor, *values: tf.Tensor
    ) -> tf.Tensor:
        """Makes one update of a worker and returns its share of the loss."""
        workers, optimizer = self._trained.workers, self._trained.optimizer
        assert workers is not None
        worker = workers.enter(turn)
        place = (
            self._trained.seed.read_value(),
            optimizer.iterations.read_value(),
            tf.cast(worker, tf.int64),
        )
        examples = self._batches.batch(done, *values, part=(turn, workers.turns))
        loss, gradients = self._gradient_of(place, examples)
        optimizer.apply_gradients(
            zip(gradients, self._variables, strict=True),
            skip_gradients_aggregation=True,
        )
        self._keep_zeros()
        workers.leave(worker)
        return loss / float(workers.count)

    def _keep_zeros(self) -> None:
        if not self._trained.optimizer.keeps_zeros:
            tf.__internal__.distribute.interim.maybe_merge_call(
                self._mask_variables, self._strategy
            )

    def _mask_variables(self, strategy: tf.distribute.Strategy) -> None:
        """Sets pruned entries to exactly zero after an update."""
        for variable, mask in zip(self._variables, self._trained.masks, strict=True):
            strategy.extended.update(
                variable, lambda v, m: v.assign(v * m), args=(mask,), group=False
            )

    def _draws(self, seed: tf.Tensor, step: tf.Tensor, number: tf.Tensor) -> StepDraws:
        return StepDraws(seed, step, number * self._share, self._share)

    def _weight(self, labels: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns (sum of the position weights of a batch,); () without weights."""
        weights = self._trained.objective.weights
        if weights is None:
            return ()
        total = tf.reduce_sum(weights(labels))
        if self._sharing > 1:
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
        return (total,)

    def _loss_and_gradients(
        self,
        seed: tf.Tensor,
        step: tf.Tensor,
        number: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        *weight: tf.Tensor,
    ) -> Any:
        """Returns (share of the loss, masked gradients) of some examples."""
        trained = self._trained
        metaparameters = trained.loss_metaparameters
        # The count is a constant where every position counts once: exact, and cheaper.
        every = self._share * self._sharing * labels.shape[1:].num_elements()
        (positions,) = weight or (every,)
        draws = self._draws(seed, step, number)
        with draws.active(), tf.GradientTape() as tape:
            outputs = tf.cast(trained.model(inputs, training=True), tf.float32)
            # The sum is divided by the whole batch, so that shares of replicas add up.
            loss = trained.objective.batch_loss(
                labels, outputs, metaparameters, positions
            )
            added = penalty(trained.model, metaparameters)
            if added is not None:
                loss += added / self._sharing
        gradients = tape.gradient(loss, self._variables)
        unused = [
            variable.name
            for variable, gradient in zip(self._variables, gradients, strict=True)
            if gradient is None
        ]
        if unused:
            raise UserError(
                f"the loss has no gradient for {', '.join(unused[:3])}: use it, with "
                "operations that can be differentiated, or make it not trainable."
            )
        return loss, [g * m for g, m in zip(gradients, trained.masks, strict=True)]

    def _agree_on_averages(self) -> None:
        """Sets the moving averages of all replicas to their mean."""
        # This is done after every step, so that a state holds one value of each average
        # and later steps do not depend on when the state was read.
        means = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.MEAN, [tf.identity(v) for v in self._averages]
        )
        for variable, mean in zip(self._averages, means, strict=True):
            variable.assign(mean)


def _averages(model: keras.Model) -> list[tf.Variable]:
    """Returns the variables that differ by replica, such as those of batch norm."""
    alone = tf.VariableSynchronization.ON_READ
    return [
        variable
        for variable in model.non_trainable_variables
        if variable.synchronization is alone and variable.dtype.is_floating
    ]
