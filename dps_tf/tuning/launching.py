"""From a sweep and the options of a command to trained cells."""

from __future__ import annotations

from dataclasses import dataclass

from dps_tf.core.study import StudySpecification
from dps_tf.core.sweep import SweepSpecification
from dps_tf.store.files import LocalFiles
from dps_tf.store.layout import SweepLayout
from dps_tf.training import threads
from dps_tf.training.environment import describe
from dps_tf.training.runner import TrainingRunner
from dps_tf.tuning import tasks
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.resources import Resources, processors
from dps_tf.tuning.study import Prepared
from dps_tf.tuning.sweep import SweepOutcome, run_sweep, start_sweep


@dataclass(frozen=True)
class Options:
    """Options of a run; none of them changes a result.

    Attributes:
        sweep_dir: where the sweep is kept.
        data_dir: folder of prepared data sets.
        slots: trials side by side; 0 leaves that to the machine.
        allow_other_machine: continue studies that were begun elsewhere.
        discard_states: remove the states of finished studies.
    """

    sweep_dir: str
    data_dir: str | None = None
    slots: int = 0
    allow_other_machine: bool = False
    discard_states: bool = False


def configure_threads() -> None:
    """Fixes TensorFlow's threads; before anything else of this process uses it."""
    threads.configure(1, processors())


def check_names(sweep: SweepSpecification) -> None:
    """Raises UserError unless every name in a sweep is registered."""
    for study in sweep.studies:
        tasks.check_names(study.workload)


def launch(
    sweep: SweepSpecification, gin_text: str, options: Options
) -> SweepOutcome | None:
    """Runs a sweep on this machine; returns None if it is to be run again."""
    configure_threads()
    files, layout = LocalFiles(), SweepLayout(options.sweep_dir)
    stop = StopRequest()
    start_sweep(files, layout, sweep, gin_text)
    resources: list[Resources] = []

    def prepare(specification: StudySpecification) -> Prepared:
        # Only now is TensorFlow put to work: a finished sweep does not need it.
        if not resources:
            resources.append(Resources.of_this_machine(options.slots))
        return prepared_study(specification, resources[0], options)

    with stop.listening():
        try:
            outcome = run_sweep(
                files,
                layout,
                sweep,
                prepare,
                stop,
                allow_other_machine=options.allow_other_machine,
            )
        except Interrupted:
            print(f"stopped by {stop.signal_name}; run the same command to continue.")
            return None
    if not outcome.ran:
        print(f"nothing to do: all {len(sweep.studies)} cells are finished.")
    return outcome


def prepared_study(
    specification: StudySpecification, resources: Resources, options: Options
) -> Prepared:
    """Returns the runner of a cell, with what its record says of data and machine."""
    dataset = tasks.load_dataset(specification.workload, options.data_dir)
    programs = resources.programs(specification, dataset)
    return Prepared(
        runner=TrainingRunner(
            programs, specification.cell.seed, specification.workload.order
        ),
        environment=describe(),
        facts={
            "training_examples": len(dataset.train),
            "validation_examples": len(dataset.validation),
            "content_hash": dataset.content_hash,
        },
    )
