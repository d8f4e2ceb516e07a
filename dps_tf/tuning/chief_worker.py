"""A worker of keras-tuner's chief: asks for a trial, runs it, tells of its end.

It writes its own log and the states to the sweep directory, which is the chief's. When
the chief does not answer for PATIENCE_SECONDS it saves, says so, and leaves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc
import keras_tuner
from keras_tuner.src import protos

from dps_tf.core.errors import UserError
from dps_tf.core.study import StudySpecification
from dps_tf.core.sweep import SweepSpecification
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout, SweepLayout
from dps_tf.store.log_follower import LogFollower
from dps_tf.store.owners import Owner
from dps_tf.store.study_opening import open_study
from dps_tf.store.study_record import StudyRecord
from dps_tf.tuning.chief import BEAT_SECONDS, CELL, TRIAL, WORKER
from dps_tf.tuning.driver import StudyDriver
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.post import ChiefLost, Post
from dps_tf.tuning.study import PreparedStudy, is_finished
from dps_tf.tuning.sweep import SweepOutcome

PATIENCE_SECONDS = 40.0
"""How long a chief may be silent: longer than it takes to start one again."""
_ANSWER_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 0.5
_POINT_SECONDS = 30.0
"""How long a file of the chief may take to be seen here."""
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_Status = keras_tuner.engine.trial.TrialStatus


class NotThisCell(Exception):
    """The chief is at another cell, which is named."""


def work_for_chief(  # noqa: PLR0913 - each is independent of the others
    here: Post,
    files: FileSystem,
    layout: SweepLayout,
    sweep: SweepSpecification,
    prepare: Callable[[StudySpecification], PreparedStudy],
    stop: StopRequest,
    allow_other_machine: bool = False,
) -> SweepOutcome:
    """Runs trials of the cell that the chief is at, until all cells are finished.

    Args:
        here: the post of this process.
        files: where the sweep is.
        layout: its paths.
        sweep: its cells.
        prepare: makes the runner of one.
        stop: whether to save and leave.
        allow_other_machine: see `open_study`.

    Raises:
        ChiefLost: it does not answer; everything is saved.
        Interrupted: a stop was asked for; everything is saved.
    """
    studies = {study.cell.name: study for study in sweep.studies}
    wanted = ""
    while True:
        left = [
            name
            for name, study in studies.items()
            if not is_finished(files, layout.cell(name), study)
        ]
        if not left:
            return SweepOutcome(finished_before=list(studies))
        name = wanted if wanted in studies else left[0]
        study, cell = studies[name], layout.cell(name)
        worker = ChiefWorker(here, files, cell, study, stop)
        try:
            worker.run(partial(prepare, study), allow_other_machine)
        except NotThisCell as error:
            wanted = str(error)
            _pause(stop)
            continue
        wanted = ""
        _await_closing(files, cell, study, stop)


def _await_closing(
    files: FileSystem, cell: CellLayout, study: StudySpecification, stop: StopRequest
) -> None:
    """Waits, not for long, until the chief has closed a study."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_finished(files, cell, study) and time.monotonic() < until:
        _pause(stop)


def _pause(stop: StopRequest) -> None:
    if stop():
        raise Interrupted
    time.sleep(_ASK_AGAIN_SECONDS)


class Line:
    """The connection to the chief, for one cell.

    Args:
        here: the post of this process.
        cell: its name.
        stop: whether to save and leave.

    Attributes:
        trial: that this worker is at, as the chief names it; or none.
        heard_at: when the chief answered last.
    """

    def __init__(self, here: Post, cell: str, stop: StopRequest):
        self.trial = ""
        self._here = here
        self._cell = cell
        self._stop = stop
        # By itself the channel would wait two minutes before it looks again.
        often = [("grpc.max_reconnect_backoff_ms", 1000)]
        self._channel = grpc.insecure_channel(here.address, often)
        self._stub = protos.get_service_grpc().OracleStub(self._channel)
        self.heard_at = time.monotonic()

    def ask(self, message: str, request: Any) -> Any:
        """Returns an answer; tries again until the chief has been silent for long.

        Raises:
            ChiefLost: it has.
            NotThisCell: it is at another cell.
            Interrupted: a stop was asked for.
        """
        while True:
            try:
                return self._ask_once(message, request)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                    raise NotThisCell(error.details()) from None
                if error.code() not in _AGAIN:
                    raise ChiefLost(
                        f"the chief has failed: {error.details()}"
                    ) from None
            self.check()
            _pause(self._stop)

    def check(self) -> None:
        """Raises ChiefLost if the chief has been silent for long."""
        if time.monotonic() - self.heard_at > PATIENCE_SECONDS:
            raise ChiefLost(
                f"the chief at {self._here.address} does not answer: start it again, "
                "and this worker; everything is saved."
            )

    def beat(self) -> None:
        """Shows once that this worker lives; an answer that is missing is noted."""
        try:
            self._ask_once("GetSpace", protos.get_service().GetSpaceRequest())
        except grpc.RpcError:
            return

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def _ask_once(self, message: str, request: Any) -> Any:
        says = (
            (WORKER, self._here.name),
            (CELL, self._cell),
            (TRIAL, self.trial),
        )
        answer = getattr(self._stub, message)(
            request, timeout=_ANSWER_SECONDS, metadata=says
        )
        self.heard_at = time.monotonic()
        return answer


class ChiefWorker:
    """Runs trials of one cell for its chief.

    Args:
        here: the post of this process.
        files: where the cell is.
        layout: its paths.
        specification: of its study.
        stop: whether to save and leave.
    """

    def __init__(
        self,
        here: Post,
        files: FileSystem,
        layout: CellLayout,
        specification: StudySpecification,
        stop: StopRequest,
    ):
        self._line = Line(here, specification.cell.name, stop)
        self._files = files
        self._layout = layout
        self._specification = specification
        self._stop = stop
        self._writer = f"{here.name}-{Owner.here().token}"

    def run(
        self, prepare: Callable[[], PreparedStudy], allow_other_machine: bool
    ) -> None:
        """Runs trials until the chief sends this worker home.

        Raises:
            ChiefLost: it does not answer.
            Interrupted: a stop was asked for; everything is saved.
            NotThisCell: it is at another cell.
        """
        left, lost = threading.Event(), threading.Event()
        beats = threading.Thread(
            target=self._keep_beating, args=(left, lost), daemon=True
        )
        record = None
        try:
            while True:
                trial = self._next()
                if trial.status == _Status.STOPPED:
                    return
                if trial.status != _Status.RUNNING:
                    _pause(self._stop)
                    continue
                if record is None:
                    beats.start()
                    prepared = prepare()
                    record = self._open(prepared, allow_other_machine)
                self._run(trial.trial_id, record, prepared)
        except Interrupted:
            if lost.is_set():
                self._line.check()
            raise
        finally:
            left.set()
            self._line.close()

    def _next(self) -> Any:
        request = protos.get_service().CreateTrialRequest(tuner_id="")
        answer = self._line.ask("CreateTrial", request)
        return keras_tuner.engine.trial.Trial.from_proto(answer.trial)

    def _open(self, prepared: PreparedStudy, allow_other_machine: bool) -> StudyRecord:
        follower = LogFollower(self._files, self._layout.logs, self._writer)
        record = open_study(
            self._files,
            self._layout,
            self._specification,
            prepared.environment,
            prepared.training_inputs,
            allow_other_machine=allow_other_machine,
            writer=self._writer,
            follower=follower,
        )
        record.begin_session(1)
        return record

    def _run(self, name: str, record: StudyRecord, prepared: PreparedStudy) -> None:
        """Runs a trial to its end, on from where another worker may have left it."""
        self._line.trial, number = name, int(name)
        points = self._points(number, record)
        record.reload_state(number)
        driver = StudyDriver(record, prepared.runner, points.__getitem__, self._stop)
        driver.run_alone(number)
        trial = keras_tuner.engine.trial.Trial(
            keras_tuner.HyperParameters(), name, _Status.COMPLETED
        )
        request = protos.get_service().EndTrialRequest(trial=trial.to_proto())
        self._line.ask("EndTrial", request)
        self._line.trial = ""

    def _points(
        self, number: int, record: StudyRecord
    ) -> Mapping[int, Mapping[str, float]]:
        """Returns the point that the chief has recorded for a trial, by its number."""
        until = time.monotonic() + _POINT_SECONDS
        while True:
            record.follow()
            point = record.history[number].point
            if point is not None:
                return {number: point}
            if time.monotonic() > until:
                raise UserError(
                    f"the chief gave out trial {number}, which is not in "
                    f"{self._layout.root}: give every process the same --sweep_dir."
                )
            _pause(self._stop)

    def _keep_beating(self, left: threading.Event, lost: threading.Event) -> None:
        while not left.wait(BEAT_SECONDS):
            self._line.beat()
            try:
                self._line.check()
            except ChiefLost:
                lost.set()
                self._stop.set("the silence of the chief")
                return
