"""Reads the reference numbers: inputs, and what the reference code made of them.

Environment: DPS_TF_GOLDEN_DIR, the folder of the files; DPS_TF_RAW_DATA, the folder of
the raw data sets, for files that do not hold their images. What is absent at its
default place skips the tests; a folder without files fails them.
"""

from __future__ import annotations

import functools
import os
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dps_tf.data import Whitening
from tests.data import raw_files

_PROJECT = Path(__file__).resolve().parents[2]
_SHARED = _PROJECT.parent / "shared"
EVALUATION = slice(1000, 1500)  # the set comes before them
_DATASETS = {"cifar-10": "cifar10", "fashion-mnist": "fashion_mnist"}
_NETWORKS = {"simple-cnn": "simple_cnn", "resnet-8": "resnet8"}


def paths() -> list[Path]:
    """Returns all files of reference numbers; an empty folder is an error.

    Without the default folder: the path of a file that is not there, which `read`
    answers by skipping the test.
    """
    folder = Path(os.environ.get("DPS_TF_GOLDEN_DIR", _SHARED / "golden"))
    if "DPS_TF_GOLDEN_DIR" not in os.environ and not folder.is_dir():
        return [folder / "absent.npz"]
    found = sorted(folder.glob("*.npz"))
    if not found:
        raise FileNotFoundError(
            f"no reference numbers in {folder}: set DPS_TF_GOLDEN_DIR"
        )
    return found


@dataclass(frozen=True)
class Golden:
    """One file.

    `arrays`: by key; `config`: by name, as text; `names`: of the tensors, in layer
    order, kernel before bias; `inputs`, `labels`: the set.
    """

    arrays: dict[str, np.ndarray]
    config: dict[str, str]
    names: list[str]
    inputs: np.ndarray
    labels: np.ndarray

    @property
    def network(self) -> str:
        arch = self.config["arch"]
        return _NETWORKS.get(arch, arch.replace("-", "_"))

    @property
    def classes(self) -> int:
        return int(self.arrays[f"init/{self.names[-1]}"].shape[-1])

    @property
    def sparsity(self) -> float:
        return float(self.config["target_sparsity"])

    def tensors(self, group: str) -> list[np.ndarray]:
        """Returns the arrays `<group>/<name>` in layer order."""
        return [self.arrays[f"{group}/{name}"] for name in self.names]

    @property
    def evaluation(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Inputs and labels of the evaluation, or None where they are not stored."""
        if self.arrays["inputs/image"].size:
            return None
        inputs, labels = _whitened(self.config["dataset"])
        return inputs[EVALUATION], labels[EVALUATION]


@functools.cache
def read(path: Path) -> Golden:
    """Returns the content of a file, its images read from the raw data if need be."""
    if path.name == "absent.npz":
        raise unittest.SkipTest(
            f"no reference numbers in {path.parent} (set DPS_TF_GOLDEN_DIR)"
        )
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    pairs = str(arrays["config"].ravel()[0]).split(";")
    config = dict(pair.split("=", 1) for pair in pairs)
    names = [key.partition("/")[2] for key in arrays if key.startswith("init/")]
    names.sort(key=lambda name: (int(name[1:]), "wb".index(name[0])))
    inputs, labels = arrays["inputs/image"], arrays["inputs/label"]
    if not inputs.size:
        inputs, raw_labels = (a[: len(labels)] for a in _whitened(config["dataset"]))
        np.testing.assert_array_equal(raw_labels, labels)
    return Golden(arrays, config, names, inputs, np.asarray(labels, np.int32))


@functools.cache
def _whitened(dataset: str) -> tuple[np.ndarray, np.ndarray]:
    name = _DATASETS.get(dataset, dataset.replace("-", "_"))
    with tempfile.TemporaryDirectory() as scratch:
        pixels, labels = raw_files.train_images(
            name, raw_files.real(name, Path(scratch))
        )
    used = slice(0, EVALUATION.stop)
    return Whitening.of(pixels)(pixels[used]), labels[used].astype(np.int32)
