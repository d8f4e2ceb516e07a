"""The backend that trains: it checks a study and makes the runner of its trials."""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import tensorflow as tf

from dps_tf import data, models, objectives, optim, sparsity, training
from dps_tf.core import (
    DENSE,
    Backend,
    Cell,
    PreparedStudy,
    StudySpecification,
    StudyTimes,
    UserError,
    error_cause,
)
from dps_tf.store import NETWORK, FileSystem, LocalFiles, SweepLayout
from dps_tf.training import TrainingRunner, device_memory, environment
from dps_tf.tuning import own_code
from dps_tf.tuning.options import Options
from dps_tf.tuning.resources import (
    FREE_FIELDS,
    Resources,
    check_batch_size,
    check_memory,
    check_threads,
    configure_threads,
)

STEPS_SECONDS = 1.0
"""Least time in seconds over which the steps of one batch size are timed."""
_FREE_FIELDS = (*FREE_FIELDS, "workload.step_budget")
"""The fields in which studies of one kind may differ: the same code trains them."""


class TrainedBackend(Backend):
    """Trains studies on `resources`; None stands for the devices of the options."""

    def __init__(
        self,
        options: Options,
        files: FileSystem,
        resources: Resources | None = None,
    ):
        """Touches no device yet, as a finished sweep needs none."""
        self._options = options
        self._files = files
        self._resources = resources
        self._said = {""}

    def check(self, study: StudySpecification) -> None:
        """Raises UserError for a study that cannot be trained, whatever its data are.

        Reasons are names that are not registered, and arguments and metaparameters that
        are missing, that nothing reads, or that can leave their range. Others are
        workers that cannot share a batch, a goal that the objective, and a sparsity
        that the method does not allow.
        """
        workload = study.workload
        data.check(workload)
        models.NETWORKS.resolve(workload.network, workload.network_arguments)
        optim.check(workload, objectives.build_for(workload).reads)
        workers = int(workload.fixed.get("workers", 1))
        training.check_shares(study.cell.batch_size, workers)
        objectives.check_goal(study)
        sparsity.check(study)

    def check_data(self, study: StudySpecification) -> None:
        """Raises UserError unless the data exist and fit the batch size and goal."""
        if self._options.engine == "local":
            check_threads(study)
        else:
            configure_threads(study.intra_op_threads)
        cell, workload = study.cell, study.workload
        dataset = data.load_for(workload, self._options.data_dir)
        where = f" on {dataset.name!r}"
        objectives.check_goal(study, dataset.token_bytes, where)
        check_batch_size(study, dataset)
        if self._options.engine == "local":
            check_memory(study, dataset, self._machine().lanes_of(study, dataset))
        elif not tf.config.list_physical_devices("GPU"):
            # GPUs and TPUs are the slots', which count when they open the study.
            cpus = Resources.of_this_machine(self._options.slots, "one_device")
            is_here = self._options.ray_address is None
            lanes = cpus.lanes_of(study, dataset) if is_here else 0
            check_memory(study, dataset, lanes)
        optim.check_rates(
            workload.learning_rate_schedule,
            workload.draw(cell.seed, workload.points),
            workload.step_budget,
        )
        sparsity.check_data(study, dataset)

    def prepare(
        self, study: StudySpecification, show: Callable[[str], None] | None = None
    ) -> PreparedStudy:
        """Returns the runner of a study, with a compiled program per slot."""
        check_threads(study)
        workload, cell = study.workload, study.cell
        dataset = data.load_for(workload, self._options.data_dir)
        prune = None
        if cell.sparsity > 0:
            scores = SweepLayout(self._options.sweep_dir).scores
            prune = sparsity.Pruner(study, dataset, scores, self._files, show)
        machine = self._machine()
        settled = machine.settled(study)
        if self._options.engine == "ray":
            lanes = machine.lanes_of(settled, dataset)
            own = None if self._options.ray_address is None else lanes
            check_memory(settled, dataset, lanes, own)
        programs = machine.programs(settled, dataset, self._note)
        settled = settled.settled_by({"lanes": programs[0].lanes})
        trained = workload.order, prune, study.splits_at
        runner = TrainingRunner(programs, cell.seed, *trained)
        if settled.xla and (cause := _not_compiled(runner, study)):
            if study.xla is not None:
                raise UserError(
                    f"{cell.name} is a study with XLA, which cannot compile it: "
                    f"{cause} Begin it with --xla=off."
                )
            self._note(f"{cell.name}: without XLA, which cannot compile it: {cause}")
            return self.prepare(replace(study, xla=False), show)
        self._note(device_memory.note(dataset, programs[0].data))
        inputs = {
            "training_examples": len(dataset.train),
            "validation_examples": len(dataset.validation),
            "content_hash": dataset.content_hash,
            NETWORK: models.structure_hash(programs[0].network),
            **own_code.codes_of(study, dataset),
        }
        kind = json.dumps([inputs, cell.sparsity_method, study.precision])
        if kind not in self._said and own_code.is_own(study, dataset):
            models.check_same(workload, dataset.input_shape, dataset.classes)
            pair = programs[:2]
            if len(pair) < 2 or pair[1].is_twin(pair[0]):
                # Slots may share what they trace: the second program is built anew.
                pair[1:] = self._one_slot.programs(settled, dataset, is_seen=True)
            twice = TrainingRunner(pair, cell.seed, *trained)
            try:
                twice.check_repeats(workload.draw(cell.seed, 1)[0])
            except tf.errors.InvalidArgumentError as error:
                raise _no_first_step(cell, error) from error
            if prune is not None:
                prune.check_repeats()
            self._said.add(kind)
        here = environment(machine.replicas)
        return PreparedStudy(runner, here, inputs, study=settled)

    def _note(self, note: str) -> None:
        """Prints a note once."""
        if note not in self._said:
            print(note)
            self._said.add(note)

    def try_out(self, studies: Sequence[StudySpecification]) -> float:
        """Lets one trial of the heaviest studies of each kind make one step.

        The devices are started, and the trial is initialized and pruned before; nothing
        is kept. Raises UserError for whatever fails, and where the devices cannot share
        a batch. Returns the longest time, in seconds, that it took to make and prune an
        initial point.
        """
        if self._options.slots < 0:
            Resources.of_this_machine(self._options.slots)
        for study in studies:
            batch_size, strategy = study.cell.batch_size, self._one_slot.strategies[0]
            training.check_batch_size(batch_size, strategy)
        with tempfile.TemporaryDirectory() as scores:
            # Kinds that differ in the optimizer, say, have the same scores.
            runs = [self._try_step(study, scores) for study in _heaviest(studies)]
        return max(runs, default=0.0)

    def times(self, study: StudySpecification, *, evaluates: bool = True) -> StudyTimes:
        """Returns times of the first trial in one slot, without its pruning.

        Of a step or evaluation of several lanes, the time is the share of one.
        """
        begun = time.monotonic()
        runner = self._scratch_runner(study, None)
        point = study.workload.draw(study.cell.seed, 1)[0]
        runner.try_step(point)
        start_up = time.monotonic() - begun
        step = runner.step_seconds(point, STEPS_SECONDS)
        machine = self._on_devices(self._options.slots)
        evaluation = runner.evaluation_seconds() if evaluates else 0.0
        return StudyTimes(
            step=step / runner.lanes,
            start_up=start_up,
            evaluation=evaluation / runner.lanes,
            slots=len(machine.strategies),
            devices=machine.replicas,
            lanes=runner.lanes,
        )

    def _scratch_runner(
        self, study: StudySpecification, scores: str | None, slots: int = 1
    ) -> TrainingRunner:
        """Returns a runner that writes no files but scores.

        `scores` is their folder on this machine; None keeps no scores.
        """
        dataset = data.load_for(study.workload, self._options.data_dir)
        machine = self._one_slot
        study = machine.settled(study)
        programs = [machine.programs(study, dataset)[0] for _ in range(slots)]
        prune = None
        if study.cell.sparsity > 0:
            prune = sparsity.Pruner(study, dataset, scores, LocalFiles())
        return TrainingRunner(programs, study.cell.seed, study.workload.order, prune)

    def _try_step(self, study: StudySpecification, scores: str) -> float:
        workload, cell = study.workload, study.cell
        try:
            dataset = data.load_for(workload, self._options.data_dir)
            models.check_same(workload, dataset.input_shape, dataset.classes)
            is_own = own_code.is_own(study, dataset)
            runner = self._scratch_runner(study, scores, 1 + is_own)
            begun = time.monotonic()
            runner.provenance(0)
            pruning = time.monotonic() - begun
            point = workload.draw(cell.seed, 1)[0]
            (runner.check_repeats if is_own else runner.try_step)(point)
        except UserError:
            raise
        except Exception as error:
            raise _no_first_step(cell, error) from error
        return pruning

    @cached_property
    def _one_slot(self) -> Resources:
        return self._on_devices(1)

    def _machine(self) -> Resources:
        if self._resources is None:
            self._resources = self._on_devices(self._options.slots)
        self._resources.data_placement = self._options.data_placement
        return self._resources

    def _on_devices(self, slots: int) -> Resources:
        """Returns `slots` slots on the devices of the options; 0 stands for all."""
        options = self._options
        resources = Resources.of_this_machine(slots, options.strategy)
        resources.data_placement = options.data_placement
        return resources


def _no_first_step(cell: Cell, error: Exception) -> UserError:
    cause = error_cause("".join(traceback.format_exception(error)))
    return UserError(f"{cell.name}: no trial could make its first step: {cause}")


def _not_compiled(runner: TrainingRunner, study: StudySpecification) -> str:
    """Returns why XLA cannot compile the step of a study; an empty text if it can.

    XLA compiles at the first step, and what it compiled serves the trials.
    """
    try:
        runner.try_step(study.workload.draw(study.cell.seed, 1)[0])
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        return error_cause("".join(traceback.format_exception(error)))
    return ""


def _heaviest(studies: Sequence[StudySpecification]) -> list[StudySpecification]:
    """Returns the heaviest studies of each kind, one for each method of pruning.

    They have the largest batch size and then the highest sparsity. A dense network is
    left out where it is pruned in other studies: their step does all that its own does.
    """
    heaviest: dict[str, dict[str, StudySpecification]] = {}
    for study in sorted(studies, key=lambda s: (s.cell.batch_size, s.cell.sparsity)):
        identity = study.identity().items()
        same = {name: value for name, value in identity if name not in _FREE_FIELDS}
        of_kind = heaviest.setdefault(json.dumps(same, sort_keys=True), {})
        of_kind[study.cell.sparsity_method] = study
    for of_kind in heaviest.values():
        if len(of_kind) > 1:
            of_kind.pop(DENSE, None)
    return [study for of_kind in heaviest.values() for study in of_kind.values()]
