"""The folders of the public archive of Shallue et al. 2019.

`dataset/model/optimizer/<batch_size>/study.json`, and per trial of a study
`<trial_id>/metadata.json` and `<trial_id>/measurements.csv`. A dataset may be several
folders deep (`mnist_subsets/mnist_6875`); folders of studies and trials are numbers.
Fields that this package adds to study.json (workload, sparsity_method, sparsity, seed,
precision, further axes) are read where they are present; sparsity is also one of Lee et
al. 2021.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dps_tf.analysis.interchange.shallue2019_names import to_optimizer
from dps_tf.core.cell import DENSE, is_axis
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
        configuration: its study.json.
        identity: the columns that name the study.
        dataset: path prefix in the archive.
    """

    path: Path
    configuration: dict[str, Any]
    identity: dict[str, Any]
    dataset: str


def study_folders(root: Path) -> Iterator[StudyFolder]:
    """Yields the studies below a folder; batch sizes in numerical order.

    Raises:
        UserError: no study is there, or one cannot be read.
    """
    found = False
    for path in _folders_with_studies(root):
        found = True
        yield _study_folder(root, path)
    if not found:
        raise UserError(
            f"there is no study.json below {str(root)!r}: give the folder that the "
            "archive unpacks to."
        )


def _folders_with_studies(folder: Path) -> Iterator[Path]:
    if (folder / "study.json").is_file():
        # Nothing but trials lies below a study.
        yield folder
        return
    if folder.is_dir():
        parts = sorted((p for p in folder.iterdir() if p.is_dir()), key=numerically)
        for part in parts:
            yield from _folders_with_studies(part)


def numerically(path: Path) -> tuple[int, str]:
    """Returns a key that orders folders by number; other names come first."""
    return (int(path.name), "") if path.name.isdecimal() else (-1, path.name)


def _study_folder(root: Path, path: Path) -> StudyFolder:
    configuration = read_json(path / "study.json")
    for name in ("batch_size", "dataset", "model", "optimizer"):
        if name not in configuration:
            raise UserError(f"{str(path / 'study.json')!r} has no field {name!r}.")
    parts = path.relative_to(root).parts
    # The path tells subsets and long runs from the plain data set, and the field not.
    dataset = "/".join(parts[:-3]) if len(parts) > 3 else configuration["dataset"]
    workload = configuration.get("workload") or f"{dataset}-{configuration['model']}"
    sparsity = float(configuration.get("sparsity", 0.0))
    identity = {
        "workload": re.sub(r"[^A-Za-z0-9._-]", ".", str(workload)),
        "optimizer": to_optimizer(str(configuration["optimizer"])),
        "sparsity_method": str(
            configuration.get("sparsity_method", "snip" if sparsity else DENSE)
        ),
        "seed": int(configuration.get("seed", 0)),
        "batch_size": int(configuration["batch_size"]),
        "sparsity": sparsity,
        **{name: str(configuration[name]) for name in configuration if is_axis(name)},
        "precision": str(configuration.get("precision", FLOAT32)),
    }
    return StudyFolder(path, configuration, identity, str(dataset))


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object, or raises UserError with the file's name."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{str(path)!r} must hold a JSON object.")
    return value


def space_of(configuration: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns `parameter_configs` as this package writes a space."""
    return {
        name: _parameter(name, entry)
        for name, entry in configuration.get("parameter_configs", {}).items()
    }


def _parameter(name: str, entry: dict[str, Any]) -> list[Any]:
    if entry.get("type") == "DISCRETE":
        return ["discrete", [float(point) for point in entry["feasible_points"]]]
    low, high = float(entry["min_value"]), float(entry["max_value"])
    if low == high:
        return ["discrete", [low]]
    scale = entry.get("scale", "")
    if not scale:
        return ["integer" if entry.get("type") == "INTEGER" else "linear", low, high]
    if scale not in SCALES:
        raise UserError(f"{name} has the scale {scale!r}; known: {', '.join(SCALES)}.")
    return [SCALES[scale], low, high]


def training_examples(dataset: str) -> int:
    """Returns the size of a training set that the published code states, else 0."""
    name = dataset.rpartition("/")[2]
    subset = re.fullmatch(r"mnist_(\d+)", name)
    return int(subset[1]) if subset else _TRAINING_EXAMPLES.get(name, 0)
