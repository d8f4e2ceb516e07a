"""From steps to time and money: which batch size is fastest, and which cheapest.

A table of step times (measured by the benchmark of this package, or anybody's) says
what one step takes: columns batch_size, devices (how many share the batch), seconds
(per step) and price (money per hour for all these devices together).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.tables import curve_key, read_csv, require, study_key
from dps_tf.core.errors import UserError

COLUMNS = ["batch_size", "devices", "seconds", "price"]
_SECONDS_PER_HOUR = 3600.0


def read_step_times(path: str | Path) -> pd.DataFrame:
    """Returns a table of step times from a CSV file, checked.

    Further columns of the identity (workload, optimizer, sparsity ...) may say what a
    row is of; without them a row is of every cell of its batch size.

    Raises:
        UserError: no such file, a missing column, or a value that is not positive
            (a price may be 0).
    """
    try:
        frame = read_csv(path)
    except FileNotFoundError as error:
        raise UserError(f"there is no table of step times {str(path)!r}.") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{str(path)!r} is not a CSV table: {error}.") from error
    return checked_step_times(frame)


def checked_step_times(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the table if its columns and values can be used, else UserError."""
    require(frame, COLUMNS, "of step times")
    for column in COLUMNS:
        values = pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)
        wrong = ~np.isfinite(values) | (values < 0)
        if column != "price":
            wrong |= values == 0
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UserError(
                f"{column} is {frame[column].iloc[row]!r} in row {row + 1} of the step "
                "times; it must be a positive number."
            )
    return frame


def seconds_per_step(work: pd.DataFrame) -> pd.DataFrame:
    """Returns what a step of each trial took, training and evaluation together.

    Columns: those of `study_key`, trial, seconds. Empty where nothing was recorded.

    Args:
        work: the table of that name, see the store's schemas.
    """
    if work.empty:
        return pd.DataFrame()
    trials = work[work["trial"].notna()].astype({"trial": np.int64})
    keys = [*study_key(work), "trial"]
    wide = trials.pivot_table(index=keys, columns="quantity", values="value")
    if not {"seconds", "steps"} <= set(wide.columns):
        return pd.DataFrame()
    known = wide[(wide["steps"] > 0) & (wide["seconds"] > 0)]
    return (known["seconds"] / known["steps"]).rename("seconds").reset_index()


def time_and_cost(results: pd.DataFrame, step_times: pd.DataFrame) -> pd.DataFrame:
    """Returns time-to-result and cost, one row per cell with a K* and its devices.

    Columns: those of `study_key`, steps_to_result, steps_bound, devices, seconds,
    price, time_seconds = K* x seconds, cost = time x price, and within each curve
    is_fastest and is_cheapest (ties: the smaller batch, then fewer devices). Cells
    whose K* is only bounded are never either.

    Args:
        results: one row per cell, of `reduce.results`.
        step_times: columns COLUMNS, see the module.

    Raises:
        UserError: no cell with a K* has a step time.
    """
    times = checked_step_times(step_times)
    keys = [name for name in study_key(times) if name in times.columns]
    reached = results[results["steps_to_result"].notna()]
    columns = [*study_key(results), "steps_to_result", "steps_bound"]
    frame = reached[columns].merge(times[[*keys, *COLUMNS[1:]]], on=keys, how="inner")
    if frame.empty:
        measured = ", ".join(str(b) for b in sorted(reached["batch_size"].unique()))
        raise UserError(
            "no cell with a steps-to-result has a step time: give times for some of "
            f"the batch sizes {measured or '(none)'}."
        )
    steps = frame["steps_to_result"].to_numpy(np.float64)
    seconds = frame["seconds"].to_numpy(np.float64)
    frame["time_seconds"] = steps * seconds
    hourly = frame["price"].to_numpy(np.float64) / _SECONDS_PER_HOUR
    frame["cost"] = frame["time_seconds"] * hourly
    frame = frame.sort_values(
        [*curve_key(frame), "batch_size", "devices"], kind="stable"
    )
    frame = frame.reset_index(drop=True)
    frame["is_fastest"] = _is_least(frame, "time_seconds")
    frame["is_cheapest"] = _is_least(frame, "cost")
    return frame


def _is_least(frame: pd.DataFrame, column: str) -> pd.Series:
    exact = frame[frame["steps_bound"] == ""]
    least = exact.groupby(curve_key(exact), sort=False)[column].idxmin()
    return pd.Series(frame.index.isin(least), index=frame.index)
