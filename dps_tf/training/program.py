"""A program: a compiled network and optimizer that trials are loaded into.

State, masks, metaparameters, the order of examples and the number of steps are inputs
of one pure function. So one program serves every trial, sparsity and slice length of a
network, optimizer and batch size without being traced again. Several programs run side
by side, each in its own thread; a trial's bits do not depend on the other trials.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from dps_tf import objectives
from dps_tf._keras import keras, own_settings
from dps_tf.core import (
    VALIDATION,
    Goal,
    TrialState,
    UserError,
    arguments_alone,
    derive_seed,
)
from dps_tf.data import Dataset
from dps_tf.models import (
    check_graph,
    check_logits,
    functional,
    initial_point,
    seed_layers,
)
from dps_tf.objectives import Objective
from dps_tf.optim import Optimizer
from dps_tf.training import strategy as strategies
from dps_tf.training.device_data import PlacedData
from dps_tf.training.device_memory import held_bytes
from dps_tf.training.evaluation import Evaluated, Evaluation, ExactEvaluator
from dps_tf.training.goal_evaluator import evaluator_for
from dps_tf.training.lanes import LaneLoop, NoLanes, of_lanes
from dps_tf.training.local_workers import LocalWorkers
from dps_tf.training.packing import Packed, Packing
from dps_tf.training.replicas import Replicas
from dps_tf.training.step import Loop, State, Step, Trial

if TYPE_CHECKING:
    from dps_tf.sparsity.tfmot import Gradual


_PARTS = ("weights", "slots", "ranks", "workers", "masks")
"""What the arrays of a saved state are, in their order; see `State`."""
_NUMBERS = ("step", "steps", "wanted", "pruned")
"""The integers that a slice is called with; `wanted` is one of the two below, or 0.

The seed of each lane follows, then for each whether its trial goes on or waits.
"""
_IF_SOUND, _ALWAYS = 1, 2
_MOST_LANES = 15
_MOST_PRODUCTS = 5_500_000
"""Most weights times examples for which a turn of all lanes costs under eight of one.

Measured on CPUs with MLPs of one hidden layer, on digits. A turn has the examples of a
batch, and 100 for the evaluation.
"""
_MOST_DATA = 1 << 29
"""Most bytes of a data set that lanes hold on their device, however little is free."""
_ANY_BATCH = keras.layers.InputLayer, keras.layers.Flatten, keras.layers.Dense
"""Layers that draw nothing, and whose graph may leave the size of a batch open: the
bits are those of a graph for one size."""
_KEPT = 1 << 20
"""Most bytes of the states of all lanes that are kept whole for the sake of one."""
_HELD = 1 << 26
"""Most bytes of a state that stays on its device between turns: a hundred fit there.

Initial points that are kept take at most as many. Labels in files of at most as many
are read whole, to be checked.
"""


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
        is_own: whether any of these is code of a user's own.
        is_seen: whether another program has traced this code of a user's own before.
    """

    network: Callable[[], keras.Model]
    optimizer: Callable[[], Optimizer]
    dataset: Dataset
    loss_metaparameters: tuple[str, ...] = ()
    gradual: Callable[[keras.Model], Gradual] | None = None
    objective: Objective = field(default_factory=objectives.build)
    is_own: bool = False
    is_seen: bool = False


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


class Loaded(NamedTuple):
    """A trial to be loaded into a lane; see `Program.load`."""

    lane: int
    state: TrialState
    point: Mapping[str, float]
    masks: Sequence[np.ndarray] | None = None
    seed: int = 0


class Program:
    """One network and optimizer, compiled for one batch size on one strategy.

    A program is not thread-safe: give each thread its own program. What is said of the
    loaded trial holds for one lane; several are loaded, advanced and evaluated together
    by the methods that name lanes.

    Attributes:
        network: the Keras network, which defines the order of weights; its own weights
            belong to no trial.
        optimizer: the optimizer.
        objective: the objective that is trained and evaluated.
        gradual: the rule that prunes during training, or None.
        lanes: number of trials that are advanced together.
        layout: names what the arrays of a state are, how many of each, and the
            optimizer with its slots: those of another may have the same forms.
        takes_any_batch: whether its graph is for batches of any size.
        initial_point: returns the weights before the first step, by seed.
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
        lanes: int = 1,
        jit_compile: bool = False,
    ):
        """Builds the network and traces the slice.

        Args:
            task: network, optimizer, objective and data set.
            data: the data set of the task, placed for the devices of a strategy.
            batch_size: global batch size.
            goal: evaluations stop as soon as this goal is out of reach; None evaluates
                exactly.
            lanes: number of trials that are advanced together, each in its own lane.
            jit_compile: whether XLA compiles the slice and the evaluations.

        Raises:
            UserError: the replicas cannot share a batch, the labels do not fit the
                objective or the network, a step draws random numbers without a seed, or
                it cannot be computed in lanes.
        """
        self.lanes, self._sides = lanes, [lanes] if lanes > 1 else []
        self.strategy, self.data, self.batch_size = data.strategy, data, batch_size
        strategies.check_batch_size(batch_size, data.strategy)
        self._replicas = Replicas(data.strategy, jit_compile)
        self.objective = task.objective
        is_fused = not self._replicas.uses_xla and lanes == 1
        self.optimizer = replace(task.optimizer(), is_fused=is_fused)
        self.network = functional(task.network)
        self.gradual = task.gradual(self.network) if task.gradual else None
        seed_layers(self.network)
        operations = check_logits(self.network, self.objective.link)
        self._check_labels(task)
        is_plain = not task.is_own and task.dataset.transform is None
        self.takes_any_batch = (
            lanes > 1
            and is_plain
            and all(
                type(layer) in _ANY_BATCH or isinstance(layer, keras.Model)
                for layer in self.network._flatten_layers()
            )
        )
        is_called = lanes == 1 and bool({"MaxPool", "MaxPool3D"} & operations)
        self._step = self._build_step(task, batch_size, is_called)
        is_local = self.optimizer.workers > 1
        self._workers = LocalWorkers(self._step) if is_local else None
        self._names = (*task.loss_metaparameters, *self.optimizer.reads)
        self._row_of = functools.lru_cache(maxsize=1024)(self._row)
        # Cells that share a network begin their trials at the same points.
        kept = min(256, _HELD // (4 * self.network.count_params() + 1))
        draw = functools.partial(initial_point, self.network)
        self.initial_point = functools.lru_cache(kept * self.takes_any_batch)(draw)
        if lanes > 1:
            self._check_lanes()
        parts = self.network, data, self.objective, self._replicas
        evaluated = Evaluated(*parts, lanes)
        self._evaluated = evaluated
        self._evaluators: dict[str, Any] = {VALIDATION: evaluator_for(evaluated, goal)}
        size = 0 if self.takes_any_batch else batch_size
        self._batches = data.train_batches(size, lanes)
        loop = Loop if lanes == 1 else LaneLoop
        step = self._workers or self._step
        self._loop = loop(step, self._replicas, self._batches)
        self._views: weakref.WeakSet[Packed] = weakref.WeakSet()
        self.traces = 0
        # To look doubles the time of a trace.
        looks = task.is_own and not task.is_seen
        with arguments_alone() if looks else contextlib.nullcontext():
            self._trace()

    def _check_labels(self, task: Task) -> None:
        """Raises UserError for labels that the objective or the network cannot take."""
        what = f"data set {task.dataset.name!r}"
        for examples in (task.dataset.train, task.dataset.validation):
            labels = examples.labels
            self.objective.checked_labels(labels[:1], what)
            # Labels in files are read whole where that is done anyway, or quick.
            is_split = examples is not task.dataset.train
            size = math.prod(labels.shape) * labels.dtype.itemsize
            if is_split or self.data.placement == "device" or size <= _HELD:
                labels = np.asarray(labels)
            shape = self.network.outputs[0].shape
            self.objective.check_outputs(labels, shape, what)

    def _check_lanes(self) -> None:
        """Raises UserError for what has no form in lanes."""
        for is_there, what in (
            (self.data.placement != "device", "data that are streamed"),
            (self._replicas.count > 1, "devices that share a batch"),
            (self._workers, "local SGD"),
            (self.gradual, "pruning in training"),
        ):
            if is_there:
                raise NoLanes(what)

    def _build_step(self, task: Task, batch_size: int, is_called: bool) -> Step:
        workers, replicas = self.optimizer.workers, self._replicas
        if workers > 1:
            strategies.check_shares(batch_size, workers, replicas.count)
        return Step(
            self.network,
            self.optimizer,
            self.objective,
            task.dataset.transform,
            self.gradual,
            replicas,
            None
            if self.takes_any_batch
            else batch_size // (workers if workers > 1 else replicas.count),
            communicates=workers == 1,
            is_called=is_called,
        )

    @property
    def _evaluates_in_slice(self) -> bool:
        return self.data.placement == "device"

    def _trace(self) -> None:
        """Traces the slice, so that a graph without seeds is refused before any trial.

        Its arguments are few packed tensors, because each one costs Python in a turn.
        """
        parts = self._fresh_parts(self.network.weights)
        self._counts = [len(part) for part in parts]
        named = zip(self._counts, _PARTS, strict=True)
        rule = ", ".join([self.optimizer.name, *self.optimizer.slot_names])
        self.layout = ", ".join(f"{n} {part}" for n, part in named) + f" ({rule})"
        arrays = [array for part in parts for array in part]
        self._packing, self._packings = Packing(arrays), Packing(arrays, self._sides)
        ones = self._masks_of(None)
        self._mask_packing = Packing(ones)
        self._mask_packings = Packing(ones, self._sides)
        none: list[Any] = [None] * self.lanes
        self._loaded_masks = none, self._packed_masks(none)
        self._signature = [
            self._packings.signature,
            self._mask_packings.signature,
            tf.TensorSpec([*self._sides, len(self._names)], tf.float32),
            tf.TensorSpec([len(_NUMBERS) + 3 * self.lanes], tf.int64),
        ]
        self._run = self._replicas.compiled(
            self._slice, [*self._signature, *self._batches.signature]
        )
        self._operations = check_graph(self._run.graph, self.network)

    def twin(
        self, batch_size: int | None = None, *, in_turn: bool = False
    ) -> Program | None:
        """Returns a program for another thread that shares what is traced here.

        Args:
            batch_size: its batch size; by default the same.
            in_turn: whether it runs only while this program does not.

        Returns None where they cannot share it: streams have a position, TensorFlow may
        turn AddN into temporary variables, whose names all calls of a graph share, and
        most programs have one batch size.
        """
        size = batch_size or self.batch_size
        is_fixed = size != self.batch_size and not self.takes_any_batch
        if is_fixed or self.data.placement != "device":
            return None
        if "AddN" in self._operations and not in_turn:
            return None
        twin = copy.copy(self)
        twin.batch_size, twin._views = size, weakref.WeakSet()
        return twin

    def is_twin(self, other: Program) -> bool:
        """Returns whether both share what was traced."""
        return self._run is other._run

    def _unpacked(
        self,
        state: Sequence[tf.Tensor],
        masks: Sequence[tf.Tensor],
        point: tf.Tensor,
        numbers: tf.Tensor,
    ) -> tuple[State, Trial, dict[str, tf.Tensor]]:
        """Returns (state, trial, the other numbers) of packed tensors, in a graph."""
        of = dict(zip(_NUMBERS, tf.unstack(numbers[: len(_NUMBERS)]), strict=True))
        seeds, *whether = tf.split(numbers[len(_NUMBERS) :], 3)
        values = dict(zip(self._names, tf.unstack(point, axis=-1), strict=True))
        rest = iter(self._packings.unpack(state))
        parts = [[next(rest) for _ in range(count)] for count in self._counts]
        trial = Trial(
            values,
            self._mask_packings.unpack(masks),
            of["pruned"] > 0 if self.lanes == 1 else True,
            tf.reshape(seeds, self._sides),
            *[tf.reshape(each > 0, self._sides) for each in whether],
        )
        return State(of["step"], *parts), trial, of

    def _each(self, function: Callable[..., Any], state: State, trial: Trial) -> Any:
        """Returns function(state, trial) of each lane."""
        if self.lanes == 1:
            return function(state, trial)
        in_groups = self._replicas.uses_xla
        return of_lanes(function, state, trial, in_groups=in_groups)

    def _slice(self, *packed: Any) -> Any:
        """Returns (state, numbers of the slice, evaluation), packed; for `advance`."""
        self.traces += 1
        packed, values = packed[: len(self._signature)], packed[len(self._signature) :]
        state, trial, of = self._unpacked(*packed)
        held = (*values, *self._batches.held)
        state, done, loss = self._loop(
            state, trial, tf.cast(of["steps"], tf.int32), held
        )
        finite, sparse = tf.cond(
            of["wanted"] > 0,
            lambda: self._step.is_sound(state, trial),
            lambda: (tf.ones(self._sides, tf.bool), tf.ones(self._sides, tf.bool)),
        )
        evaluation: Any = ()
        if self._evaluates_in_slice:
            ended = trial.runs & finite & tf.math.is_finite(loss)
            ended &= tf.equal(tf.cast(done, tf.int64), of["steps"])
            evaluation, memory = self._evaluators[VALIDATION].graph(
                self._each(self._step.evaluated, state, trial),
                state.evaluation,
                (of["wanted"] > _IF_SOUND) | (ended & (of["wanted"] > 0)),
            )
            state = state._replace(evaluation=memory)
        arrays = [array for part in state[1:] for array in part]
        found = [tf.cast(x, tf.float64) for x in (done, loss, finite, sparse)]
        return self._packings.pack(arrays), tf.stack(found), evaluation

    def fresh_state(self, weights: Sequence[np.ndarray]) -> TrialState:
        """Returns the state of a trial before its first step, with zero slots.

        `weights`: an initial point, in the order of `network.weights`; pruned entries
        are zero.
        """
        parts = self._fresh_parts(weights)
        arrays = tuple(array for part in parts for array in part)
        return TrialState(0, arrays, self.layout)

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
            UserError: the state is of another network, optimizer or evaluation, or the
                point of another optimizer.
        """
        self.load_lanes([Loaded(0, state, point, masks, seed)])

    def load_lanes(self, trials: Sequence[Loaded]) -> None:
        """Loads trials at one step, each into its own lane; the others are empty."""
        points = np.zeros([self.lanes, len(self._names)], np.float32)
        self._seeds = np.zeros([self.lanes], np.int64)
        masks: list[Any] = [None] * self.lanes
        for lane, state, point, own, seed in trials:
            if state.layout != self.layout or not self._packing.fits(state.arrays):
                raise UserError(
                    f"a state at step {state.step} with the layout {state.layout!r} is "
                    f"not one of this program, whose layout is {self.layout!r}: it is "
                    "of another network, optimizer, evaluation or version; begin anew."
                )
            points[lane] = self._row_of(tuple(point.items()))
            masks[lane], self._seeds[lane] = own, derive_seed(seed, 0, "draws")
        self._point = points.reshape([*self._sides, -1])
        if any(map(operator.is_not, masks, self._loaded_masks[0])):
            self._loaded_masks = masks, self._packed_masks(masks)
        self._loaded = [trial.lane for trial in trials]
        (step,) = {trial.state.step for trial in trials}
        self._steps = np.full([self.lanes], step)
        self._load_states({trial.lane: trial.state.arrays for trial in trials})

    def _row(self, point: Sequence[tuple[str, float]]) -> list[float]:
        """Returns the values of a point, as the slice takes them."""
        loss, optimizer = self.objective.split_point(dict(point))
        values = {**loss, **self.optimizer.values(optimizer)}
        return [values.get(name, 0.0) for name in self._names]

    def _masks_of(self, masks: Sequence[Any] | None) -> list[np.ndarray]:
        """Returns masks with one byte an entry; ones for a dense trial."""
        if not masks:
            return [np.ones(variable.shape, bool) for variable in self._step.variables]
        return [np.asarray(mask, bool) for mask in masks]

    def _packed_masks(self, masks: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the packed masks of all lanes."""
        rows = [self._mask_packing.pack(self._masks_of(own)) for own in masks]
        if self.lanes == 1:
            return rows[0]
        return [tf.stack(values) for values in zip(*rows, strict=True)]

    def _load_states(self, arrays: Mapping[int, Any]) -> None:
        """Sets the packed state of all lanes from the arrays of some."""
        held = {
            lane: own if isinstance(own, Packed) else self._packing.packed(own)
            for lane, own in arrays.items()
        }
        if self._packing.bytes * self.lanes > _KEPT:
            for view in {*self._views} - {*held.values()}:
                view.part()
        any_of = next(iter(held.values()))
        self._state, _ = any_of.held
        if self.lanes > 1 and not all(
            own.held[0] is self._state and own.held[1] == lane
            for lane, own in held.items()
        ):
            self._state = self._packings.joined(
                [held.get(lane, any_of) for lane in range(self.lanes)]
            )

    def _packed(
        self, steps: int = 0, wanted: int = 0, lanes: Sequence[int] = (0,)
    ) -> list[Any]:
        """Returns the packed arguments for the trials of the lanes that go on."""
        masks, packed = self._loaded_masks
        is_pruned = any(own is not None for own in masks)
        runs, waits = np.zeros([2, self.lanes], np.int64)
        waits[self._loaded], waits[list(lanes)], runs[list(lanes)] = 1, 0, 1
        shared = np.array([self._steps[list(lanes)].max(), steps, wanted, is_pruned])
        numbers = np.concatenate([shared.astype(np.int64), self._seeds, runs, waits])
        return [self._state, packed, self._point, numbers]

    @property
    def state(self) -> TrialState:
        """The state of the loaded trial; its arrays come to the host once read."""
        return next(iter(self.states().values()))

    def states(self) -> dict[int, TrialState]:
        """Returns the states of the loaded trials by lane, as `state` is."""
        tensors = self._state
        if self._packing.bytes * self.lanes > _HELD:
            with tf.device("/device:CPU:0"):
                tensors = [tf.identity(tensor) for tensor in tensors]
        states = {}
        for lane in self._loaded:
            arrays = Packed(self._packing, tensors, lane if self._sides else None)
            self._views.add(arrays)
            states[lane] = TrialState(int(self._steps[lane]), arrays, self.layout)
        return states

    def read(self) -> TrialState:
        """Returns the state of the loaded trial, with arrays of the host."""
        return replace(self.state, arrays=tuple(self.state.arrays))

    def advance(self, indices: np.ndarray, evaluates: bool = False) -> Advance:
        """Trains the loaded trial on batches; ends early at a loss that is not finite.

        Args:
            indices: int32 [steps, batch_size], positions in the training split.
            evaluates: whether to evaluate on the validation split after all steps, as
                `evaluate` does; with data on the device that is one call with them.
        """
        (lane,) = self._loaded
        return self.advance_lanes({lane: indices}, evaluates)[lane]

    def advance_lanes(
        self, indices: Mapping[int, np.ndarray], evaluates: bool = False
    ) -> dict[int, Advance]:
        """Trains loaded trials as `advance` does; others stay as they are.

        `indices`: as in `advance`, by lane, equally many steps for each.
        """
        lanes = list(indices)
        steps = len(indices[lanes[0]])
        rows = np.zeros([steps, self.lanes, self.batch_size], np.int32)
        for lane, own in indices.items():
            if own.shape[1] != self.batch_size:
                raise UserError(
                    f"a batch of {own.shape[1]} examples was given to a program of "
                    f"batch size {self.batch_size}."
                )
            rows[:, lane] = own
        rows = rows.reshape([steps, *self._sides, self.batch_size])
        if self._replicas.compiles_by_shape:
            ends = [(0, self._missing(steps)), *[(0, 0)] * (rows.ndim - 1)]
            rows = np.pad(rows, ends)
        left, before, wanted = steps, 0, _IF_SOUND if evaluates else 0
        done = loss = np.zeros([self.lanes])
        finite = sparse = np.ones([self.lanes], bool)
        measured: Any = None
        for length, values in self._batches.pieces(rows):
            if not left:  # the remaining pieces are padding
                break
            part, before = min(length, left), steps - left
            done, loss, finite, sparse, measured = self._call(
                part, wanted if part == left else 0, lanes, values
            )
            left -= int(done.max())
            if not np.isfinite(loss[lanes]).any():
                break
        is_sound = np.isfinite(loss) & finite
        sound = [lane for lane in lanes if evaluates and is_sound[lane]]
        found = self._measured(measured, sound) if sound else {}

        def advance(lane: int) -> Advance:
            made, last = before + int(done[lane]), float(loss[lane])
            if lane not in found:
                return Advance(made, last, not is_sound[lane])
            diverged, is_sparse = not found[lane].is_finite, bool(sparse[lane])
            return Advance(made, last, diverged, found[lane], is_sparse)

        return {lane: advance(lane) for lane in lanes}

    def _measured(self, measured: Any, lanes: Sequence[int]) -> dict[int, Evaluation]:
        """Returns the evaluations of lanes after a slice that ends in one."""
        if self._evaluates_in_slice:
            return dict(self._evaluators[VALIDATION].results(measured, lanes))
        return self.evaluate_lanes()

    def _call(
        self, steps: int, wanted: int, lanes: Sequence[int], values: Sequence[Any]
    ) -> Any:
        """Runs a slice; returns (steps, loss, is finite, is sparse, evaluation).

        All but the evaluation are [lanes].
        """
        self._state, found, evaluation = self._run(
            *self._packed(steps, wanted, lanes), *values
        )
        done, loss, finite, sparse = found.numpy().reshape(4, self.lanes)
        self._steps += done.astype(np.int64)
        return done, loss, finite > 0, sparse > 0, evaluation

    def _missing(self, steps: int) -> int:
        """Returns how many steps pad the last piece to a power of two."""
        # XLA compiles once for every shape. The other pieces are powers of two as well,
        # so a few compilations serve slices of all lengths.
        most = self._batches.most_steps
        last = steps if most is None else steps % most
        return (1 << (last - 1).bit_length()) - last if last else 0

    def evaluate(self, split: str = VALIDATION) -> Evaluation:
        """Returns the metrics of the loaded trial on a split of `Dataset.evaluated`.

        They are exact, except bounds on the validation split in a program with a goal.
        If the optimizer averages weights, the averaged weights are evaluated, and of a
        network that is pruned while it trains the pruned weights. The trial is left as
        it was.
        """
        return next(iter(self.evaluate_lanes(split).values()))

    @own_settings()
    def evaluate_lanes(self, split: str = VALIDATION) -> dict[int, Evaluation]:
        """Returns what `evaluate` does for each loaded trial, by lane."""
        if split not in self._evaluators:
            self._evaluators[split] = ExactEvaluator(self._evaluated, split)
        evaluator = self._evaluators[split]
        if split != VALIDATION:
            return evaluator.of_lanes(self.weights(), self._loaded)
        if self._evaluates_in_slice:
            rows = np.zeros([1, *self._sides, self.batch_size], np.int32)
            *_, measured = self._call(0, _ALWAYS, self._loaded, (rows,))
            return evaluator.results(measured, self._loaded)
        arrays = self._packing.unpack(self._state)
        place = self._counts[0] + self._counts[1]
        memory = arrays[place : place + self._counts[2]]
        evaluation, memory = evaluator(self.weights(), memory)
        arrays[place : place + self._counts[2]] = memory
        self._state = self._packing.pack(arrays)
        return {0: evaluation}

    def weights(self) -> list[tf.Tensor]:
        """Returns the weights that the loaded trial is evaluated with, of all lanes."""
        return self._weights(*self._packed(lanes=self._loaded))

    @functools.cached_property
    def _weights(self) -> Any:
        def weights(*packed: Any) -> list[tf.Tensor]:
            state, trial, _ = self._unpacked(*packed)
            return list(self._each(self._step.evaluated, state, trial))

        with own_settings():
            return tf.function(
                weights, input_signature=self._signature, autograph=False
            ).get_concrete_function()

    def check_sparsity_reached(self, step: int) -> None:
        """Raises UserError unless pruning in training has reached its sparsity."""
        if self.gradual is not None:
            arrays, own = self.state.arrays, self._counts[-1]
            self.gradual.check_reached(step, arrays, arrays[-own:])


def most_lanes(
    network: keras.Model,
    dataset: Dataset,
    batch_size: int,
    points: int,
    strategy: tf.distribute.Strategy,
) -> int:
    """Returns the lanes of a new study, unless something in it has no form in lanes.

    They follow from the network, data set, optimizer, batch size, number of points and
    kind of device alone, never from what memory is free. They are no power of two: the
    last bits of a Sobol number are the first of its first metaparameter, and trials of
    the best values would share few lanes. On devices other than CPUs, where lanes were
    not measured, there is one.
    """
    lanes = min(_MOST_LANES, points)
    lanes -= lanes & (lanes - 1) == 0
    most = _MOST_PRODUCTS // (batch_size + 100)
    pay = (
        lanes > 1
        and strategies.kind(strategy).lanes_pay
        and held_bytes(dataset) <= _MOST_DATA
        and network.count_params() <= most
    )
    return lanes if pay else 1
