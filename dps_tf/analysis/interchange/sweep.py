"""The public archive of Shallue et al. 2019 as a sweep directory.

Each study becomes a closed cell, so that every command that reads a sweep reads it. A
cell is written before the next study is read: memory holds one study, and whoever was
stopped goes on where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange.archive import Goals, own_or_published_goal, selected
from dps_tf.analysis.interchange.layout import StudyFolder
from dps_tf.analysis.interchange.reader import ArchiveRules, StudyTables, read_study
from dps_tf.analysis.tables import cell_name
from dps_tf.core.errors import UserError
from dps_tf.core.goal import Goal
from dps_tf.store.closing import close_study, is_closed
from dps_tf.store.errors import DamagedError
from dps_tf.store.files import FileSystem, LocalFiles
from dps_tf.store.layout import CellLayout, SweepLayout
from dps_tf.store.records import read_json, write_json
from dps_tf.store.schemas import CURVES, WORK
from dps_tf.store.tables import empty_frame


@dataclass(frozen=True)
class Conversion:
    """What became of an archive.

    Attributes:
        read: cells that were read.
        kept: cells that were there already, read by the same rules.
        without_goal: studies that were left out for want of a goal, as their folders.
    """

    read: tuple[str, ...]
    kept: tuple[str, ...]
    without_goal: tuple[str, ...]


def convert(  # noqa: PLR0913 - each is independent of the others
    root: str | Path,
    sweep_dir: str,
    goal: Goals = own_or_published_goal,
    rules: ArchiveRules | None = None,
    *,
    only: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Conversion:
    """Reads studies of an archive into a sweep directory.

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
    files, layout = LocalFiles(), SweepLayout(sweep_dir)
    wanted, without = _wanted(root, goal, only)
    _start(files, layout, root, list(wanted))
    read, kept = [], []
    for number, (name, (folder, own)) in enumerate(wanted.items(), start=1):
        source = {"path": str(folder.path), "goal": own.to_json(), **asdict(rules)}
        told = f"{number} of {len(wanted)}: {name}"
        if _is_there(files, layout.cell(name), source):
            kept.append(name)
            progress(f"{told}: there already")
            continue
        tables = read_study(folder, own, rules)
        _write(files, layout.cell(name), tables, source)
        read.append(name)
        progress(
            f"{told}: {len(tables.trials):,} trials, {len(tables.curves):,} evaluations"
        )
    return Conversion(tuple(read), tuple(kept), tuple(without))


def _wanted(
    root: Path, goal: Goals, only: Sequence[str]
) -> tuple[dict[str, tuple[StudyFolder, Goal]], list[str]]:
    """Returns (studies with their goals by cell, folders that have no goal)."""
    wanted: dict[str, tuple[StudyFolder, Goal]] = {}
    without = []
    for folder in selected(root, only):
        own = goal if isinstance(goal, Goal) else goal(folder)
        if own is None:
            without.append(folder.path.relative_to(root).as_posix())
            continue
        name = cell_name(folder.identity)
        if name in wanted:
            raise UserError(
                f"{str(folder.path)!r} and {str(wanted[name][0].path)!r} are the same "
                f"cell, {name}: read them into directories of their own, by --only."
            )
        wanted[name] = (folder, own)
    if not wanted:
        raise UserError(
            f"no goal is known for any of {len(without)} studies: give --goal and "
            "--metric."
        )
    return wanted, without


def _start(
    files: FileSystem, layout: SweepLayout, root: Path, cells: Sequence[str]
) -> None:
    """Marks the directory as a sweep that was read from this archive."""
    names = files.list_names(layout.root)
    if names and not files.exists(layout.marker):
        raise UserError(
            f"{layout.root} holds {names[0]} and no sweep: choose a new or empty "
            "--sweep_dir."
        )
    try:
        before = read_json(files, layout.sweep)
    except (FileNotFoundError, DamagedError):
        before = {"cells": [], "archive": str(root)}
    if before.get("archive") != str(root):
        held = before.get("archive") or "a sweep of its own"
        raise UserError(
            f"{layout.root} holds {held}: choose a new or empty --sweep_dir."
        )
    files.make_directory(layout.cells)
    write_json(files, layout.marker, {"made_by": "dps_tf"})
    every = list(dict.fromkeys([*before["cells"], *cells]))
    write_json(files, layout.sweep, {"cells": every, "archive": str(root)})


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
