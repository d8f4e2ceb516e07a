"""Runs of MLflow: from its database, a folder `mlruns`, or exported files.

MLflow 3 records into an SQLite database unless told otherwise, earlier versions into
files. MLflow itself is not imported.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import COMPLETE, INCOMPLETE
from dps_tf.analysis.interchange.runs import Run, Runs, curve_of, runs_of
from dps_tf.core.errors import UserError, near_matches, on_one_line

_FINISHED = ("3", "FINISHED")  # in files and elsewhere
_TABLES = ("experiments", "runs", "params", "metrics")
_RUNS = """
    SELECT run_uuid, status, runs.lifecycle_stage, start_time, experiments.name
    FROM runs JOIN experiments USING (experiment_id)
"""
_VALUES = "SELECT run_uuid, key, value, is_nan, step FROM metrics ORDER BY timestamp"


@dataclass
class _Recorded:
    """A run as any of the forms tells it; of a metric, the last value of a step."""

    name: str
    status: str
    stage: str = "active"
    started: int = 0
    experiment: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    values: dict[int, dict[str, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def run(self) -> Run:
        done = COMPLETE if self.status in _FINISHED else INCOMPLETE
        return Run(self.name, curve_of(self.values), dict(self.params), done)


def from_mlflow(
    source: str | Path, experiment: str | None = None, **options: Any
) -> Runs:
    """Returns the runs of an experiment of MLflow, in the order of their beginning.

    Parameters are metaparameters. A run that did not finish was cut off; one that was
    deleted is left out.

    Args:
        source: the database (`mlflow.db`); or a folder `mlruns`, with
            `<experiment>/<run>/meta.yaml`, `metrics/` and `params/`; or one that
            mlflow-export-import wrote, with a `run.json` for each run.
        experiment: its name in a database, its number in a folder; may be left out if
            there is one.
        options: see `runs.runs_of`; runs have the names that MLflow gave them as ids.

    Raises:
        UserError: no run, several experiments, or something that cannot be read; see
            also `runs.runs_of`.
    """
    root = Path(source).expanduser().absolute()
    recorded = _of_database(root) if root.is_file() else _of_folder(root)
    found = [run for run in recorded if run.stage == "active"]
    if not found:
        raise UserError(
            f"{str(root)!r} holds no run of MLflow: name the folder mlruns, or the "
            "database, which is mlflow.db unless MLflow was told otherwise."
        )
    there = sorted({run.experiment for run in found})
    if experiment is None and len(there) > 1:
        raise UserError(
            f"{str(root)!r} holds runs of several experiments: name one of them "
            f"(--study), {', '.join(map(repr, there))}."
        )
    if experiment is not None and experiment not in there:
        raise UserError(
            f"{str(root)!r} has no runs of an experiment {experiment!r}: "
            f"{near_matches(experiment, there)}."
        )
    mine = [run for run in found if experiment in (None, run.experiment)]
    mine.sort(key=lambda run: (run.started, run.name))
    return runs_of((run.run() for run in mine), str(root), **options)


def _of_database(path: Path) -> list[_Recorded]:
    try:
        address = f"{path.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            return list(_recorded_in(database).values())
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise UserError(
            f"{str(path)!r} is no database of MLflow: {on_one_line(error)}."
        ) from error


def _recorded_in(database: sqlite3.Connection) -> dict[str, _Recorded]:
    # A view of such a name could be a query that never ends.
    kinds = dict(database.execute("SELECT name, type FROM sqlite_master"))
    missing = [name for name in _TABLES if kinds.get(name) != "table"]
    if missing:
        raise ValueError(f"it has no table {missing[0]}")
    found = {}
    for name, status, stage, started, experiment in database.execute(_RUNS):
        found[name] = _Recorded(name, status, stage, int(started or 0), experiment, {})
    for name, key, value in database.execute("SELECT run_uuid, key, value FROM params"):
        if name in found:
            found[name].params = {**found[name].params, key: value}
    for name, key, value, is_nan, step in database.execute(_VALUES):
        if name in found:
            found[name].values[int(step)][key] = float("nan" if is_nan else value)
    return found


def _of_folder(root: Path) -> Iterator[_Recorded]:
    exported = list(foreign_files.folders_with(root, "run.json"))
    for place in exported or foreign_files.folders_with(root, "metrics"):
        try:
            found = _exported(place) if exported else _stored(place)
        except UserError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{str(place)!r} is no run of MLflow: {on_one_line(error)}."
            ) from error
        if found is not None:
            yield found


def _exported(place: Path) -> _Recorded:
    content = foreign_files.read_json(place / "run.json").get("mlflow", {})
    info = content.get("info", {})
    found = _Recorded(
        str(info.get("run_id", place.name)),
        str(info.get("status")),
        str(info.get("lifecycle_stage", "active")),
        int(info.get("start_time") or 0),
        str(info.get("experiment_id", "")),
        content.get("params", {}),
    )
    for name, rows in content.get("metrics", {}).items():
        for row in rows:
            found.values[int(row["step"])][name] = float(row["value"])
    return found


def _stored(place: Path) -> _Recorded | None:
    """Returns a run of the file store; None for a model, which has metrics too."""
    text = "\n".join(_lines(place / "meta.yaml"))
    meta = dict(re.findall(r"^(\w+): *'?([^'\n]*)'?$", text, re.M))
    if "run_id" not in meta:
        return None
    found = _Recorded(
        place.name,
        meta.get("status", ""),
        meta.get("lifecycle_stage", "active"),
        int(meta.get("start_time") or 0),
        meta.get("experiment_id", ""),
        {name: "\n".join(_lines(path)) for name, path in _files(place / "params")},
    )
    for name, path in _files(place / "metrics"):
        for line in _lines(path):
            _, value, step = line.split()[:3]
            found.values[int(step)][name] = float(value)
    return found


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the files below a folder by their names, which may have parts."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _lines(path: Path) -> list[str]:
    data = foreign_files.read_bytes(path, foreign_files.LARGEST_TABLE)
    return data.decode("utf-8", "replace").splitlines()
