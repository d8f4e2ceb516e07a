"""What other libraries record of runs, as tables: thin, one function for each.

Each takes, beside what is its own, the keywords of `runs.runs_of`: `about` and columns
of all runs (`batch_size=64`), `rename` and `leave_out`. None of the libraries is
imported. Event files of TensorBoard are read by `event_files`, runs of MLflow by
`mlflow_runs`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import COMPLETE, INCOMPLETE
from dps_tf.analysis.interchange.runs import Run, Runs, curve_of, runs_of
from dps_tf.core.errors import UserError, on_one_line

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
