"""Reads TensorBoard's event files as runs.

The protocol buffers of the package tensorboard decode them, without TensorFlow. A file
is a sequence of records, each with a checksum.
"""

from __future__ import annotations

import importlib
import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.checks import INCOMPLETE
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.interchange.runs import Run, curve_of, runs_of
from dps_tf.core import UserError

_TRAIN_FOLDERS = ("train", "validation")  # of Keras


def _modules(*names: str) -> list[Any]:
    """Returns modules of the package tensorboard, which is imported when needed."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(
            f"event files need the package tensorboard ({error}): pip install "
            "'tensorboard>=2.20'."
        ) from error


def from_tensorboard(folder: str | Path, **options: Any) -> Runs:
    """Returns the runs of a folder, one for each folder in it with event files.

    Keras writes `train` and `validation` as folders of one run, by epochs from 0: give
    `steps_per_report` and `first_report=0` then. Values of the HParams view are
    metaparameters. A run with a file that is damaged, or ends within a record, counts
    as cut off at that place, and a note says so. Event files do not record whether any
    other run was cut off: state it by `about={run: {"status": "INCOMPLETE"}}`.

    Args:
        folder: the folder that `tensorboard --logdir` would show.
        options: see `runs.runs_of`.

    Raises:
        UserError: no event file, one that holds something else, or no tensorboard.
    """
    root = Path(folder).expanduser().absolute()
    is_folder = foreign_files.kind_of(root) == "folder"
    named = sorted(root.rglob("*tfevents*")) if is_folder else []
    plain = [path for path in named if foreign_files.kind_of(path) == "file"]
    files = [path for path in plain if not path.is_symlink()]
    places: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for path in files:
        where = path.parent
        split = where.name if where.name in _TRAIN_FOLDERS and where != root else ""
        own = where.parent if split else where
        places[own.relative_to(root).as_posix()].append((split, path))
    if not files:
        raise UserError(f"{str(root)!r} holds no event file of TensorBoard.")
    events = _Events()
    return runs_of(
        (events.run(name, parts) for name, parts in sorted(places.items())),
        str(root),
        **options,
    )


class _DamagedError(Exception):
    """A record whose checksum is wrong, or that is not whole."""


class _Events:
    """Reads event files by the protocol buffers of tensorboard."""

    def __init__(self) -> None:
        self._event, self._hparams, self._arrays, records, message = _modules(
            "tensorboard.compat.proto.event_pb2",
            "tensorboard.plugins.hparams.plugin_data_pb2",
            "tensorboard.util.tensor_util",
            "tensorboard.summary.writer.record_writer",
            "google.protobuf.message",
        )
        self._checksum = records.masked_crc32c
        self._decode_error = message.DecodeError

    def run(self, name: str, parts: Sequence[tuple[str, Path]]) -> Run:
        """Returns the run of some event files, given as (split or "", path)."""
        values: dict[int, dict[str, float]] = defaultdict(dict)
        columns: dict[str, Any] = {}
        ends: list[tuple[int, Path]] = []
        for split, path in parts:
            last = 0
            try:
                for event in self._read(path):
                    columns |= self._add(event, split, values)
                    last = event.step
            except _DamagedError:
                ends.append((last, path))
            except (self._decode_error, UnicodeError) as error:
                raise UserError(f"{str(path)!r} holds no events.") from error
        if not ends:
            return Run(name, curve_of(values), columns)
        last, path = min(ends)
        note = (
            f"{str(path)!r} is damaged or ends within a record: its run counts as cut "
            f"off after step {last}."
        )
        # Later steps from other files would hide that some are lost.
        kept = {step: row for step, row in values.items() if step <= last}
        return Run(name, curve_of(kept), columns, INCOMPLETE, note)

    def _read(self, path: Path) -> Iterator[Any]:
        """Yields the events of a file: length and content, each before its checksum."""
        with foreign_files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            while head := file.read(8):
                self._check(head, file.read(4))
                [length] = struct.unpack("<Q", head)
                if length > size:
                    raise _DamagedError
                content = file.read(length)
                self._check(content, file.read(4))
                event = self._event.Event()
                event.ParseFromString(content)
                yield event

    def _check(self, data: bytes, checksum: bytes) -> None:
        if checksum != struct.pack("<I", self._checksum(data)):
            raise _DamagedError

    def _add(
        self, event: Any, split: str, values: dict[int, dict[str, float]]
    ) -> dict[str, Any]:
        """Adds the scalars of an event by step; returns its metaparameters."""
        columns: dict[str, Any] = {}
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                columns |= self._session(value)
                continue
            number = self._number(value)
            # Keras numbers `_vs_iterations` by updates, and all others by epochs.
            if number is not None and not value.tag.endswith("_vs_iterations"):
                tag = value.tag.removeprefix("epoch_")
                metric = f"{split}/{tag}" if split else value.tag
                values[event.step][metric] = number
        return columns

    def _number(self, value: Any) -> float | None:
        """Returns a scalar, as TensorFlow 1, 2 and PyTorch write it."""
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            return float(value.simple_value)
        if kind != "tensor" or value.tensor.tensor_shape.dim:
            return None
        try:
            return float(self._arrays.make_ndarray(value.tensor))
        except (TypeError, ValueError, IndexError):
            return None

    def _session(self, value: Any) -> dict[str, Any]:
        data = self._hparams.HParamsPluginData()
        data.ParseFromString(value.metadata.plugin_data.content)
        return {
            name: getattr(entry, entry.WhichOneof("kind"))
            for name, entry in data.session_start_info.hparams.items()
            if entry.WhichOneof("kind") not in (None, "null_value")
        }
