"""A trained sparse model on disk: Keras weights, masks, and the sparsity by layer.

    OUT/model.weights.h5   weights for `keras.Model.load_weights`
    OUT/masks.npz          0/1 bytes by variable name, for `numpy.load`; no pickle
    OUT/sparse_model.json  sparsity by layer, SHA-256 of the others

The JSON record is written last: a folder without it is incomplete.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dps_tf._keras import keras
from dps_tf.core import UserError
from dps_tf.sparsity.prunable import (
    MaskSet,
    VariableRole,
    describe,
    entries_outside,
    roles,
)
from dps_tf.store import LocalFiles, absolute, encode_record, explained

WEIGHTS, MASKS, RECORD = "model.weights.h5", "masks.npz", "sparse_model.json"


def save_sparse(
    model: keras.Model,
    masks: Sequence[np.ndarray],
    path: str,
    prunable: str = "kernels",
    about: Mapping[str, Any] | None = None,
) -> MaskSet:
    """Writes the model to the folder `path`; returns its masks with their sparsity.

    Args:
        model: the trained model; entries outside of the masks must be zero.
        masks: 0/1, one per trainable variable.
        path: made if missing; must be empty, or hold an exported model.
        prunable: the prunable set over which sparsity is counted.
        about: JSON values to store beside it, for example the cell and trial.

    Raises:
        UserError: entries outside of the masks are not zero, or the folder holds
            something else.
        StoreError: the file system refused.
    """
    files, folder = LocalFiles(), absolute(path)
    files.remove_stale(folder)
    names = files.list_names(folder)
    if names and RECORD not in names:
        raise UserError(f"{folder} holds {names[0]}: name an empty folder to export to")
    variables = roles(model)
    for place, outside in entries_outside(model, model.get_weights(), masks):
        raise UserError(
            f"{variables[place].name} has {len(outside)} entries outside of its mask "
            "that are not zero: multiply the weights by the masks before exporting"
        )
    counted = describe(masks, variables, prunable)
    contents = {WEIGHTS: _weights(model), MASKS: _archive(masks, variables)}
    record = {
        "prunable": prunable,
        "realised_sparsity": counted.realised_sparsity,
        "layers": counted.layers,
        "about": dict(about or {}),
        "sha256": {name: sha256(data).hexdigest() for name, data in contents.items()},
    }
    files.write_many({f"{folder}/{name}": data for name, data in contents.items()})
    files.write_atomic(f"{folder}/{RECORD}", encode_record(record))
    return counted


def table(masks: MaskSet) -> str:
    """Returns the sparsity of each prunable variable and of all, as text."""
    rows = [(r["name"], r["parameters"], r["kept"]) for r in masks.layers]
    total = tuple(sum(row[column] for row in rows) for column in (1, 2))
    width = max(len(name) for name, _, _ in [*rows, ("variable", 0, 0)])
    lines = [f"{'variable':{width}}  {'parameters':>10}  {'kept':>10}  sparsity"]
    for name, parameters, kept in [*rows, ("all", *total)]:
        sparsity = 1 - kept / parameters if parameters else 0.0
        lines.append(f"{name:{width}}  {parameters:10d}  {kept:10d}  {sparsity:8.4f}")
    return "\n".join(lines)


def _weights(model: keras.Model) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WEIGHTS
        with explained("write", str(path)):
            model.save_weights(str(path))
        return path.read_bytes()


def _archive(masks: Sequence[np.ndarray], variables: Sequence[VariableRole]) -> bytes:
    buffer = io.BytesIO()
    entries: dict[str, Any] = {
        role.name: np.asarray(mask).astype(np.uint8)
        for role, mask in zip(variables, masks, strict=True)
    }
    np.savez_compressed(buffer, **entries)
    return buffer.getvalue()
