"""The compiled slice: many steps of one trial in one graph.

Weights, optimizer slots, masks, metaparameters, the order of examples and the number
of steps are all inputs, so one program serves every trial, sparsity and slice length of
a network, optimizer and batch size without being traced again. Several programs run
side by side, each in a thread of its own; a trial's bits depend on none of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core.errors import UserError
from dps_tf.core.execution import TrialState
from dps_tf.core.goal import Goal
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import DeviceData
from dps_tf.training.evaluation import Evaluation
from dps_tf.training.evaluator import ExactEvaluator, GoalEvaluator
from dps_tf.training.losses import softmax_cross_entropy
from dps_tf.training.task import Task, split_point

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Advance:
    """What a slice did.

    Attributes:
        steps: updates made, including one that diverged.
        loss: mini-batch loss of the last of them, before its update.
        diverged: whether that loss was not finite; the slice ended there.
    """

    steps: int
    loss: float
    diverged: bool


class Program:
    """One network and optimizer, compiled for one batch size on one strategy.

    Not thread-safe: give each thread a program of its own. On one device, and on a
    TPU, the loop over steps runs inside the replica; on mirrored devices around
    `strategy.run`, because their all-reduce cannot stand inside a compiled loop.

    Attributes:
        model: the Keras network; its weights are those of the trial loaded last.
        optimizer: with the metaparameters of that trial.
        masks: float32 0/1 variables, one per trainable variable.
        traces: how often the slice was traced; stays at 1.
    """

    def __init__(
        self,
        task: Task,
        data: DeviceData,
        batch_size: int,
        *,
        goal: Goal | None = None,
        jit_compile: bool = False,
    ):
        """Builds the network; tracing waits for the first use.

        Args:
            task: what is trained.
            data: where it is trained, and on what.
            batch_size: global batch size.
            goal: given, an evaluation stops once this goal is out of reach.
            jit_compile: whether XLA compiles the slice.
        """
        self.strategy = data.strategy
        strategies.check_batch_size(batch_size, self.strategy)
        self.data = data
        self.batch_size = batch_size
        self.jit_compile = jit_compile
        self.traces = 0
        # TensorFlow's graph optimizer turns AddN into temporary variables whose names
        # all functions that run at once share: a scope of its own keeps them apart.
        self._scope = f"program_{next(_NUMBERS)}"
        with self.strategy.scope():
            self.model = task.network()
            self.optimizer = task.optimizer()
            self.optimizer.build(self.model.trainable_variables)
            self.masks = [
                tf.Variable(tf.ones_like(v), trainable=False)
                for v in self.model.trainable_variables
            ]
            self._loss_metaparameters = {
                name: tf.Variable(0.0, trainable=False)
                for name in task.loss_metaparameters
            }
            self._evaluator: ExactEvaluator | GoalEvaluator = (
                ExactEvaluator(self.model, data, jit_compile)
                if goal is None
                else GoalEvaluator(self.model, data, goal, jit_compile)
            )
        self._labels = batch_size * data.labels_per_example
        self._replicas = self.strategy.num_replicas_in_sync
        self._loops_outside = not strategies.loops_in_replica(self.strategy)
        self._gradient = self._build_gradient()
        self._slice = self._build_slice()
        self._assign = self._build_assign()

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that make up a trial's state, in the order of its arrays."""
        carried = self._evaluator.variables
        return [*self.model.weights, *self.optimizer.slots, *carried]

    def fresh_state(self, initial_point: Sequence[np.ndarray]) -> TrialState:
        """Returns the state of a trial before its first step: slots are zero."""
        rest = self.variables[len(self.model.weights) :]
        zeros = [np.zeros(v.shape, v.dtype.as_numpy_dtype) for v in rest]
        return TrialState(0, (*initial_point, *zeros))

    def evaluate(self) -> Evaluation:
        """Returns the counts over the validation split for the trial loaded."""
        return self._evaluator()

    def load(
        self,
        state: TrialState,
        point: Mapping[str, float],
        masks: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Makes the program that of one trial.

        Args:
            state: of the trial; its kernels are masked already.
            point: its metaparameters.
            masks: one per trainable variable; None keeps everything.
        """
        loss, optimizer = split_point(point)
        self.optimizer.set_metaparameters(optimizer)
        for name, variable in self._loss_metaparameters.items():
            variable.assign(loss.get(name, 0.0))
        if masks is None:
            masks = [np.ones(v.shape, np.float32) for v in self.masks]
        self._assign(np.int64(state.step), list(state.arrays), list(masks))

    def read(self) -> TrialState:
        """Returns the state of the trial in the program, as copies."""
        return TrialState(
            int(self.optimizer.iterations.numpy()),
            tuple(np.array(_value(v)) for v in self.variables),
        )

    def advance(self, indices: np.ndarray) -> Advance:
        """Trains on the given batches, at most up to a loss that is not finite.

        Args:
            indices: int32 [steps, batch_size], examples of the training split.
        """
        if indices.shape[1] != self.batch_size:
            raise UserError(
                f"a batch of {indices.shape[1]} examples was given to a program of "
                f"batch size {self.batch_size}."
            )
        steps, loss = self._slice(tf.constant(indices, tf.int32))
        loss = float(loss)
        return Advance(int(steps), loss, not np.isfinite(loss))

    def _local_batch(self, row: tf.Tensor, train: Sequence[tf.Tensor]) -> Any:
        """Returns this replica's (inputs, labels) of a global batch."""
        if self._replicas > 1:
            context = tf.distribute.get_replica_context()
            shares = tf.reshape(row, [self._replicas, -1])
            row = shares[context.replica_id_in_sync_group]
        return tuple(tf.gather(tensor, row) for tensor in train)

    def _build_gradient(self) -> Any:
        """Returns (inputs, labels) -> (share of the loss, masked gradients)."""

        def gradient(inputs: tf.Tensor, labels: tf.Tensor) -> Any:
            smoothing = self._loss_metaparameters.get("label_smoothing", 0.0)
            with tf.GradientTape() as tape:
                logits = tf.cast(self.model(inputs, training=True), tf.float32)
                each = softmax_cross_entropy(labels, logits, smoothing)
                # Divided by the global batch, so that shares of replicas add up.
                loss = tf.reduce_sum(each) / self._labels
            gradients = tape.gradient(loss, self.model.trainable_variables)
            return loss, [g * m for g, m in zip(gradients, self.masks, strict=True)]

        if self.jit_compile and self._loops_outside:
            return tf.function(gradient, jit_compile=True, autograph=False)
        return gradient

    def _step(self, row: tf.Tensor, train: Sequence[tf.Tensor]) -> tf.Tensor:
        """Makes one update in a replica and returns its share of the loss."""
        loss, gradients = self._gradient(*self._local_batch(row, train))
        self.optimizer.apply_gradients(
            zip(gradients, self.model.trainable_variables, strict=True)
        )
        return loss

    def _loop(self, indices: tf.Tensor, step: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (steps made, last loss); ends early at a loss that is not finite."""

        def goes_on(done: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(done < tf.shape(indices)[0], tf.math.is_finite(loss))

        def body(done: tf.Tensor, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            del loss
            with tf.name_scope(self._scope):
                return done + 1, step(indices[done])

        return tf.while_loop(
            goes_on, body, (tf.constant(0), tf.constant(0.0)), parallel_iterations=1
        )

    def _build_slice(self) -> Any:
        train = self.data.train

        def inside(indices: tf.Tensor, *train: tf.Tensor) -> Any:
            def step(row: tf.Tensor) -> tf.Tensor:
                loss = self._step(row, train)
                if self._replicas > 1:
                    context = tf.distribute.get_replica_context()
                    loss = context.all_reduce(tf.distribute.ReduceOp.SUM, loss)
                return loss

            return self._loop(indices, step)

        def step_of_all(row: tf.Tensor) -> tf.Tensor:
            shares = self.strategy.run(
                lambda row, *train: self._step(row, train), args=(row, *train)
            )
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)

        def run(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            self.traces += 1
            if self._loops_outside:
                return self._loop(indices, step_of_all)
            done, loss = self.strategy.run(inside, args=(indices, *train))
            first = self.strategy.experimental_local_results
            return first(done)[0], first(loss)[0]

        return tf.function(
            run,
            input_signature=[tf.TensorSpec([None, self.batch_size], tf.int32)],
            jit_compile=self.jit_compile and not self._loops_outside,
            autograph=False,
        )

    def _build_assign(self) -> Any:
        def assign(
            step: tf.Tensor, values: Sequence[tf.Tensor], masks: Sequence[tf.Tensor]
        ) -> None:
            self.optimizer.iterations.assign(step)
            for variable, value in zip(self.variables, values, strict=True):
                variable.assign(value)
            for variable, value in zip(self.masks, masks, strict=True):
                variable.assign(value)

        specs = [tf.TensorSpec(v.shape, v.dtype) for v in self.variables]
        masks = [tf.TensorSpec(v.shape, v.dtype) for v in self.masks]
        signature = [tf.TensorSpec([], tf.int64), specs, masks]
        return tf.function(assign, input_signature=signature, autograph=False)


def _value(variable: Any) -> np.ndarray:
    """Returns the value of a variable, of its first replica where it has several."""
    values = getattr(variable, "values", None)
    return (values[0] if values else variable).numpy()
