"""Small records of other software, as bytes that tests damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import optuna
from hypothesis import strategies as st
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from dps_tf.core import Goal, UserError

METRIC = "validation/error"
GOAL = Goal(METRIC, 0.2)
ERRORS = (0.9, 0.6, 0.4, 0.15, 0.1)
"""Of a run that is evaluated at steps 10, 20, ...: K* is 40."""

TRIALS = """trial,workload,optimizer,batch_size,learning_rate
0,w,sgd,8,0.1
1,w,sgd,8,0.2
"""
EVALUATIONS = "trial,step,validation/error\n" + "".join(
    f"{trial},{10 * n},{error + trial}\n"
    for trial in (0, 1)
    for n, error in enumerate(ERRORS, start=1)
)

_NEW = st.binary(max_size=4) | st.text("012345,.-\n", max_size=3).map(str.encode)
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["put", "over", "cut"]), _NEW),
    min_size=1,
    max_size=2,
)
"""Where a file is edited, as a share of it; how; and by which bytes."""


def damaged(data: bytes, edits: Sequence[tuple[float, str, bytes]]) -> bytes:
    """Returns bytes after some of EDITS: bytes put in, written over, or the end cut."""
    for share, kind, new in edits:
        place = int(share * len(data))
        rest = {"put": place, "over": place + len(new), "cut": len(data)}[kind]
        data = data[:place] + (b"" if kind == "cut" else new) + data[rest:]
    return data


def check_sentence(error: UserError) -> None:
    """Asserts that a refusal is one printable sentence."""
    said = str(error)
    assert said.endswith(".") and said.isprintable(), said


def write_tables(folder: Path, trials: str = TRIALS, rows: str = EVALUATIONS) -> Path:
    """Writes the two tables of runs into a folder; returns it."""
    folder.mkdir(exist_ok=True)
    (folder / "trials.csv").write_text(trials)
    (folder / "evaluations.csv").write_text(rows)
    return folder


def write_event_file(
    path: Path, errors: Sequence[float] = ERRORS, first: int = 1
) -> bytes:
    """Writes an event file as TensorFlow does; returns its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        begin = event_pb2.Event(wall_time=1.0, file_version="brain.Event:2")
        writer.write(begin.SerializeToString())
        for number, error in enumerate(errors, start=first):
            value = summary_pb2.Summary.Value(tag="val/error", simple_value=error)
            summary = summary_pb2.Summary(value=[value])
            event = event_pb2.Event(wall_time=2.0, step=10 * number, summary=summary)
            writer.write(event.SerializeToString())
    return path.read_bytes()


def write_database(path: Path, names: Sequence[str] = ("mine",)) -> bytes:
    """Writes Optuna's database of studies of one trial each; returns its bytes."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    for name in names:
        study = optuna.create_study(storage=storage, study_name=name)
        trial = study.ask()
        trial.suggest_float("learning_rate", 0.1, 1.0)
        for number, error in enumerate(ERRORS, start=1):
            trial.report(error, 10 * number)
        study.tell(trial, ERRORS[-1])
    storage.remove_session()
    storage.engine.dispose()
    return path.read_bytes()
