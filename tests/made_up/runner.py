"""A runner of trials that are known beforehand, in the place of real training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dps_tf.core import (
    Job,
    Runner,
    TrialProvenance,
    TrialState,
    TurnReport,
    derive_seed,
)
from tests.core.naive_race import WholeTrial

_FACTOR, _MODULUS = 6364136223846793005, 2**61 - 1


@dataclass(frozen=True)
class Turn:
    """A turn that was run: steps (first, last] of a trial, and who ran beside it."""

    trial: int
    first: int
    last: int
    company: frozenset[int]


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
        seconds: length of a slice.
        turns: what was run.
        provenance_of: what provenance() does instead of looking up seeds.
    """

    trials: Sequence[WholeTrial]
    interval: int = 10
    slots: int = 1
    slice_steps: int = 1000
    before_slice: Callable[[int, int], object] = lambda trial, step: None
    seconds: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    provenance_of: Callable[[int], TrialProvenance] | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[int, set[int]] = {}

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns the seeds; pruned like a network would be."""
        if self.provenance_of is not None:
            return self.provenance_of(trial)
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
            if self.seconds:
                time.sleep(self.seconds)
            for _ in range(min(self.slice_steps, job.until - step)):
                step += 1
                chain = (chain * _FACTOR + 1000 * job.trial + step) % _MODULUS
                if step == whole.diverges_at:
                    diverged = step
                    break
        with self._lock:
            company = frozenset(self._busy[job.trial])
            self.turns.append(Turn(job.trial, first, step, company))
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
            for company in self._busy.values():
                company.add(trial)
            self._busy[trial] = set(self._busy)
            assert len(self._busy) <= self.slots

    def _leave(self, trial: int) -> None:
        with self._lock:
            del self._busy[trial]

    @property
    def steps(self) -> int:
        """Steps executed in all turns."""
        return sum(turn.last - turn.first for turn in self.turns)
