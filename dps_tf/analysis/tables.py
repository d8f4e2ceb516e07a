"""Columns of the tables of a sweep, and the cells to which their rows belong.

The tables `studies` (one row per cell), `trials` (one per trial) and `curves` (one per
evaluation) are joined by the columns of `study_key`. A sweep holds each cell once, in
one precision, which only its table `studies` holds; several sweeps may hold the same
cell in several precisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype, is_string_dtype

from dps_tf.core import (
    CELL_KEY,
    FLOAT32,
    OUTCOMES,
    Cell,
    Goal,
    UserError,
    cell_key,
    check_known,
    is_axis,
    is_number,
    near_matches,
)
from dps_tf.store import CURVES, MEANINGS, PRECISION, SCHEMAS, STUDIES, TRIALS

GOAL_COLUMNS = [name for name in STUDIES.names if name.startswith("goal_")]
BOUNDS = ["earliest", "latest"]
"""Columns that `reduce.with_bounds` adds to `trials`."""

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def study_key(frame: pd.DataFrame) -> list[str]:
    """Returns the columns that name a study: cell, further axes, and precision."""
    return [*cell_key(frame.columns), PRECISION[0]]


def curve_key(frame: pd.DataFrame) -> list[str]:
    """Returns the columns that are the same along a curve of K* against batch size."""
    return [name for name in study_key(frame) if name != "batch_size"]


def axes_of(frame: pd.DataFrame) -> list[str]:
    """Returns the columns of a table that hold further axes; see `core.cell`."""
    return [name for name in cell_key(frame.columns) if is_axis(name)]


def with_axes(frame: pd.DataFrame, axes: Iterable[str]) -> pd.DataFrame:
    """Returns a table with all the axes, which follow the other columns of the cell.

    Axes that the table lacked hold an empty text.
    """
    wider = frame.copy(deep=False)
    for place, name in enumerate(sorted(axes), len(CELL_KEY)):
        if name not in wider.columns:
            texts = pd.Series("", wider.index, dtype=wider["workload"].dtype)
            wider.insert(place, name, texts)
    return wider


def require(frame: pd.DataFrame, columns: Iterable[str], table: str) -> None:
    """Raises UserError unless it is a table and has the columns, each once."""
    if not isinstance(frame, pd.DataFrame):
        raise UserError(
            f"the table {table} is a {type(frame).__name__}: give a DataFrame, such "
            "as pandas.read_csv returns."
        )
    if frame.columns.nlevels > 1:
        raise UserError(f"the table {table} has names of two levels: give it one.")
    for column in columns:
        if column not in frame.columns:
            raise UserError(
                f"the table {table} has no column {column!r}: "
                f"{near_matches(column, map(str, frame.columns))}."
            )
    for column in frame.columns[frame.columns.duplicated()]:
        raise UserError(f"the table {table} has two columns {column!r}: leave one.")


def with_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with columns in place of an index that has names."""
    named = [n for n in frame.index.names if n is not None and n not in frame.columns]
    return frame.reset_index(named) if named else frame


def numbers(column: pd.Series) -> pd.Series:
    """Returns a column as float64, NaN where it holds no number.

    Durations, dates and complex numbers are none: pandas counts them in units of its
    own, or drops their imaginary parts.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    floats = np.full(len(column), np.nan)
    if is_numeric_dtype(column.dtype) or is_string_dtype(column.dtype):
        try:
            values = pd.to_numeric(column, errors="coerce")
        except OverflowError:
            values = column.where(column.map(is_number)).astype(np.float64)
        if not np.iscomplexobj(values):
            floats = values.to_numpy(np.float64, na_value=np.nan)
    return pd.Series(floats, column.index, name=column.name)


def row_number(table: pd.DataFrame | pd.Series, place: int) -> int:
    """Returns the row of a table, from 1, that a row of some of its rows is.

    The index tells, as of a part of a table or of a file with empty lines.

    >>> row_number(pd.Series([1.0, 2.0, 3.0])[1:], 0)
    2
    """
    is_counted = pd.api.types.is_integer_dtype(table.index.dtype)
    return int(table.index[place] if is_counted else place) + 1


def unit_of(frame: pd.DataFrame) -> str:
    """Returns what the batch sizes of a curve or of step times count."""
    return str(frame["unit"].iloc[0]) if "unit" in frame.columns else "examples"


def refuse_first(wrong: pd.Series, column: pd.Series, table: str, allowed: str) -> None:
    """Raises UserError for the first wrong value of a column of a table, if any."""
    if wrong.any():
        place = int(np.argmax(wrong.to_numpy(bool)))
        row, value = row_number(column, place), column.iloc[place]
        shown = "empty" if pd.isna(value) else repr(str(value))
        raise UserError(
            f"{column.name} is {shown} in row {row} of the table {table}; it must "
            f"be {allowed}."
        )


def require_metric(curves: pd.DataFrame, metric: str) -> None:
    """Raises UserError unless the curves hold the metric."""
    check_known("metric of the curves", metric, metric_names(curves))


def metaparameter_names(trials: pd.DataFrame) -> list[str]:
    """Returns the columns of `trials` that hold metaparameters, in their order."""
    others = {*study_key(trials), *TRIALS.names, *BOUNDS}
    return [str(name) for name in trials.columns if name not in others]


def metric_names(curves: pd.DataFrame) -> list[str]:
    """Returns the metric columns of `curves`, in their order."""
    others = {*study_key(curves), *CURVES.names}
    return [str(name) for name in curves.columns if name not in others]


def cell_name(row: Mapping[Any, Any]) -> str:
    """Returns the name of the cell of a row, unique inside one sweep."""
    return Cell.from_json(row).name


def ends_of(trials: pd.DataFrame, names: Mapping[int, str] | None = None) -> str:
    """Returns at which step each of the first five trials ended, by name or number."""
    rows = trials[["trial", "end_step"]].to_numpy().tolist()
    ends = [
        f"{(names or {}).get(trial, trial)!r} at step {end}" for trial, end in rows[:5]
    ]
    return ", ".join([*ends, *(["..."] if len(rows) > 5 else [])])


def with_precision(frame: pd.DataFrame, studies: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of one sweep with precision after the columns of the cell.

    Rows of a cell that `studies` lacks count as float32: they are in no result.
    """
    precisions = studies["precision"].to_numpy(object)
    if len(set(precisions)) == 1:
        values: Any = precisions[0]
    else:
        codes = _codes(frame, studies, cell_key(studies.columns))
        values = np.append(precisions, FLOAT32)[codes]
    wider = frame.copy(deep=False)
    wider.insert(len(cell_key(frame.columns)), "precision", values)
    return wider


def cell_codes(frame: pd.DataFrame, cells: pd.DataFrame) -> Codes:
    """Returns the place in `cells` of each row's cell; UserError if it has none."""
    codes = _codes(frame, cells, study_key(cells))
    if (codes < 0).any():
        row = frame.iloc[int(np.argmax(codes < 0))]
        name = ", ".join(f"{column}={row[column]}" for column in study_key(cells))
        raise UserError(
            f"the tables do not belong together: no study has the cell {name}."
        )
    return codes


def has_rows(cells: pd.DataFrame, frame: pd.DataFrame) -> Bools:
    """Returns for each cell whether any row of the frame belongs to it."""
    present = np.zeros(len(cells), bool)
    codes = _codes(frame, cells, study_key(cells))
    present[codes[codes >= 0]] = True
    return present


def belongs(frame: pd.DataFrame, cells: pd.DataFrame) -> Bools:
    """Returns for each row of a table whether its cell is one of `cells`."""
    return np.asarray(_codes(frame, cells, study_key(cells)) >= 0, np.bool_)


def trial_codes(curves: pd.DataFrame, trials: pd.DataFrame) -> Codes:
    """Returns for each row of `curves` the position of its trial in `trials`, or -1."""
    return _codes(curves, trials, [*study_key(trials), "trial"])


def _codes(frame: pd.DataFrame, rows: pd.DataFrame, keys: Sequence[str]) -> Codes:
    wanted = pd.MultiIndex.from_frame(frame[list(keys)])
    places = pd.MultiIndex.from_frame(rows[list(keys)]).get_indexer(wanted)
    return np.asarray(places, np.int64)


class RowsByCell:
    """The rows of a table by cell, grouped once."""

    def __init__(
        self, table: pd.DataFrame, cells: pd.DataFrame, columns: Sequence[str]
    ) -> None:
        """Groups the rows of a table; each must belong to one of the cells."""
        self._table = table[list(columns)]
        self._rows = self._table.groupby(cell_codes(table, cells)).indices
        self._key = study_key(cells)
        keys = cells[self._key].itertuples(index=False, name=None)
        self._place = {key: place for place, key in enumerate(keys)}

    def of(self, cell: Mapping[Any, Any]) -> pd.DataFrame:
        """Returns the rows of a cell, in their order in the table."""
        place = self._place[tuple(cell[name] for name in self._key)]
        return self._table.iloc[self._rows.get(place, [])]


def winner_at_end(results: pd.DataFrame) -> Bools:
    """Returns for each cell whether its best trial lies at an end of its range.

    A wider range might give a smaller K*, so that this K* is an upper bound.
    """
    ends = results.get("at_boundary", pd.Series("", results.index))
    # A column of empty cells is read as numbers.
    return ends.astype(object).fillna("").ne("").to_numpy(bool)


def study_goal(study: pd.Series) -> Goal:
    """Returns the goal of one row of `studies`."""
    return Goal(
        metric=str(study["goal_metric"]),
        threshold=float(study["goal_threshold"]),
        direction=str(study["goal_direction"]),
        inclusive=bool(study["goal_inclusive"]),
        in_a_row=int(study["goal_in_a_row"]),
        mean_of=int(study["goal_mean_of"]),
    )


def curve_label(row: pd.Series, varying: Sequence[str]) -> str:
    """Returns the label of a curve: its values of the columns that vary, or `all`."""
    return ", ".join(f"{name} {row[name]}" for name in varying) or "all"


_OF_RESULTS = {
    "goal": "The goal that the row answers, as text.",
    "steps_to_result": "K*: the least steps_to_result of the cell's trials; NA where "
    "none is known to have met the goal.",
    "bracket_low": "K* lies in (bracket_low, steps_to_result].",
    "best_trial": "Number of the trial with this K*; its metaparameters follow.",
    "trials": "Trials of the study; the five outcomes add up to it.",
    **{name: f"Trials that are {name}." for name in OUTCOMES},
    "at_boundary": "Tuned names whose best value lies at an end of its range.",
    "steps_bound": "What is known of K* where that is only a bound; else empty.",
    "steps_low": "Least K* that the records allow; NA for none.",
    "steps_high": "Greatest K* that the records allow; NA for none.",
    "finishers_known": "How many of K_(1), K_(2), ... are exact.",
    "infeasible_share": "Share of the trials that diverged.",
    "lone_winner": "Whether K_(2) lies far above K*; NA where that is not known.",
    "interval_over_kstar": "Evaluation interval / K*: the resolution of K*.",
    "first_evaluation": "Share of trials that met the goal at their first evaluation.",
    "realised_sparsity": "Realised sparsity of the best trial.",
    "emptied_layers": "Layers of the best trial that kept no parameter.",
    **{
        name: MEANINGS[name]
        for name in (
            "closed",
            "evaluation_interval",
            "step_budget",
            "training_examples",
            "draws_exhausted",
        )
    },
}
_OF_BOUNDED = {
    "earliest": "Least step at which the trial can have met the goal; infinite: never.",
    "latest": "Greatest such step; equal to `earliest` where the record is exact.",
}
_OF_REPEATS = {
    name: MEANINGS[name] for name in ("outcome", "steps_to_result", "bracket_low")
} | {
    "trial": "Trial of the sweep whose point was trained again.",
    "repeat": "Number of the repeat, from 0.",
}
_OWN: Mapping[str, Mapping[str, str]] = {
    "results": _OF_RESULTS,
    "bounded": _OF_BOUNDED,
    "repeats": {**_OF_BOUNDED, **_OF_REPEATS},
}


def meaning(table: str, column: str, metrics: Iterable[str] = ()) -> str:
    """Returns what a column of a table holds, as a sentence.

    The table is a field of `Tables`; `metrics` names the columns of metrics.
    """
    own = _OWN.get(table, {}).get(column) or MEANINGS.get(column)
    if own is not None:
        return own
    if is_axis(column):
        return "Value of this further axis, as text; empty where a cell has none."
    if column in metrics:
        return "Metric of this evaluation, `split/name`; NaN where it was not taken."
    return "Metaparameter of the trial."


def entries(table: str) -> dict[str, str]:
    """Returns the meaning of each column that a table always has, by name."""
    names = SCHEMAS[table].names if table in SCHEMAS else tuple(_OWN[table])
    return {name: meaning(table, name) for name in names}
