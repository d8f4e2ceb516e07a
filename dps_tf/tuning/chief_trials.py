"""Which trial is whose, among the workers of a chief."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras_tuner

LEASE_SECONDS = 20.0
"""Silence after which a worker's trial is given to another."""
_Status = keras_tuner.engine.trial.TrialStatus


class Trials:
    """Which trial is whose. Knows keras-tuner's oracle and no network.

    Args:
        oracle: its trials are those of the study.
        is_enough: whether no further trial is to begin.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        oracle: Any,
        is_enough: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._oracle = oracle
        self._is_enough = is_enough
        self._clock = clock
        self._heard: dict[str, float] = {}
        self._waiting: list[str] = []

    @property
    def are_over(self) -> bool:
        """Whether none is under way or waiting, and none is to begin."""
        busy = self._oracle.ongoing_trials or self._waiting
        return not busy and self._is_enough()

    @property
    def workers(self) -> set[str]:
        """Those that were heard lately and were not sent home."""
        return set(self._heard)

    def wait(self, trial: Any) -> None:
        """Puts a trial that somebody had begun with into the queue."""
        self._waiting.append(trial.trial_id)

    def hear(self, worker: str, trial: str = "") -> None:
        """Notes that a worker lives, and which trial it is at."""
        self._heard[worker] = self._clock()
        if trial in self._waiting and worker not in self._oracle.ongoing_trials:
            # Of the time before this chief was started again.
            self._give(worker, trial)

    def next_for(self, worker: str) -> Any:
        """Returns the trial that a worker is to run, or None if there is none now."""
        self.forget_silent()
        if worker in self._oracle.ongoing_trials:
            return self._oracle.ongoing_trials[worker]
        if self._waiting:
            return self._give(worker, self._waiting[0])
        if self._is_enough():
            return None
        trial = self._oracle.create_trial(worker)
        return trial if trial.status == _Status.RUNNING else None

    def ended(self, trial: str) -> Any:
        """Returns a trial that is over, the first time that this is said; else None."""
        for worker, running in list(self._oracle.ongoing_trials.items()):
            if running.trial_id == trial:
                return self._oracle.ongoing_trials[worker]
        if trial in self._waiting:
            return self._give("a worker that was silent", trial)
        return None

    def dismiss(self, worker: str) -> None:
        """Forgets a worker that was sent home."""
        self._heard.pop(worker, None)

    def forget_silent(self) -> None:
        """Takes the trials of workers that are silent back into the queue."""
        now = self._clock()
        for worker, heard in list(self._heard.items()):
            if now - heard > LEASE_SECONDS:
                del self._heard[worker]
                lost = self._oracle.ongoing_trials.pop(worker, None)
                if lost is not None:
                    self._waiting.append(lost.trial_id)

    def _give(self, worker: str, trial: str) -> Any:
        self._waiting.remove(trial)
        self._oracle.ongoing_trials[worker] = self._oracle.trials[trial]
        return self._oracle.trials[trial]
