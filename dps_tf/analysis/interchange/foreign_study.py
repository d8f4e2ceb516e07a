"""Studies from elsewhere, whatever recorded them: checked once, when they are made.

A `ForeignStudy` has the names, types and sizes that all analyses rely on, so that no
name leaves its folder, hides a column of a result or steers a terminal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import require
from dps_tf.core import (
    CELL_TYPES,
    FLOAT32,
    Cell,
    Goal,
    Space,
    UserError,
    cell_key,
    check_metaparameter,
    checked_name,
    is_axis,
)

COMPLETE, INFEASIBLE, INCOMPLETE = "COMPLETE", "INFEASIBLE", "INCOMPLETE"
STATUSES = (COMPLETE, INFEASIBLE, INCOMPLETE)
"""Ran to its end; diverged; was cut off (pruned, stopped, killed)."""
_OF_TRIALS, OF_EVALUATIONS = ("trial", "status", "steps"), ("trial", "step")
_LARGEST = 2**53  # exact as a float too
_LONGEST = 120  # characters of a name that is shown, or is part of a path
_MOST_COLUMNS = 256


@dataclass(frozen=True)
class ArchiveRules:
    """Which trials of a study count.

    Attributes:
        trials: COMPLETE trials per study, in the order of their numbers (100 and 50 in
            the publication's figures); None takes all.
        keep_incomplete: whether trials that were cut off count up to there.
        infeasible_may_reach: whether a trial that diverged after it had met the goal
            has met it.
    """

    trials: int | None = None
    keep_incomplete: bool = False
    infeasible_may_reach: bool = False


def counted(trials: pd.DataFrame, rules: ArchiveRules) -> pd.DataFrame:
    """Returns the trials that count, of a table in the order of their numbers."""
    kept = trials[(trials["status"] != INCOMPLETE) | rules.keep_incomplete]
    if rules.trials is None:
        return kept
    is_complete = (kept["status"] == COMPLETE).to_numpy(np.int64)
    before: np.ndarray = np.cumsum(is_complete) - is_complete
    return kept.iloc[np.flatnonzero(before < rules.trials)]


@dataclass(frozen=True)
class ForeignStudy:
    """The trials of one cell, as somebody else's software has recorded them.

    Attributes:
        cell: whose trials they are.
        trials: one row per trial: `trial`, a number of its own; `status`, of STATUSES;
            `steps`, the last one trained; and a column of numbers for each
            metaparameter, NaN where a trial has none. In the order of `trial`.
        evaluations: one row per evaluation: `trial`, `step`, and a column of numbers
            for each metric, `split/metric`, NaN where it was not measured. In the order
            of trials and steps; of several rows for one step the last counts.
        origin: where it is from, for messages.
        precision: in which it was trained.
        space: as `Space.to_json` writes it; empty where unknown.
        step_budget: steps that a trial was given; 0 where unknown.
        training_examples: 0 where unknown.

    Raises:
        UserError: when made, for anything of another name, type or size.
    """

    cell: Cell
    trials: pd.DataFrame
    evaluations: pd.DataFrame
    origin: str
    precision: str = FLOAT32
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    step_budget: int = 0
    training_examples: int = 0

    def __post_init__(self) -> None:
        with named(self.origin):
            check_cell(self.cell, self.precision)
            Space.from_dict(self.space)
            for name in ("step_budget", "training_examples"):
                checked_whole(name, getattr(self, name))
            evaluations, trials = _evaluations(self.evaluations), _trials(self.trials)
            unknown = set(evaluations["trial"]) - set(trials["trial"])
            if unknown:
                raise UserError(f"no trial has the number {min(unknown)}.")
        object.__setattr__(self, "trials", trials)
        object.__setattr__(self, "evaluations", evaluations)

    @property
    def identity(self) -> dict[str, Any]:
        """The columns that name the study."""
        return {**self.cell.to_json(), "precision": self.precision}


@dataclass(frozen=True)
class UnreadStudy:
    """A study whose cell is known and whose trials have not been read yet.

    Attributes:
        cell: name of the cell that the study becomes.
        origin: where it is from.
        goal: what its trials had to reach; tables of the cell can be reduced for any
            other. None where nobody has said.
        read: returns the trials that count by some rules.
    """

    cell: str
    origin: str
    goal: Goal | None
    read: Callable[[ArchiveRules], ForeignStudy]


def cell_of(row: Mapping[str, Any]) -> Cell:
    """Returns the cell that some columns name; UserError for a value that cannot be."""
    values: dict[str, Any] = {}
    for name in cell_key(row):
        kind = str if is_axis(name) else CELL_TYPES[name]
        values[name] = (
            checked_whole(name, row[name])
            if kind is int
            else _number(name, row[name])
            if kind is float
            else checked_text(name, row[name])
        )
    return Cell.from_json(values)


def check_cell(cell: Cell, precision: str) -> None:
    """Raises UserError for a cell whose values are too large or cannot be shown."""
    checked_name("precision", checked_text("precision", precision))
    _check_text("cell", cell.name, 2 * _LONGEST)
    for name in (cell.workload, cell.optimizer, cell.sparsity_method, precision):
        _check_text("name", name)
    for axis, text in cell.axes:
        _check_text("axis", axis)
        _check_text(axis, text)
    checked_whole("batch_size", cell.batch_size)
    checked_whole("seed", cell.seed)


def check_metric(name: str) -> None:
    """Raises UserError unless a name is `split/metric`, each of which can be a name."""
    split, slash, metric = name.partition("/")
    if not slash:
        raise UserError(
            f"metric {_shown(name)} must be written 'split/metric', for example "
            "'validation/classification_error'."
        )
    for part in (split, metric):
        _check_text("metric", checked_name("metric", part))


@contextlib.contextmanager
def named(origin: str) -> Iterator[None]:
    """Puts the name of a file or source before the UserErrors of the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{origin!r}: {error}") from error


def checked_whole(name: str, value: Any) -> int:
    """Returns a whole number from 0 to 2**53; UserError for any other value."""
    kinds = (int, float, np.integer)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LARGEST or value % 1:
        raise UserError(
            f"{name} is {_shown(value)}; it must be a whole number from 0 to 2^53."
        )
    return int(value)


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float, np.number))
    if isinstance(value, (bool, np.bool_)) or not is_number:
        raise UserError(f"{name} is {_shown(value)}; it must be a number.")
    return float(value)


def checked_text(name: str, value: Any) -> str:
    """Returns a text; UserError for any other value."""
    if not isinstance(value, str):
        raise UserError(f"{name} is {_shown(value)}; it must be text.")
    return value


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _check_text(name: str, value: str, longest: int = _LONGEST) -> None:
    checked_text(name, value)
    if len(value) > longest or not value.isprintable():
        raise UserError(
            f"{name} is {_shown(value)}; it must be at most {longest} characters that "
            "can be printed."
        )


def _trials(frame: pd.DataFrame) -> pd.DataFrame:
    checked = _columns(frame, _OF_TRIALS, "trials", check_metaparameter)
    wrong = [status for status in checked["status"] if status not in STATUSES]
    if wrong:
        raise UserError(
            f"a status is {_shown(wrong[0])}; it must be one of {', '.join(STATUSES)}."
        )
    if checked["trial"].duplicated().any():
        number = checked["trial"][checked["trial"].duplicated()].iloc[0]
        raise UserError(f"two trials have the number {number}.")
    for name in checked.columns[len(_OF_TRIALS) :]:
        _check_point(str(name), checked[name].to_numpy(np.float64))
    return checked.sort_values("trial", ignore_index=True)


def _check_point(name: str, values: np.ndarray) -> None:
    """Raises UserError for values that a metaparameter of this name cannot have."""
    is_rate = name == "lr" or name.endswith("learning_rate")
    wrong = values[np.isinf(values) | (is_rate & (values < 0))]
    if len(wrong):
        allowed = "a finite number, at least 0" if is_rate else "a finite number"
        raise UserError(f"{name} is {wrong[0]:g} in a trial; it must be {allowed}.")


def _evaluations(frame: pd.DataFrame) -> pd.DataFrame:
    checked = _columns(frame, OF_EVALUATIONS, "evaluations", check_metric)
    checked = checked.sort_values(["trial", "step"], kind="stable")
    return checked.drop_duplicates(["trial", "step"], keep="last", ignore_index=True)


def _columns(
    frame: pd.DataFrame,
    fixed: Sequence[str],
    table: str,
    check: Callable[[str], object],
) -> pd.DataFrame:
    """Returns a table of numbers (but for a status) whose further names are checked."""
    require(frame, fixed, f"of {table}")
    names = [name for name in frame.columns if name not in fixed]
    for name in names:
        _check_text(f"a column of the table of {table}", name)
    if len(set(names)) < len(names):
        raise UserError(f"the table of {table} has a column more than once.")
    if len(names) > _MOST_COLUMNS:
        raise UserError(
            f"the table of {table} has {len(names)} columns besides "
            f"{', '.join(fixed)}; at most {_MOST_COLUMNS} are read."
        )
    for name in names:
        check(name)
    columns: dict[str, Any] = {
        name: frame[name].to_numpy(object) if name == "status" else _wholes(frame, name)
        for name in fixed
    }
    return pd.DataFrame({**columns, **{name: _floats(frame, name) for name in names}})


def _floats(frame: pd.DataFrame, name: str) -> np.ndarray:
    if pd.api.types.is_bool_dtype(frame[name]) and len(frame):
        _number(name, bool(frame[name].iloc[0]))
    try:
        return frame[name].to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        for value in frame[name][numbers.isna() & frame[name].notna()]:
            _number(name, value)
        raise UserError(f"{name} has a value that is too large.") from None


def _wholes(frame: pd.DataFrame, name: str) -> np.ndarray:
    values = _floats(frame, name)
    with np.errstate(invalid="ignore"):
        wrong = ~((values >= 0) & (values <= _LARGEST) & (values % 1 == 0))
    if wrong.any():
        checked_whole(name, frame[name].iloc[int(np.argmax(wrong))])
        raise UserError(f"{name} has a value that is missing.")
    return values.astype(np.int64)
