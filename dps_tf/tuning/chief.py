"""The chief of keras-tuner's chief and workers: gives out trials over gRPC.

For oracles that learn, whose points are not known beforehand; races are shared through
files (see `sharing`). keras-tuner's own variables choose who is what: in every process
KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT are those of the chief, and
KERASTUNER_TUNER_ID is the name of the process, with `chief` in that of the chief.

The messages are keras-tuner's; its server and client (1.4.8) are not used. There a
chief waits for ever for a worker that was killed, the trial of that worker is lost, and
workers wait an hour for a chief. Here a worker shows that it lives; the trial of one
that is silent for LEASE_SECONDS is given to another. All that is known stands in the
records, which everybody writes to the sweep directory: what passes over the network is
which trial is whose. So a chief that was killed goes on from the records.

Which points an oracle chooses depends on which results it has seen by then, hence on
the speed of the workers; the records hold what was chosen. There is no authentication:
name an address that only trusted machines reach. The chief binds to that address alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import keras_tuner
from keras_tuner.src import protos

from dps_tf.core.errors import UserError
from dps_tf.tuning.chief_trials import LEASE_SECONDS, Trials
from dps_tf.tuning.interruption import Interrupted
from dps_tf.tuning.oracle import point_of, values_of
from dps_tf.tuning.post import Post
from dps_tf.tuning.tuner import StudyTuner

BEAT_SECONDS = 4.0
"""How often workers show that they live."""
_LOOK_SECONDS = 0.2
WORKER, CELL, TRIAL = "dps-tf-worker", "dps-tf-cell", "dps-tf-trial"
"""Names of what a worker says of itself with each message."""
_Status = keras_tuner.engine.trial.TrialStatus


class ChiefTuner(StudyTuner):
    """Runs one study by giving its trials to workers.

    Args:
        here: the post of this process.
        arguments: of StudyTuner; its record follows the logs of the workers.
    """

    def __init__(self, here: Post, *arguments: Any):
        super().__init__(*arguments)
        self._here = here
        self._lock = threading.RLock()
        self._error: BaseException | None = None
        self._trials_of_workers = Trials(self.oracle, self._is_enough)

    def _search_adaptively(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        with self._lock:
            self._resume()
        server = self._serve()
        try:
            self._wait_for_the_end()
        finally:
            server.stop(1.0).wait()
            self._record.snapshot(force=True)

    def _serve(self) -> grpc.Server:
        # One that is left over from before must not answer in the place of this one.
        options = [("grpc.so_reuseport", 0)]
        server = grpc.server(ThreadPoolExecutor(4), options=options)
        service = _Service(self, self._record.specification.cell.name)
        protos.get_service_grpc().add_OracleServicer_to_server(service, server)
        try:
            server.add_insecure_port(self._here.address)
        except RuntimeError as error:
            raise UserError(
                f"the chief cannot listen on {self._here.address}: set "
                "KERASTUNER_ORACLE_IP to an address of this machine, and "
                "KERASTUNER_ORACLE_PORT to a free port."
            ) from error
        server.start()
        return server

    def _resume(self) -> None:
        """Tells the oracle of the trials that the record knows."""
        history = self._record.history
        trials: list[Any] = []
        while history[len(trials)].point is not None:
            number = len(trials)
            trial = self.oracle.create_trial(f"recorded {number}")
            point = history[number].point or {}
            trial.hyperparameters.values = values_of(point, trial.hyperparameters)
            trials.append(trial)
            if self._has_ended(number):
                self._end(trial, self._result().trials[number])
        for trial in trials:
            for worker, running in list(self.oracle.ongoing_trials.items()):
                if running is trial:
                    del self.oracle.ongoing_trials[worker]
                    self._trials_of_workers.wait(trial)

    def _wait_for_the_end(self) -> None:
        """Returns when the study has all its trials and the workers know it."""
        trials, over_at = self._trials_of_workers, None
        while True:
            if self._stop():
                raise Interrupted
            with self._lock:
                if self._error is not None:
                    raise self._error
                trials.forget_silent()
                self._record.snapshot()
                if trials.are_over:
                    over_at = over_at or time.monotonic()
                    if not trials.workers:
                        return
                    if time.monotonic() - over_at > LEASE_SECONDS:
                        return
            time.sleep(_LOOK_SECONDS)

    def next_for(self, worker: str) -> tuple[Any, bool]:
        """Returns the trial of a worker, or None; and whether it is to go home."""
        with self._lock:
            trial = self._trials_of_workers.next_for(worker)
            if trial is None:
                over = self._trials_of_workers.are_over
                if over:
                    self._trials_of_workers.dismiss(worker)
                return None, over
            number = int(trial.trial_id)
            if self._record.history[number].point is None:
                fixed = self._record.specification.workload.fixed
                point = {**fixed, **point_of(trial.hyperparameters.values)}
                self._record.add_point(number, point)
                # Before anybody hears of it: what is trained is what was recorded.
                self._record.save(())
            return trial, False

    def hear(self, worker: str, trial: str) -> None:
        """Notes that a worker lives."""
        with self._lock:
            self._trials_of_workers.hear(worker, trial)

    def ended(self, trial: str) -> None:
        """Takes the result of a trial from the record."""
        with self._lock:
            self._record.follow()
            if not self._has_ended(int(trial)):
                return
            found = self._trials_of_workers.ended(trial)
            if found is not None:
                self._end(found, self._result().trials[int(trial)])

    def fail(self, error: BaseException) -> None:
        """Ends the search with an error that is no trial's own."""
        with self._lock:
            self._error = self._error or error

    def _has_ended(self, number: int) -> bool:
        rule = self._record.specification.rule
        known = self._record.trajectory(number)
        ended = known.failed or known.diverged_step or known.finish_step
        return bool(ended) or known.last_step >= rule.last_evaluation

    def _is_enough(self) -> bool:
        todo, drawn = self._plan(), len(self.oracle.trials)
        return drawn >= self.oracle.max_trials or (
            todo.decided and drawn >= todo.prefix
        )


class _Service(protos.get_service_grpc().OracleServicer):  # type: ignore[misc]
    """Answers workers; what they do not ask for is not implemented."""

    def __init__(self, chief: ChiefTuner, cell: str):
        self._chief = chief
        self._cell = cell

    def GetSpace(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Hears that a worker lives."""
        del request
        self._hear(context)
        return protos.get_service().GetSpaceResponse()

    def CreateTrial(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Gives the worker its trial; IDLE is 'ask again', STOPPED 'go home'."""
        del request
        said = self._hear(context)
        trial, over = self._guarded(lambda: self._chief.next_for(said[WORKER]), context)
        if trial is None:
            status = _Status.STOPPED if over else _Status.IDLE
            nothing = keras_tuner.HyperParameters()
            trial = keras_tuner.engine.trial.Trial(nothing, "", status)
        return protos.get_service().CreateTrialResponse(trial=trial.to_proto())

    def EndTrial(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Hears that a trial is over."""
        self._hear(context)
        trial = request.trial.trial_id
        self._guarded(lambda: self._chief.ended(trial), context)
        return protos.get_service().EndTrialResponse()

    def _hear(self, context: Any) -> Mapping[str, str]:
        said = dict(context.invocation_metadata())
        if said.get(CELL) != self._cell or not said.get(WORKER):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._cell)
        self._chief.hear(said[WORKER], said.get(TRIAL, ""))
        return said

    def _guarded(self, answer: Callable[[], Any], context: Any) -> Any:
        try:
            return answer()
        except Exception as error:
            self._chief.fail(error)
            context.abort(grpc.StatusCode.ABORTED, str(error))
