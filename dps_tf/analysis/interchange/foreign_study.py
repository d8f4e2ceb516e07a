"""Trials of elsewhere enter here, whatever recorded them, and are checked once.

What comes out has the names, types and sizes that all analyses rely on, so that no name
leaves its folder, hides a column of a result or steers a terminal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import require, study_key
from dps_tf.core import (
    CELL_TYPES,
    DENSE,
    FLOAT32,
    Cell,
    Space,
    UserError,
    cell_key,
    check_metaparameter,
    checked_name,
    is_axis,
    on_one_line,
)

COMPLETE, INFEASIBLE, INCOMPLETE = "COMPLETE", "INFEASIBLE", "INCOMPLETE"
STATUSES = (COMPLETE, INFEASIBLE, INCOMPLETE)
"""Ran to its end; diverged; was cut off (pruned, stopped, killed)."""
DEFAULTS: dict[str, Any] = {
    "sparsity_method": DENSE,
    "seed": 0,
    "sparsity": 0.0,
    "precision": FLOAT32,
    "status": COMPLETE,
}
"""Columns that a table of trials may leave out, and what holds then."""
_OF_TRIALS, _OF_EVALUATIONS = ("trial", "status", "steps"), ("trial", "step")
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
        prunable: which parameters could be pruned.

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
    prunable: str = "none"

    def __post_init__(self) -> None:
        with named(self.origin):
            check_cell(self.cell, self.precision)
            _check_text("prunable", self.prunable)
            Space.from_dict(self.space)
            for name in ("step_budget", "training_examples"):
                checked_whole(name, getattr(self, name))
            trials, evaluations = _trials(self.trials), _evaluations(self.evaluations)
            unknown = set(evaluations["trial"]) - set(trials["trial"])
            if unknown:
                raise UserError(f"no trial has the number {min(unknown)}.")
        object.__setattr__(self, "trials", trials)
        object.__setattr__(self, "evaluations", evaluations)

    @property
    def identity(self) -> dict[str, Any]:
        """The columns that name the study."""
        return {**self.cell.to_json(), "precision": self.precision}


def foreign_studies(
    trials: pd.DataFrame, evaluations: pd.DataFrame, origin: str, **about: Any
) -> list[ForeignStudy]:
    """Returns the studies of two tables, one for each cell.

    Args:
        trials: columns of the cell (see DEFAULTS for those that may be missing) and
            of further axes, `trial`, `status`, `steps` (the last evaluation where it
            is missing); every other column is a metaparameter.
        evaluations: `trial`, `step` and metrics; the columns of the cell too, unless
            each trial of all cells has a number of its own.
        origin: where they are from, for messages.
        about: `space`, `step_budget`, `training_examples`, of all cells alike.

    Raises:
        UserError: a column that is missing, or anything that ForeignStudy refuses.
    """
    with named(origin):
        require(trials, ("workload", "optimizer", "batch_size", "trial"), "of trials")
        require(evaluations, _OF_EVALUATIONS, "of evaluations")
        given = _study_columns(trials)
        defaults = {n: x for n, x in DEFAULTS.items() if n not in trials.columns}
        trials = trials.assign(**defaults).fillna(
            {name: "" for name in given if is_axis(name)}
        )
        key = _study_columns(trials)
        trials["_study"] = trials.groupby(key, dropna=False, sort=True).ngroup()
        evaluations = _joined(trials, evaluations, given)
    found = []
    for number, mine in trials.groupby("_study"):
        with named(origin):
            values = mine[key].astype(object).iloc[0]
            row = {name: values[name] for name in key}
            cell, precision = cell_of(row), _text("precision", row["precision"])
        curves = evaluations[evaluations["_study"] == number].drop(columns="_study")
        mine = _with_steps(mine.drop(columns=[*key, "_study"]), curves)
        study = ForeignStudy(cell, mine, curves, origin, precision=precision, **about)
        found.append(study)
    return found


def _study_columns(frame: pd.DataFrame) -> list[str]:
    """Returns the columns of a table of others that name a study."""
    return [name for name in study_key(frame) if name in frame.columns]


def _joined(
    trials: pd.DataFrame, evaluations: pd.DataFrame, given: Sequence[str]
) -> pd.DataFrame:
    """Returns the evaluations with the study of each, without the columns of cells."""
    joining = _study_columns(evaluations)
    if joining and joining != list(given):
        raise UserError(
            "the table of evaluations must name cells by the columns of the table of "
            f"trials, {', '.join(given)}, or by none; it has {', '.join(joining)}."
        )
    if not joining and trials["trial"].duplicated().any():
        raise UserError(
            "trials of several cells have the same number: give the table of "
            f"evaluations the columns {', '.join(given)} too."
        )
    axes = {name: "" for name in joining if is_axis(name)}
    on = [*joining, "trial"]
    if trials.duplicated(on).any():
        raise UserError("two trials of a cell have the same number.")
    try:
        wider = evaluations.fillna(axes).merge(
            trials[[*on, "_study"]], how="left", on=on
        )
    except ValueError as error:
        raise UserError(
            "the columns that name cells and trials are of other types in the two "
            f"tables: {on_one_line(error)}."
        ) from error
    if wider["_study"].isna().any():
        number = wider["trial"][wider["_study"].isna()].iloc[0]
        raise UserError(f"no trial of such a cell has the number {number}.")
    return wider.drop(columns=joining)


def _with_steps(trials: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    if "steps" in trials.columns:
        return trials
    last = evaluations.groupby("trial")["step"].max()
    return trials.assign(steps=trials["trial"].map(last).fillna(0))


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
            else _text(name, row[name])
        )
    return Cell.from_json(values)


def check_cell(cell: Cell, precision: str) -> None:
    """Raises UserError for a cell whose values are too large or cannot be shown."""
    checked_name("precision", _text("precision", precision))
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
    if isinstance(value, bool) or not is_number:
        raise UserError(f"{name} is {_shown(value)}; it must be a number.")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} is {_shown(value)}; it must be text.")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _check_text(name: str, value: str, longest: int = _LONGEST) -> None:
    _text(name, value)
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
    return checked.sort_values("trial", ignore_index=True)


def _evaluations(frame: pd.DataFrame) -> pd.DataFrame:
    checked = _columns(frame, _OF_EVALUATIONS, "evaluations", check_metric)
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
    try:
        return frame[name].to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError):
        for value in frame[name]:
            if value is not None and value is not pd.NA:
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
