"""Reads the trials of Optuna's studies from their intermediate reports."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.checks import COMPLETE, INCOMPLETE, measured
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.interchange.runs import Run, report_notes, runs_of
from dps_tf.core import UserError, near_matches, on_one_line, whole

Steps = int | Callable[[Any], int]
"""Updates between two reports, or a function of the trial that returns them."""
_LOG_BYTE = 18  # of the header: 2 where writes go to a log beside the file first
_TABLES = ("studies", "trials", "trial_params", "trial_intermediate_values")


def from_optuna(
    study: Any,
    metric: str,
    *,
    steps_per_report: Steps,
    first_report: int,
    **options: Any,
) -> Runs:
    """Returns the trials of an Optuna study, from their intermediate reports.

    Trials that were pruned, failed, or still run count as cut off. Trials that did not
    begin are left out. `trials.trial` is the number of the trial in the order of the
    study, and the ranges of metaparameters become the space.

    Args:
        study: an `optuna.study.Study`.
        metric: the name, `split/metric`, of the values given to `trial.report`.
        steps_per_report: updates of the network between two numbers of reports, such as
            the steps of an epoch; or a function of the trial.
        first_report: number of a trial's first report: 0 where it counts epochs from 0,
            1 where it counts them from 1. With reports
            by update, `steps_per_report=1, first_report=1`.
        options: see `runs.runs_of`. `batch_size` may also be a parameter or an
            attribute of a trial.

    Raises:
        UserError: see `runs.runs_of`.
    """
    if not hasattr(study, "get_trials"):
        raise UserError(f"study is a {type(study).__name__}: give one of load_optuna.")
    first_report = whole("first_report", first_report, 0)
    trials = [t for t in study.get_trials(deepcopy=False) if t.state.name != "WAITING"]
    reported = (_run(t, metric, steps_per_report, first_report) for t in trials)
    runs = runs_of(reported, f"Optuna study {study.study_name}", **options)
    directions = {direction.name.lower() for direction in study.directions}
    stated = directions.pop() if len(directions) == 1 else ""
    numbers = [number for t in trials for number in t.intermediate_values]
    sizes = runs.trials.batch_size
    notes = report_notes(min(numbers), first_report, steps_per_report, sizes)
    return replace(
        runs,
        space=_space(trials, runs),
        direction=stated,
        notes=(*runs.notes, *notes, *_contradictions(trials)),
    )


def _contradictions(trials: Sequence[Any]) -> Iterator[str]:
    """Yields a note if a trial has one batch size drawn, and another one noted."""
    size = "batch_size"
    both = [t for t in trials if size in t.params and size in t.user_attrs]
    for trial in [t for t in both if t.params[size] != t.user_attrs[size]][:1]:
        yield (
            f"{size} of trial {trial.number} is {trial.params[size]} as a parameter, "
            f"and {trial.user_attrs[size]} as an attribute: the parameter counts."
        )


def load_optuna(database: str | Path, name: str | None = None) -> Any:
    """Returns the study of a database or journal of Optuna, opened for reading only.

    Args:
        database: path of an SQLite file, or of the file of a `JournalFileBackend`.
        name: name of the study; may be left out if there is only one.

    Raises:
        UserError: no such file or study, several studies and no name, or no Optuna.
    """
    path = Path(database).expanduser().absolute()
    if foreign_files.kind_of(path) != "file":
        raise UserError(f"{str(path)!r} is no file: name the database of the study.")
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UserError(
            f"a study is read by Optuna ({error}): pip install 'optuna>=4'."
        ) from error
    try:
        with foreign_files.opened(path, follow=True) as file:
            is_journal = file.read(1) == b"{"
        storage = _journal(path) if is_journal else _database(path, optuna.storages)
        names = optuna.get_all_study_names(storage)
        study = optuna.load_study(
            study_name=_chosen(path, names, name), storage=storage
        )
        study.get_trials(deepcopy=False)  # so that damage is seen here
    except UserError:
        raise
    except Exception as error:
        # Optuna and SQLAlchemy raise what they like on bytes that nobody has checked.
        raise UserError(
            f"{str(path)!r} cannot be read as a study of Optuna: {on_one_line(error)}."
        ) from error
    return study


def _journal(path: Path) -> Any:
    journal = importlib.import_module("optuna.storages.journal")
    storages = importlib.import_module("optuna.storages")
    return storages.JournalStorage(journal.JournalFileBackend(str(path)))


def _database(path: Path, storages: Any) -> Any:
    with closing(_opened(path)) as connection:
        _check_tables(connection)
    creator = {"creator": lambda: _opened(path)}
    return storages.RDBStorage("sqlite://", creator, skip_table_creation=True)


def _opened(path: Path) -> sqlite3.Connection:
    """Returns a connection that can only read: Optuna would add its tables.

    Even then SQLite adds two files beside a database that keeps a log of its writes. It
    adds none where nobody can be writing, as the absence of the log shows.
    """
    log = path.with_name(f"{path.name}-wal")
    with foreign_files.opened(path, follow=True) as file:
        keeps_log = file.read(_LOG_BYTE + 1)[_LOG_BYTE:] == b"\x02"
    is_at_rest = keeps_log and not foreign_files.kind_of(log)
    address = f"{path.as_uri()}?mode=ro{'&immutable=1' if is_at_rest else ''}"
    return sqlite3.connect(address, uri=True, check_same_thread=False)


def _check_tables(connection: sqlite3.Connection) -> None:
    kinds = dict(connection.execute("SELECT name, type FROM sqlite_master"))
    # A view could be a query that never ends, and Optuna makes none.
    views = [name for name, kind in kinds.items() if kind == "view"]
    if views:
        raise ValueError(f"it has a view {views[0]}")
    missing = [name for name in _TABLES if kinds.get(name) != "table"]
    if missing:
        raise ValueError(f"it has no table {missing[0]}")


def _chosen(path: Path, names: Sequence[str], name: str | None) -> str:
    """Returns the name of the study that the user named, or of the only one."""
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return str(name)
    if not names:
        raise UserError(f"{str(path)!r} holds no study of Optuna.")
    if name is None:
        raise UserError(
            f"{str(path)!r} holds {len(names)} studies: name one by --study (from "
            f"Python, `name`), {', '.join(map(repr, names[:20]))}."
        )
    raise UserError(
        f"{str(path)!r} has no study {name!r} (--study): {near_matches(name, names)}."
    )


def _run(trial: Any, metric: str, steps: Steps, first: int) -> Run:
    unit = whole("steps_per_report", steps(trial) if callable(steps) else steps)
    reports = sorted(trial.intermediate_values.items())
    curve = pd.DataFrame(
        {
            "step": [(number - first + 1) * unit for number, _ in reports],
            metric: [measured(value) for _, value in reports],
        }
    )
    attributes = {n: x for n, x in trial.user_attrs.items() if n == "batch_size"}
    status = COMPLETE if trial.state.name == "COMPLETE" else INCOMPLETE
    return Run(str(trial.number), curve, {**attributes, **trial.params}, status)


def _space(trials: Sequence[Any], runs: Runs) -> dict[str, list[Any]]:
    """Returns the space of the parameters that all trials drew from one range."""
    space: dict[str, list[Any]] = {}
    for name in runs.trials.columns:
        drawn = [t.distributions.get(name) for t in trials]
        if name != "batch_size" and drawn and all(d == drawn[0] for d in drawn):
            entry = _range(drawn[0])
            if entry is not None:
                space[str(name)] = entry
    return space


def _range(drawn: Any) -> list[Any] | None:
    low, high = getattr(drawn, "low", None), getattr(drawn, "high", None)
    if low is None or high is None or not low < high:
        return None
    if drawn.log:
        return ["log", float(low), float(high)]
    whole = isinstance(low, int)
    # An integer scale of this package excludes its upper end.
    return ["integer", float(low), float(high) + 1] if whole else ["linear", low, high]
