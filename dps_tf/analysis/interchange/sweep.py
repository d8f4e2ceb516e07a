"""Studies from elsewhere written as a sweep directory, for a goal.

Each study becomes a closed cell, so that every command that reads a sweep reads it. A
cell is written before the next study is read: memory holds one study, and a conversion
that was stopped goes on with the next one.

The status that a record gives to a trial is not its outcome, which depends on the goal:

    COMPLETE    complete if it met the goal, else incomplete; censored where a study
                had a time budget and others ran longer
    INFEASIBLE  infeasible, even if it had met the goal before: in the publication it is
                never a best trial; its curve is left out, so that this is so for any
                goal
    INCOMPLETE  left out, as in the publication; with `keep_incomplete`, complete if it
                met the goal, else censored at its last step

`infeasible_may_reach` takes this package's own rule instead: divergence after meeting
the goal does not count. Source of the words: study.json of Shallue et al. 2019.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.foreign_study import (
    INCOMPLETE,
    INFEASIBLE,
    ArchiveRules,
    ForeignStudy,
    UnreadStudy,
    counted,
)
from dps_tf.analysis.interchange.shallue2019 import archived_studies
from dps_tf.core import QUASI_RANDOM, Goal, UserError, crossings, trial_outcome
from dps_tf.store import (
    CURVES,
    WORK,
    CellLayout,
    DamagedError,
    FileSystem,
    LocalFiles,
    StoredTables,
    SweepLayout,
    close_study,
    empty_frame,
    goal_columns,
    read_json,
    write_json,
)


@dataclass(frozen=True)
class Conversion:
    """What became of some studies.

    Attributes:
        read: names of the cells that were written.
        kept: names of the cells that the sweep held already, read by the same rules.
        without_goal: studies of an archive that were left out for want of a goal, as
            their folders.
    """

    read: tuple[str, ...]
    kept: tuple[str, ...]
    without_goal: tuple[str, ...] = ()


def convert(  # noqa: PLR0913 - each is independent of the others
    root: str | Path,
    sweep_dir: str,
    goal: Goal | None = None,
    rules: ArchiveRules | None = None,
    *,
    only: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Conversion:
    """Reads studies of the archive of Shallue et al. into a sweep directory.

    A study that is there already, with the same goal and rules, is not read again.

    Args:
        root: folder that the archive unpacks to.
        sweep_dir: new, empty, or of an earlier conversion of the same archive.
        goal: of all studies; by default the published one of each, which is strict.
        rules: which trials count.
        only: see `archived_studies`.
        progress: called with one line per study.

    Raises:
        UserError: a study that cannot be read, none that is left, or a directory that
            holds something else.
    """
    root, rules = Path(root).absolute(), rules or ArchiveRules()
    studies = archived_studies(root, only)
    if goal is not None:
        studies = [replace(study, goal=goal) for study in studies]
    with_goal = [study for study in studies if study.goal is not None]
    without = [
        Path(study.origin).relative_to(root).as_posix()
        for study in studies
        if study.goal is None
    ]
    if not with_goal:
        raise UserError(
            f"no goal is known for any of {len(without)} studies: give --goal and "
            "--metric."
        )
    done = write_sweep(sweep_dir, str(root), with_goal, rules, progress)
    return replace(done, without_goal=tuple(without))


def write_sweep(
    sweep_dir: str,
    origin: str,
    studies: Sequence[UnreadStudy],
    rules: ArchiveRules,
    progress: Callable[[str], None],
) -> Conversion:
    """Writes studies from elsewhere into a sweep directory, one after the other.

    The directory is new, empty, or of an earlier call with the same origin; each study
    has a goal and a cell of its own.

    Raises:
        UserError: a study that cannot be read, two of one cell, or a directory that
            holds something else.
    """
    _check_different(studies)
    files, layout = LocalFiles(), SweepLayout(sweep_dir)
    _start(files, layout, origin, [study.cell for study in studies])
    read, kept = [], []
    for number, study in enumerate(studies, start=1):
        if study.goal is None:
            raise UserError(f"{study.origin!r} has no goal: give one.")
        about = {"path": study.origin, "goal": study.goal.to_json(), **asdict(rules)}
        place = f"{number} of {len(studies)}: {study.cell}"
        if _is_there(files, layout.cell(study.cell), about):
            kept.append(study.cell)
            progress(f"{place}: there already")
            continue
        tables = study_tables(study.read(rules), study.goal, rules)
        _write(files, layout.cell(study.cell), tables, about)
        read.append(study.cell)
        trials, evaluations = len(tables.trials), len(tables.curves)
        progress(f"{place}: {trials:,} trials, {evaluations:,} evaluations")
    return Conversion(tuple(read), tuple(kept))


def _check_different(studies: Sequence[UnreadStudy]) -> None:
    seen: dict[str, UnreadStudy] = {}
    for study in studies:
        if study.cell in seen:
            raise UserError(
                f"{study.origin!r} and {seen[study.cell].origin!r} are the same cell, "
                f"{study.cell}: read them into directories of their own, by --only."
            )
        seen[study.cell] = study


def _start(
    files: FileSystem, layout: SweepLayout, origin: str, cells: Sequence[str]
) -> None:
    """Marks the directory as a sweep that was read from this origin."""
    names = files.list_names(layout.root)
    if names and not files.exists(layout.marker):
        raise UserError(
            f"{layout.root} holds {names[0]} and no sweep: choose a new or empty "
            "--sweep_dir."
        )
    try:
        before = read_json(files, layout.sweep)
    except (FileNotFoundError, DamagedError):
        before = {"cells": [], "origin": origin}
    if before.get("origin") != origin:
        held = before.get("origin") or "a sweep of its own"
        raise UserError(
            f"{layout.root} holds {held}: choose a new or empty --sweep_dir."
        )
    files.make_directory(layout.cells)
    write_json(files, layout.marker, {"made_by": "dps_tf"})
    every = list(dict.fromkeys([*before["cells"], *cells]))
    write_json(files, layout.sweep, {"cells": every, "origin": origin})


def _is_there(files: FileSystem, cell: CellLayout, source: dict[str, Any]) -> bool:
    try:
        held = read_json(files, cell.study).get("origin")
    except (FileNotFoundError, DamagedError):
        return False
    return held == source and files.exists(cell.closed)


def _write(
    files: FileSystem, cell: CellLayout, tables: StoredTables, source: dict[str, Any]
) -> None:
    # Its absence says, after a kill, that the tables may be of other rules.
    files.remove(cell.study)
    [row] = tables.studies.astype(object).to_dict("records")
    # In a sweep, the row of the study alone tells the precision.
    curves = tables.curves.drop(columns="precision")
    measured = [n for n in curves.columns if n not in CURVES.names]
    empty = [name for name in measured if curves[name].isna().all()]
    close_study(
        files,
        cell.root,
        study={str(name): value for name, value in row.items()},
        trials=tables.trials.drop(columns="precision"),
        curves=curves.drop(columns=empty),
        work=empty_frame(WORK),
    )
    write_json(files, cell.study, {"origin": source, "environments": []})


def study_tables(study: ForeignStudy, goal: Goal, rules: ArchiveRules) -> StoredTables:
    """Returns the studies, trials and curves of one study, reduced for a goal.

    What the record of a study does not say is -1 (seeds) or 0 (training_examples,
    evaluation_examples, and evaluation_interval where evaluations are not evenly
    spaced).

    Raises:
        UserError: no trial counts.
    """
    trials = counted(study.trials, rules)
    if trials.empty:
        raise UserError(f"{study.origin!r} holds no trial that counts.")
    has_curve = trials["status"].ne(INFEASIBLE) | rules.infeasible_may_reach
    evaluations = study.evaluations
    if goal.metric not in evaluations.columns:
        evaluations = evaluations.assign(**{goal.metric: np.nan})
    frame = _trials(study, evaluations, trials, goal, rules)
    shown = evaluations["trial"].isin(trials["trial"][has_curve])
    evaluations = evaluations[shown].reset_index(drop=True)
    evaluations.insert(2, "is_bound", False)
    metaparameters = [name for name in study.space if name not in trials.columns]
    frame = _typed(frame, study.cell.sparsity).assign(
        **dict.fromkeys(metaparameters, np.nan)
    )
    row = _study_row(study, goal, rules, frame, evaluations)
    identity = pd.DataFrame([study.identity])
    return StoredTables(
        pd.DataFrame([row]),
        identity.merge(frame, how="cross"),
        identity.merge(evaluations, how="cross"),
    )


def _trials(
    study: ForeignStudy,
    evaluations: pd.DataFrame,
    trials: pd.DataFrame,
    goal: Goal,
    rules: ArchiveRules,
) -> pd.DataFrame:
    """Returns what became of each trial, from the evaluations, and its point."""
    codes = pd.Index(trials["trial"]).get_indexer(evaluations["trial"])
    found = crossings(
        goal,
        len(trials),
        np.asarray(codes, np.int64),
        evaluations["step"].to_numpy(np.int64),
        evaluations[goal.metric].to_numpy(np.float64),
        np.zeros(len(evaluations), bool),
    )
    end = np.maximum(trials["steps"].to_numpy(np.int64), found.last)
    diverged = trials["status"].eq(INFEASIBLE).to_numpy(bool)
    reached = np.isfinite(found.sure) & (~diverged | rules.infeasible_may_reach)
    cut = trials["status"].eq(INCOMPLETE).to_numpy(bool)
    is_open = cut | (end < _budget(study, end))
    outcomes = [
        trial_outcome(reached=met, diverged=lost, failed=False, is_open=more)
        for met, lost, more in np.stack([reached, diverged, is_open], 1).tolist()
    ]
    about = {
        "trial": trials["trial"].to_numpy(np.int64),
        "outcome": np.array(outcomes, object),
        "steps_to_result": pd.Series(found.sure).where(reached),
        "bracket_low": pd.Series(found.before).where(reached),
        "end_step": end,
        "diverged_step": pd.Series(end).where(diverged & ~reached),
    }
    points = trials.drop(columns=["trial", "status", "steps"]).reset_index(drop=True)
    return pd.concat([pd.DataFrame(about), points], axis=1)


def _budget(study: ForeignStudy, ends: np.ndarray) -> int:
    """Returns the steps that a trial was given, or the longest run's where unknown."""
    return study.step_budget or int(ends.max())


def _typed(trials: pd.DataFrame, sparsity: float) -> pd.DataFrame:
    trials["error"] = pd.Series([None] * len(trials), dtype=object)
    trials["initial_seed"] = -1
    trials["order_seed"] = -1
    trials["realised_sparsity"] = sparsity
    trials["layers"] = "[]"
    for column in ("steps_to_result", "bracket_low", "diverged_step"):
        trials[column] = trials[column].astype("Int64")
    return trials


def _study_row(
    study: ForeignStudy,
    goal: Goal,
    rules: ArchiveRules,
    trials: pd.DataFrame,
    curves: pd.DataFrame,
) -> dict[str, Any]:
    feasible = int((trials["outcome"] != "infeasible").sum())
    wanted = rules.trials
    return {
        **study.identity,
        **goal_columns(goal),
        "step_budget": _budget(study, trials["end_step"].to_numpy(np.int64)),
        "points": wanted or len(trials),
        "count": "all" if wanted is None else "feasible",
        "finishers": len(trials),
        "search_mode": "exhaustive",
        "training_examples": study.training_examples,
        "evaluation_interval": _interval(curves),
        "evaluation_examples": 0,
        "space": json.dumps(dict(study.space)),
        "closed": True,
        "prunable": "none",
        "draws_exhausted": wanted is not None and feasible < wanted,
        "oracle": QUASI_RANDOM,
    }


def _interval(curves: pd.DataFrame) -> int:
    """Returns the even spacing of all evaluations, or 0 where there is none."""
    steps = curves["step"].to_numpy(np.int64)
    trial = curves["trial"].to_numpy(np.int64)
    gaps = np.diff(steps)[trial[1:] == trial[:-1]]
    if len(gaps) == 0 or gaps.min() != gaps.max() or (steps % gaps[0] != 0).any():
        return 0
    return int(gaps[0])
