"""One study is opened, resumed or refused, then trained, then closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dps_tf.core import Backend, PreparedStudy, StudyResult, StudySpecification
from dps_tf.store import (
    CellLayout,
    FileSystem,
    StudyReader,
    StudyRecord,
    close_study,
    open_study,
    reopen_study,
    study_result,
)
from dps_tf.store.study_tables import study_tables
from dps_tf.tuning.driver import StudyDriver
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.progress import StudyProgress
from dps_tf.tuning.trained_on import TrainedOn

if TYPE_CHECKING:
    from keras_tuner import Oracle


def is_finished(
    files: FileSystem, layout: CellLayout, specification: StudySpecification
) -> bool:
    """Returns whether a cell holds a closed, undamaged study of a specification."""
    study = StudyReader(files, layout)
    if not study.is_closed or study.record is None:
        return False
    study.check_trained()
    if study.record["specification"] != study.continued_by(specification).to_json():
        return False
    return study.closed() is not None


@dataclass(frozen=True)
class RunContext:
    """The conditions of a run of a study; none of them changes a result.

    Attributes:
        stop: whether the run has been asked to save and stop.
        allow_other_machine: continue a study that was begun on another kind of machine;
            see `open_study`.
        guard: called before anything is written; raises LockLost if another process
            may have taken over the study.
        progress: shows the progress of the study.
        say: prints a sentence for the user.
        trained_on: data and code of the other cells, which have to be the same.
    """

    stop: StopRequest
    allow_other_machine: bool = False
    guard: Callable[[], None] = lambda: None
    progress: StudyProgress | None = None
    say: Callable[[str], None] = print
    trained_on: TrainedOn = field(default_factory=TrainedOn)


def run_study(
    files: FileSystem,
    layout: CellLayout,
    specification: StudySpecification,
    backend: Backend,
    context: RunContext,
) -> StudyResult:
    """Runs what remains of a study and returns its result.

    Raises:
        Interrupted: a stop was asked for; everything is saved.
        UserError: the cell holds another study.
    """
    specification = StudyReader(files, layout).continued_by(specification)
    progress = context.progress
    show = None if progress is None else progress.pruning
    prepared = backend.prepare(specification, show)
    try:
        record = _open(files, layout, prepared, context)
        searched = _search(record, prepared, context)
        result = study_result(record.specification, record.history)
        if context.stop() and not result.decided:
            raise Interrupted
        if result.decided:
            # A study with a failed trial is not decided: the trial is tried again.
            _close(files, layout, record, prepared, context, searched)
    finally:
        prepared.runner.close()
    return result


def _open(
    files: FileSystem,
    layout: CellLayout,
    prepared: PreparedStudy,
    context: RunContext,
) -> StudyRecord:
    """Returns the record of a study, with a new session in it."""
    context.trained_on.add(prepared.study, prepared.training_inputs)
    record = open_study(
        files,
        layout,
        prepared.study,
        prepared.environment,
        prepared.training_inputs,
        allow_other_machine=context.allow_other_machine,
        guard=context.guard,
    )
    record.begin_session(prepared.runner.slots)
    closed = StudyReader(files, layout)
    closed.closed()
    record.problems += closed.problems
    record.problems += [
        f"A damaged file was set aside as {path}."
        for path in reopen_study(files, layout.root)
    ]
    for sentence in record.problems:
        context.say(f"note: {sentence}")
    return record


def _search(
    record: StudyRecord, prepared: PreparedStudy, context: RunContext
) -> Oracle | None:
    """Trains a study; returns the oracle that chose its points, None for a race."""
    from dps_tf.tuning import oracle  # `Sweep` imports it when it begins.

    study = record.specification
    is_adaptive = study.workload.is_adaptive
    limit = 0 if is_adaptive else study.rule.draws_limit
    drawn = study.workload.draw(study.cell.seed, limit)
    driver = StudyDriver(
        record,
        prepared.runner,
        record.point if is_adaptive else drawn.__getitem__,
        context.stop,
        None if is_adaptive else context.progress,
    )
    if is_adaptive:
        return oracle.search(record, driver)
    driver.run()
    return None


def _close(
    files: FileSystem,
    layout: CellLayout,
    record: StudyRecord,
    prepared: PreparedStudy,
    context: RunContext,
    searched: Oracle | None,
) -> None:
    """Writes the tables of a decided study, and keras-tuner's folder."""
    from dps_tf.tuning import oracle

    study = record.specification
    results = study_result(study, record.history).trials
    for trial in range(len(results)):
        # A race may end before a trial has begun: its seeds are recorded all the same.
        if record.history[trial].provenance is None:
            record.add_provenance(trial, prepared.runner.provenance(trial))
    record.snapshot(force=True)
    if files.is_local:
        # keras-tuner would write hundreds of objects to an object store.
        files.remove_tree(layout.keras_tuner)
        if searched is None:
            points = study.workload.draw(study.cell.seed, len(results))
            searched = oracle.recorded_oracle(study, points, results)
        oracle.save_project(searched, layout)
    context.guard()
    row, tables = study_tables(
        study, record.history, prepared.training_inputs, closed=True
    )
    close_study(files, layout.root, study=row, **tables)
