"""TensorBoard's event files: read as runs, and written from the trials of a sweep.

Both use the protocol buffers of the package tensorboard, which load no TensorFlow. A
file is a sequence of records, each with a checksum.

`write_events` writes one run per trial: its scalars by step, and a session of the
HParams view with its metaparameters, outcome and steps-to-result. Wall times: a trial
starts when the first file of its sweeps was written, and the seconds that it took,
training and evaluation, are spread evenly over its steps. The time in which other
trials had their turn is left out, so that runs can be compared by time.
"""

from __future__ import annotations

import importlib
import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.foreign_study import INCOMPLETE
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.interchange.runs import Run, curve_of, runs_of
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.step_times import seconds_per_step
from dps_tf.analysis.tables import (
    cell_name,
    metaparameter_names,
    metric_names,
    study_key,
)
from dps_tf.core import FLOAT32, UserError, cell_key

STEPS_TO_RESULT = "steps_to_result"
_TRAIN_FOLDERS = ("train", "validation")  # of Keras
_NO_CLOCK = 1.0
"""Start of a sweep whose time is not known. Not 0, which the HParams view takes for a
missing start."""


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
    """Returns the runs of a folder of event files, one for each folder with some.

    Keras writes `train` and `validation` as folders of one run, by epochs from 0: give
    `steps_per_report` and `first_report=0` then. Values of the HParams view are
    metaparameters. A run whose file is damaged, or ends within a record, was cut off
    before that place, and a note says so. Of any other run event files do not tell
    whether it was cut off: say so by `about={run: {"status": "INCOMPLETE"}}`.

    Args:
        folder: what `tensorboard --logdir` is given.
        options: see `runs.runs_of`.

    Raises:
        UserError: no event file, one that holds something else, or no tensorboard.
    """
    root = Path(folder).expanduser().absolute()
    is_folder = foreign_files.kind_of(root) == "folder"
    named = sorted(root.rglob("*tfevents*")) if is_folder else []
    files = [path for path in named if _is_plain(path)]
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


def _is_plain(path: Path) -> bool:
    return foreign_files.kind_of(path) == "file" and not path.is_symlink()


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
        """Returns the run of some event files, each with its split if it has one."""
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
        # What other files hold of later steps would hide that some are lost.
        kept = {step: row for step, row in values.items() if step <= last}
        return Run(name, curve_of(kept), columns, INCOMPLETE, note)

    def _read(self, path: Path) -> Iterator[Any]:
        """Yields the events of a file: length, content, and a checksum behind each."""
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
            if number is not None:
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


def write_events(tables: Tables, out: str | Path) -> int:
    """Writes one run per trial below a directory; returns their number.

    Runs are named `<cell>/trial_<number>`, with the precision before the cell where it
    is not float32.

    Raises:
        UserError: tensorboard is not installed.
    """
    times = [sweep.written[0] for sweep in tables.sweeps if sweep.written]
    board = _Board(min(times, default=_NO_CLOCK))
    keys = [*study_key(tables.curves), "trial"]
    times_of = seconds_per_step(tables.work)
    speeds = {
        tuple(row[name] for name in keys): row["seconds"]
        for row in times_of.to_dict("records")
    }
    names = metaparameter_names(tables.trials)
    metrics = metric_names(tables.curves)
    folder = Path(out)
    board.write(folder, [board.experiment(tables, names)])
    curves = dict(iter(tables.curves.groupby(keys, sort=False)))
    for trial in tables.bounded.to_dict("records"):
        precision = [str(trial["precision"])] if trial["precision"] != FLOAT32 else []
        place = [*precision, cell_name(trial), f"trial_{trial['trial']:04d}"]
        run = folder.joinpath(*place)
        key = tuple(trial[name] for name in keys)
        board.speed = speeds.get(key, 0.0)
        events = [board.session(trial, names)]
        if key in curves:
            events += board.scalars(curves[key], metrics)
        events += board.ending(trial)
        board.write(run, events)
    return len(tables.bounded)


class _Board:
    """The parts of tensorboard that write event files.

    Attributes:
        start: when trials start, in seconds of the epoch.
        speed: seconds per step of the trial at hand.
    """

    def __init__(self, start: float) -> None:
        self.start, self.speed = start, 0.0
        self.event, self.summary, self.api, self.plugin, self.metadata, self.records = (
            _modules(
                "tensorboard.compat.proto.event_pb2",
                "tensorboard.compat.proto.summary_pb2",
                "tensorboard.plugins.hparams.api_pb2",
                # Not hparams.summary, which imports TensorFlow.
                "tensorboard.plugins.hparams.plugin_data_pb2",
                "tensorboard.plugins.hparams.metadata",
                "tensorboard.summary.writer.record_writer",
            )
        )

    def experiment(self, tables: Tables, names: list[str]) -> Any:
        """Returns what the HParams view shows of all trials."""
        infos = [
            self.api.HParamInfo(name=name, type=self.api.DATA_TYPE_FLOAT64)
            for name in [*names, "batch_size", "sparsity", "seed"]
        ]
        key = tables.studies[study_key(tables.studies)]
        texts = [name for name in key if not pd.api.types.is_numeric_dtype(key[name])]
        infos += [
            self.api.HParamInfo(name=name, type=self.api.DATA_TYPE_STRING)
            for name in (*texts, "outcome")
        ]
        goals = sorted({goal.metric for goal in tables.goals})
        shown = [
            self.api.MetricInfo(name=self.api.MetricName(tag=tag))
            for tag in (STEPS_TO_RESULT, *goals)
        ]
        experiment = self.api.Experiment(
            hparam_infos=infos, metric_infos=shown, time_created_secs=self.start
        )
        tag = self.metadata.EXPERIMENT_TAG
        return self._plugin_event(tag, experiment=experiment)

    def session(self, trial: dict[Any, Any], names: list[str]) -> Any:
        """Returns the start of a trial's session, with its metaparameters."""
        values = {
            name: trial[name] for name in [*cell_key(trial), "precision", "outcome"]
        }
        values |= {name: trial[name] for name in names if pd.notna(trial[name])}
        start = self.plugin.SessionStartInfo(start_time_secs=self.start)
        for name, value in values.items():
            if isinstance(value, str):
                start.hparams[name].string_value = value
            else:
                start.hparams[name].number_value = float(value)
        tag = self.metadata.SESSION_START_INFO_TAG
        return self._plugin_event(tag, session_start_info=start)

    def ending(self, trial: dict[Any, Any]) -> Iterator[Any]:
        """Yields steps-to-result, if any, and the end of the session."""
        if pd.notna(trial["steps_to_result"]):
            steps = int(trial["steps_to_result"])
            value = self.summary.Summary.Value(tag=STEPS_TO_RESULT, simple_value=steps)
            yield self._event(self.summary.Summary(value=[value]), steps)
        failed = trial["outcome"] == "failed"
        status = self.api.STATUS_FAILURE if failed else self.api.STATUS_SUCCESS
        over = self.start + self.speed * int(trial["end_step"])
        end = self.plugin.SessionEndInfo(status=status, end_time_secs=over)
        tag = self.metadata.SESSION_END_INFO_TAG
        yield self._plugin_event(tag, session_end_info=end)

    def scalars(self, record: pd.DataFrame, metrics: list[str]) -> Iterator[Any]:
        """Yields one event per evaluation."""
        columns = [record[name].to_numpy(float) for name in metrics]
        for step, *values in zip(record["step"].tolist(), *columns, strict=True):
            scalars = [
                self.summary.Summary.Value(tag=name, simple_value=value)
                for name, value in zip(metrics, values, strict=True)
                if np.isfinite(value)
            ]
            yield self._event(self.summary.Summary(value=scalars), int(step))

    def _event(self, summary: Any, step: int = 0) -> Any:
        at = self.start + self.speed * step
        return self.event.Event(wall_time=at, step=step, summary=summary)

    def _plugin_event(self, tag: str, **content: Any) -> Any:
        data = self.plugin.HParamsPluginData(**content)
        metadata = self.metadata.create_summary_metadata(data)
        value = self.summary.Summary.Value(
            tag=tag, metadata=metadata, tensor=self.metadata.NULL_TENSOR
        )
        return self._event(self.summary.Summary(value=[value]))

    def write(self, folder: Path, events: list[Any]) -> None:
        """Writes an event file; one that is there is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        first = self.event.Event(wall_time=self.start, file_version="brain.Event:2")
        with (folder / "events.out.tfevents.dps_tf").open("wb") as file:
            writer = self.records.RecordWriter(file)
            for event in (first, *events):
                writer.write(event.SerializeToString())
