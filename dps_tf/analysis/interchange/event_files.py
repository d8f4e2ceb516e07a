"""TensorBoard's event files: those of others as runs, and trials of a sweep as such.

Both go through tensorboard's own records and protocol buffers, which load no
TensorFlow. Each record carries the checksum of itself.

One run is written per trial: its scalars by step, and a session of the HParams view
with its metaparameters, outcome and steps-to-result. Wall times: a trial starts when
the first file of its sweeps was written; from there on the seconds that it really took,
training and evaluation, are spread evenly over its steps. They leave out that trials
took turns, so that runs can be compared by time.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.cost import seconds_per_step
from dps_tf.analysis.interchange.runs import Run, Runs, curve_of, runs_of
from dps_tf.analysis.loading import Tables
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
    """Returns modules that come with tensorboard, imported when first needed."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(
            "event files need the package tensorboard: install it with `pip install "
            f"dps_tf[tensorboard]` ({error})."
        ) from error


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
    """The parts of tensorboard that read event files."""

    def __init__(self) -> None:
        self._event, self._hparams, self._arrays, reader, self._errors, message = (
            _modules(
                "tensorboard.compat.proto.event_pb2",
                "tensorboard.plugins.hparams.plugin_data_pb2",
                "tensorboard.util.tensor_util",
                "tensorboard.compat.tensorflow_stub.pywrap_tensorflow",
                "tensorboard.compat.tensorflow_stub.errors",
                "google.protobuf.message",
            )
        )
        self._reader, self._decode_error = (
            reader.PyRecordReader_New,
            message.DecodeError,
        )

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
        return Run(name, curve_of(values), columns)

    def _read(self, path: Path) -> Iterator[Any]:
        reader = self._reader(str(path.resolve()))
        while True:
            try:
                reader.GetNext()
            except (self._errors.OutOfRangeError, self._errors.DataLossError):
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
            found = [
                self.summary.Summary.Value(tag=name, simple_value=value)
                for name, value in zip(metrics, values, strict=True)
                if np.isfinite(value)
            ]
            yield self._event(self.summary.Summary(value=found), int(step))

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
