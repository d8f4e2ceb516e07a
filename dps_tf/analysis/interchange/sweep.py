"""Writes runs of other software as a sweep directory, for a goal.

The runs of each cell become a closed study, so that every command that reads a sweep
reads it. A cell is written before the next one is read: memory holds one study of an
archive, and an import that was stopped goes on with the next one.

The status that a record gives to a run is not its outcome, which depends on the goal:

    COMPLETE    complete if it met the goal, else incomplete; without a step budget,
                censored where other runs of the cell were longer
    INFEASIBLE  complete if it met the goal before it diverged, else infeasible
    INCOMPLETE  complete if it met the goal, else censored at its last step
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.checks import COMPLETE, INCOMPLETE, INFEASIBLE, named
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.tables import cell_name, ends_of, require_metric, study_key
from dps_tf.core import (
    QUASI_RANDOM,
    Crossings,
    Goal,
    UserError,
    check_type,
    crossings,
    direction_of,
    trial_outcome,
)
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
class CellRuns:
    """The runs of one cell, which are not read before they are written.

    Attributes:
        cell: name of the cell.
        origin: source of the runs.
        goal: the goal that the runs had to reach.
        read: returns the runs, as `Runs.by_cell` does.
        names: names of the runs by number, where they have names.
    """

    cell: str
    origin: str
    goal: Goal
    read: Callable[[], Runs]
    names: Mapping[int, str] = field(default_factory=dict)


def write_runs(
    runs: Runs,
    sweep_dir: str | Path,
    goal: Goal,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, bool]:
    """Writes runs as a sweep directory, which `load`, `report` and `status` read.

    Runs that were cut off before they met the goal are censored there. So are runs that
    ended by themselves before the longest of their cell, as their further course is
    unknown. Evaluations without a value of the goal's metric are left out, so that
    each bracket begins where that metric was evaluated.

    Args:
        runs: runs of other software.
        sweep_dir: a directory that is new, empty, or of a call with the same origin.
        goal: the goal of the runs, on a metric of `evaluations`. A value equal to the
            threshold meets it, unless it is made with `inclusive=False`.
        progress: called with one line per note of the runs and per cell.

    Returns:
        The name of each cell, and whether it was written: one that the directory
        holds already, of the same runs and goal, stays as it is.

    Raises:
        UserError: what `Runs.by_cell` refuses, a metric that no run has, or a directory
            that holds something else.
    """
    check_type("runs", runs, Runs)
    check_type("goal", goal, Goal)
    with named(runs.origin):
        require_metric(runs.evaluations, goal.metric)
        # What a study states is of its last value, and may not be of its reports.
        direction_of(goal.metric, goal.direction, runs.direction)
    cells: dict[str, CellRuns] = {}
    by_name = runs.trials["trial"] if runs.trials.index.name == "run" else pd.Series()
    names = {number: str(name) for name, number in by_name.items()}
    by_cell = runs.by_cell()
    notes = (*by_cell[0].notes, *_examples_for_steps(by_cell), *_doubts(by_cell, goal))
    for note in notes:
        progress(f"note: {note}")
    for cell in by_cell:
        finite = _finite(cell, goal, progress)
        has_metric = finite.evaluations[goal.metric].notna()
        evaluated = replace(finite, evaluations=finite.evaluations[has_metric])
        # The digest changes when runs have grown: they are read again.
        origin = f"{runs.origin} ({_digest(evaluated)})"
        for note in _counters(cell.evaluations, goal.metric):
            progress(f"note: {note}")
        name = cell_name(evaluated.trials.iloc[0].to_dict())
        if name in cells:
            raise UserError(
                f"{name} has runs of two precisions: give each a directory of its own."
            )
        read = functools.partial(replace, evaluated)
        cells[name] = CellRuns(name, origin, goal, read, names)
    return write_cells(str(sweep_dir), runs.origin, list(cells.values()), progress)


def _counters(evaluations: pd.DataFrame, metric: str) -> Iterator[str]:
    """Yields a note if a metric may be numbered by epochs, and others by updates."""
    known = evaluations[evaluations[metric].notna()]
    last, end = (x.groupby("trial")["step"].max() for x in (known, evaluations))
    for trial in last.index[(last > 0) & (3 * last < end[last.index])][:1]:
        yield (
            f"{metric} of trial {trial} ends at step {last[trial]}, and other metrics "
            f"at {end[trial]}: if its steps count epochs, give updates."
        )


def _examples_for_steps(cells: Sequence[Runs]) -> Iterator[str]:
    """Yields a note if steps are the same multiples of every batch size."""
    unit: dict[int, int] = {}
    for cell in cells:
        size, steps = int(cell.trials["batch_size"].iloc[0]), cell.evaluations["step"]
        unit[size] = math.gcd(unit.get(size, 0), *map(int, steps))
    times, *others = (every / size for size, every in unit.items())
    if others and {times} == {*others} and times.is_integer() and times:
        yield (
            f"at each of {len(unit)} batch sizes steps are multiples of {times:.0f} "
            "times the batch size: if they count examples, divide them by it."
        )


def _doubts(cells: Sequence[Runs], goal: Goal) -> Iterator[str]:
    """Yields notes if steps, or values of the metric, may mean something else."""
    every = pd.concat([cell.evaluations for cell in cells])
    every = every.loc[np.isfinite(every[goal.metric]), ["trial", "step", goal.metric]]
    steps, gaps = np.unique(every["step"]), every.groupby("trial")["step"].diff()
    for shift, word in ((1, "less"), (-1, "more")):
        unit = int(np.gcd.reduce(steps + shift)) if len(steps) > 1 else 0
        if unit > 2 and steps[0] + shift:
            yield (
                f"each step is one {word} than a multiple of {unit}: if steps count "
                "from another number, shift them, or correct first_report."
            )
    if gaps.count() > 2 and gaps.isin([1, np.nan]).all():
        yield "runs are evaluated at every step: if steps count epochs, give updates."
    yield from _odd_values(every, steps, goal)


def _odd_values(every: pd.DataFrame, steps: Any, goal: Goal) -> Iterator[str]:
    """Yields notes on finite values that the goal may have been met by wrongly."""
    values, trials = every[goal.metric].to_numpy(), every["trial"].to_numpy()
    met, size = goal.reaches(values), np.abs(values)
    scale = abs(goal.threshold)
    is_far = scale > 0 and ((size > 20 * scale).all() or (20 * size < scale).all())
    if len(steps) > 1 and steps[0] and (met.all() or is_far and not met.any()):
        whose, does = ("every", "meets") if met.all() else ("no", "comes near")
        yield (
            f"{whose} value of {goal.metric} {does} the goal {goal.threshold:g}: give "
            "both in one unit, as percent and shares are not."
        )
    is_near = np.isclose(values, goal.threshold, rtol=1e-5, atol=0)
    with np.errstate(over="ignore"):
        is_near |= values == float(np.float16(goal.threshold))  # of mixed precision
    is_first = np.diff(trials, prepend=-1) != 0
    is_next = ~met[1:] & ~is_first[1:]
    filled = met & is_first & np.append(is_next, False)
    filled |= met & (values < 0) & (goal.threshold > 0)
    for is_odd, advice in (
        (
            is_near & (met != goal.inclusive),
            "only rounding parts them, round the values",
        ),
        (filled, "it stands for what was not measured, leave it empty"),
    ):
        for trial, step, value in every[is_odd].to_numpy().tolist()[:1]:
            yield (
                f"{goal.metric} of trial {trial:.0f} at step {step:.0f} is {value!r}, "
                f"and the goal {goal.threshold!r}: if {advice}."
            )


def _finite(runs: Runs, goal: Goal, progress: Callable[[str], None]) -> Runs:
    """Returns runs with finite metrics, which diverged where the last one was not.

    A run has diverged if its last value of the goal's metric, or of a loss, is not
    finite. The goal is not met from the first of the last values that are not. A value
    before a finite one counts as not measured.
    """
    frame, lost = runs.evaluations, dict[int, str]()
    trials, steps = frame["trial"], frame["step"]
    is_met_late = np.zeros(len(frame), bool)
    for name in frame.columns:
        if name == goal.metric or name.endswith(("loss", "cross_entropy")):
            finite = steps.where(np.isfinite(frame[name]), -1)
            since = finite.groupby(trials).transform("max")
            late = steps.where(np.isinf(frame[name]) & (steps > since))
            first = late.groupby(trials).transform("min")
            lost |= dict.fromkeys(trials[first.notna()], name)
            is_met_late |= (steps >= first).to_numpy()
    frame = frame.assign(**{goal.metric: frame[goal.metric].mask(is_met_late, np.inf)})
    for trial in [n for n, name in lost.items() if name != goal.metric][:1]:
        cause = f"its last {lost[trial]} is not finite"
        progress(f"note: trial {trial}, the first such, counts as diverged: {cause}.")
    gaps = np.isinf(frame[goal.metric]) & ~frame["trial"].isin([*lost])
    if gaps.any():
        trial, step = frame.loc[gaps, ["trial", "step"]].iloc[0]
        progress(
            f"note: {goal.metric} is not finite in trial {trial} at step {step}, and "
            f"finite later: {gaps.sum()} such values count as not measured."
        )
    status = runs.trials["status"].mask(runs.trials["trial"].isin([*lost]), INFEASIBLE)
    return replace(
        runs,
        trials=runs.trials.assign(status=status),
        evaluations=frame.mask(np.isinf(frame)),
    )


def _digest(runs: Runs) -> str:
    parts = (runs.trials, runs.evaluations)
    text = "".join(part.to_csv(index=False) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_cells(
    sweep_dir: str,
    origin: str,
    cells: Sequence[CellRuns],
    progress: Callable[[str], None],
) -> dict[str, bool]:
    """Writes cells into the sweep directory of an origin; see `write_runs`.

    Raises:
        UserError: runs that cannot be read, or a directory that holds something else.
    """
    files, layout = LocalFiles(), SweepLayout(sweep_dir)
    _start(files, layout, origin, [cell_runs.cell for cell_runs in cells])
    written = {}
    for number, cell_runs in enumerate(cells, start=1):
        source = {"path": cell_runs.origin, "goal": cell_runs.goal.to_json()}
        place = layout.cell(cell_runs.cell)
        written[cell_runs.cell] = not _is_there(files, place, source)
        text = "there already"
        if written[cell_runs.cell]:
            tables = cell_tables(cell_runs.read(), cell_runs.goal)
            _write(files, place, tables, source)
            for note in _open_ends(tables.trials, cell_runs.names):
                progress(f"note: {cell_runs.cell}: {note}")
            trials, evaluations = len(tables.trials), len(tables.curves)
            text = f"{trials:,} trials, {evaluations:,} evaluations"
        progress(f"{number} of {len(cells)}: {cell_runs.cell}: {text}")
    return written


def _open_ends(trials: pd.DataFrame, names: Mapping[int, str]) -> Iterator[str]:
    """Yields notes on trials that leave K* open, and on a K* of 0."""
    best = trials["steps_to_result"].astype("Float64").fillna(np.inf).min()
    if best == 0:
        yield "K* is 0: it was met before any update, or steps do not count updates."
    early = trials[(trials["outcome"] == "censored") & (trials["end_step"] < best)]
    if len(early):
        yield (
            f"K* is only bounded, as {len(early)} of its trials ended before they met "
            f"the goal: {ends_of(early, names)}."
        )


def _start(
    files: FileSystem, layout: SweepLayout, origin: str, cells: Iterable[str]
) -> None:
    """Marks the directory as a sweep of this origin; UserError for another one's."""
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
    # If a kill leaves no study file, the tables may be of another goal.
    files.remove(cell.study)
    [row] = tables.studies.astype(object).to_dict("records")
    # In a sweep, only the row of the study holds the precision.
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


def cell_tables(runs: Runs, goal: Goal) -> StoredTables:
    """Returns the studies, trials and curves of the runs of one cell, for a goal.

    Values that the runs do not hold are -1 (seeds) or 0 (training_examples,
    evaluation_examples, and evaluation_interval where evaluations are not evenly
    spaced).
    """
    key = study_key(runs.trials)
    evaluations = runs.evaluations
    if goal.metric not in evaluations.columns:
        evaluations = evaluations.assign(**{goal.metric: np.nan})
    codes = pd.Index(runs.trials["trial"]).get_indexer(evaluations["trial"])
    crossed = crossings(
        goal,
        len(runs.trials),
        np.where(evaluations[goal.metric].isna(), -1, codes).astype(np.int64),
        evaluations["step"].to_numpy(np.int64),
        evaluations[goal.metric].to_numpy(np.float64),
        np.zeros(len(evaluations), bool),
    )
    budget = int(runs.step_budget or _budget(runs, crossed))
    identity = runs.trials[key].iloc[:1]
    study = {
        **goal_columns(goal),
        "step_budget": budget,
        "points": len(runs.trials),
        "count": "all",
        "finishers": len(runs.trials),
        "search_mode": "exhaustive",
        "training_examples": runs.training_examples,
        "evaluation_interval": _interval(evaluations),
        "evaluation_examples": 0,
        "space": json.dumps(dict(runs.space)),
        "closed": True,
        "prunable": "none",
        "draws_exhausted": False,
        "oracle": QUASI_RANDOM,
    }
    points = runs.trials.drop(columns=["status", "steps"])
    missing = {n: np.nan for n in runs.space if n not in points.columns}
    outcomes = _outcomes(runs, crossed, budget).assign(**missing)
    return StoredTables(
        identity.assign(**study),
        pd.concat([points, outcomes], axis=1),
        identity.merge(evaluations.assign(is_bound=False), how="cross"),
    )


def _budget(runs: Runs, crossed: Crossings) -> float:
    """Returns the last step of the runs that ended by themselves or met the goal.

    Where all runs were cut off, K* may lie beyond: one evaluation later than the last.
    """
    steps = runs.trials["steps"]
    ended = np.r_[steps[runs.trials["status"] == COMPLETE], crossed.sure]
    if np.isfinite(ended).any():
        return float(ended[np.isfinite(ended)].max())
    gaps = np.diff(np.unique(runs.evaluations["step"].to_numpy(np.int64)))
    return float(steps.max() + (gaps.min() if len(gaps) else 1))


def _outcomes(runs: Runs, crossed: Crossings, budget: int) -> pd.DataFrame:
    """Returns the columns of each run's outcome, without its metaparameters."""
    status = runs.trials["status"].to_numpy(object)
    end = runs.trials["steps"].to_numpy(np.int64)
    reached, diverged = np.isfinite(crossed.sure), status == INFEASIBLE
    # A run is known as far as the goal's metric was evaluated, not as it was trained.
    evaluated = np.unique(runs.evaluations["step"].to_numpy(np.int64))
    spacing = np.diff(evaluated, prepend=0).max(initial=0)
    unseen = ~(reached | diverged) & (crossed.last + max(spacing, 1) <= end)
    end = np.where(unseen, crossed.last, end)
    is_open = (status == INCOMPLETE) | (end < budget)
    outcomes = [
        trial_outcome(reached=met, diverged=lost, failed=False, is_open=more)
        for met, lost, more in np.stack([reached, diverged, is_open], 1).tolist()
    ]
    return pd.DataFrame(
        {
            "outcome": np.array(outcomes, object),
            "steps_to_result": pd.Series(crossed.sure).where(reached).astype("Int64"),
            "bracket_low": pd.Series(crossed.before).where(reached).astype("Int64"),
            "end_step": end,
            "diverged_step": pd.Series(end).where(diverged & ~reached).astype("Int64"),
            "error": None,
            "initial_seed": -1,
            "order_seed": -1,
            "realised_sparsity": runs.trials["sparsity"],
            "layers": "[]",
        }
    )


def _interval(evaluations: pd.DataFrame) -> int:
    """Returns the even spacing of all evaluations, or 0 where there is none."""
    steps = evaluations["step"].to_numpy(np.int64)
    trial = evaluations["trial"].to_numpy(np.int64)
    gaps = np.diff(steps)[trial[1:] == trial[:-1]]
    if len(gaps) == 0 or gaps.min() != gaps.max() or (steps % gaps[0] != 0).any():
        return 0
    return int(gaps[0])
