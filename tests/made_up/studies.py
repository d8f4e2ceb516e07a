"""Studies of trials whose errors are given, how they are run, and what they leave."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dps_tf.core import (
    Backend,
    EvaluationInterval,
    Goal,
    Job,
    PreparedStudy,
    Runner,
    StudyResult,
    StudySpecification,
    SweepSpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
    derive_seed,
)
from dps_tf.store import (
    FileSystem,
    LocalFiles,
    StudyReader,
    SweepLayout,
)
from dps_tf.store.tables import to_frame
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.study import RunContext, run_study
from dps_tf.tuning.sweep import Sweep, SweepOutcome, start_sweep
from tests.core import naive_race
from tests.core.naive_race import WholeTrial
from tests.made_up.specifications import ENVIRONMENT, ERROR, specification
from tests.store.object_store import MemoryFiles

_FACTOR, _MODULUS = 6364136223846793005, 2**61 - 1
TRAINING_INPUTS = {
    "training_examples": 54_000,
    "validation_examples": 6000,
    "content_hash": "c0ffee",
}
MEMORY = "gs://bucket/sweep"
Place = Path | str | MemoryFiles
"""A sweep directory, or the disk in memory on which it is MEMORY."""


class Turn(NamedTuple):
    """A turn that was run: steps (first, last] of a trial."""

    trial: int
    first: int
    last: int


@dataclass
class SyntheticRunner(Runner):
    """Runs turns of trials whose errors are given.

    A state is a chain over every step: a trial that goes on from another trial's state,
    from a wrong step or with a wrong point shows another training loss.

    Attributes:
        trials: what each trial would do: it diverges where its error is NaN, and fails
            after its last error.
        interval: steps between evaluations.
        slots: turns side by side.
        slice_steps: longest slice; a stop is looked for between slices.
        before_slice: called with (trial, step) before each slice; may raise or kill.
        sparsity: that of pruned networks.
        turns: what was run.
        most_at_once: the largest number of trials that ran side by side.
    """

    trials: Sequence[WholeTrial]
    interval: int = 10
    slots: int = 1
    slice_steps: int = 1000
    before_slice: Callable[[int, int], object] = lambda trial, step: None
    sparsity: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[int] = set()

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns the seeds; pruned like a network would be."""
        kept = round(1000 * (1 - self.sparsity))
        layer = {"name": "dense", "parameters": 1000, "kept": kept, "emptied": False}
        seeds = (derive_seed(0, trial, kind) for kind in ("initial point", "order"))
        return TrialProvenance(*seeds, self.sparsity, (layer,), examples=100)

    def run(self, slot: int, job: Job, stop: Callable[[], bool]) -> TurnReport:
        """Runs a turn in slices, until its evaluation, a divergence or a stop."""
        assert 0 <= slot < self.slots
        assert job.until % self.interval == 0
        with self._lock:
            assert job.trial not in self._busy, "a trial runs in two slots"
            self._busy.add(job.trial)
            self.most_at_once = max(self.most_at_once, len(self._busy))
            assert len(self._busy) <= self.slots
        try:
            return self._run(job, stop)
        finally:
            with self._lock:
                self._busy.remove(job.trial)

    def _run(self, job: Job, stop: Callable[[], bool]) -> TurnReport:
        whole = self.trials[job.trial]
        first, chain = 0, sum(ord(c) for c in repr(sorted(job.point.items())))
        if job.state is not None:
            first, chain = job.state.step, int(job.state.arrays[0][0])
        step, diverged = first, None
        while step < job.until and diverged is None and not (step > first and stop()):
            self.before_slice(job.trial, step)
            for _ in range(min(self.slice_steps, job.until - step)):
                step += 1
                chain = (chain * _FACTOR + 1000 * job.trial + step) % _MODULUS
                if step == whole.diverges_at:
                    diverged = step
                    break
        with self._lock:
            self.turns.append(Turn(job.trial, first, step))
        metrics = None
        if step == job.until and diverged is None:
            if step > len(whole.errors) * self.interval:
                raise MemoryError('out of "memory",\nreally')
            error = float(whole.errors[step // self.interval - 1])
            if math.isnan(error):
                diverged = step
            else:
                metrics = {ERROR: error, "validation/cross_entropy": 3.2 * error}
                metrics["train/loss"] = chain / _MODULUS
        state = TrialState(step, (np.array([chain]), np.zeros(3, np.float32)))
        return TurnReport(
            *(job.trial, state, step, metrics),
            diverged_step=diverged,
            steps_executed=step - first,
            seconds=0.001,
        )

    @property
    def steps(self) -> int:
        """Steps executed in all turns."""
        return sum(turn.last - turn.first for turn in self.turns)


def backend_of(
    runner: Runner | Callable[[StudySpecification], Runner],
    environment: Mapping[str, str] = ENVIRONMENT,
    training_inputs: Mapping[str, Any] = TRAINING_INPUTS,
) -> Backend:
    """Returns a backend of a given runner, or of one that is made for each study."""

    def prepare(study: StudySpecification, show: object = None) -> PreparedStudy:
        made = runner if isinstance(runner, SyntheticRunner) else runner(study)
        return PreparedStudy(made, environment, training_inputs)

    return SimpleNamespace(prepare=prepare, check_data=lambda study: None)


def study_of(study: naive_race.Study, **changes: Any) -> StudySpecification:
    """Returns the specification that asks what a naive study asks."""
    values = {
        "goal": Goal(ERROR, study.goal),
        "points": study.points,
        "step_budget": study.budget,
        "evaluation_interval": EvaluationInterval(steps=study.interval),
        "count": "feasible" if study.feasible else "all",
        "max_draws": max(study.points, study.max_draws),
        "finishers": study.finishers,
        "search_mode": "exhaustive" if study.exhaustive else "race",
    }
    return specification(**{**values, **changes})


def trials_of(*curves: Sequence[float] | tuple[Sequence[float], int]) -> list:
    """Returns whole trials: errors, or (errors, step of divergence)."""
    return [
        WholeTrial(tuple(c[0]), c[1]) if isinstance(c[0], Sequence) else WholeTrial(c)
        for c in (tuple(curve) for curve in curves)
    ]


SIX = naive_race.Study(0.25, 10, 50, points=6, finishers=2, feasible=False, max_draws=0)
SIX_TRIALS = trials_of(
    [1, 1, 1, 1, 1],
    [1, 1, 0, 0, 0],
    [1, 1, 1, 1, 1],
    ([1, 1, 1, 1, 1], 15),
    [1, 1, 1, 0, 0],
    [1, 1, 1, 1, 1],
)
"""Two reach the goal, one diverges, three are out-run."""


def located(place: Place) -> tuple[FileSystem, SweepLayout]:
    if isinstance(place, MemoryFiles):
        return place, SweepLayout(MEMORY)
    return LocalFiles(), SweepLayout(str(place))


def run(
    place: Place,
    study: StudySpecification,
    runner: SyntheticRunner,
    stop: StopRequest | None = None,
    *,
    files: FileSystem | None = None,
    environment: dict[str, str] = ENVIRONMENT,
    training_inputs: dict[str, Any] = TRAINING_INPUTS,
    **options: Any,
) -> StudyResult:
    """Runs a study, as the command does once it has the lock; a disk may be faulty."""
    own, sweep = located(place)
    files, cell = files or own, sweep.cell(study.cell.name)
    start_sweep(files, sweep, SweepSpecification((study,)), "")
    backend = backend_of(runner, environment, training_inputs)
    context = RunContext(stop or StopRequest(), **options)
    return run_study(files, cell, study, backend, context)


def launch(
    place: Place,
    studies: Sequence[StudySpecification],
    runner: Runner | Callable[[StudySpecification], Runner],
    stop: StopRequest | None = None,
    say: Callable[[str], None] = print,
) -> SweepOutcome:
    """Runs studies as the command does: under locks, and only those not finished."""
    files, sweep = located(place)
    asked, options = SweepSpecification(tuple(studies)), Options(sweep.root)
    backend, stop = backend_of(runner), stop or StopRequest()
    launched = Sweep(files, asked, options, lambda study: backend, stop, say)
    return launched.run("workload.points = 3\n")


def reader_of(place: Place, study: StudySpecification) -> StudyReader:
    files, sweep = located(place)
    return StudyReader(files, sweep.cell(study.cell.name))


def tables(place: Place, study: StudySpecification) -> dict[str, bytes]:
    """Returns the bytes of the tables that depend on nothing but the specification."""
    files, reader = located(place)[0], reader_of(place, study)
    assert reader.closed() is not None and not reader.problems
    names = ("trials", "curves")
    return {name: files.read_bytes(reader.layout.table(name)) for name in names}


def frame(place: Place, study: StudySpecification, name: str) -> pd.DataFrame:
    """Returns a table of a study, closed or open."""
    return to_frame(reader_of(place, study).tables()[name])


def rows_of(found: pd.DataFrame) -> list[naive_race.Row]:
    """Returns the table of trials in the words of the naive rule."""
    columns = ("outcome", "end_step", "steps_to_result", "bracket_low", "diverged_step")
    return [
        naive_race.Row(*(None if pd.isna(row[name]) else row[name] for name in columns))
        for _, row in found.iterrows()
    ]


def interrupting(stop: StopRequest, after_slices: int) -> Callable[[int, int], None]:
    """Returns a `before_slice` that asks to stop at the n-th slice of a session."""
    left = [after_slices]

    def before_slice(trial: int, step: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            stop.set("test")

    return before_slice


class Watch:
    """A clock that runs as fast as a test wants: seconds per look."""

    def __init__(self, seconds_per_look: float):
        self.now = 0.0
        self.seconds_per_look = seconds_per_look

    def monotonic(self) -> float:
        self.now += self.seconds_per_look
        return self.now


def undisturbed(
    study: naive_race.Study, trials: Sequence[WholeTrial]
) -> dict[str, bytes]:
    """Returns the tables of a study that one slot runs without interruption."""
    disk, asked = MemoryFiles(), study_of(study)
    run(disk, asked, SyntheticRunner(trials, study.interval))
    return tables(disk, asked)
