"""The public archive of Shallue et al. 2019 as the tables that all analyses read.

The archive holds 71 million measurements in some 194,000 files. It is read one study at
a time, so that memory holds one study; `archive_sweep` keeps what was read before it
reads on. Nothing here downloads anything.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis import published
from dps_tf.analysis.interchange.foreign_study import (
    check_metric,
    checked_whole,
    named,
)
from dps_tf.analysis.interchange.layout import StudyFolder, field_of, study_folders
from dps_tf.analysis.interchange.outcomes import (
    ArchiveRules,
    StudyTables,
    study_tables,
)
from dps_tf.analysis.interchange.reader import read_study
from dps_tf.analysis.tables import axes_of, with_axes
from dps_tf.core.errors import UserError
from dps_tf.core.goal import Goal

Goals = Goal | Callable[[StudyFolder], Goal | None]
"""One goal, or the goal of each study; None leaves the study out."""
TABLES = ("studies", "trials", "curves")


def own_or_published_goal(folder: StudyFolder) -> Goal | None:
    """Returns the goal that a study itself or the publication states, or None.

    Studies that this package wrote hold theirs; for others it is that of the published
    figures 1 and 4, by data set and model.
    """
    with named(str(folder.path / "study.json")):
        own = field_of(folder.configuration, "goal", dict, {})
        if own:
            return _goal(own)
        model = field_of(folder.configuration, "model", str)
    return published.goals().get((folder.dataset, model))


def _goal(fields: dict[str, Any]) -> Goal:
    check_metric(field_of(fields, "metric", str))
    for name in ("in_a_row", "mean_of"):
        checked_whole(name, fields.get(name, 1))
    try:
        return Goal.from_json(fields)
    except TypeError as error:
        raise UserError(f"the field 'goal' is of another kind: {error}.") from error


def selected(root: Path, only: Sequence[str] = ()) -> list[StudyFolder]:
    """Returns the studies below a folder that match any of some patterns.

    Args:
        root: folder that the archive unpacks to.
        only: patterns of `dataset/model/optimizer/batch_size` as the archive spells
            it, `*` standing for anything; all studies without.

    Raises:
        UserError: no study is there, or none matches.
    """
    found = list(study_folders(root))
    if not only:
        return found
    names = {folder.path.relative_to(root).as_posix(): folder for folder in found}
    chosen = [
        folder
        for name, folder in names.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in only)
    ]
    if not chosen:
        raise UserError(
            f"none of the {len(found)} studies of {str(root)!r} matches "
            f"{', '.join(map(repr, only))}: they are called as {next(iter(names))!r} "
            "is, and * stands for anything."
        )
    return chosen


def read_studies(
    root: str | Path, goal: Goals, rules: ArchiveRules | None = None
) -> Iterator[StudyTables]:
    """Yields the tables of one study after the other.

    Args:
        root: folder that the archive unpacks to, or any folder inside of it.
        goal: strict in the publication; see Goals.
        rules: which trials count.
    """
    for folder in study_folders(Path(root)):
        wanted = goal if isinstance(goal, Goal) else goal(folder)
        if wanted is not None:
            yield study_tables(read_study(folder, rules), wanted, rules)


def read_archive(
    root: str | Path, goal: Goals, rules: ArchiveRules | None = None
) -> StudyTables:
    """Returns the tables of all studies together, for archives that fit in memory."""
    return joined(read_studies(root, goal, rules))


def joined(parts: Iterator[StudyTables]) -> StudyTables:
    """Returns the tables of several studies as one; studies tune different names."""
    found = list(parts)
    if not found:
        raise UserError("no study is left to read: no goal is given for any of them.")
    axes = {axis for part in found for axis in axes_of(part.studies)}
    return StudyTables(
        *(
            pd.concat(
                [with_axes(getattr(part, name), axes) for part in found],
                ignore_index=True,
            )
            for name in TABLES
        )
    )
