"""Runs of other software as two tables: one row per run, and one per evaluation.

`read_runs` reads both from files, and `runs.runs_of` makes them from the records of a
library.

A run that was cut off (pruned, stopped, killed, crashed) is INCOMPLETE in the table and
censored in the sweep: it bounds K*, and is never counted as a run that could not meet
the goal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.checks import (
    COMPLETE,
    OF_EVALUATIONS,
    checked_cell,
    checked_evaluations,
    checked_trials,
    checked_whole,
    named,
)
from dps_tf.analysis.tables import axes_of, refuse_first, require, study_key
from dps_tf.core import DENSE, FLOAT32, Space, UserError, check_type

DEFAULTS: dict[str, Any] = {
    "sparsity_method": DENSE,
    "seed": 0,
    "sparsity": 0.0,
    "precision": FLOAT32,
    "status": COMPLETE,
}
"""Columns that a table of trials may leave out, with their values then."""


@dataclass(frozen=True)
class Runs:
    """Runs of other software as two tables.

    Attributes:
        trials: one row per run: `trial`, a number of its own; `workload`, `optimizer`,
            `batch_size`; further columns of the cell, its axes, `precision` and
            `status` where they differ from DEFAULTS; `steps`, the last one trained (by
            default the last evaluated one). Every other column is a metaparameter,
            NaN where a run has none. The index may hold the names of the runs.
        evaluations: one row per evaluation: `trial`, `step` and metrics by the name
            `split/metric`, NaN where one was not measured, and infinite where it was
            not finite. Of several values for one step the last counts.
        origin: source of the runs, for messages.
        space: ranges of the metaparameters, as `Space.to_json` writes them.
        notes: sentences on what could not be read.
        step_budget: steps that each run was given; 0 if unknown.
        training_examples: size of the training set; 0 if unknown.
        direction: `minimize` or `maximize` where the source states it, or "".
    """

    trials: pd.DataFrame
    evaluations: pd.DataFrame
    origin: str = "runs"
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    step_budget: int = 0
    training_examples: int = 0
    direction: str = ""

    def by_cell(self) -> list[Runs]:
        """Returns the runs of each cell, checked, with all columns.

        Trials are in the order of their numbers, evaluations in the order of trials
        and steps. All cells have the same notes.

        Raises:
            UserError: a column that is missing, or a name, value or size that the
                tables of a sweep cannot have.
        """
        with named(self.origin):
            Space.from_dict(self.space)
            for name in ("step_budget", "training_examples"):
                checked_whole(name, getattr(self, name))
            return self._by_cell()

    def _by_cell(self) -> list[Runs]:
        repeats = not self.trials.index.is_unique
        given = self.trials.reset_index(drop=True) if repeats else self.trials
        require(given, ("workload", "optimizer", "batch_size", "trial"), "of trials")
        require(self.evaluations, OF_EVALUATIONS, "of evaluations")
        if given.empty:
            raise UserError("the table of trials has no row: it must have one per run.")
        evaluations, notes = checked_evaluations(self.evaluations)
        given = _with_defaults(given).fillna(dict.fromkeys(axes_of(given), ""))
        last = evaluations.groupby("trial")["step"].max()
        if "steps" not in given.columns:
            given["steps"] = given["trial"].map(last).fillna(0)
        for name in (key := study_key(given)):
            empty = given[name].isna()
            refuse_first(empty, given[name], "of trials", "given in every row")
        trials = checked_trials(given.drop(columns=key))
        _check_ends(trials, last)
        cells = []
        for _, rows in given[key].groupby(key, dropna=False):
            row = dict(zip(key, rows.astype(object).iloc[0], strict=True))
            cell = {**checked_cell(row).to_json(), "precision": row["precision"]}
            own = trials[trials.index.isin(rows.index)].reset_index(drop=True)
            seen = evaluations["trial"].isin(own["trial"])
            cells.append(
                replace(
                    self,
                    trials=pd.DataFrame([cell]).merge(own, how="cross"),
                    evaluations=evaluations[seen].reset_index(drop=True),
                    notes=(*self.notes, *notes),
                )
            )
        return cells


def _with_defaults(trials: pd.DataFrame) -> pd.DataFrame:
    missing = {n: x for n, x in DEFAULTS.items() if n not in trials.columns}
    return trials.assign(**missing)


def _check_ends(trials: pd.DataFrame, last: pd.Series) -> None:
    """Raises UserError for an evaluation of no trial, or after its last step.

    `last` has the last evaluated step by the number of the trial.
    """
    unknown = set(last.index) - set(trials["trial"])
    if unknown:
        raise UserError(f"no trial has the number {min(unknown)}.")
    early = trials[trials["steps"] < trials["trial"].map(last).fillna(0)]
    if len(early):
        number, steps = early["trial"].iloc[0], early["steps"].iloc[0]
        raise UserError(
            f"trial {number} has {steps} steps and an evaluation at step "
            f"{last[number]}: steps must count the whole run, or be left out."
        )


def join(parts: Runs | Iterable[Runs]) -> Runs:
    """Returns several sets of runs, such as one per batch size, as one, renumbered.

    Raises:
        UserError: there is no set.
    """
    each = [parts] if isinstance(parts, Runs) else parts
    sets = [check_type("a part", part, Runs) for part in each]
    if not sets:
        raise UserError("there are no runs to join: give at least one set of them.")
    stated = {part.direction for part in sets} - {""}
    if len(stated) > 1:
        raise UserError(
            "the sources state minimize and maximize: join only runs of one direction."
        )
    trials, evaluations, first = [], [], 0
    for part in sets:
        own = _with_defaults(part.trials)
        trials.append(own.assign(trial=own["trial"] + first))
        shifted = part.evaluations["trial"] + first
        evaluations.append(part.evaluations.assign(trial=shifted))
        first += int(part.trials["trial"].max()) + 1 if len(part.trials) else 0
    space = {name: values for part in sets for name, values in part.space.items()}
    notes = [note for part in sets for note in part.notes]
    for name, values in [*space.items()]:
        if any(list(part.space.get(name, values)) != list(values) for part in sets):
            del space[name]
            notes.append(f"the ranges of {name} differ: a cell has the range it tried.")
    return Runs(
        pd.concat(trials),
        pd.concat(evaluations, ignore_index=True),
        ", ".join(dict.fromkeys(part.origin for part in sets))[:200],
        space,
        tuple(notes),
        direction="".join(stated),
    )


def read_runs(folder: str | Path) -> Runs:
    """Returns the runs of a folder with the files `trials` and `evaluations`.

    Each is a `.csv` or a `.parquet` file with the columns of `Runs`.

    Raises:
        UserError: a file is missing or damaged.
    """
    root = Path(folder).expanduser().absolute()
    return Runs(
        _read_table(root, "trials"), _read_table(root, "evaluations"), str(root)
    )


def _read_table(root: Path, name: str) -> pd.DataFrame:
    both = [root / f"{name}{end}" for end in (".csv", ".parquet")]
    there = [path for path in both if foreign_files.kind_of(path)]
    if len(there) != 1:
        raise UserError(
            f"{str(root)!r} must hold one of {name}.csv and {name}.parquet, and holds "
            f"{'both' if there else 'neither'}; --format=rows reads long tables."
        )
    return foreign_files.read_table(there[0], nan_is_a_value=name == "evaluations")
