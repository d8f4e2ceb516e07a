"""How far is each cell of a sweep, and what is left? From its records alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dps_tf.core.errors import UserError
from dps_tf.core.race import follow_to, plan
from dps_tf.core.steps_to_result import StudyResult
from dps_tf.core.study import StudySpecification
from dps_tf.core.trial import OUTCOMES
from dps_tf.store.closing import is_closed, read_closed
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout, SweepLayout
from dps_tf.store.locks import Locks
from dps_tf.store.log import read_logs
from dps_tf.store.records import read_json
from dps_tf.store.study_history import StudyHistory
from dps_tf.store.study_rows import study_result


@dataclass(frozen=True)
class CellStanding:
    """How one cell stands.

    Attributes:
        name: of the cell.
        closed: whether it is finished.
        outcomes: trials by outcome; of an open study, `running` are those that have
            to go on.
        steps_to_result: K* so far: of an open study an upper bound.
        bracket_low: the goal was met in (bracket_low, steps_to_result].
        steps_done: steps that count for the result.
        steps_left: steps still needed at most, as far as is known.
        seconds_left: steps_left at the pace so far, or None before the first turn.
        owner: who is running it, or None.
    """

    name: str
    closed: bool
    outcomes: dict[str, int]
    steps_to_result: int | None
    bracket_low: int | None
    steps_done: int
    steps_left: int
    seconds_left: float | None
    owner: str | None

    @property
    def reached(self) -> str:
        """K* with its bracket, in words."""
        bound = "" if self.closed else "at most "
        return (
            f"K* {bound}{self.steps_to_result} in ({self.bracket_low}, "
            f"{self.steps_to_result}]"
        )

    @property
    def left(self) -> str:
        """What is left, in words."""
        who = f", run by {self.owner}" if self.owner else ", nobody is running it"
        if self.seconds_left is None:
            return f"at most {self.steps_left} steps left{who}"
        minutes = self.seconds_left / 60
        return f"at most {self.steps_left} steps ({minutes:.1f} min) left{who}"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object."""
        return asdict(self)


def standing(files: FileSystem, sweep_dir: str) -> list[CellStanding]:
    """Returns how every cell of a sweep stands, in the order of running.

    Raises:
        UserError: the directory holds no sweep.
    """
    layout, locks = SweepLayout(sweep_dir), Locks(files)
    try:
        names = read_json(files, layout.sweep)["cells"]
    except FileNotFoundError as error:
        raise UserError(
            f"{sweep_dir} holds no sweep: name the directory that was given to "
            "dps_tf.train."
        ) from error
    except DamagedError:
        names = []
    # Cells of an earlier configuration of the same directory come last.
    names += [n for n in files.list_names(layout.cells) if n not in names]
    return [_standing(files, layout.cell(name), name, locks) for name in names]


def _standing(
    files: FileSystem, cell: CellLayout, name: str, locks: Locks
) -> CellStanding:
    try:
        content = read_json(files, cell.study)
    except (FileNotFoundError, DamagedError):
        return CellStanding(name, False, {}, None, None, 0, 0, None, None)
    if "specification" not in content:
        return _standing_of_tables(files, cell, name)
    specification = StudySpecification.from_json(content["specification"])
    knowledge = StudyHistory()
    for events in read_logs(files, cell.logs)[0].values():
        knowledge.add_all(events)
    result = study_result(specification, knowledge)
    closed = is_closed(files, cell.root)
    pending, left = _left(specification, knowledge)
    outcomes = _outcomes(result, set() if closed else set(pending))
    first = result.finishers[0] if result.finishers else None
    return CellStanding(
        name=name,
        closed=closed,
        outcomes=outcomes,
        steps_to_result=first[0] if first else None,
        bracket_low=result.trials[first[1]].bracket_low if first else None,
        steps_done=sum(trial.end_step for trial in result.trials),
        steps_left=0 if closed else left,
        seconds_left=0.0 if closed else _seconds(knowledge, left),
        owner=None if closed else _owner(locks, cell),
    )


def _standing_of_tables(files: FileSystem, cell: CellLayout, name: str) -> CellStanding:
    """Returns how a study stands that was read from an archive and never trained."""
    closed, _ = read_closed(files, cell.root, ["trials"])
    if closed is None:
        return CellStanding(name, False, {}, None, None, 0, 0, None, None)
    trials = closed.frame("trials").sort_values(["steps_to_result", "trial"])
    counts = trials["outcome"].value_counts()
    reached = trials[trials["outcome"] == "complete"]
    first = None if reached.empty else reached.iloc[0]
    return CellStanding(
        name=name,
        closed=True,
        outcomes={outcome: int(counts.get(outcome, 0)) for outcome in OUTCOMES},
        steps_to_result=None if first is None else int(first["steps_to_result"]),
        bracket_low=None if first is None else int(first["bracket_low"]),
        steps_done=int(trials["end_step"].sum()),
        steps_left=0,
        seconds_left=0.0,
        owner=None,
    )


def _owner(locks: Locks, cell: CellLayout) -> str | None:
    holder = locks.holder(cell.root)
    return None if holder is None else str(holder)


def _left(
    specification: StudySpecification, knowledge: StudyHistory
) -> tuple[tuple[int, ...], int]:
    """Returns (trials that have to go on, steps they need at most)."""
    rule = specification.rule
    states = knowledge.trajectories(specification.goal, rule.schedule.interval)
    todo = plan(states, rule)
    end = (rule.last_evaluation, todo.prefix) if rule.exhaustive else todo.cutoff
    done = {number: state.last_step for number, state in enumerate(states)}
    steps = sum(
        max(0, follow_to(trial, end, rule.schedule) - done.get(trial, 0))
        for trial in todo.pending
    )
    return todo.pending, steps


def _outcomes(result: StudyResult, running: set[int]) -> dict[str, int]:
    counts = dict.fromkeys((*OUTCOMES, "running"), 0)
    for number, trial in enumerate(result.trials):
        counts["running" if number in running else trial.outcome] += 1
    return counts


def _seconds(knowledge: StudyHistory, steps: int) -> float | None:
    done = sum(trial.work.steps for trial in knowledge.trials.values())
    seconds = sum(trial.work.seconds for trial in knowledge.trials.values())
    return steps * seconds / done / knowledge.slots if done else None
