"""keras-tuner's tuner: runs the metaparameter budget of one study.

keras-tuner's folder is made anew at every start from our own records, which are the
truth: no state of it can be torn, lost or stale, and nothing depends on it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras_tuner
import tensorflow as tf

from dps_tf.core.errors import UserError
from dps_tf.core.execution import Runner
from dps_tf.core.race import Plan, plan
from dps_tf.core.steps_to_result import TrialResult
from dps_tf.store.errors import explained, store_error
from dps_tf.store.study_record import StudyRecord
from dps_tf.store.study_rows import study_result
from dps_tf.tuning.company import Company
from dps_tf.tuning.driver import Progress, StudyDriver
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.oracle import QuasiRandomOracle, adaptive_oracle, point_of

Point = Mapping[str, float]


_NUMBERS = {
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.OutOfRangeError: errno.EFBIG,
    tf.errors.PermissionDeniedError: errno.EACCES,
}
"""Errors of the files that keras-tuner writes, and what they are of the system."""


@contextmanager
def _explained(directory: str) -> Iterator[None]:
    """Turns an error about keras-tuner's own files into one sentence with advice."""
    with explained("write to", directory):
        try:
            yield
        except tuple(_NUMBERS) as error:
            number = _NUMBERS[type(error)]
            text = os.strerror(number)
            raise store_error("write to", directory, number, text) from error


class StudyTuner(keras_tuner.Tuner):
    """Runs the trials of one study, each of them a trial of keras-tuner.

    With points that are known beforehand all trials are open at once, a tuner slot
    each, and race; an oracle that learns gets one trial after another. A trial that
    diverged or was cut off is a completed result with finite metrics for keras-tuner.
    """

    def __init__(  # noqa: PLR0913 - each is independent of the others
        self,
        record: StudyRecord,
        runner: Runner,
        directory: str,
        project_name: str,
        stop: StopRequest,
        progress: Progress | None = None,
        company: Company | None = None,
    ):
        """Makes the tuner; its folder must not hold an earlier project."""
        specification = record.specification
        workload, limit = specification.workload, specification.rule.draws_limit
        self._record = record
        self._runner = runner
        self._stop = stop
        self._progress = progress
        self._company = company
        self._adaptive = workload.is_adaptive
        self._trials: dict[int, Any] = {}
        if self._adaptive:
            self._points: list[dict[str, float]] = []
            oracle = adaptive_oracle(
                workload.oracle,
                workload.oracle_arguments,
                workload.space,
                limit,
                specification.cell.seed,
            )
        else:
            self._points = workload.draw(specification.cell.seed, limit)
            oracle = QuasiRandomOracle(workload.space, self._points.__getitem__, limit)
        with _explained(directory):
            super().__init__(oracle, directory=directory, project_name=project_name)

    @property
    def points(self) -> list[dict[str, float]]:
        """Metaparameters by trial number, fixed ones included."""
        return self._points

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Runs the study to its end.

        Raises:
            Interrupted: a stop was asked for; everything is saved.
        """
        with _explained(self.directory):
            if self._adaptive:
                self._search_adaptively(*fit_args, **fit_kwargs)
            else:
                self._race()

    def _race(self) -> None:
        for number in range(self._record.specification.rule.points):
            self._open(number)
        self._driver().run(self._open)
        for number, result in enumerate(self._result().trials):
            self._open(number)
            self._end(self._trials[number], result)
        self.save()

    def _search_adaptively(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().search(*args, **kwargs)
        except keras_tuner.errors.FatalError as error:
            raise (error.__cause__ or error) from None
        drawn = len(self.oracle.trials)
        if not self._plan().decided:
            raise UserError(
                f"the oracle chose {drawn} points and has no other for trial {drawn}: "
                "ask for fewer points, or give it a larger space."
            )

    def on_trial_end(self, trial: Any) -> None:
        """Ends the search once the study has the trials that it pays for."""
        super().on_trial_end(trial)
        todo, drawn = self._plan(), len(self.oracle.trials)
        if todo.decided and drawn >= todo.prefix:
            self.oracle.max_trials = drawn

    def run_trial(
        self, trial: Any, *fit_args: Any, **fit_kwargs: Any
    ) -> dict[str, float]:
        """Runs one trial that an oracle chose to its end; returns its metrics."""
        number = int(trial.trial_id)
        recorded = self._record.history[number].point
        fixed = self._record.specification.workload.fixed
        point = recorded or {**fixed, **point_of(trial.hyperparameters.values)}
        if recorded is None:
            self._record.add_point(number, point)
        self._points.append(point)
        self._driver().run_alone(number)
        result = self._result().trials[number]
        return self._metrics(result)

    def _run_and_update_trial(self, trial: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super()._run_and_update_trial(trial, *args, **kwargs)
        except Exception as error:
            # The driver has recorded what was a trial's own; keras-tuner would take
            # all else for that too, and go on.
            raise keras_tuner.errors.FatalError(str(error)) from error

    def _driver(self) -> StudyDriver:
        return StudyDriver(
            self._record,
            self._runner,
            self._points.__getitem__,
            self._stop,
            self._progress,
            self._company,
        )

    def _plan(self) -> Plan:
        return plan(self._record.trajectories(), self._record.specification.rule)

    def _result(self) -> Any:
        return study_result(self._record.specification, self._record.history)

    def _open(self, number: int) -> None:
        """Opens trials of keras-tuner up to a number, a tuner slot each."""
        for i in range(len(self._trials), number + 1):
            self._trials[i] = self.oracle.create_trial(f"{self.tuner_id}-{i}")

    def _end(self, trial: Any, result: TrialResult) -> None:
        self.oracle.update_trial(trial.trial_id, self._metrics(result))
        trial.status = keras_tuner.engine.trial.TrialStatus.COMPLETED
        self.oracle.end_trial(trial)

    def _metrics(self, result: TrialResult) -> dict[str, float]:
        """Returns finite metrics: the worst step count for trials that did not reach.

        Among those, a trial that diverged is worse than one that did not.
        """
        budget = self._record.specification.rule.last_evaluation
        reached = result.steps_to_result is not None
        diverged = result.outcome in ("infeasible", "failed")
        steps = result.steps_to_result or budget * (3 if diverged else 2)
        return {
            "steps_to_result": float(steps),
            "reached": float(reached),
            "diverged": float(diverged),
        }
