"""A program: a compiled network and optimizer that trials are loaded into.

State, masks, metaparameters, the order of examples and the number of steps are inputs
of one pure function, so one program serves every trial, sparsity and slice length of a
network, optimizer and batch size without being traced again. Several programs run side
by side, each in its own thread; a trial's bits do not depend on the other trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from dps_tf import objectives
from dps_tf._keras import keras, own_settings
from dps_tf.core import VALIDATION, Goal, TrialState, UserError, derive_seed
from dps_tf.data import Dataset
from dps_tf.models import check_graph, check_logits, functional, seed_layers
from dps_tf.objectives import Objective
from dps_tf.optim import Optimizer
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import PlacedData
from dps_tf.training.evaluation import Evaluated, Evaluation, ExactEvaluator
from dps_tf.training.goal_evaluator import (
    GoalEvaluator,
    ResidentGoalEvaluator,
    StreamedGoalEvaluator,
)
from dps_tf.training.local_workers import LocalWorkers, check_shares
from dps_tf.training.replicas import Replicas
from dps_tf.training.step import Loop, State, Step, Trial

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import Gradual


@dataclass(frozen=True)
class Task:
    """A workload with its names looked up, ready for a program to train.

    Attributes:
        network: returns a new model.
        optimizer: returns the optimizer.
        dataset: training and validation examples, preprocessed.
        loss_metaparameters: names of the metaparameters that the loss reads and the
            points hold.
        gradual: returns the rule that prunes a network during training; None trains
            it with the masks of a trial, if any.
        objective: loss and metrics.
    """

    network: Callable[[], keras.Model]
    optimizer: Callable[[], Optimizer]
    dataset: Dataset
    loss_metaparameters: tuple[str, ...] = ()
    gradual: Callable[[keras.Model], Gradual] | None = None
    objective: Objective = field(default_factory=objectives.build)


@dataclass(frozen=True)
class Advance:
    """The result of a slice.

    Attributes:
        steps: updates made, including one that diverged.
        loss: loss of the last step's mini-batch, before its update.
        diverged: whether that loss, or a weight of a trial that was to be evaluated,
            was not finite; the slice ended there.
        evaluation: the metrics after all steps, where they were asked for.
        is_sparse: whether pruned entries were zero at the evaluation.
    """

    steps: int
    loss: float
    diverged: bool
    evaluation: Evaluation | None = None
    is_sparse: bool = True


class Program:
    """One network and optimizer, compiled for one batch size on one strategy.

    A program is not thread-safe: give each thread its own program.

    Attributes:
        network: the Keras network, which defines the order of weights; its own weights
            are not those of a trial.
        optimizer: the optimizer.
        objective: the objective that is trained and evaluated.
        gradual: the rule that prunes during training, or None.
        traces: number of times the slice was traced; stays at 1.
    """

    @own_settings()
    def __init__(
        self,
        task: Task,
        data: PlacedData,
        batch_size: int,
        *,
        goal: Goal | None = None,
        jit_compile: bool = False,
    ):
        """Builds the network and traces the slice.

        Args:
            task: network, optimizer, objective and data set.
            data: the data set of the task, placed for the devices of a strategy.
            batch_size: global batch size.
            goal: evaluations stop as soon as this goal is out of reach; None evaluates
                exactly.
            jit_compile: whether XLA compiles the slice and the evaluations.

        Raises:
            UserError: the replicas cannot share a batch, the labels do not fit the
                objective or the network, or a step draws random numbers without a seed.
        """
        self.strategy, self.data, self.batch_size = data.strategy, data, batch_size
        strategies.check_batch_size(batch_size, data.strategy)
        self.objective, self.optimizer = task.objective, task.optimizer()
        self.network = functional(task.network)
        self.gradual = task.gradual(self.network) if task.gradual else None
        seed_layers(self.network)
        check_logits(self.network, self.objective.link)
        self._check_labels(task)
        self._replicas = Replicas(data.strategy, jit_compile)
        self._step = self._build_step(task, batch_size)
        is_local = self.optimizer.workers > 1
        self._workers = LocalWorkers(self._step) if is_local else None
        self._names = (*task.loss_metaparameters, *self.optimizer.reads)
        evaluated = Evaluated(self.network, data, self.objective, self._replicas)
        self._evaluated = evaluated
        self._evaluators: dict[str, Any] = {VALIDATION: self._build_evaluator(goal)}
        self._batches = data.train_batches(batch_size)
        self._loop = Loop(self._workers or self._step, self._replicas, self._batches)
        self._loaded_masks: tuple[Any, list[tf.Tensor]] = (None, self._tensors(None))
        self.traces = 0
        self._trace()

    def _check_labels(self, task: Task) -> None:
        """Raises UserError for labels that the objective or the network cannot take."""
        what = f"data set {task.dataset.name!r}"
        for examples in (task.dataset.train, task.dataset.validation):
            self.objective.checked_labels(examples.labels[:1], what)
            shape = self.network.outputs[0].shape
            self.objective.check_outputs(examples.labels, shape, what)

    def _build_step(self, task: Task, batch_size: int) -> Step:
        workers, replicas = self.optimizer.workers, self._replicas
        if workers > 1:
            check_shares(batch_size, workers, replicas.count)
        return Step(
            self.network,
            self.optimizer,
            self.objective,
            task.dataset.transform,
            self.gradual,
            replicas,
            batch_size // (workers if workers > 1 else replicas.count),
            communicates=workers == 1,
        )

    def _build_evaluator(self, goal: Goal | None) -> ExactEvaluator | GoalEvaluator:
        if goal is None:
            return ExactEvaluator(self._evaluated)
        is_streamed = self.data.placement == "stream"
        kind = StreamedGoalEvaluator if is_streamed else ResidentGoalEvaluator
        return kind(self._evaluated, goal)

    @property
    def _evaluates_in_slice(self) -> bool:
        return self.data.placement == "device"

    def _trace(self) -> None:
        """Compiles a slice, and the weights that a trial is evaluated with.

        The slice is traced now, so that a graph without seeds is refused before any
        trial.
        """
        arrays = self._fresh_parts(self.network.weights)
        self._counts = [len(part) for part in arrays]
        specs = [[tf.TensorSpec(a.shape, a.dtype) for a in part] for part in arrays]
        types = State(tf.TensorSpec([], tf.int64), *specs)
        self._forms = [
            (tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype))
            for part in specs
            for spec in part
        ]
        trial = Trial(
            tf.TensorSpec([len(self._names)], tf.float32),
            [tf.TensorSpec(v.shape, tf.float32) for v in self._step.variables],
            tf.TensorSpec([], tf.int64),
        )
        steps, wanted = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool)
        more = [steps, wanted, *self._batches.signature]
        self._run = self._replicas.compiled(self._slice, [types, trial, *more])
        self._weights = tf.function(
            lambda state, trial: self._step.evaluated(state, self._named(trial)),
            input_signature=[types, trial],
            autograph=False,
        )
        check_graph(self._run.get_concrete_function().graph, self.network)

    def _named(self, trial: Trial) -> Trial:
        """Returns a trial with its metaparameters by name."""
        values = tf.unstack(trial.point)
        return trial._replace(point=dict(zip(self._names, values, strict=True)))

    def _slice(
        self,
        state: State,
        trial: Trial,
        steps: tf.Tensor,
        wanted: tf.Tensor,
        *values: Any,
    ) -> Any:
        """Returns (state, steps made, last loss, whether finite, sparse, evaluation).

        A trial is evaluated after all its steps if `wanted`, bool [].
        """
        self.traces += 1
        trial = self._named(trial)
        held = (*values, *self._batches.held)
        state, done, loss = self._loop(state, trial, steps, held)
        finite, sparse = self._step.is_sound(state, trial)
        evaluation: Any = ()
        if self._evaluates_in_slice:
            ended = tf.logical_and(finite, tf.math.is_finite(loss))
            ended = tf.logical_and(ended, tf.equal(done, steps))
            evaluation, memory = self._evaluators[VALIDATION].graph(
                self._step.evaluated(state, trial),
                state.evaluation,
                tf.logical_and(wanted, ended),
            )
            state = state._replace(evaluation=memory)
        return state, done, loss, finite, sparse, evaluation

    def fresh_state(self, initial_point: Sequence[np.ndarray]) -> TrialState:
        """Returns the state of a trial before its first step, with zero slots.

        `initial_point`: arrays in the order of `network.weights`, pruned entries zero.
        """
        parts = self._fresh_parts(initial_point)
        return TrialState(0, tuple(array for part in parts for array in part))

    def _fresh_parts(self, weights: Sequence[Any]) -> list[list[Any]]:
        """Returns the arrays of a `State` before the first step, part by part."""
        slots = self.optimizer.flat(self.optimizer.init(self._step.variables))
        return [
            list(weights),
            slots,
            self._evaluators[VALIDATION].fresh(),
            self._workers.fresh((weights, slots)) if self._workers else [],
            self.gradual.fresh(weights) if self.gradual else [],
        ]

    def load(
        self,
        state: TrialState,
        point: Mapping[str, float],
        masks: Sequence[np.ndarray] | None = None,
        seed: int = 0,
    ) -> None:
        """Loads a trial into the program.

        Args:
            state: state of the trial, with masked weights.
            point: metaparameters of the trial.
            masks: 0/1, one per trainable variable; None for a dense network.
            seed: seed of the trial's initial point; decides the draws of its steps.

        Raises:
            UserError: the state is that of another network, optimizer or evaluation, or
                the point of another optimizer.
        """
        forms = [(tuple(a.shape), np.dtype(a.dtype.name)) for a in state.arrays]
        if forms != self._forms:
            raise UserError(
                f"a state of {len(forms)} arrays at step {state.step} is not one of "
                f"this program, whose states have {len(self._forms)}: it was saved by "
                "another network, optimizer, evaluation or version; begin anew."
            )
        loss, optimizer = self.objective.split_point(point)
        values = {**loss, **self.optimizer.values(optimizer)}
        if masks is not self._loaded_masks[0]:
            self._loaded_masks = masks, self._tensors(masks)
        self._state = self._packed(np.int64(state.step), state.arrays)
        self._trial = Trial(
            np.array([values.get(name, 0.0) for name in self._names], np.float32),
            self._loaded_masks[1],
            np.int64(derive_seed(seed, 0, "draws")),
        )

    def _tensors(self, masks: Sequence[np.ndarray] | None) -> list[tf.Tensor]:
        """Returns masks as float32 tensors; ones of a dense network."""
        if masks is None:
            return [tf.ones(v.shape) for v in self._step.variables]
        return [tf.constant(mask, tf.float32) for mask in masks]

    def _packed(self, step: Any, arrays: Sequence[Any]) -> State:
        rest = iter(arrays)
        return State(step, *([next(rest) for _ in range(n)] for n in self._counts))

    @property
    def state(self) -> TrialState:
        """The state of the loaded trial, with tensors where the device has them."""
        step, *parts = self._state
        return TrialState(int(step), tuple(array for part in parts for array in part))

    def read(self) -> TrialState:
        """Returns the state of the loaded trial, with arrays of the host."""
        state = self.state
        return TrialState(state.step, tuple(map(np.asarray, state.arrays)))

    @own_settings()
    def advance(self, indices: np.ndarray, evaluates: bool = False) -> Advance:
        """Trains the loaded trial on batches; ends early at a loss that is not finite.

        Args:
            indices: int32 [steps, batch_size], positions in the training split.
            evaluates: whether to evaluate on the validation split after all steps, as
                `evaluate` does; with data on the device that is one call with them.
        """
        if indices.shape[1] != self.batch_size:
            raise UserError(
                f"a batch of {indices.shape[1]} examples was given to a program of "
                f"batch size {self.batch_size}."
            )
        steps, rows = len(indices), indices.astype(np.int32, copy=False)
        if self._replicas.compiles_by_shape:
            rows = np.pad(rows, [(0, self._missing(steps)), (0, 0)])
        done, loss, finite, sparse = 0, 0.0, True, True
        evaluation: Evaluation | None = None
        for length, values in self._batches.pieces(rows):
            if done == steps:  # the remaining pieces are padding
                break
            part = np.int32(min(length, steps - done))
            self._state, made, last, finite, sparse, measured = self._run(
                self._state, self._trial, part, evaluates, *values
            )
            done, loss = done + int(made), float(last)
            if not np.isfinite(loss):
                return Advance(done, loss, diverged=True)
        if not evaluates:
            return Advance(done, loss, diverged=False)
        if not bool(finite):
            return Advance(done, loss, diverged=True)
        if self._evaluates_in_slice:
            evaluation = self._evaluators[VALIDATION].result(measured)
        else:
            evaluation = self.evaluate()
        return Advance(done, loss, not evaluation.is_finite, evaluation, bool(sparse))

    def _missing(self, steps: int) -> int:
        """Returns how many steps pad the last piece to a power of two."""
        # XLA compiles once for every shape. The other pieces are powers of two as well,
        # so a few compilations serve slices of all lengths.
        most = self._batches.most_steps
        last = steps if most is None else steps % most
        return (1 << (last - 1).bit_length()) - last if last else 0

    @own_settings()
    def evaluate(self, split: str = VALIDATION) -> Evaluation:
        """Returns the metrics of the loaded trial on a split of `Dataset.evaluated`.

        They are exact, except bounds on the validation split in a program with a goal.
        If the optimizer averages weights, they are those of the averaged weights, and
        of a network that is pruned while it trains those of the pruned weights. The
        trial is left as it was.
        """
        if split not in self._evaluators:
            self._evaluators[split] = ExactEvaluator(self._evaluated, split)
        weights = self.weights()
        if split != VALIDATION:
            return self._evaluators[split](weights, [])[0]
        evaluation, memory = self._evaluators[split](weights, self._state.evaluation)
        self._state = self._state._replace(evaluation=list(memory))
        return evaluation

    @own_settings()
    def weights(self) -> list[tf.Tensor]:
        """Returns the weights that the loaded trial is evaluated with."""
        return self._weights(self._state, self._trial)

    def check_pruned(self, step: int) -> None:
        """Raises UserError unless pruning in training has reached its sparsity."""
        if self.gradual is not None:
            self.gradual.check_reached(step, self._state.weights, self._state.masks)
