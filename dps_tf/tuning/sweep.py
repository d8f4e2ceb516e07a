"""Runs the studies of a sweep, one cell after another."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from dps_tf._tensorflow import quick_imports
from dps_tf.core import (
    Backend,
    StudyResult,
    StudySpecification,
    SweepSpecification,
    UserError,
    error_cause,
    repeat_study,
)
from dps_tf.store import (
    CellLayout,
    FileSystem,
    Lock,
    OtherFormatError,
    StudyReader,
    SweepLayout,
    SweepReader,
    best_first,
    check_continues,
    shortfall,
    write_json,
)
from dps_tf.store.parquet import to_frame
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.progress import Forecast, Forecaster, StudyProgress, no_forecast
from dps_tf.tuning.study import RunContext, is_finished, run_study
from dps_tf.tuning.trained_on import TrainedOn

_WAIT_SECONDS = 0.5
"""Seconds between two looks at cells that other processes have."""
_LOOK_SECONDS = 0.2
"""Seconds between two looks whether another cell can begin beside the others."""
_MAX_WAITS = 300
"""Largest number of looks at an owner without a heartbeat; a dead one expires first."""


@dataclass
class SweepOutcome:
    """The outcome of the cells of a sweep.

    Attributes:
        ran: results of the cells that this run has finished, by name.
        finished_before: names of the cells that were finished already.
        busy: owners of the cells that other processes run, by the name of the cell.
    """

    ran: dict[str, StudyResult] = field(default_factory=dict)
    finished_before: list[str] = field(default_factory=list)
    busy: dict[str, str] = field(default_factory=dict)

    def add(self, other: SweepOutcome) -> None:
        """Adds the outcome of further cells."""
        self.ran |= other.ran
        self.finished_before += other.finished_before
        self.busy |= other.busy

    @property
    def failed(self) -> list[str]:
        """Names of the cells with a failed trial."""
        return [
            name
            for name, result in self.ran.items()
            if any(trial.error is not None for trial in result.trials)
        ]


@dataclass
class Sweep:
    """A sweep in its directory, run by this process.

    Cells run one after another, or side by side where `spare_slots` returns the number
    of slots that no cell needs now. Progress is shown on standard output.
    `forecast` predicts the cost of some cells from recorded ones; it returns None
    where there are none.
    """

    files: FileSystem
    specification: SweepSpecification
    options: Options
    backend_of: Callable[[StudySpecification], Backend]
    stop: StopRequest
    say: Callable[[str], None] = print
    spare_slots: Callable[[], int] | None = None
    forecast: Forecaster = no_forecast

    def __post_init__(self) -> None:
        self._layout = SweepLayout(self.options.sweep_dir)
        self._locks: dict[str, Lock] = {}
        self._forecast: Forecast | None = None
        self._trained_on = TrainedOn()
        self.outcome = SweepOutcome()

    def run(self, gin_text: str) -> SweepOutcome:
        """Runs every cell that is not finished and free.

        A cell that another process is running is skipped, and looked at again in the
        end, when it may be finished. If its owner is on another machine and shows no
        heartbeat, this method waits for a heartbeat or until the cell is free. The
        configuration, with all bindings, is kept with the sweep.

        Raises:
            Interrupted: a stop was asked for; everything is saved.
            UserError: a cell holds another study, or its data are missing.
        """
        self.check()
        start_sweep(self.files, self._layout, self.specification, gin_text)
        self._run_cells()
        self._run_repeats(gin_text)
        return self.outcome

    def _run_cells(self) -> None:
        """Runs the cells, except cells that other processes run; see `run`."""
        left = [s for s in self.specification.studies if not self._was_finished(s)]
        if left:  # keras-tuner takes a second, and only a sweep that begins needs it.
            with quick_imports():
                importlib.import_module("dps_tf.tuning.oracle")
        if left and self.spare_slots is not None:
            self._run_side_by_side(left, self.spare_slots)
        looks = 0
        while left:
            waiting = list(left)
            while waiting:
                # Cells that others have are looked at again in their order.
                study = waiting[0] if looks else self._cheapest(waiting)
                waiting.remove(study)
                if self._run_if_free(study, left):
                    continue
                lock = self._lock(study)
                if looks > _MAX_WAITS or (looks and lock.shows_life()):
                    left.remove(study)
                    owner = lock.holder() or "another process"
                    self.outcome.busy[study.cell.name] = owner
            if left and looks:
                if self.stop():
                    raise Interrupted
                time.sleep(_WAIT_SECONDS)
            looks += 1

    def _run_repeats(self, gin_text: str) -> None:
        """Runs the repeats of the cells as a sweep inside this one."""
        repeated = repeat_studies(self.files, self._layout, self.specification)
        if repeated:
            inside = replace(
                self,
                specification=SweepSpecification(repeated),
                options=replace(self.options, sweep_dir=self._layout.repeats.root),
                forecast=no_forecast,
            )
            self.outcome.add(inside.run(gin_text))

    def check(self) -> None:
        """Raises UserError for what would fail, before anything is trained.

        Reasons are a directory of something else, a cell that holds another study,
        missing data, or a batch that is larger than the training set.
        """
        for problem in check_directory(self.files, self._layout):
            self.say(f"note: {problem}")
        if note := self._beside():
            self.say(note)
        for name in self.files.list_names(self._layout.cells):
            reader = StudyReader(self.files, self._layout.cell(name))
            reader.check_trained()
            self._trained_on.add_closed(reader)
        for study in self.specification.studies:
            cell = self._cell(study)
            check_continues(StudyReader(self.files, cell), study)
            if not is_finished(self.files, cell, study):
                self.backend_of(study).check_data(study)

    def _beside(self) -> str:
        """Returns a note on cells of the directory outside of this sweep, or ''."""
        own = {study.cell.name for study in self.specification.studies}
        others = sorted(set(self.files.list_names(self._layout.cells)) - own)
        if not others:
            return ""
        cells = "cell" if len(others) == 1 else "cells"
        return (
            f"note: {self._layout.root} holds {len(others)} more {cells}, which this "
            f"configuration does not ask for and reports show too: {others[0]}"
            f"{', ...' if len(others) > 1 else ''}"
        )

    def _cell(self, study: StudySpecification) -> CellLayout:
        return self._layout.cell(study.cell.name)

    def _lock(self, study: StudySpecification) -> Lock:
        """Returns the lock of a cell, the same object in every call."""
        lock = Lock(self.files, self._cell(study).root)
        return self._locks.setdefault(study.cell.name, lock)

    def _cheapest(self, waiting: Sequence[StudySpecification]) -> StudySpecification:
        """Returns the cell that is predicted to be the cheapest, else the first one."""
        forecast = self._forecast = self.forecast(waiting)
        if forecast is None:
            return waiting[0]
        return waiting[forecast.examples.index(min(forecast.examples))]

    def _run_if_free(
        self, study: StudySpecification, left: list[StudySpecification]
    ) -> bool:
        """Runs a cell of `left`, and takes it out, unless another owner runs it."""
        if not self._was_finished(study):
            lock = self._lock(study)
            if not lock.acquire():
                return False
            with lock:
                # Its last owner may have finished it between the look and the lock.
                if not self._was_finished(study):
                    self._run(study, lock)
        left.remove(study)
        return True

    def _run_side_by_side(
        self, left: list[StudySpecification], spare_slots: Callable[[], int]
    ) -> None:
        """Runs free cells, the cheapest first; begins one whenever slots are spare.

        Cells that are not free stay in `left`.
        """
        waiting = sorted(left, key=_cost)
        running: list[Future[bool]] = []
        with ThreadPoolExecutor(max(1, len(left)), "cell") as pool:
            while (waiting and not self.stop()) or running:
                is_room = spare_slots() > 0 or not running
                if waiting and is_room and not self.stop():
                    study = self._cheapest(waiting)
                    waiting.remove(study)
                    running.append(pool.submit(self._run_if_free, study, left))
                done, _ = wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
                running = [future for future in running if future not in done]
                for future in done:
                    if future.exception() is not None:
                        # The others save and stop, then the error is raised.
                        self.stop.set("an error in another cell")
                        wait(running)
                    future.result()
        if self.stop():
            raise Interrupted

    def _was_finished(self, study: StudySpecification) -> bool:
        if not is_finished(self.files, self._cell(study), study):
            return False
        self.outcome.finished_before.append(study.cell.name)
        return True

    def _run(self, study: StudySpecification, lock: Lock) -> None:
        name, cell = study.cell.name, self._cell(study)
        studies = self.specification.studies
        place = f"cell {studies.index(study) + 1} of {len(studies)}"
        live = self.spare_slots is None
        shown = StudyProgress(name, study.rule, place, live=live)
        shown.sweep = self._forecast if live else None
        with shown as progress:
            context = RunContext(
                stop=self.stop,
                allow_other_machine=self.options.allow_other_machine,
                guard=lock.check,
                progress=progress,
                trained_on=self._trained_on,
                say=self.say,
            )
            backend = self.backend_of(study)
            result = run_study(self.files, cell, study, backend, context)
        self.outcome.ran[name] = result
        # Programs refer to themselves through their functions: without this a sweep of
        # many cells keeps the programs of cells long finished.
        gc.collect()
        if study.workload.points == 1:
            self.say(curve_of(self.files, cell))
        self.say(describe_result(name, result))
        if not result.finishers:
            self.say(describe_shortfall(StudyReader(self.files, cell), study))


def _cost(study: StudySpecification) -> int:
    """Returns the largest number of examples that a study may train on."""
    rule = study.rule
    return rule.draws_limit * rule.last_evaluation * study.cell.batch_size


def check_directory(files: FileSystem, layout: SweepLayout) -> tuple[str, ...]:
    """Returns sentences on missing and foreign files; UserError for no sweep."""
    names = files.list_names(layout.root)
    if not names:
        return ()
    try:
        return SweepReader(files, layout.root).problems
    except OtherFormatError:
        raise
    except UserError as error:
        raise UserError(
            f"{layout.root} holds {names[0]} and no sweep: choose a new or empty "
            "--sweep_dir."
        ) from error


def start_sweep(
    files: FileSystem, layout: SweepLayout, sweep: SweepSpecification, gin_text: str
) -> None:
    """Makes the sweep directory and saves the configuration before anything runs.

    A sweep may be run again with other cells. `config.gin` holds the configuration of
    the last run; each study keeps the specification that it is compared with.
    """
    files.remove_stale(layout.root)
    mark(files, layout)
    files.write_atomic(layout.config, gin_text.encode())
    cells = [study.cell for study in sweep.studies]
    names, identities = [c.name for c in cells], [c.to_json() for c in cells]
    write_json(files, layout.sweep, {"cells": names, "identities": identities})


def mark(files: FileSystem, layout: SweepLayout) -> None:
    """Marks a sweep directory, before another process checks what kind it is of."""
    if not files.exists(layout.marker):
        write_json(files, layout.marker, {"made_by": "dps_tf"})


def repeat_studies(
    files: FileSystem, layout: SweepLayout, sweep: SweepSpecification
) -> tuple[StudySpecification, ...]:
    """Returns the repeats of the best points of all studies that are finished.

    Cells in which no trial met the goal have nothing to repeat.
    """
    repeats = []
    for study in sweep.studies if sweep.repeats else ():
        cell = layout.cell(study.cell.name)
        closed = StudyReader(files, cell).closed(("trials",))
        if closed is None or not is_finished(files, cell, study):
            continue
        best = best_first(closed["trials"])
        rows = best.head(sweep.repeated_points).to_dict("records")
        points = [{str(name): row[name] for name in row} for row in rows]
        if points:
            repeats.append(repeat_study(study, points, sweep.repeats))
    return tuple(repeats)


def describe_result(name: str, result: StudyResult) -> str:
    """Returns the outcome of a study as one line."""
    counts = {
        outcome: sum(trial.outcome == outcome for trial in result.trials)
        for outcome in ("complete", "incomplete", "infeasible", "censored", "failed")
    }
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    if not result.finishers:
        return f"{name}: no trial reached the goal ({summary})"
    steps, trial = result.finishers[0]
    low = result.trials[trial].bracket_low
    bound = "at most " if counts["failed"] else ""
    return f"{name}: K* = {bound}{steps} in ({low}, {steps}], trial {trial} ({summary})"


def describe_shortfall(study: StudyReader, asked: StudySpecification) -> str:
    """Returns how near a study came to the goal that it did not reach, and advice."""
    tables = {name: to_frame(table) for name, table in study.tables().items()}
    row = tables["studies"].iloc[0].to_dict()
    missed = shortfall(asked.goal, row, tables["trials"], tables["curves"])
    if missed is None:
        if (tables["trials"]["outcome"] == "failed").all():
            return "  all its trials failed."
        return f"  no trial has a finite value of {asked.goal.metric}."
    return f"  {missed.best}. {missed.advice}"


def describe_failures(name: str, result: StudyResult) -> str:
    """Returns which trials of a study failed, and the cause of the first, in a line."""
    failed = [n for n, trial in enumerate(result.trials) if trial.error is not None]
    cause = error_cause(result.trials[failed[0]].error or "")
    trials = ", ".join(map(str, failed))
    return f"{name}: trials that failed: {trials}; cause of the first: {cause}"


def curve_of(files: FileSystem, cell: CellLayout) -> str:
    """Returns the curves of a closed study as text; a run of one point has one."""
    study = StudyReader(files, cell)
    closed = study.closed(("curves",))
    if closed is None:
        return " ".join(study.problems) or "the study is not closed."
    curves = closed["curves"]
    shown = ["step", *(name for name in curves if "/" in str(name))]
    return str(curves[shown].to_string(index=False))
