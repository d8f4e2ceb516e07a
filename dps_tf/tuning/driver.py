"""The driver runs the trials of one study until the study is decided.

The trials that are furthest behind always run next, up to their next evaluation. So
trials advance together, and no trial runs past the last step at which it could matter.
Beyond the least possible work there are only the steps under way in other slots when
the race ended, and the steps in lanes that would have been empty.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from dps_tf.core import (
    ClusterRunner,
    Group,
    Job,
    Plan,
    Runner,
    SlotLost,
    Trajectory,
    TurnReport,
    UserError,
    error_cause,
    gathered,
    most_groups,
    plan,
    reserve,
    within_lead,
)
from dps_tf.store import Irreproducible, LockLost, StoreError, StudyRecord
from dps_tf.tuning.interruption import Interrupted
from dps_tf.tuning.progress import StudyProgress

_MAX_THREADS = 1024
"""Largest number of turns side by side, as each needs a thread."""
_MAX_DEATHS = 2
"""Number of processes in a row that may die in a trial before the trial fails."""
_NO_SLOT_SECONDS = 0.1
_POLL_SECONDS = 1.0
"""Seconds between two looks at progress and signals while all slots train."""


class StudyDriver:
    """Runs one study to its end; `point_of` returns the metaparameters of a trial."""

    def __init__(
        self,
        record: StudyRecord,
        runner: Runner,
        point_of: Callable[[int], Mapping[str, float]],
        stop: Callable[[], bool],
        progress: StudyProgress | None = None,
    ):
        self._record = record
        self._runner = runner
        self._cluster = runner if isinstance(runner, ClusterRunner) else None
        self._point_of = point_of
        self._stop = stop
        self._progress = progress
        self._rule = record.specification.rule
        self._trajectories = record.trajectories()
        self._prefix = 0
        self._alone: int | None = None
        self._running: dict[Future[Sequence[TurnReport]], tuple[int, Group]] = {}
        self._failed_once: list[int] = []
        self._passed_alone: set[int] = set()
        self._deaths: Counter[int] = Counter()
        self._with_provenance: set[int] = set()

    def run(self, alone: int | None = None) -> Plan:
        """Returns the final plan once nothing remains to be done.

        With `alone` one trial runs to its own end, while an oracle waits for its
        result.

        Raises:
            Interrupted: a stop was asked for; everything is saved.
        """
        self._alone = alone
        if alone is not None:
            self._update(alone)
        self._prune_pending()
        with ThreadPoolExecutor(_MAX_THREADS, "slot") as pool:
            try:
                while True:
                    self._restore_lost()
                    todo = self._plan()
                    if not self._stop():
                        self._submit(pool, todo)
                    if self._running:
                        self._collect(todo)
                    elif todo.decided or self._stop():
                        break
                    else:
                        # All slots of a cluster are gone, or busy with other studies.
                        time.sleep(_NO_SLOT_SECONDS)
            finally:
                # After an error too, turns that other slots still finish are kept.
                self._drain()
                self._snapshot(force=True)
        if self._stop() and not todo.decided:
            raise Interrupted
        return todo

    def _snapshot(self, *, force: bool = False) -> None:
        self._record.snapshot(self._runner.fetch, force=force)

    def _restore_lost(self) -> None:
        """Restores the last saved state of the trials of lost slots."""
        running = self._running_trials()
        for trial in self._cluster.lost_trials() if self._cluster else ():
            if trial not in running:
                self._record.restore(trial)

    def _running_trials(self) -> set[int]:
        return {trial for _, group in self._running.values() for trial in group}

    def _prune_pending(self) -> None:
        """Prunes the trials that are sure to be needed, before the race begins."""
        # Scores use all processors and may take a while: progress shows them.
        pending = self._plan().pending
        for done, trial in enumerate(pending):
            if self._stop():
                return
            try:
                self._add_provenance(trial)
            except Exception as error:
                # The trial fails again in its first turn, where its errors are counted.
                if not _is_own(error):
                    raise
            if self._progress is not None:
                self._progress.prepared(done + 1, len(pending))

    def _add_provenance(self, trial: int) -> None:
        """Records a trial's seeds and pruning, before its first turn."""
        if trial not in self._with_provenance:
            self._record.add_provenance(trial, self._runner.provenance(trial))
            self._with_provenance.add(trial)

    def _goes_on(self, trial: int) -> bool:
        trajectory = self._trajectories[trial]
        ended = trajectory.failed or trajectory.diverged_step is not None
        reached = trajectory.finish_step is not None
        return (
            not (ended or reached) and trajectory.last_step < self._rule.last_evaluation
        )

    def _job(self, trial: int) -> Job:
        state = self._record.state(trial)
        step = 0 if state is None else state.step
        until = self._rule.schedule.next_after(step)
        return Job(trial, self._point_of(trial), state, until)

    def _plan(self) -> Plan:
        todo = plan(self._trajectories, self._rule, self._prefix)
        if self._alone is not None:
            left = (self._alone,) if self._goes_on(self._alone) else ()
            return replace(todo, pending=left, speculative=())
        self._prefix = todo.prefix
        return todo

    def _submit(self, pool: ThreadPoolExecutor, todo: Plan) -> None:
        """Gives idle slots turns, the trials furthest behind first."""
        busy = {slot for slot, _ in self._running.values()}
        running = self._running_trials()
        trials = running.union(todo.pending, todo.speculative)
        groups = self._groups(todo, running)
        wanted = most_groups(trials, self._runner.lanes)
        if self._failed_once:
            # A second try has the whole machine, and no neighbours.
            groups = [] if running else [(self._failed_once[0],)]
            wanted = 1
        idle = self._idle_slots(busy, max(wanted, len(busy)))
        homes = {group: self._home_of(group) for group in groups}
        turns = assign(idle, groups, homes)
        # Late trials wait for a lane beside others, where another turn gains nothing.
        for slot, group in turns[: max(0, wanted - len(busy))]:
            self._running[self._begin(pool, slot, group)] = (slot, group)

    def _groups(self, todo: Plan, running: AbstractSet[int]) -> list[Group]:
        """Returns the groups of trials that can begin a turn now."""
        lanes = self._runner.lanes
        spare: tuple[int, ...] = ()
        if lanes > 1 and self._alone is None:
            spare = reserve(todo, self._trajectories, self._rule, lanes)
        trials = (*todo.pending, *todo.speculative, *spare)
        states = {trial: self._record.state(trial) for trial in trials}
        if any(self._runner.slot_of(trial) is not None for trial in trials):
            trials = (*within_lead(todo, self._trajectories, self._rule), *spare)
        allowed = set(trials) - running
        pending, speculative, spare = (
            tuple(trial for trial in of_kind if trial in allowed)
            for of_kind in (todo.pending, todo.speculative, spare)
        )
        steps = {trial: state.step for trial, state in states.items() if state}
        return gathered(pending, speculative, spare, steps, lanes)

    def _home_of(self, group: Group) -> int | None:
        """Returns the slot that holds most states of a group, None if none does."""
        homes = Counter(map(self._runner.slot_of, group))
        del homes[None]
        return max(homes, key=homes.__getitem__, default=None)

    def _idle_slots(self, busy: Collection[int], wanted: int) -> list[int]:
        """Returns the slots that can take a turn; records new environments first."""
        if self._cluster is None:
            return [slot for slot in range(self._runner.slots) if slot not in busy]
        idle = self._cluster.idle_slots(busy, wanted)
        for environment in self._cluster.new_environments():
            self._record.add_environment(environment)
        return idle

    def _begin(
        self, pool: ThreadPoolExecutor, slot: int, group: Group
    ) -> Future[Sequence[TurnReport]]:
        """Returns the future of a turn, which fails if the turn cannot begin."""
        try:
            for trial in group:
                self._add_provenance(trial)
            jobs = [self._job(trial) for trial in group]
            return pool.submit(self._runner.run, slot, jobs, self._stop)
        except Exception as error:
            failed: Future[Sequence[TurnReport]] = Future()
            failed.set_exception(error)
            return failed

    def _collect(self, todo: Plan) -> None:
        """Waits for turns to end and records them."""
        done, _ = wait(self._running, _POLL_SECONDS, FIRST_COMPLETED)
        for future in done:
            _, group = self._running.pop(future)
            self._record_turn(group, future)
        self._snapshot()
        if self._progress is not None:
            self._progress.update(
                todo,
                self._trajectories,
                len(self._running_trials()),
                self._record.history.data_wait,
                self._record.nearest,
                turns=len(self._running),
            )

    def _record_turn(self, group: Group, future: Future[Sequence[TurnReport]]) -> None:
        """Records what a turn did, or that it failed."""
        error = future.exception()
        if error is None:
            self._add_reports(group, future.result())
            return
        if not _is_own(error):
            raise error
        if isinstance(error, SlotLost):
            for trial in group:
                self._record.restore(trial)
            if not error.is_suspect:
                return
        if len(group) > 1:
            self._try_alone(group, error)
        else:
            self._add_failure(group[0], error)

    def _add_reports(self, group: Group, reports: Sequence[TurnReport]) -> None:
        """Records the reports of a turn."""
        for report in reports:
            trial = report.trial
            self._record.add_report(report)
            self._update(trial)
            self._deaths.pop(trial, None)
            if trial in self._failed_once:
                self._failed_once.remove(trial)
                self._passed_alone.add(trial)
            elif len(group) > 1:
                self._passed_alone.discard(trial)

    def _try_alone(self, group: Group, error: BaseException) -> None:
        """Lets the trials of a failed group run alone: only that counts against one."""
        if self._passed_alone.issuperset(group):
            raise UserError(
                f"{self._record.specification.cell.name}: trials "
                f"{', '.join(map(str, group))} fail together, and each passes alone: "
                f"{error_cause(_text(error))}. All is saved. Run it again with fewer "
                "--slots, or begin it in another --sweep_dir with --lanes=1."
            ) from error
        self._failed_once += [t for t in group if t not in self._failed_once]

    def _add_failure(self, trial: int, error: BaseException) -> None:
        """Counts an error of a trial alone; records the one that ends the trial."""
        if isinstance(error, SlotLost):
            self._deaths[trial] += 1
            if self._deaths[trial] < _MAX_DEATHS:
                return
            del self._deaths[trial]
        elif trial not in self._failed_once:
            # Slots share memory, and another trial may have taken it.
            self._failed_once.append(trial)
            return
        if trial in self._failed_once:
            self._failed_once.remove(trial)
        self._record.add_failure(trial, _text(error))
        self._update(trial)

    def _update(self, trial: int) -> None:
        """Reads the trajectory of a trial from the record."""
        missing = trial + 1 - len(self._trajectories)
        self._trajectories += [Trajectory()] * missing
        self._trajectories[trial] = self._record.trajectory(trial)

    def _drain(self) -> None:
        """Waits for running turns and records them; their errors are ignored."""
        for future, (_, group) in self._running.items():
            if future.exception() is None:
                self._add_reports(group, future.result())
        self._running.clear()


def assign(
    idle: Sequence[int], ready: Sequence[Group], homes: Mapping[Group, int | None]
) -> list[tuple[int, Group]]:
    """Returns (slot, group) of the turns to begin.

    Args:
        idle: slots in which nothing runs.
        ready: groups that can run, the most urgent first.
        homes: the slot that holds the states of a group, None where no slot does.

    Each slot gets the first ready group whose states it holds or that no slot holds.
    Slots that this leaves idle get groups whose states other slots hold.
    """
    left, turns, without = list(ready), [], []
    for slot in idle:
        group = next((g for g in left if homes.get(g) in (None, slot)), None)
        if group is None:
            without.append(slot)
        else:
            left.remove(group)
            turns.append((slot, group))
    return [*turns, *zip(without, left, strict=False)]


def _is_own(error: BaseException) -> bool:
    """Returns whether an error counts for its trial alone and does not end the run."""
    fatal = StoreError | LockLost | Irreproducible
    return isinstance(error, Exception) and not isinstance(error, fatal)


def _text(error: BaseException) -> str:
    """Returns the end of a traceback, short enough for a table."""
    return "".join(traceback.format_exception(error))[-4000:].strip()
