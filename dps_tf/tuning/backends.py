"""The backends of a sweep, which check a study and make the runner of its trials."""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import tensorflow as tf

from dps_tf import optim, sparsity
from dps_tf.core import (
    DENSE,
    Backend,
    PreparedStudy,
    StudySpecification,
    SweepSpecification,
    UserError,
    error_cause,
)
from dps_tf.models import structure_hash
from dps_tf.store import NETWORK, FileSystem, LocalFiles, SweepLayout
from dps_tf.training import TrainingRunner, device_memory, environment
from dps_tf.training import check_batch_size as check_shares
from dps_tf.tuning import build
from dps_tf.tuning.options import Options
from dps_tf.tuning.resources import (
    Resources,
    check_batch_size,
    check_memory,
    check_threads,
)
from dps_tf.tuning.simulation import SimulatedBackend, SimulatedRunner, is_simulated

_FREE_FIELDS = (
    "cell.batch_size",
    "cell.seed",
    "cell.sparsity",
    "cell.sparsity_method",
    "workload.evaluation_interval",
    "workload.explicit_points",
    "workload.step_budget",
)
"""The fields in which studies of one kind may differ: the same code trains them."""


class TrainedBackend:
    """Trains studies on `resources`; None stands for the devices of the options."""

    def __init__(
        self,
        options: Options,
        files: FileSystem,
        resources: Resources | None = None,
        say: Callable[[str], None] = print,
    ):
        """Touches no device yet, as a finished sweep needs none."""
        self._options = options
        self._files = files
        self._resources = resources
        self._say = say
        self._said = {""}

    def check(self, study: StudySpecification) -> None:
        """Raises UserError unless every name in a study is registered."""
        build.check_study(study)
        if study.lanes > 1:
            raise UserError(
                f"lanes is {study.lanes}, and {study.workload.name} is trained, which "
                "has one lane: give --lanes=1."
            )

    def check_data(self, study: StudySpecification) -> None:
        """Raises UserError unless the data exist and fit the batch size and goal."""
        is_here = self._options.engine == "local"
        if is_here:
            check_threads(study)
        dataset = build.load_dataset(study.workload, self._options.data_dir)
        build.check_goal(study, dataset)
        check_batch_size(study, dataset)
        if is_here:
            check_memory(study, dataset)
        cell, workload = study.cell, study.workload
        optim.check_rates(
            workload.learning_rate_schedule,
            workload.draw(cell.seed, workload.points),
            workload.step_budget,
        )
        if cell.sparsity > 0 and not build.is_scheduled(study):
            network = build.scratch_network(workload, dataset)
            sparsity.check_reachable(network, dataset, cell, study.pruning)

    def prepare(
        self, study: StudySpecification, show: Callable[[str], None] | None = None
    ) -> PreparedStudy:
        """Returns the runner of a study, with a compiled program per slot."""
        check_threads(study)
        workload, cell = study.workload, study.cell
        dataset = build.load_dataset(workload, self._options.data_dir)
        prune = None
        if cell.sparsity > 0:
            scores = SweepLayout(self._options.sweep_dir).scores
            prune = build.Pruner(study, dataset, scores, self._files, show)
        machine = self._machine()
        settled = machine.settled(study)
        programs = machine.programs(settled, dataset)
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
            NETWORK: structure_hash(programs[0].network),
            **build.codes_of(study, dataset),
        }
        kind = json.dumps([inputs, cell.sparsity_method, study.precision])
        if kind not in self._said and build.is_own(study, dataset):
            build.check_same(workload, dataset)
            pair = list(programs[:2])
            if len(pair) < 2:
                pair += self._one_slot.programs(settled, dataset)
            twice = TrainingRunner(pair, cell.seed, *trained)
            twice.check_repeats(workload.draw(cell.seed, 1)[0])
            self._said.add(kind)
        here = environment(machine.replicas)
        return PreparedStudy(runner, here, inputs, study=settled)

    def _note(self, note: str) -> None:
        """Says a note once."""
        if note not in self._said:
            self._say(note)
            self._said.add(note)

    def try_out(
        self, studies: Sequence[StudySpecification], built: Sequence[StudySpecification]
    ) -> float:
        """Lets one trial of each study of `built` make one step.

        The trial is initialized and pruned before, and nothing is kept. Raises
        UserError for whatever fails, and where the devices cannot share a batch of
        `studies`. Returns the longest time, in seconds, that it took to make and prune
        an initial point.
        """
        if self._options.slots < 0:
            Resources.of_this_machine(self._options.slots)
        for study in studies:
            check_shares(study.cell.batch_size, self._one_slot.strategies[0])
        with tempfile.TemporaryDirectory() as scores:
            # Kinds that differ in the optimizer, say, have the same scores.
            runs = [self._try_step(study, scores) for study in built]
        return max(runs, default=0.0)

    def scratch_runner(
        self, study: StudySpecification, scores: str | None = None, slots: int = 1
    ) -> TrainingRunner:
        """Returns a runner that writes no files but scores.

        `scores` is their folder on this machine; None keeps no scores.
        """
        dataset = build.load_dataset(study.workload, self._options.data_dir)
        machine = self._one_slot
        study = machine.settled(study)
        programs = [machine.programs(study, dataset)[0] for _ in range(slots)]
        prune = None
        if study.cell.sparsity > 0:
            prune = build.Pruner(study, dataset, scores, LocalFiles())
        return TrainingRunner(programs, study.cell.seed, study.workload.order, prune)

    def _try_step(self, study: StudySpecification, scores: str) -> float:
        workload, cell = study.workload, study.cell
        try:
            dataset = build.load_dataset(workload, self._options.data_dir)
            build.check_same(workload, dataset)
            is_own = build.is_own(study, dataset)
            runner = self.scratch_runner(study, scores, 1 + is_own)
            begun = time.monotonic()
            runner.provenance(0)
            pruning = time.monotonic() - begun
            point = workload.draw(cell.seed, 1)[0]
            (runner.check_repeats if is_own else runner.try_step)(point)
        except UserError:
            raise
        except Exception as error:
            cause = error_cause("".join(traceback.format_exception(error)))
            raise UserError(
                f"{cell.name}: no trial could make its first step: {cause}"
            ) from error
        return pruning

    @cached_property
    def _one_slot(self) -> Resources:
        return self.machine(1)

    def _machine(self) -> Resources:
        if self._resources is None:
            self._resources = self.machine(self._options.slots)
        self._resources.data_placement = self._options.data_placement
        return self._resources

    def machine(self, slots: int) -> Resources:
        """Returns `slots` slots on the devices of the options; 0 stands for all."""
        options = self._options
        resources = Resources.of_this_machine(slots, options.strategy)
        resources.data_placement = options.data_placement
        return resources


def _not_compiled(runner: TrainingRunner, study: StudySpecification) -> str:
    """Returns why XLA cannot compile the step of a study; an empty text if it can.

    XLA compiles at the first step, and what it compiled serves the trials.
    """
    try:
        runner.try_step(study.workload.draw(study.cell.seed, 1)[0])
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        return error_cause("".join(traceback.format_exception(error)))
    return ""


class Backends:
    """The two backends of a run: studies are trained or simulated."""

    def __init__(
        self, options: Options, files: FileSystem, resources: Resources | None = None
    ):
        self._options = options
        self._trained = TrainedBackend(options, files, resources)
        self._simulated = SimulatedBackend()

    def __call__(self, study: StudySpecification) -> Backend:
        """Returns the backend of a study."""
        return self._simulated if is_simulated(study.workload) else self._trained

    def slots(self, study: StudySpecification) -> int:
        """Returns how many trials of a study this machine runs side by side."""
        if is_simulated(study.workload):
            return 1
        return len(self._trained.machine(self._options.slots).strategies)

    def devices(self, study: StudySpecification) -> int:
        """Returns how many devices share a batch of a trial of a study."""
        is_alone = is_simulated(study.workload)
        return 1 if is_alone else self._trained.machine(self._options.slots).replicas

    def runner(self, study: StudySpecification) -> TrainingRunner | SimulatedRunner:
        """Returns a runner with one slot that keeps nothing."""
        if is_simulated(study.workload):
            return SimulatedRunner(study)
        return self._trained.scratch_runner(study)

    def check(self, sweep: SweepSpecification) -> None:
        """Raises UserError unless every name in a sweep is registered."""
        for name in sweep.sparsity_methods:
            sparsity.SPARSITY_METHODS.reads(name)
        for study in sweep.studies:
            self(study).check(study)

    def try_out(self, sweep: SweepSpecification) -> float:
        """Raises UserError for whatever would keep a study from being trained.

        Loads the data, starts the devices and lets one trial of each kind of study make
        one step, at the largest batch size and then the highest sparsity of the kind.
        A dense network is left out where it is pruned in other studies: their step does
        all that its own does. Returns the longest time, in seconds, that it took to
        make and prune an initial point.
        """
        for study in sweep.studies:
            self(study).check_data(study)
        trained = [s for s in sweep.studies if not is_simulated(s.workload)]
        heaviest: dict[str, dict[str, StudySpecification]] = {}
        for study in sorted(trained, key=_load_of):
            identity = study.identity().items()
            same = {name: value for name, value in identity if name not in _FREE_FIELDS}
            of_kind = heaviest.setdefault(json.dumps(same, sort_keys=True), {})
            of_kind[study.cell.sparsity_method] = study
        for of_kind in heaviest.values():
            if len(of_kind) > 1:
                of_kind.pop(DENSE, None)
        built = [study for of_kind in heaviest.values() for study in of_kind.values()]
        return self._trained.try_out(trained, built)


def _load_of(study: StudySpecification) -> tuple[int, float]:
    """Returns the sort key by which the last study is the heaviest of its kind."""
    return study.cell.batch_size, study.cell.sparsity
