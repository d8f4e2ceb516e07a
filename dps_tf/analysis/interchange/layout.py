"""The folders of the public archive of Shallue et al. 2019.

`dataset/model/optimizer/<batch_size>/study.json`, and per trial of a study
`<trial_id>/metadata.json` and `<trial_id>/measurements.csv`. A dataset may be several
folders deep (`mnist_subsets/mnist_6875`); folders of studies and trials are numbers.
Fields that this package adds to study.json (workload, sparsity_method, sparsity, seed,
precision, further axes) are read where they are present; sparsity is also one of Lee et
al. 2021.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import cell_of, check_cell, named
from dps_tf.analysis.interchange.shallue2019_names import to_optimizer
from dps_tf.core.cell import DENSE, Cell, is_axis
from dps_tf.core.errors import UserError
from dps_tf.core.study import FLOAT32

SCALES = {
    "LINEAR_SCALE": "linear",
    "LOG_SCALE": "log",
    "REVERSE_LOG_SCALE": "reverse_log",
}
"""Scale of study.json -> of this package; an empty one is uniform."""
_TRAINING_EXAMPLES = {"mnist": 55_000, "fashion_mnist": 55_000, "lm1b": 30_301_028}
"""Those that the published code states; other data sets count as unknown, 0."""


@dataclass(frozen=True)
class StudyFolder:
    """A study found in an archive.

    Attributes:
        path: its folder.
        configuration: its study.json; only what `field_of` returns is checked.
        cell: whose trials it holds.
        precision: in which they were trained.
        dataset: path prefix in the archive.
    """

    path: Path
    configuration: Mapping[str, Any]
    cell: Cell
    precision: str
    dataset: str


def study_folders(root: Path) -> Iterator[StudyFolder]:
    """Yields the studies below a folder; batch sizes in numerical order.

    Raises:
        UserError: no study is there, or one cannot be read.
    """
    found = False
    if root.is_dir():
        for path in foreign_files.folders_with(root, "study.json"):
            found = True
            yield _study_folder(root, path)
    if not found:
        raise UserError(
            f"there is no study.json below {str(root)!r}: give the folder that the "
            "archive unpacks to."
        )


def _study_folder(root: Path, path: Path) -> StudyFolder:
    file = path / "study.json"
    configuration = foreign_files.read_json(file)
    with named(str(file)):
        parts = path.relative_to(root).parts
        # The path tells subsets and long runs from the plain data set, the field not.
        dataset = field_of(configuration, "dataset", str)
        if len(parts) > 3:
            dataset = "/".join(parts[:-3])
        model = field_of(configuration, "model", str)
        workload = field_of(configuration, "workload", str, f"{dataset}-{model}")
        sparsity = field_of(configuration, "sparsity", float, 0.0)
        cell = cell_of(
            {
                "workload": re.sub(r"[^A-Za-z0-9._-]", ".", workload),
                "optimizer": to_optimizer(field_of(configuration, "optimizer", str)),
                "sparsity_method": field_of(
                    configuration, "sparsity_method", str, "snip" if sparsity else DENSE
                ),
                "seed": field_of(configuration, "seed", int, 0),
                "batch_size": field_of(configuration, "batch_size", int),
                "sparsity": sparsity,
                **{
                    name: field_of(configuration, name, str)
                    for name in configuration
                    if is_axis(name)
                },
            }
        )
        precision = field_of(configuration, "precision", str, FLOAT32)
        check_cell(cell, precision)
    return StudyFolder(path, configuration, cell, precision, dataset)


_WORDS = {str: "text", int: "a whole number", float: "a number", dict: "an object"}


def field_of(
    record: Mapping[str, Any], name: str, kind: type, default: Any = None
) -> Any:
    """Returns a field of a JSON object in the type that it must have.

    Args:
        record: of a file.
        name: of the field.
        kind: str, int, float (a whole number is one too) or dict.
        default: where there is no such field; without, it has to be there.

    Raises:
        UserError: it is missing, or of another type.
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


def space_of(configuration: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns `parameter_configs` as this package writes a space."""
    found = field_of(configuration, "parameter_configs", dict, {})
    return {name: _parameter(name, field_of(found, name, dict)) for name in found}


def _parameter(name: str, entry: Mapping[str, Any]) -> list[Any]:
    kind = field_of(entry, "type", str, "")
    if kind == "DISCRETE":
        choices = entry.get("feasible_points")
        if not isinstance(choices, list):
            raise UserError(f"{name!r} has no list 'feasible_points'.")
        points = {str(place): choice for place, choice in enumerate(choices)}
        return ["discrete", [float(field_of(points, n, float)) for n in points]]
    low = float(field_of(entry, "min_value", float))
    high = float(field_of(entry, "max_value", float))
    if low == high:
        return ["discrete", [low]]
    scale = field_of(entry, "scale", str, "")
    if not scale:
        return ["integer" if kind == "INTEGER" else "linear", low, high]
    if scale not in SCALES:
        raise UserError(
            f"{name!r} has the scale {scale!r}; known: {', '.join(SCALES)}."
        )
    return [SCALES[scale], low, high]


def training_examples(dataset: str) -> int:
    """Returns the size of a training set that the published code states, else 0."""
    name = dataset.rpartition("/")[2]
    subset = re.fullmatch(r"mnist_(\d+)", name)
    return int(subset[1]) if subset else _TRAINING_EXAMPLES.get(name, 0)
