"""Reads the tables of one or several sweeps from their records.

Open studies are read from their logs as far as these go, by the same rule of the race
that will close them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dps_tf.analysis import reduce, repeats
from dps_tf.analysis.tables import (
    GOAL_COLUMNS,
    axes_of,
    belongs,
    cell_name,
    meaning,
    metaparameter_names,
    metric_names,
    study_goal,
    study_key,
    with_axes,
    with_precision,
)
from dps_tf.core import Goal, UserError
from dps_tf.store import StoredTables, SweepReader, absolute, files_for

LABEL = "workload.label"
"""The axis that holds the label of a sweep, where labels are given."""
_FRAMES = ("studies", "trials", "curves", "measurements", "work")
_SomeTables = TypeVar("_SomeTables", bound="Tables")


@dataclass(frozen=True)
class SweepRecord:
    """The configuration, environments and dates of a sweep.

    Attributes:
        directory: its path as the user named it.
        gin: the resolved gin configuration; empty where there is none.
        environments: builds and instruction sets on which its studies ran.
        not_begun: names of the planned cells that have no study yet.
        written: when its oldest and its newest study file were written, in seconds of
            the epoch, by the file system's clock; None where it has none.
    """

    directory: str
    gin: str = ""
    environments: tuple[dict[str, Any], ...] = ()
    not_begun: tuple[str, ...] = ()
    written: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Tables(StoredTables):
    """The tables of some sweeps: stored tables, and tables derived from them.

    Attributes:
        results: one row per cell: K*, its bracket, the best trial, counts and bounds.
        bounded: the trials with their outcomes under the goal of `results`, and
            `earliest` and `latest`, between which each met it.
        goals: the goal of each row of `studies`.
        sweeps: configuration, environments and dates of each sweep.
        repeats: one row per repeat of a best point; empty where nothing was repeated.
    """

    results: pd.DataFrame
    bounded: pd.DataFrame
    goals: tuple[Goal, ...] = ()
    sweeps: tuple[SweepRecord, ...] = ()
    repeats: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def best(self) -> pd.DataFrame:
        """One row per cell: its name, K* with its bracket, and the best trial's point.

        `cell` is the name that `status`, `export` and `dps_tf.load_trial` use;
        best_trial is NA where no trial is known to have met the goal.
        """
        shown = ["steps_to_result", "bracket_low", "best_trial"]
        shown += metaparameter_names(self.trials)
        table = self.results[[*study_key(self.results), *shown]].copy()
        rows = table.drop(columns=LABEL, errors="ignore").to_dict("records")
        table.insert(0, "cell", [cell_name(row) for row in rows])
        return table

    def where(self: _SomeTables, chosen: ArrayLike) -> _SomeTables:
        """Returns the tables of some studies.

        `chosen` has one truth value per row of `studies`:

            tables.where(tables.studies["optimizer"] == "sgd")

        Raises:
            UserError: other values, such as numbers of rows, or another number of them.
        """
        if isinstance(chosen, pd.Series):
            chosen = chosen.reindex(self.studies.index)
        flags = np.ravel(np.asarray(chosen)).tolist()
        if [type(flag) for flag in flags] != [bool] * len(self.studies):
            raise UserError(
                f"where takes one truth value for each of the {len(self.studies)} rows "
                "of studies: compare a column, as tables.studies['batch_size'] > 32."
            )
        kept = np.array(flags, bool)
        studies = self.studies[kept]
        names = (*_FRAMES, "results", "bounded", "repeats")
        frames: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, frame in frames.items():
            # A table without rows may be one without columns.
            if len(frame):
                frames[name] = frame[belongs(frame, studies)].reset_index(drop=True)
        goals = tuple(g for g, k in zip(self.goals, kept, strict=True) if k)
        return replace(self, **frames, goals=goals)

    def for_goal(self: _SomeTables, goal: Goal | float) -> _SomeTables:
        """Returns the tables under another goal, as `load` would with `goal`.

        `repeats` is empty: evaluations of repeats are not among the tables.

        Raises:
            UserError: a study never recorded the metric of the goal.
        """
        changed = tables_of(self, goal)
        of_goal = ("results", "bounded", "goals", "repeats")
        return replace(self, **{name: getattr(changed, name) for name in of_goal})

    def compare(
        self, reference: str | None = None, margin: float = 1.25
    ) -> pd.DataFrame:
        """Returns the ratios of c1, c2 and c1/c2 of curves to a reference, a row each.

        Columns: curve, reference, quantity, ratio, low, high, probability (that the
        ratio is above 1), p_adjusted (Holm), within (factors beyond are excluded),
        verdict, and searches where these differ; see `law.Ratio`. Curves have the
        names that `dps_tf.fit` gives them; seeds of a cell belong to one curve. A pair
        whose cells of one batch size were evaluated at different intervals is refused.

        Args:
            reference: the curve that others are compared with; by default the first.
            margin: factor within which two curves count as equal.

        Raises:
            UserError: fewer than two curves, an unknown one, one whose K* are all
                bounds, or none with three batch sizes.
        """
        # Fits need SciPy, which takes seconds to load.
        from dps_tf.analysis.fit_table import curves_of_table, observations_by_curve
        from dps_tf.analysis.law import compare
        from dps_tf.analysis.searches import search_of_studies

        curves = observations_by_curve(self.results, seeds_together=True)
        searches = {
            name: search_of_studies(self.studies[belongs(self.studies, rows)])
            for name, rows in curves_of_table(self.results, True).items()
        }
        comparison = compare(curves, reference, margin=margin, searches=searches)
        return comparison.to_frame()

    @property
    def columns(self) -> pd.DataFrame:
        """A table of all columns: table, column, type and meaning."""
        metrics = metric_names(self.curves)
        rows = [
            (table, name, str(kind), meaning(table, str(name), metrics))
            for table in ("results", *_FRAMES, "bounded", "repeats")
            for name, kind in getattr(self, table).dtypes.items()
        ]
        return pd.DataFrame(rows, columns=["table", "column", "type", "meaning"])


def load(
    *sweep_dirs: str | os.PathLike[str],
    goal: Goal | float | None = None,
    labels: Sequence[str] = (),
) -> Tables:
    """Returns the tables of one or several sweeps; `dps_tf.load` has the arguments."""
    for directory in sweep_dirs:
        if not isinstance(directory, str | os.PathLike):
            raise UserError(
                f"{directory!r} is no path: give texts or paths, one by one."
            )
    names = [os.fspath(directory) for directory in sweep_dirs]
    _check_names(names, labels)
    sweeps = [_open(name) for name in names]
    read = [_read(sweep, name) for sweep, name in zip(sweeps, names, strict=True)]
    sweep_labels = labels or [""] * len(names)
    records = _sweep_records(names, sweeps, read, sweep_labels)
    read = [_labelled(*pair) for pair in zip(read, sweep_labels, strict=True)]
    axes = {axis for tables in read for axis in axes_of(tables.studies)}
    read = [_changed(tables, lambda t: with_axes(t, axes)) for tables in read]
    _check_disjoint(names, read)
    joined: dict[str, Any] = {
        name: pd.concat([getattr(tables, name) for tables in read], ignore_index=True)
        for name in _FRAMES
    }
    problems = tuple(text for sweep in sweeps for text in sweep.problems)
    loaded = tables_of(StoredTables(**joined, problems=problems), goal, sweeps=records)
    repeats = [
        _repeats(SweepReader(files_for(name), sweep.layout.repeats.root), tables, goal)
        for name, sweep, tables in zip(names, sweeps, read, strict=True)
        if files_for(name).exists(sweep.layout.repeats.marker)
    ]
    if not repeats:
        return loaded
    return replace(loaded, repeats=pd.concat(repeats, ignore_index=True))


def _check_names(names: Sequence[str], labels: Sequence[str]) -> None:
    """Raises UserError unless there is a sweep, and one label for each or none."""
    if not names:
        raise UserError("no sweep is named: give at least one sweep directory.")
    if labels and len(labels) != len(names):
        raise UserError(
            f"there are {len(labels)} labels for {len(names)} sweeps: give one label "
            "for each --sweep_dir, in the same order."
        )


def _repeats(
    sweep: SweepReader, tables: StoredTables, goal: Goal | float | None
) -> pd.DataFrame:
    """Returns the repeats of best points of one sweep; see `analysis.repeats`."""
    stored = sweep.tables(("trials", "curves"))
    if stored.studies.empty:
        return pd.DataFrame()
    studies = stored.studies
    trials = with_precision(stored.trials, studies)
    curves = with_precision(stored.curves, studies)
    record = StoredTables(studies, trials, curves)
    points = {
        name: [dict(point) for point in study.specification.workload.explicit_points]
        for name, study in sweep.studies.items()
        if study.specification is not None
    }
    return repeats.repeats_of(tables_of(record, goal).bounded, points, tables.trials)


def tables_of(
    record: StoredTables,
    goal: Goal | float | None = None,
    *,
    sweeps: tuple[SweepRecord, ...] = (),
) -> Tables:
    """Returns what `load` returns, from tables that are already in memory."""
    results, bounded = [], []
    groups = _by_goal(record.studies.reset_index(drop=True), goal)
    order = np.argsort(np.concatenate([studies.index for studies, _ in groups]))
    for studies, wanted in groups:
        trials, curves = record.trials, record.curves
        if len(groups) > 1:
            trials = trials[belongs(trials, studies)]
            curves = curves[belongs(curves, studies)]
        results.append(reduce.results(studies, trials, curves, wanted))
        bounded.append(reduce.with_bounds(studies, trials, curves, wanted))
    stored: dict[str, Any] = {name: getattr(record, name) for name in _FRAMES}
    return Tables(
        **stored,
        problems=record.problems,
        results=pd.concat(results).iloc[order].reset_index(drop=True),
        bounded=pd.concat(bounded, ignore_index=True),
        goals=tuple(_wanted_goal(row, goal) for _, row in record.studies.iterrows()),
        sweeps=sweeps,
    )


def _wanted_goal(study: pd.Series, goal: Goal | float | None) -> Goal:
    """Returns the goal that a study is reduced for; `load` describes `goal`."""
    own = study_goal(study)
    if goal is None:
        return own
    return goal if isinstance(goal, Goal) else replace(own, threshold=goal)


def _by_goal(
    studies: pd.DataFrame, goal: Goal | float | None
) -> list[tuple[pd.DataFrame, Goal | None]]:
    """Returns groups of studies, each with its goal; None stands for their own."""
    if isinstance(goal, Goal | None) or studies.empty:
        return [(studies, goal if isinstance(goal, Goal) else None)]
    kinds = [name for name in GOAL_COLUMNS if name != "goal_threshold"]
    return [
        (group, _wanted_goal(group.iloc[0], goal))
        for _, group in studies.groupby(kinds, sort=False, dropna=False)
    ]


def _open(directory: str) -> SweepReader:
    files, path = files_for(directory), absolute(directory)
    if files.is_local and not (files.exists(path) and Path(path).is_dir()):
        raise UserError(
            f"there is no directory {directory}: name the one that was given to train "
            "as --sweep_dir."
        )
    return SweepReader(files, directory)


def _read(sweep: SweepReader, directory: str) -> StoredTables:
    tables = sweep.tables()
    if tables.studies.empty or tables.trials.empty:
        begun = "study" if tables.studies.empty else "trial"
        raise UserError(
            f"{directory} is a sweep in which no {begun} has begun: train first, or "
            "wait."
        )
    # The table of studies, the first, has its precision from its specification.
    return _changed(tables, lambda t: with_precision(t, tables.studies), _FRAMES[1:])


def _changed(
    tables: StoredTables,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    names: Sequence[str] = _FRAMES,
) -> StoredTables:
    """Returns tables after a change of the tables of some names."""
    changed: dict[str, Any] = {name: change(getattr(tables, name)) for name in names}
    return replace(tables, **changed)


def _labelled(tables: StoredTables, label: str) -> StoredTables:
    """Returns tables whose cells have the axis LABEL, unless the label is empty."""
    if not label:
        return tables
    axes = {*axes_of(tables.studies), LABEL}
    return _changed(tables, lambda t: with_axes(t, axes).assign(**{LABEL: label}))


def _check_disjoint(names: Sequence[str], read: Sequence[StoredTables]) -> None:
    seen: dict[tuple[Any, ...], str] = {}
    for sweep, tables in zip(names, read, strict=True):
        names = study_key(tables.studies)
        for cell in tables.studies[names].itertuples(index=False, name=None):
            if cell in seen:
                named = ", ".join(f"{k}={v}" for k, v in zip(names, cell, strict=True))
                raise UserError(
                    f"{seen[cell]} and {sweep} hold the same cell ({named}): name only "
                    "one of them, or give each a --label of its own."
                )
            seen[cell] = sweep


def _sweep_records(
    names: Sequence[str],
    sweeps: Sequence[SweepReader],
    read: Sequence[StoredTables],
    labels: Sequence[str],
) -> tuple[SweepRecord, ...]:
    """Returns the record of each sweep.

    Each shard of a sweep plans the whole grid: among sweeps of one label, a cell counts
    as not begun in the first one only, and in none if it has begun in any of them.
    """
    begun: dict[str, set[str]] = {label: set() for label in labels}
    for tables, label in zip(read, labels, strict=True):
        rows = tables.studies[study_key(tables.studies)].astype(object)
        begun[label].update(map(cell_name, rows.to_dict("records")))
    records = []
    for name, sweep, label in zip(names, sweeps, labels, strict=True):
        waiting = tuple(cell for cell in sweep.planned if cell not in begun[label])
        begun[label].update(waiting)
        records.append(
            SweepRecord(
                name,
                gin=sweep.configuration(),
                environments=sweep.environments(),
                not_begun=waiting,
                written=sweep.written(),
            )
        )
    return tuple(records)
