"""Runs the studies of a sweep, one cell after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import StudySpecification
from dps_tf.core.sweep import SweepSpecification
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import SweepLayout
from dps_tf.store.records import write_json
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.progress import StudyProgress
from dps_tf.tuning.study import Prepared, is_finished, run_study

Prepare = Callable[[StudySpecification], Prepared]


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
    prepare: Prepare,
    stop: StopRequest,
    *,
    allow_other_machine: bool = False,
    say: Callable[[str], None] = print,
) -> SweepOutcome:
    """Runs every cell that is not finished and returns what became of them.

    Raises:
        Interrupted: a stop was asked for; everything is saved.
        UserError: a cell holds another study, before anything is trained.
    """
    outcome = SweepOutcome()
    todo = []
    for specification in sweep.studies:
        name = specification.cell.name
        if is_finished(files, layout.cell(name), specification):
            outcome.finished_before.append(name)
        else:
            todo.append(specification)
    for specification in todo:
        name = specification.cell.name
        with StudyProgress(name, specification.rule) as progress:
            result = run_study(
                files,
                layout.cell(name),
                specification,
                lambda specification=specification: prepare(specification),
                stop,
                progress,
                allow_other_machine=allow_other_machine,
                say=say,
            )
        outcome.ran[name] = result
        say(describe_result(name, result))
    return outcome


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
