"""Reports the progress of each cell of a sweep, and what is left, from its records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from dps_tf.analysis.plan import WORK, forecast, interval_of
from dps_tf.analysis.tables import Floats, study_goal
from dps_tf.core import (
    OUTCOMES,
    Curve,
    StudyResult,
    StudySpecification,
    duration,
    error_cause,
    plan,
    steps_left,
)
from dps_tf.store import (
    FileSystem,
    Lock,
    StudyHistory,
    StudyReader,
    SweepReader,
    best_first,
    shortfall,
)

SHOWN_WAIT = 0.01
"""Least share of time spent waiting for data that a line of status mentions."""


@dataclass(frozen=True)
class CellStatus:
    """The progress of one cell.

    Attributes:
        name: name of the cell.
        curve: the curve of the cell; None where no record says it.
        batch_size: batch size of the cell; 1 where no record says it.
        closed: whether the cell is finished, with tables that are intact.
        outcomes: number of trials by outcome; `running` counts trials of an open study
            that have to go on. Empty where no trial has begun.
        steps_to_result: K* so far: an upper bound for an open study.
        bracket_low: the evaluation before steps_to_result.
        steps_left: most steps still needed; None where the cell has not begun, or its
            record is damaged.
        seconds_left: steps_left at the pace so far, or None before the first turn.
        owner: the process that runs the cell, or None.
        steps: steps of all trials of a closed study; else 0.
        seconds: training time of all trials, all slots together.
        slots: trials that are trained side by side; 1 where that is not recorded.
        data_wait: share of an open study's time for which trials waited for data.
        causes: why trials failed, each cause once.
        nearest: the best evaluation so far, where no trial has met the goal.
        advice: what to change in a finished cell where no trial has met the goal.
    """

    name: str
    curve: Curve | None = None
    batch_size: int = 1
    closed: bool = False
    outcomes: dict[str, int] = field(default_factory=dict)
    steps_to_result: int | None = None
    bracket_low: int | None = None
    steps_left: int | None = None
    seconds_left: float | None = None
    owner: str | None = None
    steps: int = 0
    seconds: float = 0.0
    slots: int = 1
    data_wait: float = 0.0
    causes: tuple[str, ...] = ()
    nearest: str | None = None
    advice: str | None = None

    @property
    def reached(self) -> str:
        """K* with its bracket, in words."""
        if self.steps_to_result is None:
            near = "" if self.nearest is None else f", {self.nearest}"
            return f"none reached{near}"
        bound = "" if self.closed else "at most "
        return (
            f"K* {bound}{self.steps_to_result} in ({self.bracket_low}, "
            f"{self.steps_to_result}]"
        )

    @property
    def left(self) -> str:
        """What is left, in words."""
        if self.closed:
            return "finished"
        who = f", run by {self.owner}" if self.owner else ", nobody is running it"
        if self.steps_left is None:
            return f"not started{who}"
        if self.steps_left == 0:
            return f"nothing left to train, but not closed: run the sweep again{who}"
        if self.seconds_left is None:
            return f"at most {self.steps_left} steps left{who}"
        time = duration(self.seconds_left)
        return f"at most {self.steps_left} steps ({time}) left{who}"

    @property
    def line(self) -> str:
        """The cell as one line of text."""
        counts = ", ".join(f"{n} {name}" for name, n in self.outcomes.items() if n)
        parts = [self.reached, counts] if counts else []
        if self.data_wait >= SHOWN_WAIT:
            parts.append(f"{self.data_wait:.0%} of the time waiting for data")
        parts += [f"failed by {cause}" for cause in self.causes[:1]]
        advice = "" if self.advice is None else f". {self.advice}"
        return f"{self.name}: {'; '.join([*parts, self.left])}{advice}"


def sweep_status(files: FileSystem, sweep: SweepReader) -> list[CellStatus]:
    """Returns the progress of every cell of a sweep, in the order of running.

    Damaged records are reported in the sweep's `problems`.
    """
    # Cells of an earlier configuration of the same directory come last.
    names = dict.fromkeys([*sweep.planned, *sweep.studies])
    return [_cell_status(files, sweep, name) for name in names]


def merged_status(sweeps: Sequence[Sequence[CellStatus]]) -> list[CellStatus]:
    """Returns the cells of several sweeps, such as the shards of one.

    Each shard plans the whole grid. A cell that has not begun in one directory is left
    out where it has begun in another, or where an earlier directory lists it.
    """
    begun = {c.name for cells in sweeps for c in cells if c.steps_left is not None}
    named: set[str] = set()
    merged = []
    for cell in (cell for cells in sweeps for cell in cells):
        if cell.steps_left is None and cell.name in begun | named:
            continue
        named.add(cell.name)
        merged.append(cell)
    return merged


def progress_line(cells: Sequence[CellStatus]) -> str:
    """Returns the progress of a whole sweep and the time left, in one line.

    Once a cell is finished, `analysis.plan` predicts the time, with an interval: cells
    that have not begun are assumed to need as many trials as finished ones.
    """
    finished = [cell for cell in cells if cell.closed]
    waiting = [cell for cell in cells if not cell.closed]
    line = f"{len(finished)} of {len(cells)} cells finished"
    if not waiting:
        return line
    left = _predicted_left(finished, waiting)
    if left is not None:
        middle, low, high = (duration(seconds) for seconds in interval_of(left))
        return f"{line}; about {middle} left (80 %: {low} to {high})"
    estimates = [c.seconds_left for c in waiting if c.seconds_left is not None]
    if len(estimates) < len(waiting):
        return f"{line}; time left not known yet"
    return f"{line}; at most {duration(sum(estimates))} left"


def _predicted_left(
    finished: Sequence[CellStatus], waiting: Sequence[CellStatus]
) -> Floats | None:
    """Returns draws of the seconds left, [d].

    Returns None without a finished, timed cell, or where a cell has taken longer than
    every draw says.
    """
    rows = [
        (cell.curve or cell.name, cell.batch_size, 1, cell.steps, cell.seconds)
        for cell in finished
        if cell.steps
    ]
    if not rows:
        return None
    asked = [(cell.curve or cell.name, cell.batch_size, 1) for cell in waiting]
    done = pd.DataFrame(rows, columns=list(WORK))
    _, total_seconds = forecast(done, pd.DataFrame(asked, columns=list(WORK[:3])))
    if total_seconds is None:
        return None
    # Finished cells do not record their slots; cells of a sweep have the same.
    slots = max(cell.slots for cell in waiting)
    spent = np.array([cell.seconds for cell in waiting])
    most = [math.inf if c.seconds_left is None else c.seconds_left for c in waiting]
    left = (total_seconds - spent) / slots
    left = left[(left > 0).all(axis=1)]  # No waiting cell has ended.
    return np.minimum(left, most).sum(axis=1) if len(left) else None


def _cell_status(files: FileSystem, sweep: SweepReader, name: str) -> CellStatus:
    study = sweep.studies.get(name)
    status = CellStatus(name) if study is None else _study_status(files, study, name)
    cell = sweep.identities.get(name)
    if study is not None and study.specification is not None:
        cell = study.specification.cell
    if cell is None:
        return status
    return replace(status, curve=cell.curve, batch_size=cell.batch_size)


def _study_status(files: FileSystem, study: StudyReader, name: str) -> CellStatus:
    closed = study.closed(("trials", "work"))
    if closed is not None:
        return _closed_status(study, closed, name)
    owner = Lock(files, study.layout.root).holder()
    if study.specification is None:
        return CellStatus(name, owner=owner)
    history, result = study.history, study.result()
    pending, left = _left(study.specification, history)
    first = result.finishers[0] if result.finishers else None
    interval = study.specification.evaluations.interval
    goal = study.specification.goal
    near = None if first else history.nearest(goal, interval)
    seconds = sum(trial.work.seconds for trial in history.trials.values())
    return CellStatus(
        name=name,
        outcomes=_outcomes(result, set(pending)) if history.trials else {},
        steps_to_result=first[0] if first else None,
        bracket_low=result.trials[first[1]].bracket_low if first else None,
        steps_left=left,
        seconds_left=_seconds_left(history, left, seconds),
        owner=owner,
        seconds=seconds,
        slots=history.slots,
        data_wait=history.data_wait,
        causes=_causes(t.error for t in result.trials if t.error is not None),
        nearest=None if near is None else near.in_words(goal),
    )


def _closed_status(
    study: StudyReader, tables: Mapping[str, pd.DataFrame], name: str
) -> CellStatus:
    trials, work = tables["trials"], tables["work"]
    best = best_first(trials).head(1).to_dict("records")
    seconds = work[(work["quantity"] == "seconds") & work["trial"].isna()]
    counts = trials["outcome"].value_counts()
    record = None if best else study.closed(("curves",))
    short = None
    if record is not None:
        row = record["studies"].iloc[0]
        short = shortfall(study_goal(row), row.to_dict(), trials, record["curves"])
    return CellStatus(
        name=name,
        closed=True,
        outcomes={outcome: int(counts.get(outcome, 0)) for outcome in OUTCOMES},
        steps_to_result=int(best[0]["steps_to_result"]) if best else None,
        bracket_low=int(best[0]["bracket_low"]) if best else None,
        steps_left=0,
        seconds_left=0.0,
        steps=int(trials["end_step"].sum()),
        seconds=float(seconds["value"].sum()),
        causes=_causes(trials["error"].dropna()),
        nearest=None if short is None else short.best,
        # Runs of others cannot be trained further.
        advice=None if short is None or study.is_archived else short.advice,
    )


def _causes(errors: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(error_cause, errors)))


def _left(
    specification: StudySpecification, history: StudyHistory
) -> tuple[tuple[int, ...], int]:
    """Returns the trials that have to go on, and the most steps that they need."""
    rule = specification.rule
    states = history.trajectories(specification.goal, rule.schedule.interval)
    todo = plan(states, rule)
    return todo.pending, steps_left(todo, states, rule)


def _outcomes(result: StudyResult, running: set[int]) -> dict[str, int]:
    counts = dict.fromkeys((*OUTCOMES, "running"), 0)
    for number, trial in enumerate(result.trials):
        counts["running" if number in running else trial.outcome] += 1
    return counts


def _seconds_left(history: StudyHistory, steps: int, seconds: float) -> float | None:
    """Returns the time of some steps at the pace of the study, which took `seconds`."""
    done = sum(trial.work.steps for trial in history.trials.values())
    return steps * seconds / done / history.slots if done else None
