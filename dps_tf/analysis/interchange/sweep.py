"""Runs from elsewhere as a sweep directory.

Each study becomes a closed cell, so that every command that reads a sweep reads it. A
cell is written before the next study is read: memory holds one study, and whoever was
stopped goes on where they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange.archive import Goals, own_or_published_goal, selected
from dps_tf.analysis.interchange.foreign_study import ForeignStudy
from dps_tf.analysis.interchange.layout import StudyFolder
from dps_tf.analysis.interchange.outcomes import (
    ArchiveRules,
    StudyTables,
    study_tables,
)
from dps_tf.analysis.interchange.reader import read_study
from dps_tf.core.errors import UserError
from dps_tf.core.goal import Goal
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem, LocalFiles
from dps_tf.store.layout import CellLayout, SweepLayout
from dps_tf.store.records import read_json, write_json
from dps_tf.store.schemas import CURVES, WORK
from dps_tf.store.study_tables import close_study, is_closed
from dps_tf.store.tables import empty_frame


@dataclass(frozen=True)
class Source:
    """A study that is to become a cell.

    Attributes:
        cell: name of the cell.
        goal: what it is reduced for; tables of the cell can be reduced for any other.
        path: where it is from.
        read: reads it; called only if the sweep does not hold it yet.
    """

    cell: str
    goal: Goal
    path: str
    read: Callable[[], ForeignStudy]


@dataclass(frozen=True)
class Conversion:
    """What became of some sources.

    Attributes:
        read: cells that were read.
        kept: cells that were there already, read by the same rules.
        without_goal: studies that were left out for want of a goal, as their folders.
    """

    read: tuple[str, ...]
    kept: tuple[str, ...]
    without_goal: tuple[str, ...] = ()


def convert(  # noqa: PLR0913 - each is independent of the others
    root: str | Path,
    sweep_dir: str,
    goal: Goals = own_or_published_goal,
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
        goal: strict in the publication; see Goals.
        rules: which trials count.
        only: see `archive.selected`.
        progress: called with one line per study.

    Raises:
        UserError: a study that cannot be read, none that is left, or a directory that
            holds something else.
    """
    root, rules = Path(root).absolute(), rules or ArchiveRules()
    wanted, without = _wanted(root, goal, only)
    sources = [
        Source(
            folder.cell.name,
            own,
            str(folder.path),
            functools.partial(read_study, folder, rules),
        )
        for folder, own in wanted
    ]
    done = write_sweep(sweep_dir, str(root), sources, rules, progress)
    return replace(done, without_goal=tuple(without))


def write_sweep(
    sweep_dir: str,
    origin: str,
    sources: Sequence[Source],
    rules: ArchiveRules | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Conversion:
    """Writes studies from elsewhere into a sweep directory, one after the other.

    Args:
        sweep_dir: new, empty, or of an earlier call with the same origin.
        origin: what all of them are from; the directory takes no other.
        sources: the studies; each of another cell.
        rules: which trials count.
        progress: called with one line per study.

    Raises:
        UserError: a study that cannot be read, two of one cell, or a directory that
            holds something else.
    """
    rules = rules or ArchiveRules()
    _check_different(sources)
    files, layout = LocalFiles(), SweepLayout(sweep_dir)
    _start(files, layout, origin, [source.cell for source in sources])
    read, kept = [], []
    for number, source in enumerate(sources, start=1):
        about = {"path": source.path, "goal": source.goal.to_json(), **asdict(rules)}
        told = f"{number} of {len(sources)}: {source.cell}"
        if _is_there(files, layout.cell(source.cell), about):
            kept.append(source.cell)
            progress(f"{told}: there already")
            continue
        tables = study_tables(source.read(), source.goal, rules)
        _write(files, layout.cell(source.cell), tables, about)
        read.append(source.cell)
        progress(
            f"{told}: {len(tables.trials):,} trials, {len(tables.curves):,} evaluations"
        )
    return Conversion(tuple(read), tuple(kept))


def _check_different(sources: Sequence[Source]) -> None:
    seen: dict[str, Source] = {}
    for source in sources:
        if source.cell in seen:
            raise UserError(
                f"{source.path!r} and {seen[source.cell].path!r} are the same cell, "
                f"{source.cell}: read them into directories of their own, by --only."
            )
        seen[source.cell] = source


def _wanted(
    root: Path, goal: Goals, only: Sequence[str]
) -> tuple[list[tuple[StudyFolder, Goal]], list[str]]:
    """Returns (studies with their goals, folders that have no goal)."""
    wanted: list[tuple[StudyFolder, Goal]] = []
    without = []
    for folder in selected(root, only):
        own = goal if isinstance(goal, Goal) else goal(folder)
        if own is None:
            without.append(folder.path.relative_to(root).as_posix())
        else:
            wanted.append((folder, own))
    if not wanted:
        raise UserError(
            f"no goal is known for any of {len(without)} studies: give --goal and "
            "--metric."
        )
    return wanted, without


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
        before = {"cells": [], "archive": origin}
    if before.get("archive") != origin:
        held = before.get("archive") or "a sweep of its own"
        raise UserError(
            f"{layout.root} holds {held}: choose a new or empty --sweep_dir."
        )
    files.make_directory(layout.cells)
    write_json(files, layout.marker, {"made_by": "dps_tf"})
    every = list(dict.fromkeys([*before["cells"], *cells]))
    write_json(files, layout.sweep, {"cells": every, "archive": origin})


def _is_there(files: FileSystem, cell: CellLayout, source: dict[str, Any]) -> bool:
    try:
        held = read_json(files, cell.study).get("archive")
    except (FileNotFoundError, DamagedError):
        return False
    return held == source and is_closed(files, cell.root)


def _write(
    files: FileSystem, cell: CellLayout, tables: StudyTables, source: dict[str, Any]
) -> None:
    # Its absence says, after a kill, that the tables may be of other rules.
    files.remove(cell.study)
    [row] = tables.studies.astype(object).to_dict("records")
    close_study(
        files,
        cell.root,
        study={str(name): value for name, value in row.items()},
        # In a sweep, the row of the study alone tells the precision.
        trials=tables.trials.drop(columns="precision"),
        curves=_without_empty_metrics(tables.curves.drop(columns="precision")),
        work=empty_frame(WORK),
    )
    write_json(files, cell.study, {"archive": source, "environments": []})


def _without_empty_metrics(curves: pd.DataFrame) -> pd.DataFrame:
    fixed = {name for name, _ in CURVES.columns}
    empty = [n for n in curves.columns if n not in fixed and curves[n].isna().all()]
    return curves.drop(columns=empty)
