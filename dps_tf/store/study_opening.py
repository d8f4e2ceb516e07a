"""Opens the record of a study: new, continued or extended, or refuses to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps_tf.core.errors import UserError
from dps_tf.core.study import StudySpecification
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.log import read_logs
from dps_tf.store.records import read_json, set_aside, write_json
from dps_tf.store.study_history import StudyHistory
from dps_tf.store.study_record import StudyRecord


def read_specification(files: FileSystem, layout: CellLayout) -> dict[str, Any] | None:
    """Returns the content of study.json, or None where there is none.

    A damaged file is set aside and counts as none: the command that runs the study
    knows its specification, and the logs hold the results.

    Raises:
        UserError: the study was read from an archive.
    """
    try:
        content = read_json(files, layout.study)
    except FileNotFoundError:
        return None
    except DamagedError:
        set_aside(files, layout.study)
        return None
    check_trained(layout, content)
    return dict(content)


def check_trained(layout: CellLayout, content: Mapping[str, Any]) -> None:
    """Raises UserError for a study that was read from an archive of other people's."""
    if "specification" not in content:
        raise UserError(
            f"{layout.root} was read from an archive, and there is nothing to train "
            "again: choose another --sweep_dir."
        )


def check_continues(
    layout: CellLayout, specification: StudySpecification, stored: Mapping[str, Any]
) -> None:
    """Raises UserError unless a specification continues or extends the stored study.

    Args:
        layout: paths of the cell.
        specification: what is asked for.
        stored: the content of study.json.
    """
    before = StudySpecification.from_json(stored["specification"])
    lines = specification.refusals(before)
    if lines:
        raise UserError(
            f"{layout.root} holds another study: {'; '.join(lines)}. Choose another "
            "--sweep_dir, or undo the change."
        )


def open_study(  # noqa: PLR0913 - each is independent of the others
    files: FileSystem,
    layout: CellLayout,
    specification: StudySpecification,
    environment: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    allow_other_machine: bool = False,
    guard: Callable[[], None] = lambda: None,
) -> StudyRecord:
    """Returns the record of a study, new, continued or extended.

    Args:
        files: where it is.
        layout: its paths.
        specification: what is asked for now.
        environment: what the bits depend on: builds and instruction set.
        facts: sizes of the data set and the like, kept for readers.
        allow_other_machine: whether another environment may continue it; recorded.
        guard: see StudyRecord.

    Raises:
        UserError: the stored study differs, with the differences.
    """
    stored = read_specification(files, layout)
    environments = [dict(environment)]
    if stored is None:
        _check_logs(files, layout, specification)
    else:
        check_continues(layout, specification, stored)
        _check_data(layout, stored["facts"], facts)
        environments = _environments(
            layout, stored["environments"], environment, allow_other_machine
        )
    content = _content(specification, environments, facts)
    if stored != content:
        # An extension: what was closed is open again, before the new aim is known.
        files.remove(layout.closed)
        write_json(files, layout.study, content)
    record = StudyRecord(files, layout, specification, guard=guard)
    record.has_other_bits = len(environments) > 1
    if stored is None and record.knowledge.trials:
        record.problems.append(
            f"{layout.study} was lost: the study goes on from its logs."
        )
    return record


def _content(
    specification: StudySpecification,
    environments: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns what study.json holds."""
    return {
        "specification": specification.to_json(),
        "fingerprint": specification.fingerprint,
        "environments": list(environments),
        "facts": dict(facts),
    }


def _check_data(
    layout: CellLayout, stored: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Raises UserError unless a study goes on with the data it was begun on."""
    if dict(stored) != dict(facts):
        raise UserError(
            f"{layout.root} was begun on other data: stored {stored}, now "
            f"{dict(facts)}. Give the same --data_dir, or choose another --sweep_dir."
        )


def _check_logs(
    files: FileSystem, layout: CellLayout, specification: StudySpecification
) -> None:
    """Raises UserError if there are logs of another study, whose study.json is lost."""
    knowledge = StudyHistory()
    logs, _ = read_logs(files, layout.logs)
    for events in logs.values():
        knowledge.add_all(events)
    if knowledge.fingerprints - {specification.fingerprint}:
        raise UserError(
            f"{layout.root} has lost its study.json and holds logs of another study: "
            "run the configuration it was begun with, or choose another --sweep_dir."
        )


def _environments(
    layout: CellLayout,
    stored: Sequence[Mapping[str, Any]],
    environment: Mapping[str, Any],
    allowed: bool,
) -> list[dict[str, Any]]:
    """Returns all environments that a study has seen, the present one included."""
    known = [dict(entry) for entry in stored]
    if dict(environment) in known:
        return known
    if not allowed:
        last = known[-1]
        changes = [
            f"{name}: stored {last.get(name)!r}, here {environment.get(name)!r}"
            for name in sorted({*last, *environment})
            if last.get(name) != environment.get(name)
        ]
        raise UserError(
            f"{layout.root} was begun elsewhere ({'; '.join(changes)}), where numbers "
            "may round otherwise: continue it there, or give --allow_other_machine, "
            "which is recorded."
        )
    return [*known, dict(environment)]
