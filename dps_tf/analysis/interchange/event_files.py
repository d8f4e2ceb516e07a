"""Event files of TensorBoard as runs, through tensorboard's own records.

They load no TensorFlow, and are checked: each record carries the checksum of itself.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange.runs import Run, Runs, runs_of
from dps_tf.core.errors import UserError

_TRAIN_FOLDERS = ("train", "validation")  # of Keras


def from_tensorboard(folder: str | Path, **options: Any) -> Runs:
    """Returns the runs of a folder of event files, one for each folder with some.

    Keras writes `train` and `validation` as folders of one run, by epochs from 0: give
    `steps_per_report` and `first_report=0` then. Values of the HParams view are
    metaparameters. Event files do not tell whether a run was cut off: say so by
    `about={run: {"status": "INCOMPLETE"}}`.

    Args:
        folder: what `tensorboard --logdir` is given.
        options: see `runs.runs_of`.

    Raises:
        UserError: no event file, one that cannot be read, or no tensorboard.
    """
    root = Path(folder).expanduser().absolute()
    found = sorted(root.rglob("*tfevents*"))
    files = [path for path in found if path.is_file() and not path.is_symlink()]
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


class _Events:
    """The parts of tensorboard that read event files, which load no TensorFlow."""

    def __init__(self) -> None:
        load = importlib.import_module
        try:
            self._event = load("tensorboard.compat.proto.event_pb2")
            self._hparams = load("tensorboard.plugins.hparams.plugin_data_pb2")
            self._arrays = load("tensorboard.util.tensor_util")
            stub = "tensorboard.compat.tensorflow_stub"
            self._reader = load(f"{stub}.pywrap_tensorflow").PyRecordReader_New
            self._errors = load(f"{stub}.errors")
            self._decode_error = load("google.protobuf.message").DecodeError
        except ImportError as error:
            raise UserError(
                "event files are read by the package tensorboard: install it with `pip "
                f"install dps_tf[tensorboard]` ({error})."
            ) from error

    def run(self, name: str, parts: Sequence[tuple[str, Path]]) -> Run:
        """Returns the run of some event files, each with its split if it has one."""
        values: dict[int, dict[str, float]] = defaultdict(dict)
        columns: dict[str, Any] = {}
        for split, path in parts:
            for event in self._read(path):
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name == "hparams":
                        columns |= self._session(value)
                        continue
                    number = self._number(value)
                    if number is not None:
                        tag = value.tag.removeprefix("epoch_")
                        metric = f"{split}/{tag}" if split else value.tag
                        values[event.step][metric] = number
        rows = [{"step": step, **values[step]} for step in sorted(values)]
        return Run(
            name, pd.DataFrame(rows, columns=None if rows else ["step"]), columns
        )

    def _read(self, path: Path) -> Iterator[Any]:
        reader = self._reader(str(path.resolve()))
        while True:
            try:
                reader.GetNext()
            except self._errors.OutOfRangeError:
                return
            except self._errors.DataLossError:
                # A run that was killed ends in half a record: what is before counts.
                return
            event = self._event.Event()
            try:
                event.ParseFromString(reader.record())
            except self._decode_error as error:
                raise UserError(f"{str(path)!r} holds no events.") from error
            yield event

    def _number(self, value: Any) -> float | None:
        """Returns a scalar, as TensorFlow 1, 2 and PyTorch write it."""
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            return float(value.simple_value)
        if kind != "tensor" or value.tensor.tensor_shape.dim:
            return None
        try:
            return float(self._arrays.make_ndarray(value.tensor))
        except (TypeError, ValueError):
            return None

    def _session(self, value: Any) -> dict[str, Any]:
        data = self._hparams.HParamsPluginData()
        data.ParseFromString(value.metadata.plugin_data.content)
        return {
            name: getattr(entry, entry.WhichOneof("kind") or "null_value")
            for name, entry in data.session_start_info.hparams.items()
        }
