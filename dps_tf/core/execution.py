"""The interface between the driver of a study and the runner of its trials."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from dps_tf.core.study import StudySpecification

STRATEGIES = ("auto", "one_device", "mirrored", "tpu", "tpu_cores")
"""Ways to share the devices of a machine; see `tuning.options.Options`."""
PLACEMENTS = ("auto", "device", "stream")
"""Places of a data set; see `training.device_memory`."""


def processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class TrialState:
    """The state of a trial: with its seeds and point it decides all further steps.

    Attributes:
        step: number of updates made.
        arrays: the arrays of the program in its own order: weights, optimizer slots,
            order of the evaluation, workers, masks of pruning in training. They may lie
            on a device until one of them is read.
        layout: name of the order of the arrays.
    """

    step: int
    arrays: Sequence[NDArray[Any]]
    layout: str = ""


@dataclass(frozen=True)
class Job:
    """One turn of one trial: the steps up to its next evaluation.

    Attributes:
        trial: number of the trial in the study.
        point: metaparameters of the trial.
        state: state to continue from; None before the first step.
        until: step of the evaluation to reach.
    """

    trial: int
    point: Mapping[str, float]
    state: TrialState | None
    until: int


@dataclass(frozen=True)
class TurnReport:
    """The report of a turn.

    Attributes:
        trial: number of the trial, as in the job.
        state: state of the trial after the turn.
        step: number of updates made so far, at most `until`.
        metrics: columns of the curve if the evaluation was reached, else None.
        is_bound: whether the validation metrics do not count as meeting the goal: they
            are bounds (see `evaluation = "goal"`), or of a network still to be pruned.
        diverged_step: step whose loss, metric or pruned weight was not finite, if any.
        steps_executed: number of updates made in this turn.
        seconds: the trial's share of the wall time of the turn.
        data_wait: part of `seconds` that training and evaluation waited for data.
    """

    trial: int
    state: TrialState
    step: int
    metrics: Mapping[str, float] | None = None
    is_bound: bool = False
    diverged_step: int | None = None
    steps_executed: int = 0
    seconds: float = 0.0
    data_wait: float = 0.0


@dataclass(frozen=True)
class TrialProvenance:
    """The seeds of a trial and how it was pruned.

    Attributes:
        initial_seed: seed of its initial point.
        order_seed: seed of its order of examples.
        realised_sparsity: zero fraction of its prunable parameters.
        layers: name, parameters, kept and emptied of each prunable tensor.
        examples: number of training examples that its scores were computed on.
    """

    initial_seed: int
    order_seed: int
    realised_sparsity: float = 0.0
    layers: tuple[Mapping[str, Any], ...] = ()
    examples: int = 0


class SlotLost(RuntimeError):
    """The slot that ran a turn is gone, with the states that it held.

    Attributes:
        is_suspect: whether its process died by itself, perhaps because of the trial.
    """

    def __init__(self, text: str, *, is_suspect: bool = False):
        super().__init__(text)
        self.is_suspect = is_suspect


class Runner(Protocol):
    """Runs turns of trials of one study, one turn per slot at a time.

    A turn advances up to `lanes` trials together. The lane of a trial is its number
    modulo `lanes`.
    """

    @property
    def slots(self) -> int:
        """Number of turns that can run side by side now."""

    @property
    def lanes(self) -> int:
        """Largest number of trials that a turn advances together, the same for ever."""
        return 1

    def run(
        self, slot: int, jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> Sequence[TurnReport]:
        """Returns the reports of a turn, one per job in the order of the jobs.

        The trials of the jobs have lanes of their own, and all are at one step and go
        to one evaluation. A stop ends the turn between two slices. Raises SlotLost if
        the slot is gone, and with it the reports.
        """

    def provenance(self, trial: int) -> TrialProvenance:
        """Returns the seeds of a trial and how it is pruned."""

    def slot_of(self, trial: int) -> int | None:
        """Returns the slot that holds the state of a trial, if one does."""
        return None

    def fetch(self, states: Mapping[int, TrialState]) -> Mapping[int, TrialState]:
        """Returns states with their arrays, by trial; leaves lost ones out."""
        return states

    def close(self) -> None:
        """Releases the slots and the states that they hold."""
        return


@runtime_checkable
class ClusterRunner(Runner, Protocol):
    """Runs turns on slots that come and go, and that are lost with their states."""

    def idle_slots(self, busy: Collection[int], wanted: int) -> list[int]:
        """Returns the slots that can take a turn now.

        `wanted`: number of turns that could run now, turns in `busy` slots included.
        """

    def new_environments(self) -> Sequence[Mapping[str, Any]]:
        """Returns the environments of new slots that may compute other bits."""

    def lost_trials(self) -> list[int]:
        """Returns the trials whose states were lost since the last call."""


@dataclass(frozen=True)
class PreparedStudy:
    """A study that is ready to run.

    Attributes:
        runner: runs turns of its trials.
        environment: builds and instruction set, on which the bits depend.
        training_inputs: `training_examples`, `validation_examples`, `content_hash`.
        study: the study; what it leaves open is settled to one lane, without XLA.
    """

    runner: Runner
    environment: Mapping[str, Any]
    training_inputs: Mapping[str, Any]
    study: StudySpecification

    def __post_init__(self) -> None:
        plain = {"lanes": 1, "xla": False, "deterministic": False}
        object.__setattr__(self, "study", self.study.settled_by(plain))


@dataclass(frozen=True)
class StudyTimes:
    """Times of a trial of a study on this machine.

    Attributes:
        step: seconds of a step of one trial, or its share of a step of all lanes.
        start_up: seconds until the first step is made.
        evaluation: seconds of an evaluation, likewise, where it was measured.
        slots: number of turns side by side.
        devices: number of devices that share a batch.
        lanes: number of trials of a turn.
    """

    step: float
    start_up: float = 0.0
    evaluation: float = 0.0
    slots: int = 1
    devices: int = 1
    lanes: int = 1


class Backend(Protocol):
    """Runs the trials of studies: by training them, by simulation, or in another way.

    A class of one's own that inherits from this one needs `prepare` alone.
    """

    def check(self, study: StudySpecification) -> None:
        """Raises UserError for names that are unknown, before anything is loaded."""
        return

    def check_data(self, study: StudySpecification) -> None:
        """Raises UserError for data that are missing or do not fit the study."""
        return

    def try_out(self, studies: Sequence[StudySpecification]) -> float:
        """Raises UserError for whatever would keep studies from being run.

        Returns the longest time, in seconds, to make and prune an initial point.
        """
        return 0.0

    def prepare(
        self, study: StudySpecification, show: Callable[[str], None] | None = None
    ) -> PreparedStudy:
        """Returns the runner of a study; `show` gets texts on pruning's progress."""

    def times(self, study: StudySpecification, *, evaluates: bool = True) -> StudyTimes:
        """Returns measured times of the first trial; keeps nothing.

        Here a trial begins at once, and its evaluations are a part of its steps.
        """
        begun = time.monotonic()
        runner = self.prepare(study).runner
        point = study.workload.draw(study.cell.seed, 1)[0]
        interval, state = study.evaluations.interval, None
        for step in range(interval, 101 * interval, interval):
            job = Job(0, point, state, step)
            (report,) = runner.run(0, [job], lambda: False)
            state = report.state
            if report.diverged_step is not None:
                break
        slots = runner.slots
        runner.close()
        return StudyTimes((time.monotonic() - begun) / report.step, slots=slots)
