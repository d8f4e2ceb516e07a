"""Curves and metaparameters of a sweep as TensorBoard's event files (an extra).

Event files are written through tensorboard's own records and protocol buffers, which
load no TensorFlow. One run per trial: its scalars by step, and a session of the HParams
view with its metaparameters, outcome and steps-to-result.

Wall times: a trial starts when the first file of its sweeps was written; from there on
the seconds that it really took, training and evaluation, are spread evenly over its
steps. They leave out that trials took turns, so that runs can be compared by time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dps_tf.analysis.cost import seconds_per_step
from dps_tf.analysis.loading import Tables
from dps_tf.analysis.tables import (
    cell_name,
    metaparameter_names,
    metric_names,
    study_key,
)
from dps_tf.core.cell import cell_key
from dps_tf.core.errors import UserError
from dps_tf.core.study import FLOAT32

STEPS_TO_RESULT = "steps_to_result"
_NO_CLOCK = 1.0
"""Start of a sweep whose time is not known. Not 0, which the HParams view takes for a
missing start."""


def write_events(tables: Tables, out: str | Path) -> int:
    """Writes one run per trial below a directory; returns their number.

    Args:
        tables: of some sweeps.
        out: the directory, made if absent; runs are named `<cell>/trial_<number>`,
            with the precision before the cell where it is not float32.

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
    """The parts of tensorboard that are used, imported when first needed.

    Attributes:
        start: when trials start, in seconds of the epoch.
        speed: seconds per step of the trial at hand.
    """

    def __init__(self, start: float) -> None:
        self.start, self.speed = start, 0.0
        try:
            load = importlib.import_module
            self.event = load("tensorboard.compat.proto.event_pb2")
            self.summary = load("tensorboard.compat.proto.summary_pb2")
            self.api = load("tensorboard.plugins.hparams.api_pb2")
            # Not hparams.summary, which imports TensorFlow.
            self.plugin = load("tensorboard.plugins.hparams.plugin_data_pb2")
            self.metadata = load("tensorboard.plugins.hparams.metadata")
            self.records = load("tensorboard.summary.writer.record_writer")
        except ImportError as error:
            raise UserError(
                "--tensorboard needs the package tensorboard: install it with `pip "
                f"install dps_tf[tensorboard]` ({error})."
            ) from error

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
