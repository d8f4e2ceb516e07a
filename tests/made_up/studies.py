"""Studies of trials with given errors: their runner, their runs, what these leave."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf import core, store
from dps_tf.store.parquet import to_frame
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.study import RunContext, run_study
from dps_tf.tuning.sweep import Sweep, SweepOutcome, start_sweep
from tests.core.naive_race import Row, Study, WholeTrial
from tests.made_up.specifications import ENVIRONMENT, ERROR, specification
from tests.store.object_store import MemoryFiles

TRAINING_INPUTS = {"training_examples": 54_000, "validation_examples": 6000}
TRAINING_INPUTS |= {"content_hash": "c0ffee"}
GIN = "sweep.batch_sizes = (4, 8)\nworkload.goal = @goal()\n"
MEMORY = "gs://bucket/sweep"
"""The sweep directory on a disk in memory; a place is such a disk or a directory."""
Turn = namedtuple("Turn", "trial first last")
"""A turn that was run: steps (first, last] of a trial."""
_FACTOR, _MODULUS = 6364136223846793005, 2**61 - 1


@dataclass
class SyntheticRunner(core.Runner):
    """Runs turns of trials with given errors, and is the backend of their study.

    A state is a chain over every step: a trial that goes on from another trial's state,
    from a wrong step or with a wrong point shows another training loss.

    Attributes:
        trials: what each trial would do; it diverges where its error is NaN, and fails
            after its last error unless it has met the goal.
        slots: turns side by side.
        slice_steps: longest slice; a stop is looked for between slices.
        before_slice: called with (trial, step) before each slice; may raise or kill.
        stop_at: a stop is asked for at this slice from now: 1 is the next one.
        inputs: environment and training inputs of the study.
        study: the study that is run, once it is prepared.
        stop: the request to stop.
        turns: turns that were run.
        busy: groups of trials that run now.
        lanes: trials that a turn advances together.
        groups: the trials of every turn, also of one that failed.
    """

    trials: Sequence[WholeTrial]
    slots: int = 1
    slice_steps: int = 1000
    before_slice: Callable[[int, int], object] = lambda trial, step: None
    stop_at: float = math.inf
    inputs: tuple[dict, dict] = (ENVIRONMENT, TRAINING_INPUTS)
    study: core.StudySpecification | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    turns: list[Turn] = field(default_factory=list)
    busy: list[tuple[int, ...]] = field(default_factory=list)
    lanes: int = 1
    groups: list[tuple[int, ...]] = field(default_factory=list)

    def check_data(self, study: core.StudySpecification) -> None:
        """Accepts every study: there are no data."""

    def prepare(self, study: core.StudySpecification, _: object) -> core.PreparedStudy:
        self.study = study
        return core.PreparedStudy(self, *self.inputs, study)

    def provenance(self, trial: int) -> core.TrialProvenance:
        """Returns the seeds; pruned like a network would be."""
        sparsity = self.study.cell.sparsity
        kept = round(1000 * (1 - sparsity))
        layer = {"name": "dense", "parameters": 1000, "kept": kept, "emptied": False}
        kinds = ("initial point", "order")
        seeds = (core.derive_seed(0, trial, kind) for kind in kinds)
        return core.TrialProvenance(*seeds, sparsity, (layer,), examples=100)

    def run(self, slot: int, jobs: Sequence[core.Job], stop) -> list[core.TurnReport]:
        """Runs a turn in slices, until its evaluation, a divergence or a stop."""
        assert 0 <= slot < self.slots
        group = tuple(job.trial for job in jobs)
        assert len({trial % self.lanes for trial in group}) == len(group) > 0
        (until,) = {job.until for job in jobs}
        assert until % self.study.evaluations.interval == 0
        assert len({job.state.step if job.state else 0 for job in jobs}) == 1
        self.busy.append(group)
        self.groups.append(group)
        try:
            running = [trial for group in self.busy for trial in group]
            assert len(running) == len(set(running)), "a trial runs in two slots"
            assert len(self.busy) <= self.slots
            return [self._run(job, stop) for job in jobs]
        finally:
            self.busy.remove(group)

    def _run(self, job: core.Job, stop) -> core.TurnReport:
        whole = self.trials[job.trial]
        point = sum(ord(c) for c in repr(sorted(job.point.items())))
        first, chain = 0, 1
        if job.state is not None:
            first, chain = job.state.step, int(job.state.arrays[0][0])
        step, diverged = first, None
        while step < job.until and diverged is None and not (step > first and stop()):
            self.stop_at -= 1
            if self.stop_at <= 0:
                self.stop.set("test")
            self.before_slice(job.trial, step)
            last = min(step + self.slice_steps, job.until)
            if whole.diverges_at in range(step + 1, last + 1):
                last = diverged = whole.diverges_at
            each = _FACTOR + 1000 * job.trial + point
            step, chain = last, chain * pow(each, last - step, _MODULUS) % _MODULUS
        self.turns.append(Turn(job.trial, first, step))
        metrics = None
        if step == job.until and diverged is None:
            error = float(whole.errors[step // self.study.evaluations.interval - 1])
            metrics = {ERROR: error, "validation/cross_entropy": 3.2 * error}
            metrics["train/loss"] = chain / _MODULUS
            if math.isnan(error):
                diverged, metrics = step, None
        state = core.TrialState(step, (np.array([chain]), np.zeros(3, np.float32)))
        return core.TurnReport(
            *(job.trial, state, step, metrics),
            diverged_step=diverged,
            steps_executed=step - first,
            seconds=0.001,
        )


def study_of(study: Study, **changes: Any) -> core.StudySpecification:
    """Returns the specification that asks what a naive study asks."""
    asked = {
        "goal": core.Goal(ERROR, study.goal),
        "points": study.points,
        "step_budget": study.budget,
        "interval": study.interval,
        "count": "feasible" if study.feasible else "all",
        "max_draws": max(study.points, study.max_draws),
        "finishers": study.finishers,
        "search_mode": "exhaustive" if study.exhaustive else "race",
        **changes,
    }
    return specification(**asked)


def trials_of(*curves: Sequence[float] | tuple[Sequence[float], int]) -> list:
    """Returns whole trials: errors, or (errors, step of divergence)."""
    return [
        WholeTrial(tuple(c[0]), c[1]) if isinstance(c[0], Sequence) else WholeTrial(c)
        for c in (tuple(curve) for curve in curves)
    ]


SIX = Study(0.25, 10, 50, points=6, finishers=2, feasible=False, max_draws=0)
SIX_TRIALS = trials_of(
    [1] * 5, [1, 1, 0, 0, 0], [1] * 5, ([1] * 5, 15), [1, 1, 1, 0, 0], [1] * 5
)
"""Two reach the goal, one diverges, three are out-run."""


def _located(place) -> tuple[store.FileSystem, store.SweepLayout]:
    if isinstance(place, MemoryFiles):
        return place, store.SweepLayout(MEMORY)
    return store.LocalFiles(), store.SweepLayout(str(place))


def run(place, study, runner, files=None, **options) -> core.StudyResult:
    """Runs a study, as the command does once it has the lock; a disk may be faulty."""
    own, sweep = _located(place)
    files, cell = files or own, sweep.cell(study.cell.name)
    start_sweep(files, sweep, core.SweepSpecification((study,)), GIN)
    context = RunContext(runner.stop, **options)
    return run_study(files, cell, study, runner, context)


def launch(place, studies, runner, say=print) -> SweepOutcome:
    """Runs studies as the command does: under locks, and only those not finished."""
    files, sweep = _located(place)
    asked, options = core.SweepSpecification(tuple(studies)), Options(sweep.root)
    launched = Sweep(files, asked, options, lambda study: runner, runner.stop, say)
    return launched.run(GIN)


def reader_of(place, study: core.StudySpecification) -> store.StudyReader:
    files, sweep = _located(place)
    return store.StudyReader(files, sweep.cell(study.cell.name))


def tables(place, study: core.StudySpecification) -> dict[str, bytes]:
    """Returns the bytes of the tables that depend on nothing but the specification."""
    files, reader = _located(place)[0], reader_of(place, study)
    assert reader.closed() is not None and not reader.problems
    names = ("trials", "curves")
    return {name: files.read_bytes(reader.layout.table(name)) for name in names}


def undisturbed(study: Study, trials: Sequence[WholeTrial]) -> dict[str, bytes]:
    """Returns the tables of a study that one slot runs without interruption."""
    disk, asked = MemoryFiles(), study_of(study)
    run(disk, asked, SyntheticRunner(trials))
    return tables(disk, asked)


def frames(place, study: core.StudySpecification) -> dict[str, pd.DataFrame]:
    """Returns the tables of a study, closed or open."""
    found = reader_of(place, study).tables()
    return {name: to_frame(table) for name, table in found.items()}


def rows_of(trials: pd.DataFrame) -> list[Row]:
    """Returns the table of trials in the words of the naive rule."""
    found = trials[[*Row.__dataclass_fields__]].astype(object)
    return [Row(*row) for row in found.where(found.notna(), None).to_numpy()]
