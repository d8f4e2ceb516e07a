"""Reads the public archive of Shallue et al. 2019, study by study.

A study is `dataset/model/optimizer/<batch_size>/study.json`, and each of its trials
`<trial_id>/metadata.json` and `<trial_id>/measurements.csv`. A dataset may be several
folders deep (`mnist_subsets/mnist_6875`); folders of studies and trials are numbers.

The archive holds 71 million measurements in some 194,000 files; memory holds one study.
Nothing here downloads anything.

Trials count as in the publication: a trial with the status INCOMPLETE is left out. A
trial that diverged is never a best one, even if it had met the goal before. The curve
of a diverged trial is left out, so that this holds for any goal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.checks import (
    INCOMPLETE,
    INFEASIBLE,
    checked_cell,
    checked_numbers,
    named,
)
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.interchange.sweep import CellRuns, write_cells
from dps_tf.analysis.published import shipped_file
from dps_tf.analysis.tables import require
from dps_tf.core import DENSE, FLOAT32, Cell, Goal, UserError, check_metaparameter

OPTIMIZERS = {"nesterov_momentum": "nesterov"}
"""Spelling of the archive -> spelling of this package, where they differ."""
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
SCALES = {
    "LINEAR_SCALE": "linear",
    "LOG_SCALE": "log",
    "REVERSE_LOG_SCALE": "reverse_log",
}
"""Scale of study.json -> scale of this package; an empty one is uniform."""
_TRAINING_EXAMPLES = {"mnist": 55_000, "fashion_mnist": 55_000, "lm1b": 30_301_028}
"""Sizes that the published code states; other data sets count as unknown, 0."""
_WORDS = {str: "text", int: "a whole number", float: "a number", dict: "an object"}


@functools.cache
def goals() -> Mapping[str, Goal]:
    """Returns the published goal of each workload, which is strict.

    Of several goals the first counts. Studies of solution quality have the goal of the
    same network and data set in Figure 1.
    """
    frame = pd.read_csv(shipped_file("shallue2019/published_goals.csv"))
    columns = ["workload", "metric", "threshold", "direction"]
    return {
        name: Goal(metric, threshold, direction, inclusive=False)
        for name, metric, threshold, direction in frame[columns].to_numpy().tolist()
    }


def write_archive(
    root: str | Path,
    sweep_dir: str,
    goal: Goal | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, bool]:
    """Writes the studies below a folder as a sweep directory.

    Args:
        root: folder that the archive unpacks to, or any folder inside of it. The path
            from it to the folder of the model is part of the name of a data set.
        sweep_dir: a directory that is new, empty, or of a call with the same root.
        goal: goal of all studies; by default each has its published one, which is
            strict, and studies without one are left out.
        progress: called with one line per study.

    Returns:
        The name of each cell, and whether it was written; see `sweep.write_runs`.

    Raises:
        UserError: the folder holds no study, none has a goal, two are of one cell, a
            study cannot be read, or the directory holds something else.
    """
    root = Path(root).absolute()
    cells: dict[str, CellRuns] = {}
    without = []
    for path, (cell, published, settings) in _studies(root).items():
        own = goal or published
        if own is None:
            without.append(path.relative_to(root).as_posix())
            continue
        if cell.name in cells:
            raise UserError(
                f"{str(path)!r} and {cells[cell.name].origin!r} are the same cell, "
                f"{cell.name}: give the folders of each as --read, with directories of "
                "their own."
            )
        read = functools.partial(_read_study, path, cell, settings)
        cells[cell.name] = CellRuns(cell.name, str(path), own, read)
    if not cells:
        raise UserError(
            f"no goal is known for any of {len(without)} studies: give --goal and "
            "--metric."
        )
    if without:
        progress(
            f"left out without a goal: {len(without)} of the studies, such as "
            f"{without[0]!r}; give --goal and --metric for them."
        )
    return write_cells(sweep_dir, str(root), list(cells.values()), progress)


def _studies(root: Path) -> dict[Path, tuple[Cell, Goal | None, dict[str, Any]]]:
    """Returns the result of `_study` for each study below a folder; at least one."""
    is_folder = foreign_files.kind_of(root) == "folder"
    places = foreign_files.folders_with(root, "study.json") if is_folder else ()
    studies = {path: _study(root, path) for path in places}
    if not studies:
        raise UserError(
            f"there is no study.json below {str(root)!r}: give the folder that the "
            "archive unpacks to."
        )
    return studies


def _study(root: Path, path: Path) -> tuple[Cell, Goal | None, dict[str, Any]]:
    """Returns the cell of a study, its published goal, and the settings of its runs."""
    file = path / "study.json"
    fields = foreign_files.read_json(file)
    with named(str(file)):
        parts = path.relative_to(root).parts
        # Only the path distinguishes subsets and long runs from the plain data set.
        dataset = _field(fields, "dataset", str)
        if len(parts) > 3:
            dataset = "/".join(parts[:-3])
        name = f"{dataset}-{_field(fields, 'model', str)}"
        optimizer = _field(fields, "optimizer", str)
        cell = checked_cell(
            {
                "workload": re.sub(r"[^A-Za-z0-9._-]", ".", name),
                "optimizer": OPTIMIZERS.get(optimizer, optimizer),
                "sparsity_method": DENSE,
                "seed": 0,
                "batch_size": _field(fields, "batch_size", int),
                "sparsity": 0.0,
                "precision": FLOAT32,
            }
        )
        space = _field(fields, "parameter_configs", dict, {})
        settings = {
            "space": {n: _parameter(n, _field(space, n, dict)) for n in space},
            "step_budget": _field(fields, "train_steps", int, 0),
            "training_examples": _training_examples(dataset),
        }
    return cell, goals().get(name.replace("/", ".")), settings


def _field(
    record: Mapping[str, Any], name: str, kind: type, default: Any = None
) -> Any:
    """Returns a field of a JSON object, whose type must be `kind`, a key of _WORDS.

    Without a default the field has to be there.
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
    """Returns an entry of `parameter_configs` in this package's form of a space."""
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


def _read_study(folder: Path, cell: Cell, settings: Mapping[str, Any]) -> Runs:
    """Returns the runs of a study, by `trial_id`; UserError for damaged files."""
    names = [entry.name for entry in foreign_files.entries_of(folder)]
    places = [folder / name for name in names if foreign_files.is_number(name)]
    if not places:
        raise UserError(f"{str(folder)!r} holds no trial.")
    rows, curves = [], []
    for place in places:
        trial = _trial(place)
        if trial["status"] == INCOMPLETE:
            continue
        curve = _measurements(trial["trial"], place / "measurements.csv")
        trial["steps"] = max(trial["steps"], curve["step"].max() if len(curve) else 0)
        rows.append(trial)
        curves.append(curve[:0] if trial["status"] == INFEASIBLE else curve)
    if not rows:
        raise UserError(f"{str(folder)!r} holds no trial that counts.")
    trials = pd.DataFrame(rows).assign(**cell.to_json(), precision=FLOAT32)
    evaluations = pd.concat(curves, ignore_index=True)
    # Without a number of steps of its own, a study had a time budget.
    budget = settings["step_budget"] or max(row["steps"] for row in rows)
    given = {**settings, "step_budget": budget}
    [runs] = Runs(trials, evaluations, str(folder), **given).by_cell()
    return runs


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


def _measurements(number: int, path: Path) -> pd.DataFrame:
    """Returns the evaluations of a trial, in the order of its file."""
    table = foreign_files.read_csv(path, follow=False)
    with named(str(path)):
        require(table, ["step"], "of measurements")
        wanted = [name for name in table.columns if name == "step" or name in METRICS]
        columns = {
            METRICS.get(name, name): checked_numbers(table, name) for name in wanted
        }
    return pd.DataFrame({"trial": number, **columns})
