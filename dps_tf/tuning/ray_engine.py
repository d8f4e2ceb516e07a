"""One race runs over any number of machines, on the slots of a Ray cluster.

Each slot has the program of the study that it runs. The driver runs on this machine: it
alone reads and writes the sweep directory, and results do not depend on which slot ran
a trial. The trials of a lost slot continue from their last saved states.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayTaskError

from dps_tf.core import (
    Backend,
    ClusterRunner,
    Job,
    PreparedStudy,
    SlotLost,
    StudySpecification,
    TrialProvenance,
    TrialState,
    TurnReport,
    UserError,
    most_groups,
)
from dps_tf.tuning.cluster_slots import StateMissing
from dps_tf.tuning.interruption import Interrupted, StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.ray_cluster import RayCluster
from dps_tf.tuning.sweep import Sweep, SweepOutcome

_POLL_SECONDS = 1.0
_EXIT = "worker process has died"  # in Ray's message on a process that ended by itself


@dataclass(frozen=True)
class HeldState(TrialState):
    """A state whose arrays are in a slot."""

    slot: int = -1


def run_sweep(sweep: Sweep, gin_text: str) -> SweepOutcome:
    """Runs a sweep on a Ray cluster, cells side by side; see `Sweep.run`.

    The backend of a study checks it on this machine.
    """
    options, stop, backend_of = sweep.options, sweep.stop, sweep.backend_of
    cluster = RayCluster(options, stop)

    def on_cluster(study: StudySpecification) -> Backend:
        return RayBackend(backend_of(study), cluster, stop, options)

    def spare_slots() -> int:
        # The first to ask is the main thread: Ray's processes end with the thread that
        # started them. A finished sweep, or one that is refused, starts none.
        cluster.connect()
        return cluster.pool.spare

    whole = replace(sweep, backend_of=on_cluster, spare_slots=spare_slots)
    try:
        return whole.run(gin_text)
    finally:
        cluster.close()


class RayBackend(Backend):
    """Runs studies on the slots of a cluster.

    The backend `inner` checks them on this machine, which needs their data too.
    """

    def __init__(
        self, inner: Backend, cluster: RayCluster, stop: StopRequest, options: Options
    ):
        self._inner = inner
        self._cluster = cluster
        self._stop = stop
        self._options = options

    def check_data(self, study: StudySpecification) -> None:
        """Raises UserError as the backend of the study does on this machine."""
        self._inner.check_data(study)

    def prepare(
        self, study: StudySpecification, show: Callable[[str], None] | None = None
    ) -> PreparedStudy:
        """Returns the runner of a study once a slot is ready; Interrupted by a stop."""
        allowed = self._options.allow_other_machine
        runner = RayRunner(study, self._cluster, self._stop, allowed)
        try:
            while not runner.idle_slots((), runner.wanted):
                if self._stop():
                    raise Interrupted
                if show is not None:
                    show("waiting for the first slot of the cluster")
                time.sleep(0.05)
        except BaseException:
            runner.close()
            raise
        assert runner.opened_as is not None
        environment, training_inputs = runner.opened_as
        return PreparedStudy(runner, environment, training_inputs, runner.study)


class RayRunner(ClusterRunner):
    """Runs turns of one study on slots that it leases from a cluster.

    `opened_as` holds the environment and the training inputs of its first slot, which
    also settles what `study` leaves open.
    """

    def __init__(
        self,
        study: StudySpecification,
        cluster: RayCluster,
        stop: Callable[[], bool],
        allow_other_machine: bool = False,
    ):
        self.opened_as: tuple[Any, Any] | None = None
        self._cell = study.cell.name
        self.study = study
        self._cluster = cluster
        self._stop = stop
        self._allow_other_machine = allow_other_machine
        self._opening: dict[int, Any] = {}
        self._opened: set[int] = set()
        self._held: dict[int, int] = {}
        self._provenance: dict[int, tuple[int, Any]] = {}
        self._unlike: list[Mapping[str, Any]] = []
        cluster.pool.enter(self._cell, self.wanted)

    @property
    def slots(self) -> int:
        """Slots of the cluster."""
        return len(self._cluster.pool)

    @property
    def lanes(self) -> int:
        """The number of lanes of the program in every slot."""
        return self.study.lanes

    @property
    def wanted(self) -> int:
        """The most slots of use: one for each trial while lanes are open."""
        return most_groups(range(self.study.rule.points), self.lanes or 1)

    def idle_slots(self, busy: Collection[int], wanted: int) -> list[int]:
        """Returns the idle slots that are leased and have opened the study."""
        if self._cluster.error is not None:
            raise self._cluster.error
        leased = self._cluster.pool.lease(self._cell, busy, wanted)
        return [slot for slot in leased if self._is_open(slot)]

    def _is_open(self, slot: int) -> bool:
        """Returns whether a slot has opened the study; makes it open it if not."""
        if slot in self._opened:
            return True
        try:
            with self._raising_lost(slot):
                if slot not in self._opening:
                    asked = map(self._cluster.holds, self._opening)
                    if any(asked) and not self.study.is_settled:
                        return False  # one slot decides for all
                    begin = self._cluster.slot(slot).actor.open
                    named = begin.options(name=f"{self._cell} open")
                    self._opening[slot] = named.remote(self.study.to_json())
                if not ray.wait([self._opening[slot]], timeout=0)[0]:
                    return False
                *answer, study = ray.get(self._opening.pop(slot))
                self._cluster.slot(slot).has_answered = True
                self.study = StudySpecification.from_json(study)
                return self._accept(slot, tuple(answer))
        except SlotLost:
            self._opening.pop(slot, None)
            return False

    def _accept(self, slot: int, answer: tuple[Any, Any]) -> bool:
        """Returns whether a slot computes the same bits with the same data.

        If it does not, its node is left out.
        """
        environment, inputs = answer
        if self.opened_as is None:
            # All studies take the same kind, or two would refuse each other's nodes.
            self.opened_as = self._cluster.kind(environment), inputs
        if inputs != self.opened_as[1]:
            self._cluster.refuse_node(slot, "it holds other data; copy them there")
            return False
        if environment != self.opened_as[0]:
            if not self._allow_other_machine:
                self._cluster.refuse_node(
                    slot, "it may round otherwise; --allow_other_machine would use it"
                )
                return False
            self._unlike.append(environment)
        self._opened.add(slot)
        return True

    def new_environments(self) -> Sequence[Mapping[str, Any]]:
        """Returns the environments of slots of other kinds since the last call."""
        environments, self._unlike = self._unlike, []
        return environments

    def run(
        self, slot: int, jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> Sequence[TurnReport]:
        """Runs a turn on a slot; states that other slots hold move there."""
        held = [job.state for job in jobs if isinstance(job.state, HeldState)]
        sources = {state.slot for state in held if state.slot != slot}
        bare = [
            replace(job, state=job.state and TrialState(job.state.step, ()))
            for job in jobs
        ]
        with self._raising_lost(slot, sources):
            actor = self._cluster.slot(slot).actor
            moved = [self._state_for(slot, job) for job in jobs]
            name = f"{self._cell} trial {', '.join(str(job.trial) for job in jobs)}"
            # Ray replaces references by states only where they are arguments.
            turn = actor.run.options(name=name).remote(self._cell, bare, *moved)
            while not ray.wait([turn], timeout=_POLL_SECONDS)[0]:
                if stop():
                    actor.stop.options(concurrency_group="aside").remote()
            reports: list[TurnReport] = ray.get(turn)
        self._held |= {job.trial: slot for job in jobs}
        return [replace(r, state=HeldState(r.step, (), slot=slot)) for r in reports]

    def _state_for(self, slot: int, job: Job) -> Any:
        """Returns the state that a slot lacks, or a Ray reference to it; else None."""
        if not isinstance(job.state, HeldState):
            return job.state
        if job.state.slot == slot:
            return None
        # By a reference the state goes from slot to slot, not through the driver.
        return self._give(job.state.slot, job.trial, keep=False)

    def _give(self, slot: int, trial: int, *, keep: bool) -> Any:
        give = self._cluster.slot(slot).actor.give
        return give.options(concurrency_group="aside").remote(
            self._cell, trial, keep=keep
        )

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns the seeds and the pruning of a trial.

        One slot computes them, while the others do so for the next trials.
        """
        while True:
            slots = [slot for slot in self._opened if self._cluster.holds(slot)]
            if not slots:
                if self._stop():
                    raise Interrupted
                self.idle_slots((), 1)
                time.sleep(0.05)
                continue
            with contextlib.suppress(SlotLost):
                for number, slot in enumerate(slots, trial):
                    if number not in self._provenance:
                        actor = self._cluster.slot(slot).actor
                        reference = actor.provenance.remote(self._cell, number)
                        self._provenance[number] = slot, reference
                asked, reference = self._provenance.pop(trial)
                with self._raising_lost(asked):
                    provenance: TrialProvenance = ray.get(reference)
                return provenance
            self._provenance.clear()

    def slot_of(self, trial: int) -> int | None:
        """Returns the slot that holds a trial; None where its node is left out."""
        slot = self._held.get(trial)
        return slot if slot is not None and self._cluster.holds(slot) else None

    def lost_trials(self) -> list[int]:
        """Returns the trials that were held by slots that are gone."""
        held = list(self._held.items())  # turns that end add to it meanwhile
        gone = [trial for trial, slot in held if self._cluster.is_lost(slot)]
        for trial in gone:
            del self._held[trial]
        return gone

    def fetch(self, states: Mapping[int, TrialState]) -> Mapping[int, TrialState]:
        """Returns states with their arrays; leaves out the states of lost slots."""
        asked: dict[int, tuple[int, Any]] = {}
        fetched: dict[int, TrialState] = {}
        for trial, state in states.items():
            if not isinstance(state, HeldState):
                fetched[trial] = state
                continue
            with contextlib.suppress(SlotLost):
                reference = self._give(state.slot, trial, keep=True)
                asked[trial] = state.slot, reference
        for trial, (slot, reference) in asked.items():
            with contextlib.suppress(SlotLost), self._raising_lost(slot):
                state = ray.get(reference)
                # A trial that runs now has moved, or may be ahead of the log.
                if state is not None and state.step == states[trial].step:
                    fetched[trial] = state
        return fetched

    def close(self) -> None:
        """Gives the slots back, which then drop the study."""
        self._cluster.pool.leave(self._cell)
        for slot in self._opened:
            with contextlib.suppress(SlotLost):
                self._cluster.slot(slot).actor.close.remote(self._cell)

    @contextlib.contextmanager
    def _raising_lost(self, slot: int, sources: Collection[int] = ()) -> Iterator[None]:
        """Raises SlotLost if a slot's actor has ended, else the error raised in it.

        `sources`: the other slots that states come from.
        """
        try:
            yield
        except ActorUnschedulableError as error:
            # Its node was taken away, or is about to be.
            self._cluster.lose(slot)
            raise SlotLost(str(error)) from error
        except RayActorError as error:
            if error.actor_init_failed:
                raise UserError(
                    f"a slot cannot begin on its node: {str(error).splitlines()[-1]}"
                ) from error
            self._cluster.lose(slot)
            is_suspect = _EXIT in str(error) and not error.preempted
            raise SlotLost(str(error), is_suspect=is_suspect) from error
        except RayTaskError as error:
            cause = error.cause
            for source in sources if isinstance(cause, RayActorError) else ():
                with contextlib.suppress(SlotLost), self._raising_lost(source):
                    ray.get(self._give(source, -1, keep=True))  # loses a dead one
            if isinstance(cause, RayActorError | StateMissing):
                raise SlotLost(str(cause)) from error
            raise cause from error
