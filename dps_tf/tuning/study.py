"""Runs one study: open, resume or refuse; race; close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras_tuner

from dps_tf.core.execution import Runner
from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import StudySpecification
from dps_tf.store.closing import close_study, is_closed, read_closed, reopen_study
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.open_study import study_tables
from dps_tf.store.study_record import StudyRecord, open_study, read_specification
from dps_tf.store.study_tables import study_result
from dps_tf.tuning.driver import Progress
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.tuner import StudyTuner


@dataclass(frozen=True)
class Prepared:
    """What a study needs beside its specification.

    Attributes:
        runner: runs turns of its trials.
        environment: what the bits depend on.
        facts: `training_examples`, `validation_examples`, `content_hash`.
    """

    runner: Runner
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]


def is_finished(
    files: FileSystem, layout: CellLayout, specification: StudySpecification
) -> bool:
    """Returns whether the study is closed, intact and all that is asked for.

    Raises:
        UserError: it holds another study (from the comparison in `open_study`).
    """
    if not is_closed(files, layout.root):
        return False
    stored = read_specification(files, layout)
    if stored is None or stored["specification"] != specification.to_json():
        return False
    closed, problems = read_closed(files, layout.root)
    return closed is not None and not problems


def run_study(  # noqa: PLR0913 - each is independent of the others
    files: FileSystem,
    layout: CellLayout,
    specification: StudySpecification,
    prepare: Callable[[], Prepared],
    stop: StopRequest,
    progress: Progress | None = None,
    *,
    allow_other_machine: bool = False,
    guard: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = print,
) -> StudyResult:
    """Returns the result of a study after running what remains of it.

    Args:
        files: where its record is.
        layout: paths of its cell.
        specification: what is asked for.
        prepare: makes the runner; called only if something remains to be done.
        stop: whether to save and leave.
        progress: shows how the study stands.
        allow_other_machine: see `open_study`.
        guard: raises if another owner has taken the cell over.
        say: prints a sentence for the user.

    Raises:
        Interrupted: a stop was asked for; everything is saved.
        UserError: the cell holds another study.
    """
    prepared = prepare()
    record = open_study(
        files,
        layout,
        specification,
        prepared.environment,
        prepared.facts,
        allow_other_machine=allow_other_machine,
        guard=guard,
    )
    record.begin_session(prepared.runner.slots)
    for sentence in (*reopen_study(files, layout.root), *record.problems):
        say(f"note: {sentence}")
    files.remove_tree(layout.keras_tuner)
    tuner = StudyTuner(
        record,
        prepared.runner,
        layout.root,
        layout.keras_tuner.rsplit("/", 1)[-1],
        stop,
        progress,
    )
    try:
        tuner.search()
    except keras_tuner.errors.FatalError as error:
        raise Interrupted from error
    if stop() and not study_result(specification, record.knowledge).decided:
        raise Interrupted
    guard()
    return _close(files, layout, record, prepared.facts)


def _close(
    files: FileSystem,
    layout: CellLayout,
    record: StudyRecord,
    facts: Mapping[str, Any],
) -> StudyResult:
    """Closes a decided study; one with a failed trial stays open, to be tried again."""
    specification = record.specification
    result = study_result(specification, record.knowledge)
    if result.decided:
        row, tables = study_tables(specification, record.knowledge, facts, closed=True)
        close_study(files, layout.root, study=row, **tables)
    return result
