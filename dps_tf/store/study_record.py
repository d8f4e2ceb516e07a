"""The record of one study on disk is opened, continued or refused, and written to.

The log is on the disk before any state that follows its last evaluation, so no state is
ahead of an evaluation that the log lacks. The tables are there before `closed.json`. So
a kill between any two writes leaves a study that continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps_tf.core import (
    Nearest,
    StudySpecification,
    Trajectory,
    TrialProvenance,
    TrialState,
    TurnReport,
    UserError,
    plan,
)
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout
from dps_tf.store.log import Event, open_log
from dps_tf.store.records import read_json, set_aside, write_json
from dps_tf.store.saving import SavingTimes
from dps_tf.store.states import State, StateStore
from dps_tf.store.study_history import (
    failure_event,
    report_event,
    session_event,
    start_event,
)
from dps_tf.store.study_reader import StudyReader

Fetch = Callable[[Mapping[int, TrialState]], Mapping[int, TrialState]]
MOST_ATTEMPTS = 3
"""Number of starts of the command that try a failing trial before it stays failed."""
NETWORK = "network_structure"
"""Name of the training input that is the hash of the network's structure."""


class StudyRecord:
    """The record of one study: specification, logs and states, read and written.

    Attributes:
        specification: specification of this run of the study.
        history: events of the logs, and events added since.
        problems: sentences about damaged files.
        has_other_bits: whether an evaluation that is repeated may have other values.
            Machines that round otherwise have worked on the study, or GPUs, which add
            in any order unless the study is deterministic. The first values then stay,
            and whether they are a bound.
    """

    def __init__(
        self,
        files: FileSystem,
        layout: CellLayout,
        specification: StudySpecification,
        guard: Callable[[], None],
    ):
        """Opens the record; use `open_study`, which checks the specification."""
        self._guard = guard
        self._files = files
        self._layout = layout
        self.specification = specification
        self.has_other_bits = False
        study = StudyReader(files, layout)
        self.history = study.history
        self.problems = list(study.problems)
        for number, trial in self.history.trials.items():
            if self.is_tried_again(number):
                trial.failed = None
        self._log = open_log(files, layout.log("main"))
        self._store = StateStore(files, layout.states)
        self._states: dict[int, TrialState] = {}
        self._dirty: set[int] = set()
        self._load_states()
        self._times = SavingTimes()

    def _load_states(self) -> None:
        """Loads the newest state of each trial that the log covers up to it."""
        states, problems = self._store.load_many()
        self.problems += problems
        for number, state in states.items():
            if not self._take(number, state):
                self.problems.append(
                    f"Evaluations of trial {number} before step {state.step} are "
                    "missing from the log: the trial is trained again."
                )
        self._add_lost_states(states)

    def _take(self, trial: int, state: State) -> bool:
        """Lets a trial go on from a state; False if the log does not reach up to it."""
        interval = self.specification.evaluations.interval
        if state.step >= self.history[trial].contiguous_step(interval) + interval:
            return False
        if self.history[trial].diverged_step is None:
            layout = state.meta.get("layout", "")
            self._states[trial] = TrialState(state.step, tuple(state.arrays), layout)
        return True

    def _add_lost_states(self, states: Mapping[int, State]) -> None:
        """Adds a problem that names the trials that have to begin again."""
        trajectories = self.trajectories()
        lost = [
            number
            for number in plan(trajectories, self.specification.rule).pending
            if number < len(trajectories)
            and trajectories[number].last_step
            and number not in states
        ]
        if lost:
            names = ", ".join(map(str, sorted(lost)))
            self.problems.append(
                f"No state is left of {len(lost)} trials ({names}): they are trained "
                "again from their beginning."
            )

    def state(self, trial: int) -> TrialState | None:
        """Returns the state of a trial, or None before its first step."""
        return self._states.get(trial)

    def is_tried_again(self, trial: int) -> bool:
        """Returns whether a trial failed and the next start of the command tries it."""
        history = self.history[trial]
        return history.failed is not None and len(history.failures) < MOST_ATTEMPTS

    def trajectory(self, trial: int) -> Trajectory:
        """Returns the trajectory of a trial, by which the race is decided."""
        study = self.specification
        return self.history[trial].trajectory(study.goal, study.evaluations.interval)

    def trajectories(self) -> list[Trajectory]:
        """Returns the trajectories of trials 0, 1, ... up to the last in the logs."""
        study = self.specification
        return self.history.trajectories(study.goal, study.evaluations.interval)

    def nearest(self) -> Nearest | None:
        """Returns the evaluation that came nearest to the goal so far."""
        study = self.specification
        return self.history.nearest(study.goal, study.evaluations.interval)

    def point(self, trial: int) -> Mapping[str, float]:
        """Returns the metaparameters that an oracle chose for a trial."""
        return self.history[trial].point or {}

    def add_provenance(self, trial: int, provenance: TrialProvenance) -> None:
        """Records a trial's seeds and pruning, once."""
        if self.history[trial].provenance is None:
            self._add(start_event(trial, provenance))

    def begin_session(self, slots: int) -> None:
        """Records how many trials run side by side from now on."""
        self._add(session_event(slots, self.specification))

    def add_environment(self, environment: Mapping[str, Any]) -> None:
        """Records that machines of another kind work on the study from now on."""
        study = read_json(self._files, self._layout.study)
        if dict(environment) not in study["environments"]:
            study["environments"].append(dict(environment))
            self._guard()
            write_json(self._files, self._layout.study, study)
        self.has_other_bits = _may_differ(study["environments"], self.specification)

    def add_point(self, trial: int, point: Mapping[str, float]) -> None:
        """Records the metaparameters that an oracle chose for a trial."""
        self._add({"kind": "point", "trial": trial, "point": dict(point)})

    def add_report(self, report: TurnReport) -> None:
        """Records the report of a turn, and keeps the new state of its trial."""
        event = report_event(report)
        recorded = self.history[report.trial].evaluations.get(event["step"])
        if self.has_other_bits and recorded is not None and "metrics" in event:
            event["metrics"] = dict(recorded)
            event["is_bound"] = event["step"] in self.history[report.trial].bounds
        if self.has_other_bits and report.diverged_step is not None:
            interval = self.specification.evaluations.interval
            known = self.history[report.trial].contiguous_step(interval)
            event["step"] = max(event["step"], known + 1)
        self._add(event)
        if report.diverged_step is None:
            self._states[report.trial] = report.state
            self._dirty.add(report.trial)
        else:
            # A diverged trial is not continued; its older states stay sound.
            self._states.pop(report.trial, None)
            self._dirty.discard(report.trial)

    def add_failure(self, trial: int, error: str) -> None:
        """Records that a trial failed, with the text of the error."""
        self._add(failure_event(trial, error))

    def _add(self, event: Event) -> None:
        self.history.add(event)
        self._log.append(event)

    def snapshot(self, fetch: Fetch = dict, *, force: bool = False) -> None:
        """Writes log and states to the disk, with `force` or if enough time has passed.

        `SavingTimes` says how much is enough for the log and how much for states.

        Where other processes hold the arrays of states, `fetch` returns them by trial;
        a trial whose state `fetch` does not return keeps its last saved one.
        """
        with_log, with_states = self._times.due(force=force)
        if with_log and not with_states:
            self._guard()
            self._log.flush()
        if not with_states:
            return
        dirty = {t: self._states[t] for t in sorted(self._dirty) if t in self._states}
        fetched = fetch(dirty)
        self._guard()
        self._log.flush()
        states = {
            trial: State(state.step, list(state.arrays), {"layout": state.layout})
            for trial, state in fetched.items()
        }
        if states:
            self._store.save_many(states)
        self._dirty.clear()
        self._times.saved()

    def restore(self, trial: int) -> None:
        """Goes back to the last saved state of a trial whose later one was lost."""
        self._dirty.discard(trial)
        self._states.pop(trial, None)
        state, problems = self._store.load(trial)
        self.problems += problems
        if state is not None:
            self._take(trial, state)


def check_continues(study: StudyReader, specification: StudySpecification) -> None:
    """Raises UserError unless a specification continues or extends the stored study.

    Where study.json is missing or damaged, logs of the same specification continue: the
    command that runs the study has it, and the logs hold the results.
    """
    study.check_trained()
    specification = study.continued_by(specification)
    if study.specification is not None:
        lines = specification.refusals(study.specification)
        if lines:
            raise UserError(
                f"{study.layout.root} holds another study: {'; '.join(lines)}. Choose "
                "another --sweep_dir, or undo the change."
            )
    elif study.history.fingerprints - {specification.fingerprint}:
        raise UserError(
            f"{study.layout.root} has lost its study.json and holds logs of another "
            "study: run the configuration it was begun with, or choose another "
            "--sweep_dir."
        )


def open_study(  # noqa: PLR0913 - each is independent of the others
    files: FileSystem,
    layout: CellLayout,
    specification: StudySpecification,
    environment: Mapping[str, Any],
    training_inputs: Mapping[str, Any],
    *,
    allow_other_machine: bool = False,
    guard: Callable[[], None] = lambda: None,
) -> StudyRecord:
    """Returns the record of a study that is new, continued or extended.

    The environment, that is builds and instruction set, decides the bits: a study goes
    on in another environment only with `allow_other_machine`, and both are recorded.
    Training inputs are sizes and content of the data, and under NETWORK the hash of the
    network's structure. `guard` is called before anything is written, and raises if
    another owner took over.

    Raises:
        UserError: the stored study differs; the message lists the differences.
    """
    for folder in (layout.root, layout.logs):
        files.remove_stale(folder)
    study = StudyReader(files, layout)
    check_continues(study, specification)
    environments = [dict(environment)]
    if study.specification is not None:
        _check_inputs(study, training_inputs)
        environments = _checked_environments(study, environment, allow_other_machine)
    elif files.exists(layout.study):
        set_aside(files, layout.study)
    content = {
        "specification": specification.to_json(),
        "environments": environments,
        "training_inputs": dict(training_inputs),
    }
    if study.record != content:
        # An extension: a closed study is opened before its specification is replaced.
        files.remove(layout.closed)
        write_json(files, layout.study, content)
    note = _forget_failures(files, study, training_inputs, guard)
    record = StudyRecord(files, layout, specification, guard)
    record.problems += note
    record.has_other_bits = _may_differ(environments, specification)
    if study.specification is None and record.history.trials:
        record.problems.append(
            f"{layout.study} was lost: the study goes on from its logs."
        )
    return record


def _forget_failures(
    files: FileSystem,
    study: StudyReader,
    training_inputs: Mapping[str, Any],
    guard: Callable[[], None],
) -> list[str]:
    """Removes the logs of a study that begins anew with another network.

    Returns a note about it, or no notes if the network is the same.
    """
    stored = study.training_inputs.get(NETWORK)
    if study.specification is None or stored == training_inputs.get(NETWORK):
        return []
    guard()
    files.remove_tree(study.layout.logs)
    return [
        f"{study.layout.root} is begun anew with another network: no trial of the "
        "previous one made a step."
    ]


def _is_untrained(study: StudyReader) -> bool:
    """Returns whether a study is open and undamaged, and no trial of it made a step."""
    trials = study.history.trials.values()
    stepped = any(t.work.steps or t.evaluations or t.diverged_step for t in trials)
    return not (stepped or study.is_closed or study.problems)


def _check_inputs(study: StudyReader, training_inputs: Mapping[str, Any]) -> None:
    """Raises UserError unless a study has the data and network it began with.

    A study without any step of a trial may have another network.
    """
    stored, now = dict(study.training_inputs), dict(training_inputs)
    before, network = stored.pop(NETWORK, ""), now.pop(NETWORK, "")
    if stored != now:
        raise UserError(
            f"{study.layout.root} was begun on other data: stored {stored}, now {now}. "
            "Give the same --data_dir, or choose another --sweep_dir."
        )
    if before != network and not _is_untrained(study):
        raise UserError(
            f"{study.layout.root} was begun with another network: the hash of its "
            f"structure is {before[:12]} in the record and {network[:12]} now. Undo "
            "the change of its builder, or choose another --sweep_dir."
        )


def _may_differ(
    environments: Sequence[Mapping[str, Any]], study: StudySpecification
) -> bool:
    """Returns whether a turn that is repeated in environments may give other bits."""
    # What `training.strategy.Kind` says of devices is not at hand without TensorFlow.
    devices = " ".join(str(entry.get("devices")) for entry in environments)
    return len(environments) > 1 or ("GPU" in devices and not study.deterministic)


def _checked_environments(
    study: StudyReader, environment: Mapping[str, Any], allowed: bool
) -> list[dict[str, Any]]:
    """Returns the environments in which a study was trained, and this one."""
    recorded = [dict(entry) for entry in study.environments]
    changes = environment_differences(recorded, environment)
    if changes and not allowed:
        raise UserError(
            f"{study.layout.root} was begun elsewhere ({'; '.join(changes)}), where "
            "numbers may round otherwise: continue it there, or give "
            "--allow_other_machine, which is recorded."
        )
    return [*recorded, dict(environment)] if changes else recorded


def environment_differences(
    recorded: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]
) -> list[str]:
    """Returns how an environment differs from the last recorded one.

    The list is empty if the environment is among the recorded ones.
    """
    if dict(environment) in [dict(entry) for entry in recorded]:
        return []
    last = recorded[-1]
    return [
        f"{name}: recorded {last.get(name)!r}, here {environment.get(name)!r}"
        for name in sorted({*last, *environment})
        if last.get(name) != environment.get(name)
    ]
