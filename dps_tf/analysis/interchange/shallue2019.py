"""The public archive of Shallue et al. 2019, study by study.

`dataset/model/optimizer/<batch_size>/study.json`, and per trial of a study
`<trial_id>/metadata.json` and `<trial_id>/measurements.csv`. A dataset may be several
folders deep (`mnist_subsets/mnist_6875`); folders of studies and trials are numbers.

The archive holds 71 million measurements in some 194,000 files; memory holds one study.
Nothing here downloads anything.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import (
    ArchiveRules,
    ForeignStudy,
    UnreadStudy,
    cell_of,
    check_cell,
    counted,
    named,
)
from dps_tf.analysis.published import shipped_file
from dps_tf.core import DENSE, FLOAT32, Goal, UserError, check_metaparameter

OPTIMIZERS = {"nesterov_momentum": "nesterov"}
"""Spelling of the archive -> of this package, where they differ."""
_SPLITS = {"train": "train", "val": "validation", "test": "test"}
_METRICS = {
    "cross_entropy_error": "cross_entropy",
    "classification_error": "classification_error",
    "average_precision": "average_precision",
}
METRICS = {
    f"{split}/{metric}": f"{our_split}/{our_metric}"
    for split, our_split in _SPLITS.items()
    for metric, our_metric in _METRICS.items()
}
"""Column of the archive -> metric of this package; other columns are no metrics."""
_MAXIMIZED = ("average_precision", "accuracy")
SCALES = {
    "LINEAR_SCALE": "linear",
    "LOG_SCALE": "log",
    "REVERSE_LOG_SCALE": "reverse_log",
}
"""Scale of study.json -> of this package; an empty one is uniform."""
_TRAINING_EXAMPLES = {"mnist": 55_000, "fashion_mnist": 55_000, "lm1b": 30_301_028}
"""Those that the published code states; other data sets count as unknown, 0."""
_WORDS = {str: "text", int: "a whole number", float: "a number", dict: "an object"}


@functools.cache
def goals() -> Mapping[str, Goal]:
    """Returns the published goal of each workload, which is strict.

    The first of several. Studies of solution quality have none: it is that of the same
    network and data set in Figure 1.
    """
    frame = pd.read_csv(shipped_file("shallue2019/published_goals.csv"))
    columns = ["workload", "metric", "threshold", "direction"]
    return {
        name: Goal(metric, threshold, direction, inclusive=False)
        for name, metric, threshold, direction in frame[columns].to_numpy().tolist()
    }


def direction_of(metric: str) -> str:
    """Returns `maximize` for metrics that are better when larger."""
    return "maximize" if metric.rpartition("/")[2] in _MAXIMIZED else "minimize"


def archived_studies(root: Path, only: Sequence[str] = ()) -> list[UnreadStudy]:
    """Returns the studies below a folder; batch sizes in numerical order.

    The goal of each is the published one of its data set and model, if there is one.

    Args:
        root: folder that the archive unpacks to, or any folder inside of it.
        only: patterns of `dataset/model/optimizer/batch_size` as the archive spells
            it, `*` standing for anything; all studies without.

    Raises:
        UserError: the folder holds no study, no study matches, or a study.json cannot
            be read.
    """
    is_folder = foreign_files.kind_of(root) == "folder"
    places = foreign_files.folders_with(root, "study.json") if is_folder else ()
    studies = {path.relative_to(root).as_posix(): _study(root, path) for path in places}
    if not studies:
        raise UserError(
            f"there is no study.json below {str(root)!r}: give the folder that the "
            "archive unpacks to."
        )
    chosen = [
        study
        for name, study in studies.items()
        if not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)
    ]
    if not chosen:
        raise UserError(
            f"none of the {len(studies)} studies of {str(root)!r} matches "
            f"{', '.join(map(repr, only))}: they are called as {next(iter(studies))!r} "
            "is, and * stands for anything."
        )
    return chosen


def _study(root: Path, path: Path) -> UnreadStudy:
    file = path / "study.json"
    fields = foreign_files.read_json(file)
    with named(str(file)):
        parts = path.relative_to(root).parts
        # The path tells subsets and long runs from the plain data set, the field not.
        dataset = _field(fields, "dataset", str)
        if len(parts) > 3:
            dataset = "/".join(parts[:-3])
        model = _field(fields, "model", str)
        optimizer = _field(fields, "optimizer", str)
        cell = cell_of(
            {
                "workload": re.sub(r"[^A-Za-z0-9._-]", ".", f"{dataset}-{model}"),
                "optimizer": OPTIMIZERS.get(optimizer, optimizer),
                "sparsity_method": DENSE,
                "seed": 0,
                "batch_size": _field(fields, "batch_size", int),
                "sparsity": 0.0,
            }
        )
        check_cell(cell, FLOAT32)
        space = _field(fields, "parameter_configs", dict, {})
        about = {
            "cell": cell,
            "origin": str(path),
            "space": {n: _parameter(n, _field(space, n, dict)) for n in space},
            "step_budget": _field(fields, "train_steps", int, 0),
            "training_examples": _training_examples(dataset),
        }
    goal = goals().get(f"{dataset}-{model}".replace("/", "."))
    read = functools.partial(_read_study, path, about)
    return UnreadStudy(cell.name, str(path), goal, read)


def _field(
    record: Mapping[str, Any], name: str, kind: type, default: Any = None
) -> Any:
    """Returns a field of a JSON object in the type, a key of _WORDS, that it must have.

    Without a default it has to be there.
    """
    if name not in record:
        if default is None:
            raise UserError(f"there is no field {name!r}.")
        return default
    value = record[name]
    kinds = (int, float) if kind is float else kind
    if kind is int and isinstance(value, float) and value % 1 == 0:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, kinds):
        shown = repr(value)[:80]
        raise UserError(f"the field {name!r} is {shown}; it must be {_WORDS[kind]}.")
    return value


def _parameter(name: str, entry: Mapping[str, Any]) -> list[Any]:
    """Returns an entry of `parameter_configs` as this package writes a space."""
    kind = _field(entry, "type", str, "")
    if kind == "DISCRETE":
        choices = entry.get("feasible_points")
        if not isinstance(choices, list):
            raise UserError(f"{name!r} has no list 'feasible_points'.")
        points = {str(place): choice for place, choice in enumerate(choices)}
        return ["discrete", [float(_field(points, n, float)) for n in points]]
    low = float(_field(entry, "min_value", float))
    high = float(_field(entry, "max_value", float))
    if low == high:
        return ["discrete", [low]]
    scale = _field(entry, "scale", str, "")
    if not scale:
        return ["integer" if kind == "INTEGER" else "linear", low, high]
    if scale not in SCALES:
        raise UserError(
            f"{name!r} has the scale {scale!r}; known: {', '.join(SCALES)}."
        )
    return [SCALES[scale], low, high]


def _training_examples(dataset: str) -> int:
    """Returns the size of a training set that the published code states, else 0."""
    name = dataset.rpartition("/")[2]
    subset = re.fullmatch(r"mnist_(\d{1,15})", name, re.ASCII)
    return int(subset[1]) if subset else _TRAINING_EXAMPLES.get(name, 0)


def _read_study(
    folder: Path, about: Mapping[str, Any], rules: ArchiveRules
) -> ForeignStudy:
    """Returns the trials of one study that count; the others are not opened.

    `trials.trial` is the archive's `trial_id`.

    Raises:
        UserError: a file that is missing, damaged, or holds what no study holds.
    """
    there = foreign_files.entries(folder)
    names = [entry.name for entry in there if foreign_files.is_number(entry.name)]
    if not names:
        raise UserError(f"{str(folder)!r} holds no trial.")
    places = [folder / name for name in names]
    trials = pd.DataFrame([_trial(place) for place in places]).sort_values("trial")
    trials = counted(trials, rules)
    curves = [
        _measurements(number, places[place])
        for place, number in zip(trials.index.tolist(), trials["trial"], strict=True)
    ]
    empty = pd.DataFrame({"trial": [], "step": []})
    return ForeignStudy(
        trials=trials,
        evaluations=pd.concat(curves, ignore_index=True) if curves else empty,
        **about,
    )


def _trial(place: Path) -> dict[str, Any]:
    """Returns the row of a trial, from its metadata."""
    path = place / "metadata.json"
    metadata = foreign_files.read_json(path)
    with named(str(path)):
        row = {
            "trial": _field(metadata, "trial_id", int),
            "status": _field(metadata, "status", str),
            "steps": _field(metadata, "steps", int, 0),
        }
        points = _field(metadata, "parameters", dict, {})
        for name in points:
            check_metaparameter(name)
            if name in row:
                raise UserError(f"metaparameter name {name!r} is not usable.")
            row[name] = _field(points, name, float)
    return row


def _measurements(number: int, place: Path) -> pd.DataFrame:
    """Returns the evaluations of a trial, in the order of its file."""
    path = place / "measurements.csv"
    table = foreign_files.read_columns(path, _kind)
    if "step" not in table.column_names:
        raise UserError(f"{str(path)!r} has no column 'step'.")
    names = [METRICS.get(name, name) for name in table.column_names]
    frame: pd.DataFrame = table.rename_columns(names).to_pandas()
    frame.insert(0, "trial", number)
    return frame


def _kind(column: str) -> pa.DataType | None:
    wanted = column == "step" or column in METRICS
    return pa.float64() if wanted else None
