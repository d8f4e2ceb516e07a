"""A program: a compiled network and optimizer that trials are loaded into.

Weights, optimizer slots, masks, metaparameters, the order of examples and the number
of steps are all inputs, so one program serves every trial, sparsity and slice length of
a network, optimizer and batch size without being traced again. Several programs run
side by side, each in its own thread; a trial's bits do not depend on the other trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from dps_tf import objectives
from dps_tf._keras import keras, own_settings
from dps_tf.core import VALIDATION, Goal, TrialState, UserError, derive_seed
from dps_tf.data import Dataset
from dps_tf.models import check_logits, seed_layers
from dps_tf.objectives import Objective
from dps_tf.optim import TensorOptimizer
from dps_tf.training import strategy as strategies
from dps_tf.training.compiled_slice import CompiledSlice, Trained
from dps_tf.training.device_data import PlacedData
from dps_tf.training.evaluation import Evaluation, ExactEvaluator
from dps_tf.training.goal_evaluator import (
    GoalEvaluator,
    ResidentGoalEvaluator,
    StreamedGoalEvaluator,
)
from dps_tf.training.local_workers import LocalWorkers, check_shares

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import PrunedModel


@dataclass(frozen=True)
class Task:
    """A workload with its names looked up, ready for a program to train.

    Attributes:
        network: returns a new model; called under the strategy's scope.
        optimizer: returns a new optimizer; called under the strategy's scope.
        dataset: training and validation examples, preprocessed.
        loss_metaparameters: names of the metaparameters that the loss reads and the
            points hold.
        pruning_wrapper: returns the network in wrappers that prune it during training;
            None trains the plain network.
        objective: loss and metrics.
    """

    network: Callable[[], keras.Model]
    optimizer: Callable[[], TensorOptimizer]
    dataset: Dataset
    loss_metaparameters: tuple[str, ...] = ()
    pruning_wrapper: Callable[[keras.Model], PrunedModel] | None = None
    objective: Objective = field(default_factory=objectives.build)


@dataclass(frozen=True)
class Advance:
    """The result of a slice."""

    steps: int  # updates made, including one that diverged
    loss: float  # loss of the last step's mini-batch, before its update
    diverged: bool  # whether that loss was not finite; the slice ended there


class Program:
    """One network and optimizer, compiled for one batch size on one strategy.

    A program is not thread-safe: give each thread its own program.

    Attributes:
        network: the plain Keras network, which defines the order of weights.
        model: the trained model: the network, or the network in pruning wrappers; its
            weights are those of the trial loaded last.
        pruning_wrapper: see `Task`; None for a plain network.
        optimizer: the optimizer, with the metaparameters of the trial loaded last.
        objective: the objective that is trained and evaluated.
        masks: float32 0/1 variables, one per trainable variable.
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
        self.strategy = data.strategy
        strategies.check_batch_size(batch_size, self.strategy)
        self.data = data
        self.batch_size = batch_size
        self.objective = task.objective
        with self.strategy.scope():
            self.network = task.network()
            self.pruning_wrapper = (
                task.pruning_wrapper(self.network) if task.pruning_wrapper else None
            )
            self.model = (
                self.pruning_wrapper.model if self.pruning_wrapper else self.network
            )
            seed_layers(self.model)
            check_logits(self.network, self.objective.link)
            self._check_labels(task)
            trained = self._build_trained(task, batch_size)
        self._jit_compile = jit_compile
        self._evaluators = {VALIDATION: self._build_evaluator(goal)}
        self.optimizer, self.masks = trained.optimizer, trained.masks
        self._seed = trained.seed
        self._worker_variables = trained.workers.variables if trained.workers else []
        self._loss_metaparameters = trained.loss_metaparameters
        self._slice = CompiledSlice(trained, data, batch_size, jit_compile)
        self._state = PackedVariables(self.variables)
        self._packed_masks = PackedVariables(self.masks)
        self._loaded_masks: Sequence[np.ndarray] | None = None
        self._trained = PackedVariables(self.model.trainable_variables)
        self._is_finite = tf.function(self._finite, input_signature=[], autograph=False)

    def _check_labels(self, task: Task) -> None:
        """Raises UserError for labels that the objective or the network cannot take."""
        what = f"data set {task.dataset.name!r}"
        for examples in (task.dataset.train, task.dataset.validation):
            self.objective.checked_labels(examples.labels[:1], what)
            shape = self.model.outputs[0].shape
            self.objective.check_outputs(examples.labels, shape, what)

    def _build_trained(self, task: Task, batch_size: int) -> Trained:
        """Makes optimizer, masks and other variables; call in the strategy's scope."""
        optimizer, variables = task.optimizer(), self.model.trainable_variables
        optimizer.build(variables)
        workers = None
        if optimizer.workers > 1:
            check_shares(
                batch_size, optimizer.workers, self.strategy.num_replicas_in_sync
            )
            workers = LocalWorkers(self.model, optimizer, self.strategy)
        masks = [tf.Variable(tf.ones_like(v), trainable=False) for v in variables]
        loss = {
            name: tf.Variable(0.0, trainable=False) for name in task.loss_metaparameters
        }
        seed = tf.Variable(0, dtype=tf.int64, trainable=False)
        return Trained(
            self.model,
            optimizer,
            self.objective,
            masks,
            seed,
            loss,
            self.pruning_wrapper,
            task.dataset.transform,
            workers,
        )

    def _build_evaluator(self, goal: Goal | None) -> ExactEvaluator | GoalEvaluator:
        evaluated = self.model, self.data, self.objective
        if goal is None:
            return ExactEvaluator(*evaluated, self._jit_compile)
        is_streamed = self.data.placement == "stream"
        kind = StreamedGoalEvaluator if is_streamed else ResidentGoalEvaluator
        return kind(*evaluated, goal, self._jit_compile)

    @property
    def traces(self) -> int:
        """The number of times the slice was traced; stays at 1."""
        return self._slice.traces

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that make up a trial's state, in the order of its arrays."""
        weights, of_wrapper = self.network.weights, []
        if self.pruning_wrapper is not None:
            weights, of_wrapper = (
                self.pruning_wrapper.weights,
                self.pruning_wrapper.state_variables,
            )
        return [
            *weights,
            *self.optimizer.slots,
            *self._evaluators[VALIDATION].variables,
            *self._worker_variables,
            *of_wrapper,
        ]

    def fresh_state(self, initial_point: Sequence[np.ndarray]) -> TrialState:
        """Returns the state of a trial before its first step, with zero slots.

        `initial_point`: arrays in the order of `network.weights`, pruned entries zero.
        """
        evaluated = self._evaluators[VALIDATION].variables
        rest = [*self.optimizer.slots, *evaluated, *self._worker_variables]
        zeros = [np.zeros(v.shape, v.dtype.as_numpy_dtype) for v in rest]
        of_wrapper = self.pruning_wrapper.fresh_state() if self.pruning_wrapper else []
        return TrialState(0, (*initial_point, *zeros, *of_wrapper))

    @own_settings()
    def evaluate(self, split: str = VALIDATION) -> Evaluation:
        """Returns the metrics of the loaded trial on a split of `Dataset.evaluated`.

        They are exact, except bounds on the validation split in a program with a goal.
        If the optimizer averages weights, they are those of the averaged weights. The
        trial is left as it was; of a network in wrappers of tfmot the pruned weights
        are evaluated.
        """
        if split not in self._evaluators:
            self._evaluators[split] = ExactEvaluator(
                self.model, self.data, self.objective, self._jit_compile, split
            )
        is_averaged, wrapper = self.optimizer.averages_weights, self.pruning_wrapper
        if not is_averaged and wrapper is None:
            return self._evaluators[split]()
        trained = self._trained.read()
        weights = self.optimizer.averaged_weights() if is_averaged else trained
        masks = self.masks if wrapper is None else wrapper.masks()
        pairs = zip(weights, masks, strict=True)
        self._trained.assign([np.asarray(values * mask) for values, mask in pairs])
        try:
            with nullcontext() if wrapper is None else wrapper.masked_before():
                return self._evaluators[split]()
        finally:
            self._trained.assign(trained)

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
        """
        loss, optimizer = self.objective.split_point(point)
        self.optimizer.set_metaparameters(optimizer)
        for name, variable in self._loss_metaparameters.items():
            variable.assign(loss.get(name, 0.0))
        # The masks of a new program are ones, as of a dense network.
        if masks is not self._loaded_masks:
            self._packed_masks.assign(
                [np.ones(v.shape, np.float32) for v in self.masks]
                if masks is None
                else masks
            )
            self._loaded_masks = masks
        self._seed.assign(np.int64(derive_seed(seed, 0, "draws")))
        self.optimizer.iterations.assign(np.int64(state.step))
        self._state.assign(state.arrays)

    def read(self) -> TrialState:
        """Returns the state of the loaded trial, as copies."""
        return TrialState(int(self.optimizer.iterations.numpy()), self._state.read())

    @property
    def is_finite(self) -> bool:
        """Whether all weights of the loaded trial are finite.

        A ReLU, a maximum or a normalization may hide from the loss that one is not.
        """
        return bool(self._is_finite())

    def _finite(self) -> tf.Tensor:
        wrapper = self.pruning_wrapper
        weights = self.network.weights if wrapper is None else wrapper.weights
        values = [_first_replica(v) for v in weights if v.dtype.is_floating]
        parts = [tf.reduce_all(tf.math.is_finite(value)) for value in values]
        return tf.reduce_all(parts)

    @own_settings()
    def advance(self, indices: np.ndarray) -> Advance:
        """Trains the loaded trial on batches; ends early at a loss that is not finite.

        `indices`: int32 [steps, batch_size], positions in the training split.
        """
        if indices.shape[1] != self.batch_size:
            raise UserError(
                f"a batch of {indices.shape[1]} examples was given to a program of "
                f"batch size {self.batch_size}."
            )
        steps, loss = self._slice(indices)
        return Advance(steps, loss, not np.isfinite(loss))


class PackedVariables:
    """Variables that are assigned and read in one transfer, as arrays in their order.

    Transfers of single variables cost milliseconds of Python in each turn of a race if
    the optimizer has slots, and all slots of a process share one interpreter.
    """

    def __init__(self, variables: Sequence[tf.Variable]):
        """`variables` are those of one device or mirrored."""
        self._variables = list(variables)
        kinds = [variable.dtype.as_numpy_dtype for variable in self._variables]
        self._groups = [
            [place for place, other in enumerate(kinds) if other is kind]
            for kind in dict.fromkeys(kinds)
        ]
        self._assign = self._build_assign()
        self._read = tf.function(self._packed, input_signature=[], autograph=False)

    def assign(self, arrays: Sequence[np.ndarray]) -> None:
        """Gives each variable the value of an array; ValueError for other shapes."""
        shapes = [tuple(np.shape(array)) for array in arrays]
        if shapes != [tuple(variable.shape) for variable in self._variables]:
            raise ValueError(f"arrays of shapes {shapes} are not those of a program")
        self._assign(
            [
                np.concatenate([np.ravel(arrays[place]) for place in group])
                for group in self._groups
            ]
        )

    def read(self) -> tuple[np.ndarray, ...]:
        """Returns copies of the values; of several replicas, those of the first."""
        values: list[Any] = [None] * len(self._variables)
        for group, packed in zip(self._groups, self._read(), strict=True):
            shapes = [tuple(self._variables[place].shape) for place in group]
            ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
            parts = np.split(packed.numpy(), ends[:-1])
            for place, part, shape in zip(group, parts, shapes, strict=True):
                values[place] = np.array(part.reshape(shape))
        return tuple(values)

    def _packed(self) -> list[tf.Tensor]:
        flat = [tf.reshape(_first_replica(v), [-1]) for v in self._variables]
        return [tf.concat([flat[place] for place in g], 0) for g in self._groups]

    def _build_assign(self) -> Any:
        def assign(packed: Sequence[tf.Tensor]) -> None:
            for group, values in zip(self._groups, packed, strict=True):
                own = [self._variables[place] for place in group]
                sizes = [variable.shape.num_elements() for variable in own]
                parts = tf.split(values, sizes)
                for variable, part in zip(own, parts, strict=True):
                    variable.assign(tf.reshape(part, variable.shape))

        types = [self._variables[group[0]].dtype for group in self._groups]
        specs = [tf.TensorSpec([None], kind) for kind in types]
        return tf.function(assign, input_signature=[specs], autograph=False)


def _first_replica(variable: Any) -> Any:
    """Returns a variable, or its first replica where it has several."""
    values = getattr(variable, "values", None)
    return values[0] if values else variable
