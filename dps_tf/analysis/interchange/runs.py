"""Runs of other people's software as two tables, and as a sweep that analyses read.

The tables are those of `foreign_study`. `read_runs` reads them from files; `trackers`
and `event_files` make them of what other libraries record. Whatever was
cut off (pruned, stopped, killed, crashed) is INCOMPLETE there and censored in the
sweep: it bounds K*, and is never counted as a run that could not meet the goal.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import (
    COMPLETE,
    DEFAULTS,
    ArchiveRules,
    ForeignStudy,
    foreign_studies,
)
from dps_tf.analysis.interchange.sweep import Conversion, Source, write_sweep
from dps_tf.core import CELL_TYPES, Goal, UserError, is_axis, near_matches

TABLES = ("trials", "evaluations")
"""Names of the two files of a folder of runs, without `.csv` or `.parquet`."""
_RULES = ArchiveRules(keep_incomplete=True, infeasible_may_reach=True)
_TEXTS = ("precision", *(name for name, kind in CELL_TYPES.items() if kind is str))
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "eval": "validation",
    "test": "test",
}
"""How others spell the splits, before `_` or `/`."""
_UNKNOWN_SPLIT = "logged"


@dataclass(frozen=True)
class Run:
    """One run as a library has recorded it.

    Attributes:
        name: its name there.
        curve: one row per evaluation, `step` in updates, and metrics by their names
            there.
        columns: what is known of it: those of the cell, and metaparameters.
        status: COMPLETE, INFEASIBLE or INCOMPLETE.
    """

    name: str
    curve: pd.DataFrame
    columns: Mapping[str, Any] = field(default_factory=dict)
    status: str = COMPLETE


@dataclass(frozen=True)
class Runs:
    """Runs from elsewhere as tables; see `foreign_study.foreign_studies` for columns.

    Attributes:
        trials: one row per run, under its name there.
        evaluations: one row per evaluation.
        origin: where they are from, for messages.
        space: what metaparameters were drawn from, as `Space.to_json` writes it.
    """

    trials: pd.DataFrame
    evaluations: pd.DataFrame
    origin: str = "runs"
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def studies(self) -> list[ForeignStudy]:
        """Returns the runs by cell, checked; see ForeignStudy for what is refused."""
        return foreign_studies(
            self.trials.reset_index(drop=True),
            self.evaluations,
            self.origin,
            space=self.space,
        )


def join(parts: Iterable[Runs]) -> Runs:
    """Returns several sets of runs as one, renumbered; say, one for each batch size.

    Raises:
        UserError: there are none.
    """
    found = list(parts)
    if not found:
        raise UserError("there are no runs to join: give at least one set of them.")
    trials, evaluations, first = [], [], 0
    for part in found:
        trials.append(part.trials.assign(trial=part.trials["trial"] + first))
        shifted = part.evaluations["trial"] + first
        evaluations.append(part.evaluations.assign(trial=shifted))
        first += int(part.trials["trial"].max()) + 1 if len(part.trials) else 0
    space: dict[str, Sequence[Any]] = {}
    for part in found:
        space.update(part.space)
    return Runs(
        pd.concat(trials),
        pd.concat(evaluations, ignore_index=True),
        ", ".join(dict.fromkeys(part.origin for part in found))[:200],
        space,
    )


def runs_of(  # noqa: PLR0913 - each is independent of the others
    found: Iterable[Run],
    origin: str,
    *,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    rename: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
    unsplit: str = _UNKNOWN_SPLIT,
    steps_per_report: int = 1,
    first_report: int = 1,
    **common: Any,
) -> Runs:
    """Returns the tables of some runs, numbered in their order.

    Metrics become `split/metric`: `val_loss`, `val/loss` and `eval_loss` are
    `validation/loss`. Metaparameters that are texts are left out: the K* of a cell is
    over all of its runs, whatever these were given. To tell such runs apart, rename the
    text to a further axis, such as `workload.network_arguments.activation`.

    Args:
        found: the runs.
        origin: where they are from, for messages.
        about: further columns by the name of a run; they count before `common`, and
            that before what the run itself tells.
        rename: other names of metrics and columns.
        leave_out: names of metrics and columns that are not read.
        unsplit: split of metrics that name none.
        steps_per_report: updates of the network between two numbers under which metrics
            were logged, such as the steps of an epoch.
        first_report: number after the first of these; 0 where epochs count from 0.
        common: columns of all runs, such as `batch_size=64`, `optimizer="adam"`.

    Raises:
        UserError: no runs, one without a batch size, or two metrics of one name.
    """
    rows, curves, names = [], [], []
    renamed = dict(rename or {})
    for number, run in enumerate(found):
        given = {**run.columns, **common, **(about or {}).get(run.name, {})}
        columns = {
            renamed.get(name, name): value
            for name, value in given.items()
            if name not in leave_out
        }
        if "batch_size" not in columns:
            raise UserError(
                f"run {run.name!r} of {origin} does not tell its batch size: give "
                "batch_size for all runs, or for this one."
            )
        rows.append({"trial": number, "status": run.status, **_columns(columns)})
        curve = run.curve.drop(columns=list(leave_out), errors="ignore")
        curve = _with_splits(curve.rename(columns=renamed), unsplit)
        step = (curve["step"] - first_report + 1) * steps_per_report
        curves.append(curve.assign(trial=number, step=step))
        names.append(run.name)
    _check_names(names, about or {}, origin)
    trials = pd.DataFrame(rows, index=pd.Index(names, name="run"))
    return Runs(_with_defaults(trials), pd.concat(curves, ignore_index=True), origin)


def _check_names(names: Sequence[str], about: Iterable[str], origin: str) -> None:
    """Raises UserError unless there are runs, and all that something is said of."""
    if not names:
        raise UserError(f"{origin} holds no run.")
    for name in about:
        if name not in names:
            known = near_matches(name, names[:20])
            raise UserError(f"{origin} has no run {name!r}: {known}.")


def _with_defaults(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns trials with all columns that name a cell, and their status."""
    defaults = {"workload": "runs", "optimizer": "unknown", **DEFAULTS}
    missing: dict[str, Any] = {
        name: value for name, value in defaults.items() if name not in trials.columns
    }
    return trials.assign(**missing).fillna(defaults)


def _columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run that a table can have; texts may be numbers."""
    columns: dict[str, Any] = {}
    for name, value in given.items():
        if name in _TEXTS or is_axis(name):
            columns[name] = str(value)
            continue
        number = _number(value)
        if name in CELL_TYPES and number is None:
            raise UserError(f"{name} is {value!r}; it must be a number.")
        if name == "status":
            columns[name] = value
        elif number is not None:
            columns[name if name in CELL_TYPES else _identifier(name)] = number
    return columns


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _identifier(name: str) -> str:
    """Returns a name as that of a metaparameter: `adam.beta1` is `adam_beta1`."""
    found = re.sub(r"\W", "_", name)
    return found if found.isidentifier() else f"_{found}"


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
            f"{twice[0]!r}: rename one of them, or leave it out."
        )
    return curve.rename(columns=names).dropna(how="all", subset=list(names.values()))


def metric_name(name: str, unsplit: str = _UNKNOWN_SPLIT) -> str:
    """Returns the name of somebody else's metric as `split/metric`.

    >>> metric_name("val_loss"), metric_name("eval/top-5 error"), metric_name("loss")
    ('validation/loss', 'validation/top-5_error', 'logged/loss')
    """
    start, _, rest = re.sub(r"[^\w.-]+", "_", name).partition("_")
    if start.lower() in _SPLITS and rest:
        return f"{_SPLITS[start.lower()]}/{rest}"
    return f"{unsplit}/{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}"


def curve_of(values: Mapping[int, Mapping[str, float]]) -> pd.DataFrame:
    """Returns the curve of a run, given its metrics by step."""
    rows = [{"step": step, **values[step]} for step in sorted(values)]
    return pd.DataFrame(rows, columns=None if rows else ["step"])


def read_runs(folder: str | Path) -> Runs:
    """Returns the runs of a folder with the files `trials` and `evaluations`.

    Each is a `.csv` or a `.parquet` file with the columns of `foreign_studies`.

    Raises:
        UserError: a file is missing or damaged.
    """
    root = Path(folder).expanduser().absolute()
    trials, evaluations = (_read_table(root, name) for name in TABLES)
    return Runs(trials, evaluations, str(root))


def _read_table(root: Path, name: str) -> pd.DataFrame:
    there = [root / f"{name}{end}" for end in (".csv", ".parquet")]
    found = [path for path in there if path.exists()]
    if len(found) != 1:
        raise UserError(
            f"{str(root)!r} must hold one of {name}.csv and {name}.parquet, and holds "
            f"{'both' if found else 'neither'}."
        )
    return foreign_files.read_table(found[0])


def write_runs(
    runs: Runs,
    sweep_dir: str | Path,
    goal: Goal,
    progress: Callable[[str], None] = lambda line: None,
) -> Conversion:
    """Writes runs as a sweep directory, which `load`, `report` and `status` read.

    Runs that were cut off before they met the goal are censored there. So are those
    that ran to an end of their own before the longest of their cell: what they would
    have done is not known. Evaluations without a value of the goal's metric are left
    out, so that each bracket begins where the goal was looked at.

    Args:
        runs: from elsewhere.
        sweep_dir: new, empty, or of an earlier call with runs of the same origin.
        goal: what they had to reach, a metric of `evaluations`.
        progress: called with one line per cell.

    Raises:
        UserError: whatever ForeignStudy refuses, or a metric that no run has.
    """
    if goal.metric not in runs.evaluations.columns:
        known = [name for name in runs.evaluations if name not in ("trial", "step")]
        raise UserError(
            f"no run of {runs.origin} has the metric {goal.metric!r}: "
            f"{near_matches(goal.metric, map(str, known))}."
        )
    sources = []
    for study in runs.studies():
        seen = _for_goal(study, goal)
        where = f"{runs.origin} ({_digest(seen)})"
        # The digest makes runs that have grown another source: they are read again.
        read = functools.partial(_for_goal, study, goal)
        sources.append(Source(seen.cell.name, goal, where, read))
    return write_sweep(str(sweep_dir), runs.origin, sources, _RULES, progress)


def _for_goal(study: ForeignStudy, goal: Goal) -> ForeignStudy:
    """Returns a study without evaluations that do not tell of the goal."""
    evaluations = study.evaluations
    if goal.metric not in evaluations.columns:
        evaluations = evaluations.assign(**{goal.metric: math.nan})
    seen = evaluations[evaluations[goal.metric].notna()]
    return replace(study, evaluations=seen, step_budget=_budget(study, seen, goal))


def _budget(study: ForeignStudy, seen: pd.DataFrame, goal: Goal) -> int:
    """Returns the steps up to which something is known of runs that were not cut off.

    Where all were, K* may lie beyond the last of them.
    """
    if study.step_budget:
        return study.step_budget
    trials = study.trials
    ended = trials.loc[trials["status"] == COMPLETE, "steps"].tolist()
    for _, curve in seen.groupby("trial"):
        place = goal.first_met(curve[goal.metric].tolist())
        if place is not None:
            ended.append(int(curve["step"].iloc[place]))
    if ended:
        return int(max(ended))
    steps = seen["step"].drop_duplicates().sort_values().diff().dropna()
    return int(trials["steps"].max() + (steps.min() if len(steps) else 1))


def _digest(study: ForeignStudy) -> str:
    parts = (study.trials, study.evaluations)
    text = "".join(part.to_csv(index=False) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
