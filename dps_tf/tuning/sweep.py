"""Runs the studies of a sweep, one cell after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dps_tf.core.errors import UserError
from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import StudySpecification
from dps_tf.core.sweep import SweepSpecification
from dps_tf.store.claims import Claims
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import SweepLayout
from dps_tf.store.locks import Locks
from dps_tf.store.owners import Owner
from dps_tf.store.records import write_json
from dps_tf.tuning.sharing import SharedCell, living_workers
from dps_tf.tuning.study import is_finished

RunCell = Callable[[StudySpecification, Callable[[], None]], StudyResult]
RunShared = Callable[[StudySpecification, SharedCell], StudyResult]
_WAIT_SECONDS = 0.5
"""How long a worker waits before it looks again at cells that others are closing."""


@dataclass
class SweepOutcome:
    """What became of the cells.

    Attributes:
        ran: results of the cells that were run now, by name.
        finished_before: names of the cells that were finished already.
        busy: names of the cells that others are running, and who.
    """

    ran: dict[str, StudyResult] = field(default_factory=dict)
    finished_before: list[str] = field(default_factory=list)
    busy: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Names of the cells in which a failed trial stands."""
        return [
            name
            for name, result in self.ran.items()
            if any(trial.outcome == "failed" for trial in result.trials)
        ]


def check_directory(files: FileSystem, layout: SweepLayout) -> None:
    """Raises UserError for a directory that holds something else than a sweep."""
    names = files.list_names(layout.root)
    if names and not files.exists(layout.marker):
        raise UserError(
            f"{layout.root} holds {names[0]} and no sweep: choose a new or empty "
            "--sweep_dir."
        )


def start_sweep(
    files: FileSystem, layout: SweepLayout, sweep: SweepSpecification, gin_text: str
) -> None:
    """Makes the sweep directory and saves what is going to run, before it runs.

    A sweep may be run again with other cells; `config.gin` holds the latest, and each
    study keeps its own specification, which is what is compared.
    """
    files.make_directory(layout.cells)
    if not files.exists(layout.marker):
        write_json(files, layout.marker, {"made_by": "dps_tf"})
    files.write_atomic(layout.config, gin_text.encode())
    cells = [study.cell.name for study in sweep.studies]
    write_json(files, layout.sweep, {"cells": cells})


def run_sweep(
    files: FileSystem,
    layout: SweepLayout,
    sweep: SweepSpecification,
    run_cell: RunCell,
    *,
    say: Callable[[str], None] = print,
) -> SweepOutcome:
    """Runs every cell that is not finished and free; returns what became of them.

    A cell that another process is running is passed over, and looked at once more in
    the end: by then it may be finished, or free because its owner has died.

    Args:
        files: where the sweep is.
        layout: its paths.
        sweep: its cells, in the order of running.
        run_cell: runs one study, given what raises if the cell is taken over.
        say: prints a sentence for the user.

    Raises:
        Interrupted: a stop was asked for; everything is saved.
        UserError: a cell holds another study.
    """
    outcome, locks = SweepOutcome(), Locks(files)
    passed_over = []
    for specification in sweep.studies:
        if not _run_if_free(files, layout, specification, locks, run_cell, outcome):
            passed_over.append(specification)
        _say_result(specification, outcome, say)
    for specification in passed_over:
        cell = layout.cell(specification.cell.name)
        if not _run_if_free(files, layout, specification, locks, run_cell, outcome):
            outcome.busy[specification.cell.name] = str(
                locks.holder(cell.root) or "an owner who is just leaving"
            )
        _say_result(specification, outcome, say)
    return outcome


def _run_if_free(
    files: FileSystem,
    layout: SweepLayout,
    specification: StudySpecification,
    locks: Locks,
    run_cell: RunCell,
    outcome: SweepOutcome,
) -> bool:
    """Returns False if another owner is running the cell."""
    name = specification.cell.name
    cell = layout.cell(name)
    if is_finished(files, cell, specification):
        outcome.finished_before.append(name)
        return True
    lock = locks.acquire(cell.root)
    if lock is None:
        return False
    with lock:
        if living_workers(lock.claims):
            return False
        # Its last owner may have finished it between the look and the lock.
        if is_finished(files, cell, specification):
            outcome.finished_before.append(name)
        else:
            outcome.ran[name] = run_cell(specification, lock.check)
    return True


def run_shared_sweep(
    files: FileSystem,
    layout: SweepLayout,
    sweep: SweepSpecification,
    run_cell: RunShared,
    slots: int,
    *,
    say: Callable[[str], None] = print,
) -> SweepOutcome:
    """Runs a sweep as one of several workers, and returns what this one ran.

    A worker takes the first cell to which no other has come; once there is none it
    joins the cell with the fewest workers.

    Args:
        files: where the sweep is.
        layout: its paths.
        sweep: its cells, in the order of running.
        run_cell: runs a study as one of the workers in its cell.
        slots: trials that this worker runs side by side.
        say: prints a sentence for the user.
    """
    outcome, owner = SweepOutcome(), Owner.here()
    todo = {study.cell.name: study for study in sweep.studies}
    while True:
        for name, specification in list(todo.items()):
            if is_finished(files, layout.cell(name), specification):
                del todo[name]
                if name not in outcome.ran:
                    outcome.finished_before.append(name)
        if not todo:
            return outcome
        shared = _choose(files, layout, list(todo), owner, slots)
        if shared is None:
            return _all_busy(files, layout, list(todo), outcome)
        name, share = shared
        try:
            outcome.ran[name] = run_cell(todo[name], share)
        finally:
            share.leave()
        _say_result(todo[name], outcome, say)
        if outcome.failed and name in outcome.failed:
            # Tried again at the next start, not for ever in this one.
            del todo[name]
        elif not is_finished(files, layout.cell(name), todo[name]):
            time.sleep(_WAIT_SECONDS)


def _choose(
    files: FileSystem, layout: SweepLayout, names: list[str], owner: Owner, slots: int
) -> tuple[str, SharedCell] | None:
    """Returns a cell that this worker has joined; None if none can be shared."""
    cells = {
        name: SharedCell(
            files,
            layout.cell(name),
            Claims(files, layout.cell(name).claims, owner),
            slots,
        )
        for name in names
    }
    for name, share in cells.items():
        if share.come_first() and share.join():
            return name, share
    for name in sorted(names, key=lambda name: cells[name].workers()):
        if cells[name].join():
            return name, cells[name]
    return None


def _all_busy(
    files: FileSystem, layout: SweepLayout, names: list[str], outcome: SweepOutcome
) -> SweepOutcome:
    locks = Locks(files)
    for name in names:
        holder = locks.holder(layout.cell(name).root)
        outcome.busy[name] = str(holder or "an owner who is just leaving")
    return outcome


def _say_result(
    specification: StudySpecification, outcome: SweepOutcome, say: Callable[[str], None]
) -> None:
    name = specification.cell.name
    if name in outcome.ran:
        say(describe_result(name, outcome.ran[name]))


def describe_result(name: str, result: StudyResult) -> str:
    """Returns the outcome of a study as one line."""
    counts = {
        outcome: sum(trial.outcome == outcome for trial in result.trials)
        for outcome in ("complete", "incomplete", "infeasible", "censored", "failed")
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    if not result.finishers:
        return f"{name}: no trial reached the goal ({told})"
    steps, trial = result.finishers[0]
    low = result.trials[trial].bracket_low
    bound = "at most " if counts["failed"] else ""
    return f"{name}: K* = {bound}{steps} in ({low}, {steps}], trial {trial} ({told})"
