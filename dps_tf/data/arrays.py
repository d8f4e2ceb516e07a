"""Examples that stay in files until they are read, so that a set may exceed memory.

A set is written once, batch by batch, from any source; each example is then reached by
its number. A manifest beside the two files has their types, shapes and SHA-256 sums, so
that opening a set reads neither file.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dps_tf.core import UserError
from dps_tf.data.raw import sha256

Preprocess = Callable[[np.ndarray], np.ndarray]

_MANIFEST = "manifest.json"
_FORMAT = 1
_ROWS = 1 << 12  # hashed at a time
_NAMES = ("inputs", "labels")
_STACKED = 256  # examples that are written at a time
_BEGUN = ".begun.json"
"""File with types and shapes of the rows, until the manifest is written."""


@dataclass(frozen=True)
class Arrays:
    """A set that was opened.

    `inputs`: mapped [n, ...]; `labels`: mapped [n, ...]; `content`: SHA-256 over what
    the manifest says of both, hexadecimal; `facts`: JSON values that were written with
    them.
    """

    inputs: np.ndarray
    labels: np.ndarray
    content: str
    facts: Mapping[str, Any] = field(default_factory=dict)


Batches = Iterable[tuple[np.ndarray, np.ndarray]]


def write_arrays(
    folder: Path,
    batches: Batches | Callable[[int], Batches],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Writes a set into a folder, which is made if it is missing.

    The manifest comes last, so a folder without one holds no set. Rows that were
    written before a stop are kept for the next call; where batches raise UserError, all
    files are removed.

    Args:
        folder: replaced as a whole if it holds a set already.
        batches: (inputs, labels), arrays of as many rows each, of one type and, but for
            the number of rows, one shape. Or a function of n that returns the batches
            after the first n rows: then a call goes on after the n rows that a killed
            call with the same facts has written.
        facts: JSON values to be kept with them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MANIFEST).unlink(missing_ok=True)
    facts = dict(facts or {})
    try:
        described = _written(folder, batches, facts)
    except UserError:
        _remove(folder)
        raise
    _write_manifest(folder, {**described, "facts": facts})


def _remove(folder: Path) -> None:
    """Removes what was written of a source that has to be another one."""
    for name in ("inputs.bin", "labels.bin", _BEGUN):
        (folder / name).unlink(missing_ok=True)


def _written(
    folder: Path,
    batches: Batches | Callable[[int], Batches],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Writes the files of a set; returns what the manifest says of them."""
    kept = _kept(folder, facts) if callable(batches) else {}
    found = len(kept["inputs"]) if kept else 0
    sums = {name: hashlib.sha256() for name in _NAMES}
    like: dict[str, np.ndarray] = {}
    for name, array in kept.items():
        like[name] = array[:0]
        for start in range(0, found, _ROWS):
            sums[name].update(np.ascontiguousarray(array[start : start + _ROWS]).data)
    with (
        (folder / "inputs.bin").open("ab" if found else "wb") as one,
        (folder / "labels.bin").open("ab" if found else "wb") as two,
    ):
        count = found
        for batch in batches(found) if callable(batches) else batches:
            _check_rows(batch)
            if not like:
                (folder / _BEGUN).write_text(_begun_text(batch, facts))
            count += len(batch[0])
            for name, file, array in zip(_NAMES, (one, two), batch, strict=True):
                first = like.setdefault(name, array[:0])
                if (array.dtype, array.shape[1:]) != (first.dtype, first.shape[1:]):
                    raise ValueError(f"{name} of several types or shapes")
                data = np.ascontiguousarray(array).data
                sums[name].update(data)
                file.write(data)
    return {
        name: {
            "dtype": like[name].dtype.str,
            "shape": [count, *like[name].shape[1:]],
            "sha256": sums[name].hexdigest(),
        }
        for name in _NAMES
    }


def _write_manifest(folder: Path, described: Mapping[str, Any]) -> None:
    manifest = {"format": _FORMAT, **described}
    partial = folder / f".{_MANIFEST}"
    partial.write_text(json.dumps(manifest, indent=1, sort_keys=True))
    partial.replace(folder / _MANIFEST)
    (folder / _BEGUN).unlink(missing_ok=True)


def _check_rows(batch: tuple[np.ndarray, np.ndarray]) -> None:
    if len(batch[0]) != len(batch[1]):
        raise ValueError(f"{len(batch[0])} inputs, {len(batch[1])} labels")


def _begun_text(batch: tuple[np.ndarray, np.ndarray], facts: dict[str, Any]) -> str:
    rows = [[array.dtype.str, list(array.shape[1:])] for array in batch]
    return json.dumps({"rows": rows, "facts": facts}, sort_keys=True)


def _kept(folder: Path, facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the whole rows of a killed call; cuts off a row that is not whole."""
    try:
        begun = json.loads((folder / _BEGUN).read_text())
        if begun["facts"] != json.loads(json.dumps(facts)):
            return {}
        written = [
            (folder / f"{name}.bin", np.dtype(dtype), tuple(shape))
            for name, (dtype, shape) in zip(_NAMES, begun["rows"], strict=True)
        ]
        rows = min(
            path.stat().st_size // (dtype.itemsize * math.prod(shape))
            for path, dtype, shape in written
        )
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not rows:
        return {}
    found: dict[str, np.ndarray] = {}
    for name, (path, dtype, shape) in zip(_NAMES, written, strict=True):
        os.truncate(path, rows * dtype.itemsize * math.prod(shape))
        found[name] = np.memmap(path, dtype, "r", shape=(rows, *shape))
    return found


def stored_once(
    folder: str | Path, examples: Callable[[], Iterable[tuple[Any, Any]]]
) -> Arrays:
    """Returns the set in a folder, which the first call writes.

    So any source that can only be read from its beginning to its end gives a data set:

        arrays = stored_once("data/my_set", lambda: tfds.load("my_set")["train"])

    Args:
        folder: where the set lies from then on; remove it to have it written anew.
        examples: returns what yields pairs (input, label) of single examples, in a
            fixed order: a `tf.data.Dataset` that is not batched, or a generator.

    Raises:
        UserError: there is no example, examples differ in shape or type, or the dataset
            is batched.
    """
    place = Path(folder)
    if not has_arrays(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may begin at once: each writes its own, one is kept.
        begun = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            source = examples()
            if _is_batched(source):
                raise UserError(
                    f"the dataset for {place} is batched, and single examples are "
                    "stored: call .unbatch() on it."
                )
            write_arrays(begun, _batched(source, place))
            with contextlib.suppress(OSError):
                begun.rename(place)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    return open_arrays(place)


def _is_batched(source: Any) -> bool:
    """Returns whether elements of a `tf.data.Dataset` are batches, as its steps say."""
    step = type(source).__name__
    if step in ("_UnbatchDataset", "_FlatMapDataset"):
        return False
    inputs: Callable[[], list[Any]] = getattr(source, "_inputs", list)
    return "BatchDataset" in step or any(map(_is_batched, inputs()))


def _batched(examples: Iterable[tuple[Any, Any]], place: Path) -> Batches:
    """Yields arrays of some examples each; UserError where they cannot be stacked."""
    each = iter(examples)
    like: list[tuple[Any, Any]] | None = None
    while some := list(itertools.islice(each, _STACKED)):
        parts = [[np.asarray(pair[part]) for pair in some] for part in (0, 1)]
        for number, array in itertools.product(range(len(some)), (0, 1)):
            form = parts[array][number].shape, parts[array][number].dtype
            like = like or [(rows[0].shape, rows[0].dtype) for rows in parts]
            if form != like[array]:
                raise UserError(
                    f"the {_NAMES[array]} for {place} are arrays of several shapes or "
                    f"types ({_form(*like[array])}, then {_form(*form)}): pad them to "
                    "one shape, and give them one type; of batches, give the examples."
                )
        yield np.stack(parts[0]), np.stack(parts[1])
    if like is None:
        raise UserError(f"no example was given for {place}: nothing is to be stored.")


def _form(shape: tuple[int, ...], dtype: np.dtype) -> str:
    return f"{dtype.name} {list(shape)}"


def has_arrays(folder: Path) -> bool:
    """Returns whether a folder holds a set that was written to its end."""
    return (folder / _MANIFEST).is_file()


def open_arrays(folder: Path) -> Arrays:
    """Returns the set in a folder, of which nothing but the manifest has been read.

    Raises UserError if the files are not of the size that the manifest names.
    """
    manifest = _manifest(folder)
    mapped = {}
    for name in _NAMES:
        entry, path = manifest[name], folder / f"{name}.bin"
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        if not path.is_file() or path.stat().st_size != (
            dtype.itemsize * math.prod(shape)
        ):
            raise UserError(
                f"{path} does not have the size that {_MANIFEST} beside it names: "
                f"remove {folder} and prepare the set again."
            )
        mapped[name] = np.memmap(path, dtype, "r", shape=shape)
    text = json.dumps([manifest["inputs"], manifest["labels"]], sort_keys=True)
    content = hashlib.sha256(text.encode()).hexdigest()
    return Arrays(mapped["inputs"], mapped["labels"], content, manifest["facts"])


def verify_arrays(folder: Path) -> None:
    """Raises UserError unless every byte of the set in a folder is what was written."""
    open_arrays(folder)
    manifest = _manifest(folder)
    for name in _NAMES:
        path = folder / f"{name}.bin"
        if sha256(path) != manifest[name]["sha256"]:
            raise UserError(
                f"{path} has changed since it was written: remove {folder} and prepare "
                "the set again."
            )


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        known = manifest["format"] == _FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / _MANIFEST} cannot be read ({error}): remove {folder} and "
            "prepare the set again."
        ) from error
    if not known:
        raise UserError(
            f"{folder} was written by another version of dps_tf: remove it and prepare "
            "the set again."
        )
    return dict(manifest)


class DecodedRows:
    """Examples of a source of records, decoded when they are read.

    Stands for the array of all of them, which may be larger than memory. `records`: any
    random-access source, such as `tfds.data_source` or an ArrayRecord file; `decode`:
    turns a record into an example's array, each of one shape, in several threads.
    """

    def __init__(self, records: Any, decode: Callable[[Any], np.ndarray]):
        self._records = records
        self._decode = decode
        first = np.asarray(decode(records[0]))
        self.dtype = first.dtype
        self.shape = (len(records), *first.shape)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place, row in enumerate(rows):
            found[place] = self._decode(self._records[int(row)])
        return found


class MappedRows:
    """Rows of an array that is mapped from a file, preprocessed when they are read.

    Stands for `preprocess(array[indices])`, which may be larger than memory. Rows
    [k, ...] are preprocessed each by itself. Indexed by whole numbers, of any shape, it
    gives an array; a slice is a view, as in NumPy, and `numpy.asarray` reads it.
    """

    def __init__(
        self,
        array: np.ndarray,
        indices: np.ndarray,
        preprocess: Preprocess | None = None,
    ):
        self._array = array
        self._indices = indices
        self._preprocess = preprocess
        like = self._read(indices[:1])
        self._row_shape = like.shape[1:]
        self.dtype = like.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that it stands for."""
        return (len(self._indices), *self._row_shape)

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """The bytes that the array would take in memory."""
        return self.size * self.dtype.itemsize

    def _read(self, rows: np.ndarray) -> np.ndarray:
        found = np.asarray(self._array[rows])
        return found if self._preprocess is None else self._preprocess(found)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, key: slice | np.ndarray) -> np.ndarray | MappedRows:
        rows = self._indices[key]
        if isinstance(key, slice):
            view = copy.copy(self)
            view._indices = rows
            return view
        return self._read(rows.reshape(-1)).reshape(*rows.shape, *self._row_shape)

    def __array__(
        self,
        dtype: DTypeLike | None = None,
        copy: bool | None = None,
    ) -> np.ndarray:
        if copy is False:
            raise ValueError("rows of a file cannot be an array without a copy")
        return self._read(self._indices).astype(dtype or self.dtype, copy=False)
