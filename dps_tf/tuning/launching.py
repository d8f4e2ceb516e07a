"""From a sweep and the options of a command to trained cells."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import StudySpecification
from dps_tf.core.sweep import SweepSpecification
from dps_tf.store.closing import read_closed
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import SweepLayout
from dps_tf.store.study_opening import check_continues
from dps_tf.store.study_reader import StudyReader
from dps_tf.store.study_record import StudyRecord
from dps_tf.training import placement, threads
from dps_tf.training.environment import describe
from dps_tf.training.gfile_files import files_for
from dps_tf.training.runner import TrainingRunner
from dps_tf.tuning import simulation, tasks
from dps_tf.tuning.interruption import Interrupted, StopRequest, stop_with_parent
from dps_tf.tuning.post import Post, post
from dps_tf.tuning.progress import StudyProgress
from dps_tf.tuning.pruning import Pruner
from dps_tf.tuning.resources import Resources, check_batch_size, processors
from dps_tf.tuning.sharing import SharedCell
from dps_tf.tuning.study import PreparedStudy, RunContext, is_finished, run_study
from dps_tf.tuning.sweep import (
    SweepOutcome,
    check_directory,
    repeat_studies,
    run_shared_sweep,
    run_sweep,
    start_sweep,
)


@dataclass(frozen=True)
class Options:
    """Options of a run; none of them changes a result.

    Attributes:
        sweep_dir: where the sweep is kept.
        data_dir: folder of prepared data sets.
        slots: trials side by side; 0 leaves that to the machine.
        strategy: `auto` gives each device trials of its own; `one_device`; `mirrored`
            shares each batch out over the replicas; `tpu`.
        tpu: `local`, or the name of a Cloud TPU.
        split: of a TPU, see `Resources.of_this_machine`.
        data_placement: `device`, `stream`, or `auto`; see `training.placement`.
        allow_other_machine: continue studies that were begun elsewhere.
        discard_states: remove the states of finished studies.
        share: work on cells together with other workers that share.
        shard: (i, n): run cells i, i + n, ... of the grid only.
    """

    sweep_dir: str
    data_dir: str | None = None
    slots: int = 0
    strategy: str = "auto"
    tpu: str | None = None
    split: str = "trials"
    data_placement: str = "auto"
    allow_other_machine: bool = False
    discard_states: bool = False
    share: bool = False
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        placement.check(self.data_placement)


def configure_threads() -> None:
    """Fixes TensorFlow's threads; before anything else of this process uses it."""
    threads.configure(1, processors())


def check_names(sweep: SweepSpecification) -> None:
    """Raises UserError unless every name in a sweep is registered."""
    for study in sweep.studies:
        if simulation.is_simulated(study.workload):
            simulation.check(study)
            continue
        tasks.check_names(study.workload)
        tasks.check_pruning(study)


def launch(
    sweep: SweepSpecification,
    gin_text: str,
    options: Options,
    resources: Resources | None = None,
) -> SweepOutcome | None:
    """Runs a sweep on this machine; returns None if it was asked to stop.

    Args:
        sweep: what is run.
        gin_text: its resolved configuration.
        options: of the run.
        resources: of the group that this process leads; None stands for the devices
            of this machine that the options name.
    """
    configure_threads()
    stop = StopRequest()
    stop_with_parent(stop)
    if resources is not None and resources.leader is not None:
        resources.leader.on_stop = stop.set
    launcher = Launcher(options, stop, resources)
    with stop.listening():
        try:
            outcome = launcher.run(sweep, gin_text)
        except Interrupted as end:
            told = f"stopped by {stop.signal_name}; run the same command to continue."
            print(str(end) or told)
            return None
    if options.discard_states:
        launcher.discard_states(sweep, outcome)
    if not outcome.ran and not outcome.busy:
        print(f"nothing to do: all {len(sweep.studies)} cells are finished.")
    for name, owner in outcome.busy.items():
        print(f"{name}: being run by {owner}.")
    return outcome


class Launcher:
    """Runs the cells of one sweep with this machine's devices and data."""

    def __init__(
        self, options: Options, stop: StopRequest, resources: Resources | None = None
    ):
        """Touches no device yet: a finished sweep needs none."""
        self._options = options
        self._stop = stop
        self._files = files_for(options.sweep_dir)
        self._layout = SweepLayout(options.sweep_dir)
        self._post: Post | None = None
        self._said = {""}
        self._resources = resources

    def run(self, sweep: SweepSpecification, gin_text: str) -> SweepOutcome:
        """Runs what is not finished; see `run_sweep`."""
        self._check(sweep)
        self._post = post(sweep, self._options.share)
        if self._post is not None and not self._post.is_chief:
            return self._work_for_chief(self._post, sweep)
        start_sweep(self._files, self._layout, sweep, gin_text)
        first, step = self._options.shard
        mine = sweep.studies[first::step]
        if not mine:
            return SweepOutcome()
        outcome = self._run_part(self._layout, SweepSpecification(mine))
        repeated = repeat_studies(
            self._files, self._layout, replace(sweep, studies=mine)
        )
        if repeated:
            # The chief of several machines runs these alone: they are few.
            self._post = None
            again = SweepSpecification(repeated)
            start_sweep(self._files, self._layout.repeats, again, gin_text)
            outcome.add(self._run_part(self._layout.repeats, again))
        return outcome

    def _run_part(self, layout: SweepLayout, part: SweepSpecification) -> SweepOutcome:
        run_cell = functools.partial(self._run_cell, layout)
        if not self._options.share:
            return run_sweep(self._files, layout, part, run_cell, stop=self._stop)
        return run_shared_sweep(
            self._files,
            layout,
            part,
            lambda specification, share: run_cell(specification, share=share),
            len(self._machine().strategies),
            stop=self._stop,
        )

    def _work_for_chief(self, here: Post, sweep: SweepSpecification) -> SweepOutcome:
        # Loads gRPC.
        from dps_tf.tuning.chief_worker import work_for_chief

        def prepare(study: StudySpecification) -> PreparedStudy:
            return self._prepare(study, StudyProgress(study.cell.name, study.rule))

        allowed = self._options.allow_other_machine
        place = self._files, self._layout
        return work_for_chief(here, *place, sweep, prepare, self._stop, allowed)

    def _check(self, sweep: SweepSpecification) -> None:
        """Raises UserError for what can be known to fail before anything is trained.

        That is a directory that is not a sweep's, a cell that holds another study, data
        that are not there, or a batch that does not fit them.
        """
        check_directory(self._files, self._layout)
        for study in sweep.studies:
            cell = self._layout.cell(study.cell.name)
            check_continues(StudyReader(self._files, cell), study)
            if simulation.is_simulated(study.workload):
                continue
            if not is_finished(self._files, cell, study):
                dataset = tasks.load_dataset(study.workload, self._options.data_dir)
                check_batch_size(study, dataset)

    def discard_states(self, sweep: SweepSpecification, outcome: SweepOutcome) -> None:
        """Removes the states of the cells that are finished."""
        for study in sweep.studies:
            name = study.cell.name
            if name in outcome.finished_before or name in outcome.ran:
                record = StudyRecord(self._files, self._layout.cell(name), study)
                record.discard_states()

    def _machine(self) -> Resources:
        if self._resources is None:
            options = self._options
            self._resources = Resources.of_this_machine(
                options.slots, options.strategy, options.tpu, options.split
            )
        self._resources.data_placement = self._options.data_placement
        return self._resources

    def _run_cell(
        self,
        layout: SweepLayout,
        specification: StudySpecification,
        guard: Callable[[], None] = lambda: None,
        share: SharedCell | None = None,
    ) -> StudyResult:
        name = specification.cell.name
        with StudyProgress(name, specification.rule) as progress:
            result = run_study(
                self._files,
                layout.cell(name),
                specification,
                lambda: self._prepare(specification, progress),
                RunContext(
                    stop=self._stop,
                    progress=progress,
                    allow_other_machine=self._options.allow_other_machine,
                    guard=guard,
                    share=share,
                    chief=self._post,
                ),
            )
        # Programs refer to themselves through their functions: without this a sweep of
        # many cells keeps those of cells long finished.
        gc.collect()
        if specification.workload.points == 1:
            print(curve_of(self._files, layout.cell(name).root))
        return result

    def _prepare(
        self, specification: StudySpecification, progress: StudyProgress | None = None
    ) -> PreparedStudy:
        """Returns the runner of a cell, and what its record says of the data."""
        workload, cell = specification.workload, specification.cell
        if simulation.is_simulated(workload):
            return simulation.prepared(specification)
        dataset = tasks.load_dataset(workload, self._options.data_dir)
        prune = None
        if cell.sparsity > 0:
            prune = Pruner(
                specification,
                dataset,
                self._layout.scores,
                self._files,
                None if progress is None else progress.pruning,
            )
        programs = self._machine().programs(specification, dataset)
        data_note = placement.note(dataset, programs[0].data)
        for note in (data_note, self._machine().memory_note):
            if note not in self._said:
                print(note)
                self._said.add(note)
        return PreparedStudy(
            runner=TrainingRunner(
                programs,
                cell.seed,
                workload.order,
                prune,
            ),
            environment=describe(self._machine().replicas, self._machine().processes),
            training_inputs={
                "training_examples": len(dataset.train),
                "validation_examples": len(dataset.validation),
                "content_hash": dataset.content_hash,
            },
        )


def curve_of(files: FileSystem, directory: str) -> str:
    """Returns the curves of a closed study as text: a plain run has one."""
    closed, problems = read_closed(files, directory, ("curves",))
    if closed is None:
        return " ".join(problems) or "the study is not closed."
    curves = closed.frame("curves")
    shown = ["step", *(name for name in curves if "/" in str(name))]
    return str(curves[shown].to_string(index=False))
