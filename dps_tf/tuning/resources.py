"""The machine that a process trains on: its devices, slots and memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import psutil
import tensorflow as tf

from dps_tf import models, objectives, optim, sparsity
from dps_tf._keras import keras
from dps_tf.core import StudySpecification, UserError, most_groups, processors
from dps_tf.data import Dataset
from dps_tf.training import (
    NoLanes,
    PlacedData,
    Program,
    Task,
    device_memory,
    evaluation,
    most_lanes,
)
from dps_tf.training import strategy as strategies
from dps_tf.tuning import own_code

_MAX_SLOTS = 64
"""Largest default number of trials side by side on a CPU."""
_KEPT = 1 << 22
"""Most parameters of a program for one batch size that is kept for the next cell."""
FREE_FIELDS = (
    "cell.batch_size",
    "cell.seed",
    "cell.sparsity",
    "cell.sparsity_method",
    "lanes",
    "workload.evaluation_interval",
    "workload.explicit_points",
)
"""The fields in which studies may differ that one program trains, in other batches."""


def configure_threads(intra_op: int | None = None) -> int:
    """Sets TensorFlow's threads per operation, 1 for None, if it has not started.

    Returns the number that TensorFlow has.
    """
    return strategies.configure_threads(intra_op or 1, processors())


def check_threads(specification: StudySpecification) -> None:
    """Raises UserError unless TensorFlow has the threads of a study, or takes them."""
    wanted = specification.intra_op_threads
    here = configure_threads(wanted)
    if here != wanted:
        raise UserError(
            f"{specification.cell.name} has {wanted} thread(s) per operation, on which "
            f"its numbers depend, and TensorFlow was started here with {here}: restart "
            "Python and run the sweep first, or choose another sweep_dir."
        )


def check_batch_size(specification: StudySpecification, dataset: Dataset) -> None:
    """Raises UserError unless a batch fits the training set."""
    batch_size = specification.cell.batch_size
    if batch_size > len(dataset.train):
        raise UserError(
            f"batch size {batch_size} is larger than the training set of "
            f"{dataset.name}, {len(dataset.train)} examples: choose a smaller one."
        )


def check_memory(
    specification: StudySpecification,
    dataset: Dataset,
    lanes: int,
    trials: int | None = None,
) -> None:
    """Raises UserError unless the free memory can hold the states of all trials.

    The trials of a race advance together, each with a state and masks of its own. A
    program holds as many more as it has lanes, full or empty. Draws beyond the points
    follow trials that diverged, of which the masks alone stay. Where states lie on an
    accelerator, saving brings them to the host.

    Args:
        specification: the study.
        dataset: its data set.
        lanes: lanes of all programs of this machine together; 0 where other machines
            train, and this one saves their states.
        trials: number of trials whose states are held here; None stands for all.
    """
    rule, cell = specification.rule, specification.cell
    trials = trials or rule.draws_limit
    states = min(trials, rule.points + lanes) + lanes
    is_masked = cell.sparsity > 0 and not sparsity.gradual_of(specification)
    masks = trials * is_masked + lanes if lanes else 0
    state, mask = state_bytes(specification, dataset)
    needed, free = states * state + masks * mask, free_memory()
    if needed > free:
        raise UserError(
            f"{cell.name}: {states} states and {masks} masks, of {trials} trials and "
            f"{lanes} lanes, take {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB of "
            "memory are free: take fewer points, slots or lanes, or a machine with "
            "more memory."
        )


def state_bytes(study: StudySpecification, dataset: Dataset) -> tuple[int, int]:
    """Returns the bytes of the state of a trial, and of its masks, one an entry."""
    workload = study.workload
    network = models.scratch_for(workload, dataset.input_shape, dataset.classes)
    reads = objectives.build_for(workload, dataset.token_bytes).reads
    trained, optimizer = network.trainable_variables, optim.build_for(workload, reads)
    slots = optimizer.flat(optimizer.init(trained))
    arrays = [*network.weights, *slots]
    if optimizer.workers > 1:
        arrays += [*trained, *slots] * optimizer.workers
    if gradual := sparsity.gradual_of(study):
        arrays += gradual(network).fresh(network.weights)
    state = sum(math.prod(a.shape) * tf.as_dtype(a.dtype).size for a in arrays)
    ranks = len(dataset.validation) if study.evaluation == "goal" else 0
    state += ranks * (ranks > evaluation.GOAL_BATCH_SIZE)
    return state, sum(math.prod(variable.shape) for variable in trained)


class Resources:
    """The devices, slots and memory with which trials run; none changes a result.

    Attributes:
        strategies: one strategy per slot; each slot runs its own trials.
        memory_limit: bytes that the activations of all slots may take together; half of
            the memory that is free now by default.
        data_placement: place of the data sets; see `training.device_memory`.
    """

    def __init__(
        self,
        strategies: Sequence[tf.distribute.Strategy],
        memory_limit: float | None = None,
    ):
        self.strategies = tuple(strategies)
        self.memory_limit = free_memory() / 2 if memory_limit is None else memory_limit
        self.data_placement = "auto"
        self._held: dict[tuple[str, str], PlacedData] = {}
        self._latest: tuple[str, list[Program]] = "", []
        self._seen: set[str] = set()

    @classmethod
    def of_this_machine(cls, slots: int = 0, strategy: str = "auto") -> Resources:
        """Returns slots on the local devices, for these two fields of `Options`.

        Devices get whole trials before they share a batch: with `auto` every slot has
        one device, and a batch of any size stays whole.

        Raises:
            UserError: a value is not allowed, or the devices are missing.
        """
        if slots < 0:
            raise UserError(f"slots is {slots}; it must be at least 0.")
        if strategy == "tpu_cores":
            cores = strategies.build_cores()
            in_turn = [cores[i % len(cores)] for i in range(slots or len(cores))]
            # The host's memory is no limit: activations are in the core's.
            return cls(in_turn, math.inf)
        if strategy not in ("auto", "one_device"):
            return cls([strategies.build(strategy)])
        devices = strategies.local_devices()
        each = [tf.distribute.OneDeviceStrategy(device) for device in devices]
        on_host = strategies.kind(each[0]).on_host
        # A host's devices have the same processors: slots of one share data and traces.
        if strategy == "one_device" or on_host:
            each = each[:1]
        most = min(processors(), _MAX_SLOTS)
        slots = slots or (most if on_host else len(each))
        return cls([each[i % len(each)] for i in range(slots)])

    @property
    def replicas(self) -> int:
        """Number of devices that share each batch."""
        return int(self.strategies[0].num_replicas_in_sync)

    def settled(self, specification: StudySpecification) -> StudySpecification:
        """Returns a study with what it leaves open as it is best on these devices.

        With XLA, where lanes were not measured, there is one unless more are asked for.
        """
        pays = strategies.kind(self.strategies[0]).xla_pays
        found = specification.settled_by({"xla": pays, "deterministic": False})
        return found.settled_by({"lanes": 1}) if found.xla else found

    def lanes_of(self, study: StudySpecification, dataset: Dataset) -> int:
        """Returns how many lanes all programs of a study here have, at most."""
        workload, lanes = study.workload, self.settled(study).lanes
        if not lanes:
            network = models.scratch_for(workload, dataset.input_shape, dataset.classes)
            lanes = self._most_lanes(study, dataset, network)
        groups = most_groups(range(study.rule.draws_limit), lanes)
        return lanes * min(groups, len(self.strategies))

    def programs(
        self,
        specification: StudySpecification,
        dataset: Dataset,
        say: Callable[[str], None] = lambda text: None,
        *,
        is_seen: bool = False,
    ) -> list[Program]:
        """Returns one program per slot; slots of one device share its data.

        Where batches would exceed `memory_limit` there are fewer, but at least one. A
        deterministic study makes all operations of this process deterministic. If the
        study leaves its lanes open, they are decided here; `say` gets why there is one,
        where that is because of an operation. `is_seen`: see `Task`.

        Raises:
            UserError: the batch does not fit the training set, or data of a study in
                lanes are to be streamed.
        """
        check_batch_size(specification, dataset)
        task = _task(specification, dataset)
        goal = specification.goal if specification.evaluation == "goal" else None
        if specification.deterministic:
            tf.config.experimental.enable_op_determinism()
        size = specification.cell.batch_size
        xla, lanes = bool(specification.xla), specification.lanes
        if lanes > 1 and self.data_placement == "stream":
            raise UserError(
                f"{specification.cell.name} has {lanes} lanes, which read data on the "
                "device: leave out --data_placement=stream."
            )
        programs: list[Program] = []
        kind = _kind(specification)
        # To look takes longer than to trace: once for all batch sizes.
        task = replace(task, is_seen=is_seen or kind in self._seen)
        known = self._latest[1] if self._latest[0] == kind and not task.gradual else []

        def build(strategy: tf.distribute.Strategy) -> Program:
            data = self._data(dataset, strategy, lanes > 1)
            # A slot trains one study at a time.
            before = known[len(programs) : len(programs) + 1]
            twins = (
                like.twin(size, in_turn=like in before)
                for like in (*before, *programs, *known)
                if like.data is data and like.lanes == lanes
            )
            return next(filter(None, twins), None) or Program(
                task, data, size, goal=goal, lanes=lanes, jit_compile=xla
            )

        if not lanes:
            network = known[0].network if known else task.network()
            lanes = self._most_lanes(specification, dataset, network)
        for strategy in self.strategies:
            try:
                program = build(strategy)
            except NoLanes as error:
                if specification.lanes:
                    raise
                say(
                    f"note: {error.what} cannot be computed in lanes: one trial a "
                    "program."
                )
                lanes = 1
                program = build(strategy)
            needed = _activation_bytes(program.network, size) * lanes
            if programs and (len(programs) + 1) * needed > self.memory_limit:
                break
            programs.append(program)
            task = replace(task, is_seen=True)
            self._seen.add(kind)
        # Cells of one batch size can share any program; large ones are let go.
        keeps = programs[0].network.count_params() <= _KEPT and not task.is_own
        self._latest = kind, [p for p in programs if keeps or p.takes_any_batch]
        return programs

    def _most_lanes(
        self, study: StudySpecification, dataset: Dataset, network: keras.Model
    ) -> int:
        points = 1 if study.workload.is_adaptive else study.workload.points
        size = study.cell.batch_size
        return most_lanes(network, dataset, size, points, self.strategies[0])

    def _data(
        self, dataset: Dataset, strategy: tf.distribute.Strategy, in_lanes: bool
    ) -> PlacedData:
        """Returns a data set on a device; drops the data of other data sets.

        Lanes have it there whatever memory is free: a study keeps their number.
        """
        key, placement = _key(dataset, strategy), self.data_placement
        if in_lanes and placement == "auto":
            placement = "device"
        held = self._held.get(key)
        if held is None or placement == "device" != held.placement:
            for old in [k for k in self._held if k[0] != dataset.content_hash]:
                del self._held[old]
            held = device_memory.place(dataset, strategy, placement, free_memory())
            self._held[key] = held
        return held


def _task(study: StudySpecification, dataset: Dataset) -> Task:
    """Returns what the programs of a study train: its names looked up."""
    workload = study.workload
    objective = objectives.build_for(workload, dataset.token_bytes)

    def network() -> keras.Model:
        built = models.build_for(workload, dataset.input_shape, dataset.classes)
        return models.in_precision(built, study.precision)

    given = workload.metaparameters
    return Task(
        network=network,
        optimizer=lambda: optim.build_for(workload, objective.reads),
        dataset=dataset,
        loss_metaparameters=tuple(n for n in objective.reads if n in given),
        gradual=sparsity.gradual_of(study),
        objective=objective,
        is_own=own_code.is_own(study, dataset),
    )


def _kind(study: StudySpecification) -> str:
    """Returns what studies have in common whose programs differ in the batch size."""
    same = {n: v for n, v in study.identity().items() if n not in FREE_FIELDS}
    return json.dumps([same, study.goal.threshold], sort_keys=True)


def _key(dataset: Dataset, strategy: tf.distribute.Strategy) -> tuple[str, str]:
    """Returns the key of a data set on the devices of a strategy."""
    return dataset.content_hash, str(strategy.extended.worker_devices)


def _activation_bytes(model: keras.Model, batch_size: int) -> int:
    """Returns roughly the bytes that a step takes besides the program's variables."""
    # Outputs of all layers, their gradients, and as much again for workspace.
    return 3 * device_memory.output_bytes(model) * batch_size


def free_memory() -> float:
    """Returns the bytes of memory that this machine has to spare now."""
    return float(psutil.virtual_memory().available)
