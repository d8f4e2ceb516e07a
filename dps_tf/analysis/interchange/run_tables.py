"""Runs of other people's software: two tables, and the sweep that analyses read.

The table of trials has one row per run, the table of evaluations one per evaluation of
a run; `foreign_studies` lists their columns. `read_runs` reads both from files, and
`runs_of` makes them of what a library has recorded.

A run that was cut off (pruned, stopped, killed, crashed) is INCOMPLETE in the table and
censored in the sweep: it bounds K*, and is never counted as a run that could not meet
the goal.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import (
    COMPLETE,
    OF_EVALUATIONS,
    ArchiveRules,
    ForeignStudy,
    UnreadStudy,
    cell_of,
    checked_text,
    named,
)
from dps_tf.analysis.interchange.sweep import Conversion, write_sweep
from dps_tf.analysis.tables import require, study_key
from dps_tf.core import (
    DENSE,
    FLOAT32,
    Goal,
    UserError,
    is_axis,
    near_matches,
    on_one_line,
)

DEFAULTS: dict[str, Any] = {
    "sparsity_method": DENSE,
    "seed": 0,
    "sparsity": 0.0,
    "precision": FLOAT32,
    "status": COMPLETE,
}
"""Columns that a table of trials may leave out, and what holds then."""
TABLES = ("trials", "evaluations")
"""Names of the two files of a folder of runs, without `.csv` or `.parquet`."""
_RULES = ArchiveRules(keep_incomplete=True, infeasible_may_reach=True)
# No column that can be read has such a name.
_STUDY = "number of the study"


@dataclass(frozen=True)
class Runs:
    """Runs from elsewhere as two tables; see `foreign_studies` for their columns.

    Attributes:
        trials: one row per run; the index may hold the names of the runs.
        evaluations: one row per evaluation.
        origin: where they are from, for messages.
        space: what metaparameters were drawn from, as `Space.to_json` writes it.
        notes: sentences on what could not be read.
    """

    trials: pd.DataFrame
    evaluations: pd.DataFrame
    origin: str = "runs"
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def studies(self) -> list[ForeignStudy]:
        """Returns the runs by cell, checked; see ForeignStudy for what is refused."""
        trials = self.trials.reset_index(drop=True)
        return foreign_studies(trials, self.evaluations, self.origin, space=self.space)


def join(parts: Iterable[Runs]) -> Runs:
    """Returns several sets of runs as one, renumbered; say, one for each batch size.

    Raises:
        UserError: there are none.
    """
    sets = list(parts)
    if not sets:
        raise UserError("there are no runs to join: give at least one set of them.")
    trials, evaluations, first = [], [], 0
    for part in sets:
        trials.append(part.trials.assign(trial=part.trials["trial"] + first))
        shifted = part.evaluations["trial"] + first
        evaluations.append(part.evaluations.assign(trial=shifted))
        first += int(part.trials["trial"].max()) + 1 if len(part.trials) else 0
    space: dict[str, Sequence[Any]] = {}
    for part in sets:
        space.update(part.space)
    return Runs(
        pd.concat(trials),
        pd.concat(evaluations, ignore_index=True),
        ", ".join(dict.fromkeys(part.origin for part in sets))[:200],
        space,
        tuple(note for part in sets for note in part.notes),
    )


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
    both = [root / f"{name}{end}" for end in (".csv", ".parquet")]
    there = [path for path in both if foreign_files.kind_of(path)]
    if len(there) != 1:
        raise UserError(
            f"{str(root)!r} must hold one of {name}.csv and {name}.parquet, and holds "
            f"{'both' if there else 'neither'}."
        )
    return foreign_files.read_table(there[0])


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
        goal: what they had to reach, a metric of `evaluations`. A value equal to the
            threshold meets it, unless it is made with `inclusive=False`.
        progress: called with one line per note of the runs and per cell.

    Raises:
        UserError: whatever ForeignStudy refuses, or a metric that no run has.
    """
    if goal.metric not in runs.evaluations.columns:
        metrics = [name for name in runs.evaluations if name not in OF_EVALUATIONS]
        raise UserError(
            f"no run of {runs.origin} has the metric {goal.metric!r}: "
            f"{near_matches(goal.metric, map(str, metrics))}."
        )
    for note in runs.notes:
        progress(f"note: {note}")
    studies = []
    for study in runs.studies():
        seen = _for_goal(study, goal)
        # The digest makes runs that have grown another study: they are read again.
        origin = f"{runs.origin} ({_digest(seen)})"
        read = functools.partial(_same, seen)
        studies.append(UnreadStudy(seen.cell.name, origin, goal, read))
    return write_sweep(str(sweep_dir), runs.origin, studies, _RULES, progress)


def _same(study: ForeignStudy, rules: ArchiveRules) -> ForeignStudy:
    """Returns a study that is in memory already; all of its trials count."""
    del rules
    return study


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


def foreign_studies(
    trials: pd.DataFrame, evaluations: pd.DataFrame, origin: str, **about: Any
) -> list[ForeignStudy]:
    """Returns the studies of two tables, one for each cell.

    Args:
        trials: columns of the cell (see DEFAULTS for those that may be missing) and
            of further axes, `trial`, `status`, `steps` (the last evaluation where it
            is missing); every other column is a metaparameter.
        evaluations: `trial`, `step` and metrics; the columns of the cell too, unless
            each trial of all cells has a number of its own.
        origin: where they are from, for messages.
        about: `space`, `step_budget`, `training_examples`, of all cells alike.

    Raises:
        UserError: a column that is missing, or anything that ForeignStudy refuses.
    """
    with named(origin):
        require(trials, ("workload", "optimizer", "batch_size", "trial"), "of trials")
        require(evaluations, OF_EVALUATIONS, "of evaluations")
        if trials.empty:
            raise UserError("the table of trials has no row: it must have one per run.")
        given = _study_columns(trials)
        defaults = {n: x for n, x in DEFAULTS.items() if n not in trials.columns}
        trials = trials.assign(**defaults).fillna(
            {name: "" for name in given if is_axis(name)}
        )
        key = _study_columns(trials)
        trials[_STUDY] = trials.groupby(key, dropna=False, sort=True).ngroup()
        evaluations = _joined(trials, evaluations, given)
    studies = []
    for number, rows in trials.groupby(_STUDY):
        with named(origin):
            values = rows[key].astype(object).iloc[0]
            row = {name: values[name] for name in key}
            cell, precision = cell_of(row), checked_text("precision", row["precision"])
        curves = evaluations[evaluations[_STUDY] == number].drop(columns=_STUDY)
        rows = _with_steps(rows.drop(columns=[*key, _STUDY]), curves)
        study = ForeignStudy(cell, rows, curves, origin, precision=precision, **about)
        with named(origin):
            _check_ends(study)
        studies.append(study)
    return studies


def _check_ends(study: ForeignStudy) -> None:
    """Raises UserError if a trial was evaluated after its last step."""
    last = study.evaluations.groupby("trial")["step"].max()
    seen = study.trials["trial"].map(last).fillna(0)
    early = study.trials[study.trials["steps"] < seen]
    if len(early):
        number, steps = early["trial"].iloc[0], early["steps"].iloc[0]
        raise UserError(
            f"trial {number} has {steps} steps and an evaluation at step "
            f"{last[number]}: steps must be those of the whole run, or left out."
        )


def _study_columns(frame: pd.DataFrame) -> list[str]:
    """Returns the columns of a table of others that name a study."""
    return [name for name in study_key(frame) if name in frame.columns]


def _joined(
    trials: pd.DataFrame, evaluations: pd.DataFrame, given: Sequence[str]
) -> pd.DataFrame:
    """Returns the evaluations with the study of each, without the columns of cells."""
    joining = _study_columns(evaluations)
    if joining and joining != list(given):
        raise UserError(
            "the table of evaluations must name cells by the columns of the table of "
            f"trials, {', '.join(given)}, or by none; it has {', '.join(joining)}."
        )
    if not joining and trials["trial"].duplicated().any():
        raise UserError(
            "trials of several cells have the same number: give the table of "
            f"evaluations the columns {', '.join(given)} too."
        )
    axes = {name: "" for name in joining if is_axis(name)}
    on = [*joining, "trial"]
    if trials.duplicated(on).any():
        raise UserError("two trials of a cell have the same number.")
    try:
        wider = evaluations.fillna(axes).merge(trials[[*on, _STUDY]], how="left", on=on)
    except ValueError as error:
        raise UserError(
            "the columns that name cells and trials are of other types in the two "
            f"tables: {on_one_line(error)}."
        ) from error
    if wider[_STUDY].isna().any():
        number = wider["trial"][wider[_STUDY].isna()].iloc[0]
        raise UserError(f"no trial of such a cell has the number {number}.")
    return wider.drop(columns=joining)


def _with_steps(trials: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    if "steps" in trials.columns:
        return trials
    last = evaluations.groupby("trial")["step"].max()
    return trials.assign(steps=trials["trial"].map(last).fillna(0))
