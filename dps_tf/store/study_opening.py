"""Opens the record of a study: new, continued or extended, or refuses to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps_tf.core.errors import UserError
from dps_tf.core.study import StudySpecification
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.log_follower import LogFollower
from dps_tf.store.records import set_aside, write_json
from dps_tf.store.study_reader import StudyReader
from dps_tf.store.study_record import StudyRecord

NETWORK = "network_structure"
"""Which of a study's training inputs is the hash of the network's structure."""


def check_continues(study: StudyReader, specification: StudySpecification) -> None:
    """Raises UserError unless a specification continues or extends the stored study.

    Where study.json is missing or damaged, logs of the same specification continue: the
    command that runs the study knows it, and the logs hold the results.

    Args:
        study: what is stored.
        specification: what is asked for.
    """
    study.check_trained()
    if study.specification is not None:
        lines = specification.refusals(study.specification)
        if lines:
            raise UserError(
                f"{study.layout.root} holds another study: {'; '.join(lines)}. Choose "
                "another --sweep_dir, or undo the change."
            )
    elif study.history.fingerprints - {specification.fingerprint}:
        raise UserError(
            f"{study.layout.root} has lost its study.json and holds logs of another "
            "study: run the configuration it was begun with, or choose another "
            "--sweep_dir."
        )


def open_study(  # noqa: PLR0913 - each is independent of the others
    files: FileSystem,
    layout: CellLayout,
    specification: StudySpecification,
    environment: Mapping[str, Any],
    training_inputs: Mapping[str, Any],
    *,
    allow_other_machine: bool = False,
    writer: str = "main",
    guard: Callable[[], None] = lambda: None,
    follower: LogFollower | None = None,
) -> StudyRecord:
    """Returns the record of a study, new, continued or extended.

    Args:
        files: where it is.
        layout: its paths.
        specification: what is asked for now.
        environment: what the bits depend on: builds and instruction set.
        training_inputs: sizes and content of the data it is trained on, and under
            NETWORK the hash of the network's structure.
        allow_other_machine: whether another environment may continue it; recorded.
        writer: name of the log that this process alone writes.
        guard: see StudyRecord.
        follower: see StudyRecord.

    Raises:
        UserError: the stored study differs, with the differences.
    """
    for folder in (layout.root, layout.logs):
        files.remove_stale(folder)
    study = StudyReader(files, layout)
    check_continues(study, specification)
    environments = [dict(environment)]
    if study.specification is not None:
        _check_inputs(study, training_inputs)
        environments = _environments(study, environment, allow_other_machine)
    elif files.exists(layout.study):
        set_aside(files, layout.study)
    content = _content(specification, environments, training_inputs)
    if study.record != content:
        # An extension: what was closed is open again, before the new aim is known.
        files.remove(layout.closed)
        write_json(files, layout.study, content)
    record = StudyRecord(
        files, layout, specification, writer=writer, guard=guard, follower=follower
    )
    record.has_other_bits = len(environments) > 1
    if study.specification is None and record.history.trials:
        record.problems.append(
            f"{layout.study} was lost: the study goes on from its logs."
        )
    return record


def _content(
    specification: StudySpecification,
    environments: Sequence[Mapping[str, Any]],
    training_inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns what study.json holds."""
    return {
        "specification": specification.to_json(),
        "fingerprint": specification.fingerprint,
        "environments": list(environments),
        "facts": dict(training_inputs),
    }


def _check_inputs(study: StudyReader, training_inputs: Mapping[str, Any]) -> None:
    """Raises UserError unless a study goes on with the data and network it began with.

    A study that was begun before the structure of networks was recorded goes on.
    """
    stored, now = dict(study.training_inputs), dict(training_inputs)
    before, network = stored.pop(NETWORK, None), now.pop(NETWORK, None)
    if stored != now:
        raise UserError(
            f"{study.layout.root} was begun on other data: stored {stored}, now {now}. "
            "Give the same --data_dir, or choose another --sweep_dir."
        )
    if None not in (before, network) and before != network:
        raise UserError(
            f"{study.layout.root} was begun with another network: the hash of its "
            f"structure is {before[:12]} in the record and {network[:12]} now. Undo "
            "the change of its builder, or choose another --sweep_dir."
        )


def _environments(
    study: StudyReader, environment: Mapping[str, Any], allowed: bool
) -> list[dict[str, Any]]:
    """Returns all environments that a study has seen, the present one included."""
    known = [dict(entry) for entry in study.environments]
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
            f"{study.layout.root} was begun elsewhere ({'; '.join(changes)}), where "
            "numbers may round otherwise: continue it there, or give "
            "--allow_other_machine, which is recorded."
        )
    return [*known, dict(environment)]
