"""Runs one study: open, resume or refuse; race; close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from dps_tf.core.execution import Runner
from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import StudySpecification
from dps_tf.store.closing import close_study, read_closed, reopen_study
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.log_follower import LogFollower
from dps_tf.store.study_opening import open_study
from dps_tf.store.study_reader import StudyReader, study_tables
from dps_tf.store.study_record import StudyRecord
from dps_tf.store.study_rows import study_result
from dps_tf.tuning.driver import Progress
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.post import Post
from dps_tf.tuning.sharing import SharedCell
from dps_tf.tuning.tuner import StudyTuner


@dataclass(frozen=True)
class PreparedStudy:
    """What a study needs beside its specification.

    Attributes:
        runner: runs turns of its trials.
        environment: what the bits depend on.
        training_inputs: `training_examples`, `validation_examples`, `content_hash`.
    """

    runner: Runner
    environment: Mapping[str, Any]
    training_inputs: Mapping[str, Any]


def is_finished(
    files: FileSystem, layout: CellLayout, specification: StudySpecification
) -> bool:
    """Returns whether the study is closed, intact and all that is asked for.

    Raises:
        UserError: the study was read from an archive.
    """
    study = StudyReader(files, layout)
    if not study.is_closed or study.record is None:
        return False
    study.check_trained()
    asked = specification.continuing(study.specification)
    if study.record["specification"] != asked.to_json():
        return False
    return study.closed() is not None


@dataclass(frozen=True)
class RunContext:
    """Under which a study is run; none of it changes a result.

    Attributes:
        stop: whether to save and leave.
        progress: shows how the study stands.
        allow_other_machine: see `open_study`.
        guard: raises if another owner has taken the cell over.
        share: this worker's part in a cell that several run; None has it alone.
        chief: the post of a process that gives the trials to workers; or None.
        say: prints a sentence for the user.
    """

    stop: StopRequest
    progress: Progress | None = None
    allow_other_machine: bool = False
    guard: Callable[[], None] = lambda: None
    share: SharedCell | None = None
    chief: Post | None = None
    say: Callable[[str], None] = print


def run_study(
    files: FileSystem,
    layout: CellLayout,
    specification: StudySpecification,
    prepare: Callable[[], PreparedStudy],
    context: RunContext,
) -> StudyResult:
    """Returns the result of a study after running what remains of it.

    Args:
        files: where its record is.
        layout: paths of its cell.
        specification: what is asked for.
        prepare: makes the runner.
        context: under which it is run.

    Raises:
        Interrupted: a stop was asked for; everything is saved.
        UserError: the cell holds another study.
    """
    prepared = prepare()
    record = _open(files, layout, specification, prepared, context)
    project = "keras_tuner"
    if context.share is not None:
        context.share.follow_for(record)
        project = f"keras_tuner-{context.share.writer}"
    try:
        _search(files, layout, record, prepared, context, project)
    finally:
        if context.share is not None and files.is_local:
            files.remove_tree(f"{layout.root}/{project}")
    if (
        context.stop()
        and not study_result(record.specification, record.history).decided
    ):
        raise Interrupted
    return _finish(files, layout, record, prepared, context)


def _open(
    files: FileSystem,
    layout: CellLayout,
    specification: StudySpecification,
    prepared: PreparedStudy,
    context: RunContext,
) -> StudyRecord:
    """Returns the record of a study, to be run in this session."""
    share = context.share
    follower = None if share is None else share.follower
    if context.chief is not None:
        follower = LogFollower(files, layout.logs, "main")
    record = open_study(
        files,
        layout,
        specification,
        prepared.environment,
        prepared.training_inputs,
        allow_other_machine=context.allow_other_machine,
        writer="main" if share is None else share.writer,
        guard=context.guard,
        follower=follower,
    )
    record.begin_session(prepared.runner.slots)
    if share is None:
        record.problems += read_closed(files, layout.root)[1]
        record.problems += [
            f"A damaged file was set aside as {path}."
            for path in reopen_study(files, layout.root)
        ]
    for sentence in record.problems:
        context.say(f"note: {sentence}")
    return record


def _search(
    files: FileSystem,
    layout: CellLayout,
    record: StudyRecord,
    prepared: PreparedStudy,
    context: RunContext,
    project: str,
) -> None:
    """Lets keras-tuner run the study in a project folder that is made anew.

    On an object store that is a temporary folder of this machine, removed in the end:
    nothing depends on it, and keras-tuner would write hundreds of objects.
    """
    with ExitStack() as stack:
        directory = layout.root
        if files.is_local:
            files.remove_tree(f"{directory}/{project}")
        else:
            directory = stack.enter_context(TemporaryDirectory(prefix="dps_tf-"))
        arguments = (
            record,
            prepared.runner,
            directory,
            project,
            context.stop,
            context.progress,
            context.share,
        )
        if context.chief is None:
            StudyTuner(*arguments).search()
        else:
            # Loads gRPC.
            from dps_tf.tuning.chief import ChiefTuner

            ChiefTuner(context.chief, *arguments).search()


def _finish(
    files: FileSystem,
    layout: CellLayout,
    record: StudyRecord,
    prepared: PreparedStudy,
    context: RunContext,
) -> StudyResult:
    """Closes a decided study; one with a failed trial stays open, to be tried again.

    Of several workers one closes it.
    """
    specification = record.specification
    result = study_result(specification, record.history)
    share = context.share
    if not result.decided:
        return result
    if share is not None:
        if not share.claim_closing() or is_finished(files, layout, specification):
            return result
        share.await_others(context.stop)
    for trial in range(len(result.trials)):
        # A race may end before a trial has begun; its record is that of every other.
        if record.history[trial].provenance is None:
            record.add_provenance(trial, prepared.runner.provenance(trial))
    record.snapshot(force=True)
    if share is not None:
        _search(files, layout, record, prepared, context, "keras_tuner")
        share.check_closing()
    context.guard()
    row, tables = study_tables(
        specification, record.history, prepared.training_inputs, closed=True
    )
    close_study(files, layout.root, study=row, **tables)
    return result
