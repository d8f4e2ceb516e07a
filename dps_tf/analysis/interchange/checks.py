"""Checks of names, numbers and tables that other software has recorded.

Checked tables have the names, types and sizes that all analyses rely on, so that no
name leaves its folder, hides a column of a result or steers a terminal.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import row_number
from dps_tf.core import (
    CELL_TYPES,
    Cell,
    UserError,
    cell_key,
    check_metaparameter,
    checked_name,
    is_axis,
    is_rate,
)

COMPLETE, INFEASIBLE, INCOMPLETE = "COMPLETE", "INFEASIBLE", "INCOMPLETE"
STATUSES = (COMPLETE, INFEASIBLE, INCOMPLETE)
"""A run that ran to its end; diverged; or was cut off (pruned, stopped, killed)."""
OF_EVALUATIONS = ("trial", "step")
_OF_TRIALS = ("trial", "status", "steps")
_LARGEST = 2**53 - 1  # as a float, 2**53 may be the next number rounded
_LONGEST = 120  # characters of a name that is shown, or is part of a path
_MOST_COLUMNS = 256


@contextlib.contextmanager
def named(origin: str) -> Iterator[None]:
    """Prefixes the UserErrors of a block with the name of a file or source."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{origin!r}: {error}") from error


def checked_cell(row: Mapping[str, Any]) -> Cell:
    """Returns the cell of a row that has the columns of a cell, and `precision`.

    Raises:
        UserError: a value of another type, too large, or that cannot be shown.
    """
    values: dict[str, Any] = {}
    for name in cell_key(row):
        kind = str if is_axis(name) else CELL_TYPES[name]
        values[name] = (
            checked_whole(name, row[name])
            if kind is int
            else _number(name, row[name])
            if kind is float
            else _check_text(name, row[name])
        )
    checked_name("precision", _check_text("precision", row["precision"]))
    cell = Cell.from_json(values)
    _check_text("cell", cell.name, 2 * _LONGEST)
    return cell


def checked_trials(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns trials in the order of their numbers, with columns of the right types.

    Raises:
        UserError: a value of another type, an unknown status, a number that two trials
            have, or a name or value that no metaparameter can have.
    """
    checked = _columns(frame, _OF_TRIALS, "trials", check_metaparameter)
    wrong = ~checked["status"].isin(STATUSES).to_numpy()
    if wrong.any():
        place = int(np.argmax(wrong))
        raise UserError(
            f"status in {_row(frame, place)} is "
            f"{_shown(checked['status'].iloc[place])}; it must be one of "
            f"{', '.join(STATUSES)}."
        )
    if checked["trial"].duplicated().any():
        number = checked["trial"][checked["trial"].duplicated()].iloc[0]
        raise UserError(f"two trials have the number {number}.")
    for name in checked.columns[len(_OF_TRIALS) :]:
        _check_point(checked[name])
    return checked.sort_values("trial")


def measured(value: Any) -> float:
    """Returns a measured value as a number; infinity for any that is not finite.

    NaN stands for what was not measured. A text is one that a number can be made of.

    >>> measured(0.5), measured("-Infinity"), measured(float("nan"))
    (0.5, inf, inf)
    """
    number = float(value)
    return number if math.isfinite(number) else math.inf


def checked_evaluations(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Returns evaluations in the order of trials and steps, and notes on the steps.

    The last value of a metric for one step counts. The metrics are numbers, NaN where
    one was not measured, and infinite where it was not finite.

    Raises:
        UserError: a value of another type, a metric that is not `split/metric`, or
            several evaluations of a trial that are all at step 0.
    """
    keys = list(OF_EVALUATIONS)
    checked = _columns(frame, keys, "evaluations", _check_metric)
    for name in checked.columns[len(keys) :]:
        is_text = frame[name].map(lambda value: isinstance(value, str))
        lost = np.isinf(checked[name]) | (is_text & checked[name].isna())
        checked[name] = checked[name].mask(lost, np.inf)
    notes = []
    by_trial = checked.groupby("trial")["step"]
    back = checked[by_trial.diff() < 0].drop_duplicates("trial")
    if len(back):
        trial, step = back[keys].iloc[0]
        notes.append(
            f"the steps of trial {trial} go back to {step}, the first of {len(back)} "
            "such trials: if a run began anew there, give each part a number."
        )
    if not checked.duplicated(keys).any():
        return checked.sort_values(keys, ignore_index=True), notes
    by_step = checked.groupby(keys)
    unlike = (by_step.nunique() > 1).any(axis=1)
    places, ends = unlike[unlike].index, by_trial.max()
    for trial, _ in places:
        if ends[trial] == 0:
            raise UserError(
                f"the evaluations of trial {trial} are all at step 0: log each with "
                "the number of updates made before it."
            )
    if len(places):
        trial, step = places[0]
        notes.append(
            f"trial {trial} has several values of a metric at step {step}, the first "
            f"of {len(places)} such places: the last one counts."
        )
    return by_step.last().reset_index(), notes


def checked_whole(name: str, value: Any) -> int:
    """Returns a whole number from 0, below 2**53; UserError for any other value."""
    kinds = (int, float, np.integer)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LARGEST or value % 1:
        raise UserError(
            f"{name} is {_shown(value)}; it must be a whole number from 0, below 2^53."
        )
    return int(value)


def checked_numbers(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Returns a column as floats, NaN if missing; UserError for what is no number."""
    # NumPy makes floats of these: of a time its nanoseconds, say.
    if getattr(frame[name].dtype, "kind", "O") in "bcmM" and len(frame):
        is_bool = pd.api.types.is_bool_dtype(frame[name])
        first = frame[name].iloc[0]
        _number(f"{name} in {_row(frame, 0)}", bool(first) if is_bool else first)
    try:
        return frame[name].to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        for place in np.flatnonzero(numbers.isna() & frame[name].notna()).tolist():
            _number(f"{name} in {_row(frame, place)}", frame[name].iloc[place])
        raise UserError(f"{name} has a value that is too large.") from None


def _row(table: pd.DataFrame | pd.Series, place: int) -> str:
    """Returns how a row of a table is called: by its run, where the index names runs.

    >>> _row(pd.Series([1, 2], pd.Index(["a", "b"], name="run")), 1)
    "run 'b'"
    """
    if table.index.name == "run":
        return f"run {table.index[place]!r}"
    return f"row {row_number(table, place)}"


def _check_metric(name: str) -> None:
    """Raises UserError unless a name is `split/metric`, both of them valid names."""
    split, slash, metric = name.partition("/")
    if not slash:
        raise UserError(
            f"metric {_shown(name)} must be written 'split/metric', for example "
            "'validation/classification_error'."
        )
    for part in (split, metric):
        checked_name("metric", part)


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, (bool, np.bool_)) or not is_number:
        raise UserError(f"{name} is {_shown(value)}; it must be a number.")
    return float(value)


def _check_text(name: str, value: Any, longest: int = _LONGEST) -> str:
    """Returns a text; UserError for one that is long or cannot be shown."""
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise UserError(
            f"{name} is {_shown(value)}; it must be a text of at most {longest} "
            "characters that can be printed."
        )
    return value


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _check_point(column: pd.Series) -> None:
    """Raises UserError for values that a metaparameter of this name cannot have."""
    name, values = str(column.name), column.to_numpy(np.float64)
    wrong = np.isinf(values) | (is_rate(name) & (values < 0))
    if wrong.any():
        place = int(np.argmax(wrong))
        allowed = "a finite number, at least 0" if is_rate(name) else "a finite number"
        raise UserError(
            f"{name} in {_row(column, place)} is {values[place]:g}; it must be "
            f"{allowed}."
        )


def _columns(
    frame: pd.DataFrame,
    fixed: Sequence[str],
    table: str,
    check: Callable[[str], object],
) -> pd.DataFrame:
    """Returns a table of numbers, but for a status, after a check of further names."""
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
    numbers = {name: checked_numbers(frame, name) for name in names}
    return pd.DataFrame({**columns, **numbers}, index=frame.index)


def _wholes(frame: pd.DataFrame, name: str) -> np.ndarray:
    values = checked_numbers(frame, name)
    with np.errstate(invalid="ignore"):
        wrong = ~((values >= 0) & (values <= _LARGEST) & (values % 1 == 0))
    if wrong.any():
        place = int(np.argmax(wrong))
        where = f"{name} in {_row(frame, place)}"
        checked_whole(where, frame[name].iloc[place])
        raise UserError(f"{where} is missing; it must be a whole number.")
    return values.astype(np.int64)
