"""Whole studies of synthetic trials, their runner, and the tables that they leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.core import (
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
from dps_tf.store import CellLayout, FileSystem, LocalFiles, StudyReader, SweepLayout
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.study import RunContext, run_study
from dps_tf.tuning.sweep import Sweep, SweepOutcome, start_sweep
from tests.core import naive_race
from tests.core.naive_race import WholeTrial
from tests.made_up.specifications import specification

_FACTOR, _MODULUS = 6364136223846793005, 2**61 - 1
ENVIRONMENT = {"tensorflow": "2.20.0", "instruction_sets": "avx2"}
TRAINING_INPUTS = {
    "training_examples": 100,
    "validation_examples": 20,
    "content_hash": "c0ffee",
}
RESULTS = ("trials", "curves")
"""The tables that may depend on nothing but the specification."""


@dataclass(frozen=True)
class Turn:
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
        trials: what each trial would do.
        interval: steps between evaluations.
        slots: turns side by side.
        slice_steps: longest slice; a stop is looked for between slices.
        before_slice: called with (trial, step) before each slice; may raise or kill.
        turns: what was run.
        most_at_once: the largest number of trials that ran side by side.
    """

    trials: Sequence[WholeTrial]
    interval: int = 10
    slots: int = 1
    slice_steps: int = 1000
    before_slice: Callable[[int, int], object] = lambda trial, step: None
    turns: list[Turn] = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[int] = set()

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns the seeds; pruned like a network would be."""
        layer = {"name": "dense", "parameters": 10, "kept": 5, "emptied": False}
        return TrialProvenance(
            initial_seed=derive_seed(0, trial, "initial point"),
            order_seed=derive_seed(0, trial, "order"),
            realised_sparsity=0.5,
            layers=(layer,),
            examples=100,
        )

    def run(self, slot: int, job: Job, stop: Callable[[], bool]) -> TurnReport:
        """Runs a turn in slices, until its evaluation, a divergence or a stop."""
        assert 0 <= slot < self.slots
        assert job.until % self.interval == 0
        self._enter(job.trial)
        try:
            return self._run(job, stop)
        finally:
            self._leave(job.trial)

    def _run(self, job: Job, stop: Callable[[], bool]) -> TurnReport:
        begun = time.monotonic()
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
        is_evaluated = step == job.until and diverged is None
        return TurnReport(
            trial=job.trial,
            state=TrialState(step, (np.array([chain]), np.zeros(3, np.float32))),
            step=step,
            metrics=self._metrics(whole, step, chain) if is_evaluated else None,
            diverged_step=diverged,
            steps_executed=step - first,
            seconds=time.monotonic() - begun,
        )

    def _metrics(self, whole: WholeTrial, step: int, chain: int) -> dict[str, float]:
        error = whole.errors[step // self.interval - 1]
        return {
            "validation/classification_error": float(error),
            "validation/accuracy": 1.0 - error,
            "train/loss": chain / _MODULUS,
        }

    def _enter(self, trial: int) -> None:
        with self._lock:
            assert trial not in self._busy, "a trial runs in two slots"
            self._busy.add(trial)
            self.most_at_once = max(self.most_at_once, len(self._busy))
            assert len(self._busy) <= self.slots

    def _leave(self, trial: int) -> None:
        with self._lock:
            self._busy.remove(trial)

    @property
    def steps(self) -> int:
        """Steps executed in all turns."""
        return sum(turn.last - turn.first for turn in self.turns)


def study_of(study: naive_race.Study, **changes: Any) -> StudySpecification:
    """Returns the specification that asks what a naive study asks."""
    values = {
        "goal": Goal("validation/classification_error", study.goal),
        "points": study.points,
        "step_budget": study.budget,
        "evaluation_interval": EvaluationInterval(steps=study.interval),
        "count": "feasible" if study.feasible else "all",
        "max_draws": max(study.points, study.max_draws),
        "finishers": study.finishers,
        "search_mode": "exhaustive" if study.exhaustive else "race",
    }
    return specification(**{**values, **changes})


def layout_of(directory: Path | str, study: StudySpecification) -> CellLayout:
    return SweepLayout(str(directory)).cell(study.cell.name)


@dataclass(frozen=True)
class SyntheticBackend:
    """Runs trials on a runner that is given.

    Attributes:
        runner: a runner, or what makes it when a study is prepared.
        environment: that studies are run in.
        training_inputs: sizes and content of the data.
    """

    runner: Runner | Callable[[StudySpecification], Runner]
    environment: Mapping[str, str] = field(default_factory=ENVIRONMENT.copy)
    training_inputs: Mapping[str, Any] = field(default_factory=TRAINING_INPUTS.copy)

    def check(self, study: StudySpecification) -> None:
        """Knows every name."""

    def check_data(self, study: StudySpecification) -> None:
        """Has all data."""

    def prepare(
        self, study: StudySpecification, show: Callable[[str], None] | None = None
    ) -> PreparedStudy:
        runner = self.runner
        if not isinstance(runner, SyntheticRunner):
            runner = runner(study)
        return PreparedStudy(runner, self.environment, self.training_inputs)


def run(
    directory: Path | str,
    study: StudySpecification,
    runner: SyntheticRunner,
    *,
    files: FileSystem | None = None,
    stop: StopRequest | None = None,
    said: list[str] | None = None,
    environment: dict[str, str] = ENVIRONMENT,
    training_inputs: dict[str, Any] = TRAINING_INPUTS,
    **options: Any,
) -> StudyResult:
    """Runs a study in a sweep directory, as the command does."""
    files = files or LocalFiles()
    sweep = SweepLayout(str(directory))
    start_sweep(files, sweep, SweepSpecification((study,)), "")
    return run_study(
        files,
        sweep.cell(study.cell.name),
        study,
        SyntheticBackend(runner, environment, training_inputs),
        RunContext(
            stop or StopRequest(),
            say=(said if said is not None else []).append,
            **options,
        ),
    )


def tables(directory: Path | str, study: StudySpecification) -> dict[str, bytes]:
    """Returns the bytes of the result tables of a closed study."""
    cell = layout_of(directory, study)
    reader = StudyReader(LocalFiles(), cell)
    assert reader.closed() is not None and not reader.problems
    return {name: Path(cell.table(name)).read_bytes() for name in RESULTS}


def frame(directory: Path | str, study: StudySpecification, name: str) -> pd.DataFrame:
    closed = StudyReader(LocalFiles(), layout_of(directory, study)).closed()
    assert closed is not None
    return closed[name]


def work(directory: Path | str, study: StudySpecification) -> dict[str, float]:
    """Returns the totals of the table of work."""
    found = frame(directory, study, "work")
    totals = found[found["trial"].isna()]
    return dict(zip(totals["quantity"], totals["value"], strict=True))


def rows_of(found: pd.DataFrame) -> list[naive_race.Row]:
    """Returns the table of trials in the words of the naive rule."""
    columns = ("outcome", "end_step", "steps_to_result", "bracket_low", "diverged_step")
    return [
        naive_race.Row(*(None if pd.isna(row[name]) else row[name] for name in columns))
        for _, row in found.iterrows()
    ]


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


def interrupting(stop: StopRequest, after_slices: int) -> Callable[[int, int], None]:
    """Returns a `before_slice` that asks to stop at the n-th slice of a session."""
    left = [after_slices]

    def before_slice(trial: int, step: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            stop.set("test")

    return before_slice


def run_in_sweep(
    directory: Path | str,
    study: StudySpecification,
    runner: SyntheticRunner,
    *,
    files: FileSystem | None = None,
    stop: StopRequest | None = None,
    said: list[str] | None = None,
    **options: Any,
) -> SweepOutcome:
    """Runs a study as the command does: under its lock, and only if not finished."""
    backend = SyntheticBackend(runner)
    heard: list[str] = []
    try:
        return Sweep(
            files or LocalFiles(),
            SweepSpecification((study,)),
            Options(str(directory), **options),
            lambda study: backend,
            stop or StopRequest(),
            heard.append,
        ).run("")
    finally:
        result = f"{study.cell.name}: "
        notes = [sentence for sentence in heard if not sentence.startswith(result)]
        (said if said is not None else []).extend(notes)
