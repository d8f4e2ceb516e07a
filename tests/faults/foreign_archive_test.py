"""Archives that somebody has made to do harm: one sentence each, nothing outside.

Whatever an archive holds, reading it ends with one sentence on one line that names the
file, and leaves no file but below the sweep directory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dps_tf.analysis.interchange import foreign_files
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.interchange.shallue2019 import write_archive
from dps_tf.analysis.loading import load
from dps_tf.core import Goal, UserError
from tests.made_up.archives import PARAMETERS, write_study
from tests.made_up.specifications import ERROR

pytestmark = pytest.mark.fault

GOAL = Goal(ERROR, 0.1)
STEPS, ERRORS = [1000, 2000, 3000], [0.5, 0.2, 0.05]
Change = Callable[[Path], object]


@pytest.fixture
def study(tmp_path) -> Path:
    """The folder of the one study of a good archive of two trials."""
    trials = [("COMPLETE", STEPS, ERRORS)] * 2
    return write_study(tmp_path / "archive", "mnist", "cnn", "sgd", 8, trials)


def field(name: str, value: object, file: str = "study.json") -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        record = json.loads(path.read_text())
        record[name] = value
        path.write_text(json.dumps(record))

    return change


def metadata(name: str, value: object) -> Change:
    return field(name, value, "1/metadata.json")


def parameter(name: str, value: object = 0.1) -> Change:
    return metadata("parameters", {**PARAMETERS, name: value})


def config(**entry: object) -> Change:
    return field("parameter_configs", {"learning_rate": entry})


def text(file: str, content: str | bytes) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / file).write_bytes(data)


def instead(file: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)

    return change


def deeper(folder: Path) -> None:
    place = folder.joinpath(*["deeper"] * (foreign_files.DEEPEST + 2))
    place.mkdir(parents=True)
    (folder / "study.json").rename(place / "study.json")


ROWS = "step,val/classification_error\n"
ATTACKS: dict[str, Change] = {
    "optimizer is a path": field("optimizer", "../../sgd"),
    "model is long": field("model", "m" * 300),
    "batch size is text": field("batch_size", "8"),
    "train_steps is negative": field("train_steps", -1),
    "configs are a list": field("parameter_configs", ["learning_rate"]),
    "config without an end": config(min_value=0.1, scale="LOG_SCALE"),
    "config of a log of 0": config(min_value=0, max_value=1, scale="LOG_SCALE"),
    "config named like a column": field(
        "parameter_configs", {"workload": {"type": "DISCRETE", "feasible_points": [1]}}
    ),
    "study is torn": text("study.json", '{"batch_size": 8'),
    "study is no text": text("study.json", b"\xff\xfe\x00"),
    "study is deep": text("study.json", "[" * 200_000),
    "study is large": text("study.json", "{" + " " * foreign_files.LARGEST_JSON + "}"),
    "study is a pipe": instead("study.json", os.mkfifo),
    "study is a link": instead(
        "study.json", lambda path: path.symlink_to("/etc/passwd")
    ),
    "study is too deep": deeper,
    "trial has no number": metadata("trial_id", None),
    "trial has another's number": metadata("trial_id", 2),
    "parameters are a list": metadata("parameters", [1]),
    "parameter is text": parameter("learning_rate", "=cmd|'/c calc'!A1"),
    "parameter hides the outcome": parameter("outcome"),
    "parameter is a formula": parameter("=1+1"),
    "parameters are many": metadata("parameters", {f"p{i}": i for i in range(999)}),
    "metadata are deep": text("1/metadata.json", '{"a":' * 100_000),
    "trial is a file": instead("1", Path.touch),
    "trial is a circle": instead("1", lambda path: path.symlink_to("..")),
    "measurements are a link": instead(
        "1/measurements.csv", lambda path: path.symlink_to("/etc/passwd")
    ),
    "measurements without steps": text("1/measurements.csv", "a,b\n1,2\n"),
    "a metric given twice": text(
        "1/measurements.csv", f"{ROWS[:-1]},val/classification_error\n1,2,3\n"
    ),
    "step is text": text("1/measurements.csv", f"{ROWS}=1+1,0.5\n"),
    "value is text": text("1/measurements.csv", f"{ROWS}1,\x1b[31mlow\n"),
    "row is long": text("1/measurements.csv", f"{ROWS}1,2,3\n"),
    "row is no text": text("1/measurements.csv", ROWS.encode() + b"1,\xff\xfe\n"),
    "no trial": lambda folder: [shutil.rmtree(folder / n) for n in ("1", "2")],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_archive_is_refused_in_one_sentence(name, study, tmp_path):
    ATTACKS[name](study)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UserError) as caught:
        write_archive(tmp_path / "archive", str(tmp_path / "sweeps" / "sweep"), GOAL)
    said = str(caught.value)
    assert len(said) < 1000 and said.isprintable(), said
    assert said.endswith(".") and "archive" in said
    made = set(tmp_path.rglob("*")) - before
    sweep = tmp_path / "sweeps"
    assert all(sweep in (path, *path.parents) for path in made), made


def test_what_an_archive_may_hold_besides_is_passed_over(study, tmp_path):
    """Of other software: more fields, metrics, files; numbers in other spellings."""
    field("note", "$x_1$ =1+1 \x1b[31m")(study)
    field("batch_size", 8.0)(study)
    metadata("note", {"deep": [1, 2]})(study)
    (study / "README").write_text("mine")
    (study / "1" / "more.csv").write_text("x")
    rows = "\ufeffstep,=cmd(),val/classification_error\r\n1000.0,x,0.05\r\n"
    text("1/measurements.csv", rows)(study)
    write_archive(tmp_path / "archive", str(tmp_path / "sweep"), GOAL)
    row = load(tmp_path / "sweep").results.iloc[0]
    assert (row["steps_to_result"], row["batch_size"]) == (1000, 8)


def trials(**columns: list) -> pd.DataFrame:
    plain = {"workload": ["w"] * 2, "optimizer": ["sgd"] * 2, "batch_size": [8, 16]}
    return pd.DataFrame(
        {**plain, "trial": [1, 2], "learning_rate": [0.1, 0.2]} | columns
    )


def evaluations(**columns: list) -> pd.DataFrame:
    plain = {"trial": [1, 1, 2], "step": [10, 20, 30], ERROR: [0.5, 0.05, 0.04]}
    return pd.DataFrame(plain | columns)


TABLES = {
    "a number of no trial": (trials(), evaluations(trial=[1, 1, 3])),
    "one number twice": (trials(trial=[1, 1]), evaluations()),
    "evaluations that name cells": (trials(), evaluations(batch_size=[8, 8, 32])),
    "batch size of a fraction": (trials(batch_size=[8.5, 16]), evaluations()),
    "no step": (trials(), evaluations().drop(columns="step")),
    "a metric without a split": (trials(), evaluations(loss=[1, 2, 3])),
    "a metric of text": (trials(), evaluations(**{"a/b": ["x", "y", "z"]})),
    "a column without a name": (trials(), evaluations(**{"": [1, 2, 3]})),
    "a workload that is a path": (trials(workload=["../w"] * 2), evaluations()),
    "a status of elsewhere": (trials(status=["FAILED", "x"]), evaluations()),
    "a metaparameter of text": (trials(width=["a", "b"]), evaluations()),
    "a metaparameter of results": (trials(steps_low=[1, 2]), evaluations()),
    "steps before an evaluation": (trials(steps=[5, 30]), evaluations()),
    "no trials": (trials()[:0], evaluations()[:0]),
    "an infinite learning rate": (
        trials(learning_rate=[0.1, float("inf")]),
        evaluations(),
    ),
    "a step between two": (trials(), evaluations(step=[10, 20, 1.7])),
    "a number of twenty digits": (trials(trial=[1, 10**20]), evaluations()),
    "a metaparameter that steers": (trials(**{"\x1b[2J": [1, 2]}), evaluations()),
}


@pytest.mark.parametrize("name", TABLES)
def test_hostile_tables_are_refused_in_one_sentence(name):
    with pytest.raises(UserError) as caught:
        Runs(*TABLES[name], origin="runs.csv").by_cell()
    said = str(caught.value)
    assert said.startswith("'runs.csv': ") and said.isprintable() and said[-1] == "."


def test_tables_become_the_runs_of_each_cell():
    first, second = Runs(trials(), evaluations()).by_cell()
    assert first.trials.to_dict("records") == [
        {
            **{"workload": "w", "optimizer": "sgd", "sparsity_method": "none"},
            **{"seed": 0, "batch_size": 8, "sparsity": 0.0, "precision": "float32"},
            **{"trial": 1, "status": "COMPLETE", "steps": 20, "learning_rate": 0.1},
        }
    ]
    assert second.trials["batch_size"].tolist() == [16]
    assert second.evaluations[ERROR].tolist() == [0.04]
