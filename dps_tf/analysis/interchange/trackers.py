"""What other libraries record of runs, as tables: thin, one function for each.

Each takes, beside what is its own, the keywords of `runs.runs_of`: `about` and columns
of all runs (`batch_size=64`), `rename` and `leave_out`. None of the libraries is
imported. Event files of TensorBoard are read by `event_files`. MLflow 3 records into an
SQLite database unless told otherwise, earlier versions into a folder `mlruns`; both are
read, and exported files.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import COMPLETE, INCOMPLETE
from dps_tf.analysis.interchange.runs import Run, Runs, curve_of, runs_of
from dps_tf.core import UserError, near_matches, on_one_line

Steps = int | Callable[[Any], int]
"""Updates between two reports, or a function of the run that tells them."""
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


def from_keras(histories: Mapping[str, Any], **options: Any) -> Runs:
    """Returns runs of `model.fit`, from the `History` objects that it returned.

    An epoch's evaluation belongs to the update at which the epoch ended. A run that
    ended before its last epoch, by early stopping or a kill, was cut off.

    Args:
        histories: by names of the user's.
        options: see `runs.runs_of`; `batch_size` is one that a history does not tell.

    Raises:
        UserError: a history does not know its steps per epoch; see also `runs_of`.
    """
    runs = (_keras_run(name, history) for name, history in histories.items())
    return runs_of(runs, "histories of Keras", unsplit="train", **options)


def _keras_run(name: str, history: Any) -> Run:
    steps, epochs = (history.params or {}).get("steps"), list(history.epoch)
    if not steps:
        raise UserError(
            f"the history {name!r} does not know its steps per epoch: give fit a data "
            "set of known size, or steps_per_epoch."
        )
    curve = pd.DataFrame(history.history)
    curve.insert(0, "step", [(epoch + 1) * int(steps) for epoch in epochs])
    done = bool(epochs) and epochs[-1] + 1 >= history.params["epochs"]
    return Run(name, curve, status=COMPLETE if done else INCOMPLETE)


def from_optuna(
    study: Any,
    metric: str,
    *,
    steps_per_report: Steps,
    first_report: int,
    **options: Any,
) -> Runs:
    """Returns the trials of an Optuna study, from what they reported on the way.

    Trials that were pruned, failed, or still run were cut off. Trials that did not
    begin are left out. `trials.trial` is the number of the trial in the order of the
    study, and what metaparameters were drawn from becomes the space.

    Args:
        study: an `optuna.study.Study`.
        metric: `split/metric`, what was given to `trial.report`.
        steps_per_report: updates of the network between two numbers of reports, such as
            the steps of an epoch; or a function of the trial.
        first_report: number under which a trial reports after the first of these: 0
            where it counts epochs from 0, 1 where it counts them from 1. With reports
            by update, `steps_per_report=1, first_report=1`.
        options: see `runs.runs_of`. A parameter or attribute `batch_size` of a trial
            needs none.

    Raises:
        UserError: see `runs.runs_of`.
    """
    trials = [t for t in study.get_trials(deepcopy=False) if t.state.name != "WAITING"]
    runs = (_optuna_run(t, metric, steps_per_report, first_report) for t in trials)
    found = runs_of(runs, f"Optuna study {study.study_name}", **options)
    return replace(found, space=_optuna_space(trials, found))


def load_optuna(database: str | Path, name: str | None = None) -> Any:
    """Returns the study of an SQLite database of Optuna.

    Args:
        database: the file.
        name: of the study; may be left out if there is one.

    Raises:
        UserError: no such file or study, or no Optuna.
    """
    path = Path(database).expanduser().absolute()
    if not path.is_file():
        raise UserError(f"{str(path)!r} is no file: name the database of the study.")
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UserError(
            f"a study is read by Optuna ({error}): pip install optuna."
        ) from error
    try:
        return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")
    except (KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{str(path)!r} has no such study: {on_one_line(error)}."
        ) from error


def _optuna_run(trial: Any, metric: str, steps: Steps, first: int) -> Run:
    unit = steps(trial) if callable(steps) else steps
    reports = sorted(trial.intermediate_values.items())
    curve = pd.DataFrame(
        {
            "step": [(number - first + 1) * unit for number, _ in reports],
            metric: [float(value) for _, value in reports],
        }
    )
    known = {name: x for name, x in trial.user_attrs.items() if name == "batch_size"}
    status = COMPLETE if trial.state.name == "COMPLETE" else INCOMPLETE
    return Run(str(trial.number), curve, {**known, **trial.params}, status)


def _optuna_space(trials: Sequence[Any], runs: Runs) -> dict[str, list[Any]]:
    """Returns the space of the parameters that all trials drew from one range."""
    space: dict[str, list[Any]] = {}
    for name in runs.trials.columns:
        drawn = [t.distributions.get(name) for t in trials]
        if name != "batch_size" and drawn and all(d == drawn[0] for d in drawn):
            entry = _optuna_range(drawn[0])
            if entry is not None:
                space[str(name)] = entry
    return space


def _optuna_range(drawn: Any) -> list[Any] | None:
    low, high = getattr(drawn, "low", None), getattr(drawn, "high", None)
    if low is None or high is None or not low < high:
        return None
    if drawn.log:
        return ["log", float(low), float(high)]
    whole = isinstance(low, int)
    # The upper end of an integer scale of ours is not drawn any more.
    return ["integer", float(low), float(high) + 1] if whole else ["linear", low, high]


def from_wandb(source: str | Path | Iterable[Any], **options: Any) -> Runs:
    """Returns runs of Weights & Biases.

    Args:
        source: what `wandb.Api().runs(...)` gives, whose configuration and state are
            read too; or a CSV file that a chart was exported to, or a folder of several
            for several metrics, with columns `Step` and `run - metric`.
        options: see `runs.runs_of`. A chart tells no batch sizes, and not whether a run
            was cut off.

    Raises:
        UserError: a file that is no such export; see also `runs.runs_of`.
    """
    if not isinstance(source, (str, Path)):
        return runs_of(map(_wandb_run, source), "Weights & Biases", **options)
    path = Path(source).expanduser().absolute()
    charts = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if path.suffix == ".wandb" or (not charts and any(path.rglob("*.wandb"))):
        raise UserError(
            f"{str(path)!r} holds what wandb keeps for its server, which is not read: "
            "send it by `wandb sync`, and give wandb.Api().runs(...) or an exported "
            "chart."
        )
    curves: dict[str, dict[int, dict[str, float]]] = {}
    for chart in charts:
        _read_chart(chart, curves)
    found = (Run(name, curve_of(values)) for name, values in curves.items())
    return runs_of(found, str(path), **options)


def _wandb_run(run: Any) -> Run:
    rows = [
        # JSON has no words for the numbers that are none.
        {
            name: float(value)
            for name, value in row.items()
            if isinstance(value, (int, float)) or value in _NO_NUMBERS
        }
        for row in run.scan_history()
    ]
    curve = pd.DataFrame(rows, columns=None if rows else ["_step"])
    curve = curve.rename(columns={"_step": "step"})
    hidden = [name for name in curve.columns if str(name).startswith("_")]
    status = COMPLETE if run.state == "finished" else INCOMPLETE
    columns = dict(run.config)
    return Run(run.name or run.id, curve.drop(columns=hidden), columns, status)


def _read_chart(path: Path, curves: dict[str, dict[int, dict[str, float]]]) -> None:
    """Adds the curves of an exported chart by run and step."""
    frame = foreign_files.read_table(path)
    names = [str(name) for name in frame.columns]
    series = [n for n in names if " - " in n and not n.endswith(("__MIN", "__MAX"))]
    if "Step" not in names or not series:
        raise UserError(
            f"{str(path)!r} is no chart of Weights & Biases: it must have the columns "
            "'Step' and 'run - metric'."
        )
    for column in series:
        run, _, metric = column.rpartition(" - ")
        known = frame[["Step", column]].dropna()
        for step, value in zip(known["Step"], known[column], strict=True):
            curves.setdefault(run, {}).setdefault(int(step), {})[metric] = float(value)


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
