"""Converts runs as libraries record them into the two tables of `run_tables`.

The reader of a library returns a `Run` for each recorded run, and `runs_of` does what
all readers need: it adds columns that the library does not record, renames metrics, and
counts steps in updates of the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.checks import COMPLETE, INCOMPLETE, INFEASIBLE
from dps_tf.analysis.interchange.run_tables import DEFAULTS, Runs
from dps_tf.analysis.tables import require
from dps_tf.core import CELL_TYPES, UserError, is_axis, is_whole, near_matches

_TEXTS = ("precision", *(name for name, kind in CELL_TYPES.items() if kind is str))
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "eval": "validation",
    "test": "test",
}
"""Spellings of the splits in other software, before `_` or `/`."""
_UNKNOWN_SPLIT = "logged"


@dataclass(frozen=True)
class Run:
    """One run as a library has recorded it.

    Attributes:
        name: name of the run in the library.
        curve: one row per evaluation, with the number `step` under which it was logged,
            and metrics by their names in the library.
        columns: recorded columns of the cell, and metaparameters.
        status: COMPLETE, INFEASIBLE or INCOMPLETE.
        note: a sentence on what could not be read, or "".
    """

    name: str
    curve: pd.DataFrame
    columns: Mapping[str, Any] = field(default_factory=dict)
    status: str = COMPLETE
    note: str = ""


def runs_of(  # noqa: PLR0913 - each is independent of the others
    runs: Iterable[Run],
    origin: str,
    *,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    rename: Mapping[str, str] | None = None,
    unsplit: str = _UNKNOWN_SPLIT,
    steps_per_report: int = 1,
    first_report: int = 1,
    **common: Any,
) -> Runs:
    """Returns the tables of some runs, numbered in their order.

    Metrics become `split/metric`: `val_loss`, `val/loss` and `eval_loss` are
    `validation/loss`. Metaparameters that are texts are left out: the K* of a cell is
    over all of its runs, whatever their texts. To give such runs cells of their own,
    rename the text to a further axis: `workload.network_arguments.activation`.

    Args:
        runs: runs in an order that stays the same when more are added.
        origin: source of the runs, for messages.
        about: further columns by the name of a run, also `status` and `steps`. They
            override `common`, which overrides the columns that the run records.
        rename: new names of metrics and columns.
        unsplit: split of metrics without one in their names.
        steps_per_report: updates of the network between two numbers under which metrics
            were logged, such as the steps of an epoch.
        first_report: number of the first report; 0 where epochs count from 0.
        common: columns of all runs, such as `batch_size=64`, `optimizer="adam"`.

    Raises:
        UserError: no runs, one without a batch size, two metrics of one name, or a name
            that cannot be renamed.
    """
    renamed = dict(rename or {})
    _check_renaming(renamed)
    rows, curves, names, notes, empty = [], [], [], [], []
    for number, run in enumerate(runs):
        if run.curve.empty and not run.note and run.status != INFEASIBLE:
            empty.append(run.name)
            continue
        own = _renamed(run.columns, renamed)
        _check_columns(run.name, own, ("trial", "status", "steps"), origin)
        given = {**common, **(about or {}).get(run.name, {})}
        _check_columns(run.name, given, ("trial",), origin)
        columns = {**own, **_renamed(given, renamed)}
        if "batch_size" not in columns:
            raise UserError(
                f"run {run.name!r} of {origin} has no batch size: give "
                "batch_size for all runs, or for this one."
            )
        rows.append({"status": run.status, **_columns(columns), "trial": number})
        require(run.curve, ["step"], f"of run {run.name!r}")
        curve = _with_splits(run.curve.rename(columns=renamed), unsplit)
        # In floating point, so that what is too large is refused and does not wrap.
        step = curve["step"].to_numpy(np.float64) - first_report + 1
        curves.append(curve.assign(trial=number, step=step * steps_per_report))
        names.append(run.name)
        notes += [run.note] if run.note else []
    _check_names([*names, *empty], about or {}, origin)
    if empty:
        first = ", ".join(map(repr, empty[:5])) + (", ..." if empty[5:] else "")
        notes.append(f"without any evaluation, {first} are no runs and left out.")
    if not names:
        raise UserError(f"no run of {origin} has an evaluation: {notes[-1]}")
    trials = _with_defaults(rows, names)
    evaluations = pd.concat(curves, ignore_index=True)
    least = evaluations["step"].min() / steps_per_report + first_report - 1
    notes += first_report_notes(least, first_report, steps_per_report)
    return Runs(trials, evaluations, origin, notes=tuple(notes))


def first_report_notes(least: float, first: int, unit: float) -> list[str]:
    """Returns a note if reports may be counted from another number than `first`."""
    if unit == 1 or abs(least - first) != 1:
        return []
    return [
        f"the first report is {least:g}, and first_report is {first}: if reports "
        f"count from {least:g}, give first_report={least:g}, or each K* is one report "
        f"too {'early' if least < first else 'late'}."
    ]


def _renamed(columns: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Returns columns under their new names; UserError if two would be the same."""
    names = [renamed.get(name, name) for name in columns]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two columns would both be called {name!r}: rename only one of them."
            )
    return dict(zip(names, columns.values(), strict=True))


def _check_renaming(renamed: Mapping[str, str]) -> None:
    """Raises UserError for a renaming of steps, or to the name of steps or trials."""
    if "step" in renamed:
        raise UserError("step numbers the evaluations of a run: it cannot be renamed.")
    for old, new in renamed.items():
        if new in ("trial", "step"):
            raise UserError(
                f"{old!r} cannot be renamed to {new!r}, which numbers "
                f"{'runs' if new == 'trial' else 'evaluations'}: choose another name."
            )


def _check_columns(
    run: str, columns: Iterable[str], others: Sequence[str], origin: str
) -> None:
    """Raises UserError for a column with another meaning in the table of trials."""
    for name in columns:
        if name in others:
            raise UserError(
                f"run {run!r} of {origin} has a column {name!r}, which the table of "
                "trials has for something else: rename it."
            )


def _check_names(names: Sequence[str], about: Iterable[str], origin: str) -> None:
    """Raises UserError if there is no run, or none of a name in `about`."""
    if not names:
        raise UserError(f"{origin} holds no run.")
    for name in about:
        if name not in names:
            near = near_matches(name, names[:20])
            raise UserError(f"{origin} has no run {name!r}: {near}.")


def _with_defaults(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> pd.DataFrame:
    """Returns a table of trials with all columns of a cell, and the status."""
    # Names as objects: the name of a folder may not be UTF-8.
    index = pd.Index(list(names), dtype=object, name="run")
    trials = pd.DataFrame(list(rows), index=index)
    defaults = {"workload": "runs", "optimizer": "unknown", **DEFAULTS}
    missing: dict[str, Any] = {
        name: value for name, value in defaults.items() if name not in trials.columns
    }
    return trials.assign(**missing).fillna(defaults)


def _columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns that a table can hold; texts of numbers become numbers."""
    columns: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TEXTS or is_axis(name):
            columns[name] = str(value)
            if not columns[name].isprintable():
                raise UserError(f"{name} is {value!r}; it must be printable text.")
            continue
        number = _number(value)
        if name in (*CELL_TYPES, "steps") and (number is None or np.isnan(number)):
            raise UserError(f"{name} is {value!r}; it must be a number.")
        if name in ("status", "trial"):
            columns[name] = value
        elif number is not None:
            columns[name if name in CELL_TYPES else _identifier(name)] = number
    return columns


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _identifier(name: str) -> str:
    """Returns a name as an identifier: `adam.beta1` becomes `adam_beta1`."""
    word = re.sub(r"\W", "_", name)
    return word if word.isidentifier() else f"_{word}"


def _with_splits(curve: pd.DataFrame, unsplit: str) -> pd.DataFrame:
    """Returns a curve whose metrics are called `split/metric`."""
    names = {
        name: metric_name(str(name), unsplit)
        for name in curve.columns
        if name != "step"
    }
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    if twice:
        both = [old for old, new in names.items() if new == twice[0]]
        raise UserError(
            f"the metrics {' and '.join(map(repr, both))} would both be called "
            f"{twice[0]!r}: rename one of them."
        )
    return curve.rename(columns=names).dropna(how="all", subset=list(names.values()))


def metric_name(name: str, unsplit: str = _UNKNOWN_SPLIT) -> str:
    """Returns the name of a metric of other software as `split/metric`.

    >>> metric_name("val_loss"), metric_name("eval/top-5 error"), metric_name("loss")
    ('validation/loss', 'validation/top-5_error', 'logged/loss')
    """
    if split := split_of(name):
        return f"{split}/{_words(name).partition('_')[2]}"
    return f"{unsplit}/{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}"


def split_of(name: str) -> str:
    """Returns the split that the name of a metric begins with, or ""."""
    start, _, rest = _words(name).partition("_")
    return SPLITS.get(start.lower(), "") if rest else ""


def _words(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


def curve_of(values: Mapping[int, Mapping[str, float]]) -> pd.DataFrame:
    """Returns the curve of a run, given its metrics by step."""
    rows = [{"step": step, **values[step]} for step in sorted(values)]
    return pd.DataFrame(rows, columns=None if rows else ["step"])


def from_keras(
    histories: Mapping[str, Any],
    *,
    validation_freq: int | Sequence[int] = 1,
    **options: Any,
) -> Runs:
    """Returns runs of `model.fit`, from the `History` objects that it returned.

    An epoch's evaluation belongs to the update at which the epoch ended. A run that
    ended before its last epoch, by early stopping or a kill, was cut off.

    Args:
        histories: histories by the names of the runs, which the user chooses.
        validation_freq: the argument of `fit` of that name, which no history records.
        options: see `runs_of`; `batch_size` has to be among them.

    Raises:
        UserError: a history without its steps per epoch, or that was not validated
            after the epochs of `validation_freq`; see also `runs_of`.

    Example, after `history = model.fit(...)`:

        runs = from_keras({"first": history}, batch_size=64)
    """
    runs = (_run_of_keras(name, h, validation_freq) for name, h in histories.items())
    return runs_of(runs, "histories of Keras", unsplit="train", **options)


def _run_of_keras(name: str, history: Any, every: int | Sequence[int]) -> Run:
    steps = (getattr(history, "params", None) or {}).get("steps")
    if not is_whole(steps, 1):
        raise UserError(
            f"the history {name!r} has no number of steps per epoch: give what fit "
            "returned, and fit a data set of known size, or steps_per_epoch."
        )
    epochs = list(history.epoch)
    listed = every if isinstance(every, Sequence) else range(0, 10**9, every)
    validated = [epoch for epoch in epochs if epoch + 1 in listed]
    columns = {}
    for column, values in history.history.items():
        of = validated if column.startswith("val_") else epochs
        if len(values) != len(of):
            raise UserError(
                f"the history {name!r} has {len(values)} values of {column!r} for "
                f"{len(of)} epochs: give validation_freq as fit had it."
            )
        columns[column] = pd.Series(values, of)
    curve = pd.DataFrame(columns, epochs)
    curve.insert(0, "step", [(epoch + 1) * steps for epoch in epochs])
    # TerminateOnNaN ends a run with a loss that is measured, and not finite.
    for column, of_epoch in columns.items():
        if not math.isfinite(of_epoch.iloc[-1]):
            curve.loc[of_epoch.index[-1], column] = math.inf
    is_done = bool(epochs) and epochs[-1] + 1 >= history.params["epochs"]
    return Run(name, curve, status=COMPLETE if is_done else INCOMPLETE)
