"""Runs the studies of a sweep, one cell after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dps_tf.core.errors import UserError
from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import StudySpecification
from dps_tf.core.sweep import SweepSpecification, repeat_study
from dps_tf.store.claims import Claims
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout, SweepLayout
from dps_tf.store.locks import Locks
from dps_tf.store.owners import Owner
from dps_tf.store.records import write_json
from dps_tf.store.study_reader import StudyReader
from dps_tf.tuning.interruption import Interrupted
from dps_tf.tuning.sharing import SharedCell, living_workers
from dps_tf.tuning.study import is_finished

RunCell = Callable[[StudySpecification, Callable[[], None]], StudyResult]
RunShared = Callable[[StudySpecification, SharedCell], StudyResult]
_WAIT_SECONDS = 0.5
"""How long a worker waits before it looks again at cells that others have."""
_MOST_WAITS = 300
"""Looks at an owner who does not show life; by then one who is dead has expired."""


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

    def add(self, other: SweepOutcome) -> None:
        """Adds what became of further cells."""
        self.ran |= other.ran
        self.finished_before += other.finished_before
        self.busy |= other.busy

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
    if not files.exists(layout.marker):
        # First of all: another process may look what the directory is.
        write_json(files, layout.marker, {"made_by": "dps_tf"})
    files.make_directory(layout.cells)
    files.write_atomic(layout.config, gin_text.encode())
    cells = [study.cell.name for study in sweep.studies]
    write_json(files, layout.sweep, {"cells": cells})


def repeat_studies(
    files: FileSystem, layout: SweepLayout, sweep: SweepSpecification
) -> tuple[StudySpecification, ...]:
    """Returns the repeats of the best points of all studies that are finished.

    Cells in which no trial met the goal have nothing to repeat.

    Args:
        files: where the sweep is.
        layout: its paths.
        sweep: its cells, and how often their best points are repeated.
    """
    found = []
    for study in sweep.studies if sweep.repeats else ():
        cell = layout.cell(study.cell.name)
        closed = StudyReader(files, cell).closed(("trials",))
        if closed is None or not is_finished(files, cell, study):
            continue
        trials = closed.frame("trials")
        trials = trials[trials["outcome"] == "complete"]
        best = trials.sort_values(["steps_to_result", "trial"], kind="stable")
        head = best.head(sweep.repeated_points)
        points = [
            {str(k): v for k, v in row.items()} for row in head.to_dict("records")
        ]
        if points:
            found.append(repeat_study(study, points, sweep.repeats))
    return tuple(found)


def run_sweep(  # noqa: PLR0913 - each is independent of the others
    files: FileSystem,
    layout: SweepLayout,
    sweep: SweepSpecification,
    run_cell: RunCell,
    *,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = print,
) -> SweepOutcome:
    """Runs every cell that is not finished and free; returns what became of them.

    A cell that another process is running is passed over, and looked at again in the
    end: by then it may be finished. If its owner, elsewhere, does not show life, it is
    waited for until it does or the cell is free.

    Args:
        files: where the sweep is.
        layout: its paths.
        sweep: its cells, in the order of running.
        run_cell: runs one study, given what raises if the cell is taken over.
        stop: whether to leave.
        say: prints a sentence for the user.

    Raises:
        Interrupted: a stop was asked for; everything is saved.
        UserError: a cell holds another study.
    """
    outcome, locks = SweepOutcome(), Locks(files)
    passed_over = list(sweep.studies)
    looks = 0
    while passed_over:
        for specification in list(passed_over):
            cell = layout.cell(specification.cell.name)
            if _run_if_free(files, layout, specification, locks, run_cell, outcome):
                passed_over.remove(specification)
                _say_result(specification, outcome, say)
            elif looks > _MOST_WAITS or (looks and _is_busy(locks, cell.root)):
                passed_over.remove(specification)
                outcome.busy[specification.cell.name] = _owner(locks, cell.root)
        if passed_over and looks:
            _wait(stop)
        looks += 1
    return outcome


def _is_busy(locks: Locks, directory: str) -> bool:
    """Returns whether somebody who surely lives has a cell."""
    if locks.shows_life(directory):
        return True
    claims = locks.claims_of(directory)
    return any(claims.shows_life(name) for name in living_workers(claims))


def _owner(locks: Locks, directory: str) -> str:
    return str(locks.holder(directory) or "workers that share it")


def _wait(stop: Callable[[], bool]) -> None:
    """Waits a moment.

    Raises:
        Interrupted: a stop was asked for.
    """
    if stop():
        raise Interrupted
    time.sleep(_WAIT_SECONDS)


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


def run_shared_sweep(  # noqa: PLR0913 - each is independent of the others
    files: FileSystem,
    layout: SweepLayout,
    sweep: SweepSpecification,
    run_cell: RunShared,
    slots: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = print,
) -> SweepOutcome:
    """Runs a sweep as one of several workers, and returns what this one ran.

    A worker takes the first cell to which no other has come; once there is none it
    joins the cell with the fewest workers. It leaves when no cell is left, or when
    each that is left has an owner who lives and does not share.

    Args:
        files: where the sweep is.
        layout: its paths.
        sweep: its cells, in the order of running.
        run_cell: runs a study as one of the workers in its cell.
        slots: trials that this worker runs side by side.
        stop: whether to leave.
        say: prints a sentence for the user.
    """
    outcome, owner = SweepOutcome(), Owner.here()
    todo = {study.cell.name: study for study in sweep.studies}
    shares = {name: _share(files, layout.cell(name), owner, slots) for name in todo}
    looks = 0
    while True:
        _drop_finished(files, layout, todo, outcome)
        if not todo:
            return outcome
        free = {n: shares[n] for n in todo if not shares[n].is_being_closed()}
        joined = _join(free, todo)
        if joined is not None:
            try:
                outcome.ran[joined] = run_cell(todo[joined], shares[joined])
            finally:
                shares[joined].leave()
            _say_result(todo[joined], outcome, say)
            if joined in outcome.failed:
                # Tried again at the next start, not for ever in this one.
                del todo[joined]
        elif free and (looks > _MOST_WAITS or _all_live(free.values())):
            locks = Locks(files)
            outcome.busy = {n: _owner(locks, layout.cell(n).root) for n in free}
            return outcome
        else:
            if not any(share.workers() for share in free.values()):
                looks += bool(free)
            _wait(stop)


def _drop_finished(
    files: FileSystem,
    layout: SweepLayout,
    todo: dict[str, StudySpecification],
    outcome: SweepOutcome,
) -> None:
    for name, specification in list(todo.items()):
        if is_finished(files, layout.cell(name), specification):
            del todo[name]
            if name not in outcome.ran:
                outcome.finished_before.append(name)


def _all_live(shares: Iterable[SharedCell]) -> bool:
    return all([share.owner_shows_life() for share in shares])


def _share(
    files: FileSystem, layout: CellLayout, owner: Owner, slots: int
) -> SharedCell:
    return SharedCell(files, layout, Claims(files, layout.claims, owner), slots)


def _join(
    shares: Mapping[str, SharedCell], studies: Mapping[str, StudySpecification]
) -> str | None:
    """Returns the name of the cell that this worker has joined; None if it cannot."""
    for name, share in shares.items():
        if share.come_first() and share.join():
            return name
    # An oracle that learns gives one trial after another: one worker is enough.
    races = [name for name in shares if not studies[name].workload.is_adaptive]
    for name in sorted(races, key=lambda name: shares[name].workers()):
        if shares[name].join():
            return name
    return None


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
