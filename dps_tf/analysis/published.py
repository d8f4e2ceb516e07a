"""Reads tables of published curves of steps to result, to compare with measured ones.

A table is a CSV file with a row for each point of a curve:

| column | meaning |
|---|---|
| curve | name of the curve |
| batch_size | whole number, at least 1; once for each curve |
| steps_to_result | steps of the best trial, above 0 |
| relative_error | optional: error of reading the steps off a figure, such as 0.05; empty where it is unknown |
| goal | optional: the goal of the curve, as text |

Further columns, such as source and note, are for readers of the file. A results table of
this package is such a table too: see `fit_table`. A shipped table is named as a shipped
gin file is: `shallue2019/published.csv`.
"""  # noqa: E501 - a row of a table is one line

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.fit_table import curves_of_table
from dps_tf.analysis.interchange.foreign_files import read_csv
from dps_tf.analysis.law import MINIMUM_POINTS, LawFit, Observations, fit_law
from dps_tf.analysis.tables import numbers, refuse_first, require
from dps_tf.core import UserError, check_known

COLUMNS = ("curve", "batch_size", "steps_to_result")
_LARGEST = 1e15
DIGITIZED_BADLY = 0.15
"""Relative error of a K* whose marker is covered by others: three times the usual."""


def shipped_file(name: str) -> Path:
    """Returns the path of a file among the shipped gin files; it need not exist."""
    return Path(str(resources.files("dps_tf") / "gin_configs")) / name


def read_published(
    name_or_path: str | Path, curves: Sequence[str] = ()
) -> pd.DataFrame:
    """Returns a table of published curves, checked; see the top of this module.

    The optional columns are always there: relative_error is NaN and goal empty where
    the table has none.

    Args:
        name_or_path: a CSV file, or the name of a shipped one; a shipped name wins, and
            `./name` is always a path.
        curves: names of the wanted curves, or patterns such as `*mnist*sgd`; all
            curves by default.

    Raises:
        UserError: the file does not exist or holds another table, or a pattern matches
            no curve.
    """
    shipped = shipped_file(str(name_or_path))
    path = shipped if shipped.suffix == ".csv" and shipped.is_file() else name_or_path
    if not Path(path).exists():
        shipped_names = sorted(
            file.relative_to(shipped_file("")).as_posix()
            for file in shipped_file("").glob("*/published.csv")
        )
        raise UserError(
            f"there is no table of published curves {str(name_or_path)!r}: name a CSV "
            f"file, or a shipped table ({', '.join(shipped_names)})."
        )
    return _chosen(checked_published(read_csv(path)), curves)


def checked_published(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of published curves with all of its columns, else UserError."""
    if "curve" not in frame and "workload" in frame:
        named = [
            rows.assign(curve=name) for name, rows in curves_of_table(frame).items()
        ]
        frame = pd.concat(named).dropna(subset="steps_to_result")
    require(frame, COLUMNS, "of published curves")
    if frame.empty:
        raise UserError("the table of published curves has no rows.")
    _refuse(frame["curve"].isna(), frame["curve"], "a name")
    sizes, steps = (numbers(frame[name]) for name in COLUMNS[1:])
    wrong = ~sizes.between(1, _LARGEST) | (sizes % 1 != 0)
    _refuse(wrong, frame["batch_size"], f"a whole number from 1 to {_LARGEST:.0e}")
    wrong = ~((steps > 0) & (steps <= _LARGEST))
    _refuse(wrong, frame["steps_to_result"], f"above 0, at most {_LARGEST:.0e}")
    given = frame.get("relative_error", pd.Series(np.nan, frame.index))
    errors = numbers(given.rename("relative_error"))
    wrong = given.notna() & ~((errors >= 0) & (errors < 1))
    _refuse(wrong, given, "at least 0 and below 1, such as 0.05 for 5 %, or empty")
    checked = frame.assign(
        curve=frame["curve"].astype(str),
        batch_size=sizes.astype(np.int64),
        steps_to_result=steps,
        relative_error=errors,
        goal=frame.get("goal", pd.Series("", frame.index)).fillna("").astype(str),
    )
    twice = checked.duplicated(["curve", "batch_size"])
    if twice.any():
        row = checked[twice].iloc[0]
        raise UserError(
            f"the curve {row['curve']!r} has two rows for batch size "
            f"{row['batch_size']} in the table of published curves: leave one."
        )
    return checked


def _refuse(wrong: pd.Series, column: pd.Series, allowed: str) -> None:
    refuse_first(wrong, column, "of published curves", allowed)


def _chosen(frame: pd.DataFrame, patterns: Sequence[str]) -> pd.DataFrame:
    """Returns the curves that match any of the patterns; all if there are none."""
    if not patterns:
        return frame
    names = list(dict.fromkeys(frame["curve"]))
    wanted: set[str] = set()
    for pattern in patterns:
        # A name may have brackets, which are a pattern of other texts.
        hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        if not hits:
            check_known("published curve", pattern, names)
        wanted.update(hits)
    return frame[frame["curve"].isin(wanted)].reset_index(drop=True)


def fits(published: pd.DataFrame) -> dict[str, LawFit]:
    """Returns the law of each published curve that has enough batch sizes, by curve.

    Digitized K* have no bracket. Their error counts as noise: `relative_error`, or
    DIGITIZED_BADLY where it is empty.
    """
    return {
        str(curve): fit_law(
            Observations.of(
                rows["batch_size"],
                rows["steps_to_result"],
                noise=np.log2(1 + rows["relative_error"].fillna(DIGITIZED_BADLY)),
            )
        )
        for curve, rows in published.groupby("curve", sort=False)
        if len(rows) >= MINIMUM_POINTS
    }
