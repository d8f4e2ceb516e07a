"""One study of the public archive of Shallue et al. 2019, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_files import is_number
from dps_tf.analysis.interchange.foreign_study import ForeignStudy, named
from dps_tf.analysis.interchange.layout import (
    StudyFolder,
    field_of,
    space_of,
    training_examples,
)
from dps_tf.analysis.interchange.outcomes import ArchiveRules, counted
from dps_tf.analysis.interchange.shallue2019_names import to_metric
from dps_tf.core.errors import UserError
from dps_tf.core.space import check_metaparameter


def read_study(folder: StudyFolder, rules: ArchiveRules | None = None) -> ForeignStudy:
    """Returns the trials of one study that count; the others are not opened.

    `trials.trial` is the archive's `trial_id`.

    Args:
        folder: of `study_folders`.
        rules: which trials count; by default all but INCOMPLETE ones.

    Raises:
        UserError: a file that is missing, damaged, or holds what no study holds.
    """
    found = foreign_files.entries(folder.path)
    folders = [Path(entry.path) for entry in found if is_number(entry.name)]
    if not folders:
        raise UserError(f"{str(folder.path)!r} holds no trial.")
    rows = [_trial(place) for place in folders]
    trials = pd.DataFrame(rows, index=range(len(rows))).sort_values("trial")
    trials = counted(trials, rules or ArchiveRules())
    curves = [
        _measurements(number, folders[place])
        for place, number in zip(trials.index.tolist(), trials["trial"], strict=True)
    ]
    empty = pd.DataFrame({"trial": [], "step": []})
    configuration = folder.configuration
    path = folder.path / "study.json"
    with named(str(path)):
        budget = field_of(configuration, "train_steps", int, 0)
        prunable = field_of(configuration, "prunable", str, "none")
        space = space_of(configuration)
    return ForeignStudy(
        cell=folder.cell,
        trials=trials,
        evaluations=pd.concat(curves, ignore_index=True) if curves else empty,
        origin=str(folder.path),
        precision=folder.precision,
        space=space,
        step_budget=budget,
        training_examples=training_examples(folder.dataset),
        prunable=prunable,
    )


def _trial(place: Path) -> dict[str, Any]:
    """Returns the row of a trial, from its metadata."""
    path = place / "metadata.json"
    metadata = foreign_files.read_json(path)
    with named(str(path)):
        row = {
            "trial": field_of(metadata, "trial_id", int),
            "status": field_of(metadata, "status", str),
            "steps": field_of(metadata, "steps", int, 0),
        }
        points = field_of(metadata, "parameters", dict, {})
        for name in points:
            check_metaparameter(name)
            if name in row:
                raise UserError(f"metaparameter name {name!r} is not usable.")
            row[name] = field_of(points, name, float)
    return row


def _measurements(number: int, place: Path) -> pd.DataFrame:
    """Returns the evaluations of a trial, in the order of its file."""
    path = place / "measurements.csv"
    table = foreign_files.read_columns(path, _kind)
    if "step" not in table.column_names:
        raise UserError(f"{str(path)!r} has no column 'step'.")
    names = [to_metric(name) or name for name in table.column_names]
    frame: pd.DataFrame = table.rename_columns(names).to_pandas()
    frame.insert(0, "trial", number)
    return frame


def _kind(column: str) -> pa.DataType | None:
    return pa.float64() if column == "step" or to_metric(column) else None
