"""Arrays of examples on disk, read by row number, so that a set may exceed memory.

A set is two files, `inputs.bin` and `labels.bin`, which are written once, batch by
batch. A manifest has their types, shapes and SHA-256 sums, so that opening a set reads
neither file.
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

from dps_tf.core import UserError, check_whole
from dps_tf.data.raw import sha256

Preprocess = Callable[[np.ndarray], np.ndarray]

_MANIFEST = "manifest.json"
_FORMAT = 1
_ROWS = 1 << 12  # number of rows that are hashed at a time
_NAMES = ("inputs", "labels")
_STACKED = 256  # number of examples that are written at a time
STORED_KINDS = "biufcSU"
"""Kinds of NumPy types whose bytes are values, for `preprocess` to read."""
_BEGUN = ".begun.json"
"""File with types and shapes of the rows while a set is being written."""


@dataclass(frozen=True)
class Arrays:
    """The inputs and labels of a stored set, and what its manifest says of them.

    `inputs`: mapped [n, ...]; `labels`: mapped [n, ...]; `content`: SHA-256 of the
    manifest's entries for both, hexadecimal; `facts`: the JSON values that were given
    to `write_arrays`.
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
    """Writes a set of examples into a folder, which is made if it is missing.

    The manifest is written last, so a folder without one holds no complete set. Rows
    that an interrupted call wrote are kept for the next call; if `batches` raises
    UserError, all files of the set are removed.

    Args:
        folder: where to write; a set that it holds already is replaced.
        batches: pairs of arrays (inputs, labels) with equally many rows; all batches
            have the same types and shapes of rows. Or a function of n that returns the
            batches after the first n rows. A call then continues after the rows that an
            interrupted call with the same facts wrote.
        facts: JSON values to be stored in the manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MANIFEST).unlink(missing_ok=True)
    facts = dict(facts or {})
    try:
        described = _written(folder, batches, facts)
    except UserError:
        for name in ("inputs.bin", "labels.bin", _BEGUN):
            (folder / name).unlink(missing_ok=True)
        raise
    manifest = {"format": _FORMAT, **described, "facts": facts}
    partial = folder / f".{_MANIFEST}"
    partial.write_text(json.dumps(manifest, indent=1, sort_keys=True))
    partial.replace(folder / _MANIFEST)
    (folder / _BEGUN).unlink(missing_ok=True)


def _written(
    folder: Path, batches: Batches | Callable[[int], Batches], facts: dict[str, Any]
) -> dict[str, Any]:
    """Writes both files of a set; returns the manifest's entry for each of them."""
    kept = _kept(folder, facts) if callable(batches) else {}
    kept_rows = len(kept["inputs"]) if kept else 0
    sums = {name: hashlib.sha256() for name in _NAMES}
    templates: dict[str, np.ndarray] = {}  # no rows, but the type and shape of one
    for name, array in kept.items():
        templates[name] = array[:0]
        for start in range(0, kept_rows, _ROWS):
            sums[name].update(np.ascontiguousarray(array[start : start + _ROWS]).data)
    with (
        (folder / "inputs.bin").open("ab" if kept_rows else "wb") as inputs_file,
        (folder / "labels.bin").open("ab" if kept_rows else "wb") as labels_file,
    ):
        count = kept_rows
        for batch in batches(kept_rows) if callable(batches) else batches:
            _check_rows(batch)
            if not templates:
                rows = [[array.dtype.str, list(array.shape[1:])] for array in batch]
                begun = json.dumps({"rows": rows, "facts": facts}, sort_keys=True)
                (folder / _BEGUN).write_text(begun)
            count += len(batch[0])
            files = (inputs_file, labels_file)
            for name, file, array in zip(_NAMES, files, batch, strict=True):
                row = templates.setdefault(name, array[:0])
                if (array.dtype, array.shape[1:]) != (row.dtype, row.shape[1:]):
                    raise ValueError(f"{name} of several types or shapes")
                data = np.ascontiguousarray(array).data
                sums[name].update(data)
                file.write(data)
    return {
        name: {
            "dtype": templates[name].dtype.str,
            "shape": [count, *templates[name].shape[1:]],
            "sha256": sums[name].hexdigest(),
        }
        for name in _NAMES
    }


def _check_rows(batch: tuple[np.ndarray, np.ndarray]) -> None:
    for name, array in zip(_NAMES, batch, strict=True):
        check_kind(name, array, STORED_KINDS)
    if len(batch[0]) != len(batch[1]):
        raise ValueError(f"{len(batch[0])} inputs, {len(batch[1])} labels")


def _kept(folder: Path, facts: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the complete rows of an interrupted call; cuts off an incomplete one."""
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
    arrays: dict[str, np.ndarray] = {}
    for name, (path, dtype, shape) in zip(_NAMES, written, strict=True):
        os.truncate(path, rows * dtype.itemsize * math.prod(shape))
        arrays[name] = np.memmap(path, dtype, "r", shape=(rows, *shape))
    return arrays


def stored_once(
    folder: str | Path,
    examples: Callable[[], Iterable[tuple[Any, Any]]],
    count: int | None = None,
) -> Arrays:
    """Returns the set that `folder` holds; the first call writes it.

    Sources that can only be read from beginning to end become data sets this way:

        arrays = stored_once("data/my_set", lambda: tfds.load("my_set")["train"])

    Args:
        folder: where the set is stored; remove it to have the set written again.
        examples: function that returns pairs (input, label) of single examples in a
            fixed order: a `tf.data.Dataset` that is not batched, or a generator.
        count: number of examples to store, the first ones. A source that does not know
            its own length, such as a generator, needs it: it may have no end.

    Raises:
        UserError: there is no example, examples differ in shape or type, the dataset is
            batched, has no end or no known length, or `count` is not what there is.
    """
    if count is not None:
        check_whole("count", count)
    place = Path(folder)
    if not has_arrays(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may write at once, each its own copy; one copy is kept.
        begun = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            source = examples()
            if _is_batched(source):
                raise UserError(
                    f"the dataset for {place} is batched, and single examples are "
                    "stored: call .unbatch() on it."
                )
            write_arrays(begun, _batched(_ending(source, count, place), place))
            with contextlib.suppress(OSError):
                begun.rename(place)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    stored = open_arrays(place)
    if count not in (None, held := len(stored.labels)):
        raise UserError(
            f"{place} holds {held} examples and count is {count}: give the number that "
            "the source has, and remove the folder to have it written again."
        )
    return stored


def _ending(source: Any, count: int | None, place: Path) -> Iterable[tuple[Any, Any]]:
    """Returns the examples to store; UserError unless their number is known."""
    if count is not None:
        return itertools.islice(iter(source), count)
    cardinality = getattr(source, "cardinality", None)
    if not hasattr(source, "__len__") if cardinality is None else cardinality() < 0:
        raise UserError(
            f"the source for {place} does not say how many examples it has, and may "
            "have no end: give stored_once their number, count=."
        )
    return source


def _is_batched(source: Any) -> bool:
    """Returns whether a `tf.data.Dataset` has a step that makes batches."""
    step = type(source).__name__
    if step in ("_UnbatchDataset", "_FlatMapDataset"):
        return False
    inputs: Callable[[], list[Any]] = getattr(source, "_inputs", list)
    return "BatchDataset" in step or any(map(_is_batched, inputs()))


def _batched(examples: Iterable[tuple[Any, Any]], place: Path) -> Batches:
    """Yields examples stacked to batches; UserError if their shapes or types differ."""
    iterator = iter(examples)
    first: list[tuple[Any, Any]] | None = None
    while pairs := list(itertools.islice(iterator, _STACKED)):
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise UserError(
                    f"an example for {place} is a {type(pair).__name__} and no pair "
                    "(input, label): give pairs."
                )
        for pair, (part, name) in itertools.product(pairs, enumerate(_NAMES)):
            check_kind(name, pair[part], STORED_KINDS)
        parts = [[np.asarray(pair[part]) for pair in pairs] for part in (0, 1)]
        for number, part in itertools.product(range(len(pairs)), (0, 1)):
            form = parts[part][number].shape, parts[part][number].dtype
            first = first or [(rows[0].shape, rows[0].dtype) for rows in parts]
            if form != first[part]:
                raise UserError(
                    f"the {_NAMES[part]} for {place} are arrays of several shapes or "
                    f"types ({_form(*first[part])}, then {_form(*form)}): pad them to "
                    "one shape, and give them one type; of batches, give the examples."
                )
        yield np.stack(parts[0]), np.stack(parts[1])
    if first is None:
        raise UserError(f"no example was given for {place}: nothing is to be stored.")


def _form(shape: tuple[int, ...], dtype: np.dtype) -> str:
    return f"{dtype.name} {list(shape)}"


def has_arrays(folder: Path) -> bool:
    """Returns whether a folder holds a complete set."""
    return (folder / _MANIFEST).is_file()


def open_arrays(folder: Path) -> Arrays:
    """Returns the set in a folder; reads the manifest and no example.

    Raises UserError if the manifest cannot be read, or a file does not have the size
    that the manifest names.
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
    """Raises UserError if a file of a set has changed since it was written."""
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
        readable = manifest["format"] == _FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / _MANIFEST} cannot be read ({error}): remove {folder} and "
            "prepare the set again."
        ) from error
    if not readable:
        raise UserError(
            f"{folder} was written by another version of dps_tf: remove it and prepare "
            "the set again."
        )
    return dict(manifest)


def read_rows(
    array: Any, rows: np.ndarray, preprocess: Preprocess | None, name: str
) -> np.ndarray:
    """Returns some rows, preprocessed; labels have 32 bits.

    `name`: `inputs` or `labels`. Raises UserError where a value is no number, not
    finite or takes more than 32 bits, and where `preprocess` drops rows. A label may be
    NaN, which is unknown: the objective decides whether it takes such labels.
    """
    stored = array[rows]
    check_kind(name, stored, STORED_KINDS)
    read = stored = np.asarray(stored)
    if preprocess is not None:
        read = preprocess(stored)
        if len(read) != len(stored):
            raise UserError(
                f"preprocess makes {len(read)} rows of {len(stored)} examples: it must "
                "return one for each, so leave examples out of the Source."
            )
    check_kind(name, read, "biuf")
    read = np.asarray(read)
    is_float = read.dtype.kind == "f"
    if is_float or not np.can_cast(read.dtype, np.int32):
        _check_values(name, read, rows)
    if name == "inputs":
        return read
    return read.astype(np.float32 if is_float else np.int32, copy=False)


def check_kind(name: str, array: Any, kinds: str) -> None:
    """Raises UserError for a masked array, or a type outside of these kinds."""
    if isinstance(array, np.ma.MaskedArray):
        raise UserError(
            f"{name} are a masked array, and nothing reads its mask: fill it, or leave "
            "these examples out."
        )
    dtype = np.asarray(array).dtype
    if dtype.kind not in kinds or dtype.char == "g":
        raise UserError(
            f"{name} are {dtype.name}: they have to be whole numbers or floating-point "
            "numbers of at most 64 bits."
        )


def _check_values(name: str, values: np.ndarray, rows: np.ndarray) -> None:
    """Raises UserError, with its place, for a value that 32 bits do not hold."""
    is_float = values.dtype.kind == "f"
    most = np.finfo(np.float32).max if is_float else np.iinfo(np.int32).max
    # NaN is the least and the greatest value of an array that holds it.
    if not values.size or (-most <= values.min() and values.max() <= most):
        return
    wrong = ~((-most <= values) & (values <= most))
    if is_float and name == "labels":
        wrong &= ~np.isnan(values)
        if not wrong.any():
            return
    place = np.argwhere(wrong)[0].tolist()
    inside = f" at {place[1:]}" if place[1:] else ""
    raise UserError(
        f"the {name} of example {rows[place[0]]} (the first is 0) hold "
        f"{values[tuple(place)]}{inside}: they must be "
        + ("finite in 32 bits" if is_float else f"whole numbers from {-most} to {most}")
        + "; repair the example, or leave it out."
    )


class DecodedRows:
    """Array of examples that are decoded from records when rows are read.

    The whole array may be larger than memory. `records`: any random-access source, such
    as `tfds.data_source` or an ArrayRecord file. `decode`: turns a record into an
    array, always of the same type and shape; several threads may call it at once.
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
        examples = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place, row in enumerate(rows):
            examples[place] = self._decode(self._records[int(row)])
        return examples


class MappedRows:
    """Rows of an array that is mapped from a file, preprocessed when they are read.

    Equals `preprocess(array[indices])`, which may be larger than memory. `preprocess`
    is called with some rows, [k, ...], and treats each row by itself. `name`: `inputs`,
    or `labels`, which are read in 32 bits; see `read_rows`. Indexing with
    integers, of any shape, returns an array; a slice is a view, as in NumPy;
    `numpy.asarray` reads all rows.
    """

    def __init__(
        self,
        array: np.ndarray,
        indices: np.ndarray,
        preprocess: Preprocess | None = None,
        name: str = "inputs",
    ):
        self._array = array
        self._indices = indices
        self._preprocess = preprocess
        self._name = name
        first = self._read(indices[:1])
        self._row_shape = first.shape[1:]
        self.dtype = first.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the preprocessed array, [rows, ...]."""
        return (len(self._indices), *self._row_shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the array."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """The number of bytes that the whole array would take in memory."""
        return self.size * self.dtype.itemsize

    def _read(self, rows: np.ndarray) -> np.ndarray:
        return read_rows(self._array, rows, self._preprocess, self._name)

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
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        if copy is False:
            raise ValueError("rows of a file cannot be an array without a copy")
        return self._read(self._indices).astype(dtype or self.dtype, copy=False)
