"""Drives the trials of one study until it is decided.

Always the trial that is furthest behind goes on, by one evaluation. So trials advance
together, none runs past a step at which it could still matter, and what is executed
beyond the floor is at most what was under way in the other slots when the race ended.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from dps_tf.core.errors import GroupLost
from dps_tf.core.execution import Job, Runner, TurnReport
from dps_tf.core.lockstep import abreast
from dps_tf.core.race import Plan, plan
from dps_tf.core.trial import Trajectory
from dps_tf.store.errors import LockLost, StoreError
from dps_tf.store.study_history import Irreproducible
from dps_tf.store.study_record import StudyRecord
from dps_tf.tuning.company import Alone, Company
from dps_tf.tuning.interruption import Interrupted

_POLL_SECONDS = 1.0
"""How often progress is shown and a signal is looked for while all slots train."""


class Progress(Protocol):
    """Is told how a study stands, about once a second."""

    def prepared(self, done: int, total: int) -> None:
        """Shows how many initial points have been made and pruned."""

    def update(self, todo: Plan, trajectories: list[Trajectory], running: int) -> None:
        """Shows it."""


class StudyDriver:
    """Runs one study to its end.

    Args:
        record: what is known, and where it is written.
        runner: runs turns of trials.
        point_of: metaparameters by trial number.
        stop: whether to save and leave.
        progress: shows how the study stands.
        company: other workers of the cell; nobody by default.
    """

    def __init__(
        self,
        record: StudyRecord,
        runner: Runner,
        point_of: Callable[[int], Mapping[str, float]],
        stop: Callable[[], bool],
        progress: Progress | None = None,
        company: Company | None = None,
    ):
        self._record = record
        self._runner = runner
        self._point_of = point_of
        self._stop = stop
        self._progress = progress
        self._company = company or Alone()
        self._rule = record.specification.rule
        self._trajectories = record.trajectories()
        self._prefix = 0
        self._running: dict[Future[TurnReport], tuple[int, int]] = {}
        self._suspects: list[int] = []
        self._on_open: Callable[[int], None] = lambda trial: None
        self._opened: set[int] = set()

    def run(self, on_open: Callable[[int], None] | None = None) -> Plan:
        """Returns the final plan once nothing remains to be done.

        Args:
            on_open: called with a trial's number before its first turn.

        Raises:
            Interrupted: a stop was asked for; everything is saved.
        """
        self._on_open = on_open or self._on_open
        self._prepare_provenance()
        free = list(range(self._runner.slots))
        with ThreadPoolExecutor(self._runner.slots, "slot") as pool:
            try:
                while True:
                    todo = self._plan()
                    if not self._stop() and self._submit(pool, todo, free):
                        continue
                    if self._running:
                        self._collect(todo, free)
                    elif todo.decided or self._stop():
                        break
                    else:
                        self._company.starve()
            finally:
                # Whatever happened, what the other slots still finish is kept.
                self._drain(free)
                self._record.snapshot(force=True)
        if self._stop() and not todo.decided:
            raise Interrupted
        return todo

    def _prepare_provenance(self) -> None:
        """Prunes the trials that are sure to be needed, before the race begins.

        Scores use all processors and may take a while, so they are shown as such.
        Workers that share a cell prune only the trials that they run.
        """
        if self._company.is_shared:
            return
        todo = [trial for trial in self._plan().pending if trial not in self._opened]
        for done, trial in enumerate(todo):
            if self._stop():
                return
            try:
                self._open(trial)
            except Exception as error:
                # A trial's own error comes again in its first turn, and counts there.
                if not _is_own(error):
                    raise
            if self._progress is not None:
                self._progress.prepared(done + 1, len(todo))

    def _open(self, trial: int) -> None:
        """Makes a trial known to keras-tuner and the record, before its first turn."""
        if trial not in self._opened:
            self._on_open(trial)
            self._record.add_provenance(trial, self._runner.provenance(trial))
            self._opened.add(trial)

    def run_alone(self, trial: int) -> None:
        """Runs one trial to its own end, while an oracle waits for its result.

        Raises:
            Interrupted: a stop was asked for; everything is saved.
        """
        self._learn(trial)
        try:
            while self._goes_on(trial) and not self._stop():
                self._turn_alone(trial)
                self._record.snapshot()
        finally:
            self._record.snapshot(force=True)
        if self._goes_on(trial):
            raise Interrupted

    def _goes_on(self, trial: int) -> bool:
        known = self._trajectories[trial]
        ended = known.failed or known.diverged_step is not None
        reached = known.finish_step is not None
        return not (ended or reached) and known.last_step < self._rule.last_evaluation

    def _turn_alone(self, trial: int) -> None:
        done: Future[TurnReport] = Future()
        try:
            self._open(trial)
            done.set_result(self._runner.run(0, self._job(trial), self._stop))
        except Exception as error:
            done.set_exception(error)
        self._finish(trial, done)

    def _job(self, trial: int) -> Job:
        state = self._record.state(trial)
        step = 0 if state is None else state.step
        until = self._rule.schedule.next_after(step)
        return Job(trial, self._point_of(trial), state, until)

    def _plan(self) -> Plan:
        self._hear()
        todo = plan(self._trajectories, self._rule, self._prefix)
        self._prefix = todo.prefix
        return todo

    def _submit(self, pool: ThreadPoolExecutor, todo: Plan, free: list[int]) -> bool:
        """Gives each free slot a turn, or a suspect the machine for itself.

        Returns whether others told something meanwhile: the plan is to be made again.
        """
        if self._suspects:
            if not self._running:
                self._start(pool, free, self._suspects[0])
            return False
        waiting = self._waiting(todo)
        for trial in waiting:
            if not free:
                break
            if self._company.take(trial):
                if self._hear():
                    return True
                self._start(pool, free, trial)
        busy = {trial for _, trial in self._running.values()}
        self._company.rest(trial for trial in waiting if trial not in busy)
        return False

    def _waiting(self, todo: Plan) -> list[int]:
        """Returns the trials that could be run now, those furthest behind first."""
        ready: Iterable[int] = (*todo.pending, *todo.speculative)
        if self._company.is_shared:
            ready = abreast(todo, self._trajectories, self._rule)
        busy = {trial for _, trial in self._running.values()}
        return [trial for trial in ready if trial not in busy]

    def _hear(self) -> bool:
        """Learns what others have told; returns whether there was anything."""
        told = self._company.news()
        for trial in told:
            self._learn(trial)
        return bool(told)

    def _start(self, pool: ThreadPoolExecutor, free: list[int], trial: int) -> None:
        slot = free.pop()
        try:
            self._open(trial)
            future = pool.submit(self._runner.run, slot, self._job(trial), self._stop)
        except Exception as error:
            future = Future()
            future.set_exception(error)
        self._running[future] = (slot, trial)

    def _collect(self, todo: Plan, free: list[int]) -> None:
        """Waits for turns to end and records them."""
        done, _ = wait(self._running, _POLL_SECONDS, FIRST_COMPLETED)
        for future in done:
            slot, trial = self._running.pop(future)
            free.append(slot)
            self._finish(trial, future)
        self._record.snapshot()
        if self._progress is not None:
            self._progress.update(todo, self._trajectories, len(self._running))

    def _finish(self, trial: int, future: Future[TurnReport]) -> None:
        error = future.exception()
        if error is None:
            self._record.add_report(future.result())
            self._learn(trial)
            if self._trajectories[trial].finish_step is not None:
                self._company.tell()
            if trial in self._suspects:
                self._suspects.remove(trial)
            return
        if not _is_own(error):
            raise error
        if trial not in self._suspects:
            # It may have been the company: memory is shared. Once more, alone.
            self._suspects.append(trial)
            return
        self._suspects.remove(trial)
        self._record.add_failure(trial, _text(error))
        self._learn(trial)

    def _learn(self, trial: int) -> None:
        missing = trial + 1 - len(self._trajectories)
        self._trajectories += [Trajectory()] * missing
        self._trajectories[trial] = self._record.trajectory(trial)

    def _drain(self, free: list[int]) -> None:
        """Waits for turns under way; an error in one does not hide the first error."""
        for future, (slot, trial) in list(self._running.items()):
            del self._running[future]
            free.append(slot)
            if future.exception() is None:
                self._record.add_report(future.result())
                self._learn(trial)


def _is_own(error: BaseException) -> bool:
    """Returns whether an error may be a trial's own, and not the end of the run."""
    fatal = StoreError | LockLost | Irreproducible | GroupLost
    is_fatal = isinstance(error, fatal)
    return isinstance(error, Exception) and not is_fatal


def _text(error: BaseException) -> str:
    """Returns the end of a traceback, short enough for a table."""
    lines = traceback.format_exception(error)
    return "".join(lines)[-4000:].strip()
