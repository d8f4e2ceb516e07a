"""Runs of other software: are they read as they were, and is a cut-off never a miss?"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pandas as pd
import pytest

from dps_tf._keras import keras
from dps_tf.analysis import report
from dps_tf.analysis.interchange.event_files import from_tensorboard
from dps_tf.analysis.interchange.runs import (
    Run,
    Runs,
    join,
    metric_name,
    read_runs,
    runs_of,
    write_runs,
)
from dps_tf.analysis.interchange.trackers import (
    from_keras,
    from_mlflow,
    from_optuna,
    from_wandb,
    load_optuna,
)
from dps_tf.analysis.loading import load
from dps_tf.core import Goal, UserError
from tests import interpreter
from tests.analysis.few_sections import draw_only
from tests.packaging.source_tree import SOURCE_TREE

GOAL = Goal("validation/error", 0.2)
EVERY = 5
BUDGET = 100
BATCH_SIZES = (4, 16, 64)


def objective(trial: optuna.Trial, batch_size: int) -> float:
    """Trains a line on noisy points by SGD; reports its error every few updates."""
    draws = np.random.default_rng([trial.number, batch_size])
    rate = trial.suggest_float("learning_rate", 1e-3, 1.0, log=True)
    trial.suggest_categorical("activation", ["relu", "tanh"])
    slope = 0.0
    for step in range(1, BUDGET + 1):
        inputs = draws.normal(size=batch_size)
        labels = inputs + 0.3 * draws.normal(size=batch_size)
        slope -= rate * float(np.mean((slope * inputs - labels) * inputs))
        if step % EVERY == 0:
            trial.report(abs(slope - 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned
    return abs(slope - 1)


@pytest.fixture(scope="module", name="studies")
def _studies(tmp_path_factory) -> dict[int, optuna.Study]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    database = tmp_path_factory.mktemp("optuna") / "studies.db"
    studies = {}
    for batch_size in BATCH_SIZES:
        studies[batch_size] = optuna.create_study(
            storage=f"sqlite:///{database}",
            study_name=f"b{batch_size}",
            sampler=optuna.samplers.RandomSampler(seed=batch_size),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=10),
        )
        studies[batch_size].optimize(
            lambda trial, size=batch_size: objective(trial, size), n_trials=12
        )
    return studies


def runs_of_studies(studies: dict[int, optuna.Study]) -> Runs:
    """Returns all studies as the runs of one workload."""
    return join(
        from_optuna(
            study,
            GOAL.metric,
            steps_per_report=1,
            first_report=1,
            batch_size=batch_size,
            workload="line",
            optimizer="sgd",
        )
        for batch_size, study in studies.items()
    )


def test_a_study_with_a_pruner_becomes_a_sweep(studies, tmp_path, monkeypatch):
    runs = runs_of_studies(studies)
    states = [t.state.name for study in studies.values() for t in study.trials]
    assert {"PRUNED", "COMPLETE"} == set(states), "the pruner has to prune"
    write_runs(runs, tmp_path / "sweep", GOAL)
    tables = load(tmp_path / "sweep")
    assert tables.results["batch_size"].tolist() == list(BATCH_SIZES)
    for (_, row), study in zip(
        tables.results.iterrows(), studies.values(), strict=True
    ):
        check_cell(row, tables.trials, study)
    draw_only(monkeypatch, "headline", "table", "training")
    assert report.write_report(tables, tmp_path / "report").results is not None
    assert (tmp_path / "report" / "report.html").exists()


def test_the_lines_of_the_page_make_a_sweep(studies, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = SOURCE_TREE / "docs" / "pages" / "tutorial" / "own_runs.md"
    text = page.read_text(encoding="utf-8")
    lines = next(
        block
        for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        if "from_optuna(" in block
    )
    exec(lines, {"studies": studies})  # noqa: S102 (our own document)
    assert len(load("sweeps/optuna").results) == len(BATCH_SIZES)


def check_cell(row: pd.Series, trials: pd.DataFrame, study: optuna.Study) -> None:
    """Compares a cell with what Optuna's own objects say, read naively."""
    mine = trials[trials["batch_size"] == row["batch_size"]]
    reached, open_from = {}, []
    for trial, (_, found) in zip(study.trials, mine.iterrows(), strict=True):
        seen = sorted(trial.intermediate_values.items())
        met = [step for step, value in seen if value <= GOAL.threshold]
        assert found["learning_rate"] == trial.params["learning_rate"]
        if met:
            reached[trial.number] = met[0]
            assert found["outcome"] == "complete"
            assert found["steps_to_result"] == met[0]
            assert found["bracket_low"] == met[0] - EVERY
        elif trial.state.name == "PRUNED":
            assert found["outcome"] == "censored", "it is not known what it would do"
            assert found["end_step"] == seen[-1][0]
            open_from.append(seen[-1][0] + EVERY)
        else:
            assert found["outcome"] == "incomplete"
    best = min(reached.values())
    assert row["steps_high"] == best
    assert row["steps_low"] == min([best, *open_from])
    assert (row["steps_bound"] == "") == (row["steps_low"] == best)


def test_the_space_of_a_study_is_kept_and_texts_are_no_numbers(studies):
    runs = from_optuna(
        studies[4], GOAL.metric, steps_per_report=1, first_report=1, batch_size=4
    )
    assert runs.space == {"learning_rate": ["log", 1e-3, 1.0]}
    assert "activation" not in runs.trials
    axis = "workload.network_arguments.activation"
    apart = from_optuna(
        studies[4],
        GOAL.metric,
        steps_per_report=lambda trial: 10,
        first_report=1,
        batch_size=4,
        rename={"activation": axis},
    )
    assert set(apart.trials[axis]) == {"relu", "tanh"}
    assert len(apart.studies()) == 2
    assert (apart.evaluations["step"] == 10 * runs.evaluations["step"]).all()


def test_runs_that_were_all_cut_off_leave_k_star_open(tmp_path):
    curve = pd.DataFrame({"step": [10, 20, 30], GOAL.metric: [0.9, 0.5, 0.3]})
    for status, outcome, bound in (
        ("INCOMPLETE", "censored", ">= 40"),
        ("COMPLETE", "incomplete", "> 30"),
    ):
        runs = runs_of([Run("a", curve, {"batch_size": 8}, status)], "here")
        write_runs(runs, tmp_path / status, GOAL)
        tables = load(tmp_path / status)
        assert tables.trials["outcome"].tolist() == [outcome]
        assert tables.results["steps_bound"].tolist() == [bound]


def test_a_run_that_ended_before_the_others_is_not_a_miss(tmp_path):
    long = pd.DataFrame({"step": [10, 20, 30], GOAL.metric: [0.9, 0.5, 0.1]})
    runs = runs_of([Run("a", long), Run("b", long[:1])], "here", batch_size=8)
    write_runs(runs, tmp_path / "s", GOAL)
    tables = load(tmp_path / "s")
    assert tables.trials["outcome"].tolist() == ["complete", "censored"]
    row = tables.results.iloc[0]
    assert (row["steps_low"], row["steps_high"]) == (20, 30)


def test_evaluations_without_the_metric_of_the_goal_prove_nothing(tmp_path):
    curve = pd.DataFrame(
        {"step": [10, 20, 30], GOAL.metric: [0.9, math.nan, 0.1], "train_loss": 1.0}
    )
    runs = runs_of([Run("a", curve)], "here", batch_size=8)
    write_runs(runs, tmp_path / "s", GOAL)
    assert load(tmp_path / "s").results["bracket_low"].tolist() == [10]


def test_runs_that_have_grown_are_read_again(tmp_path):
    curve = pd.DataFrame({"step": [10, 20], GOAL.metric: [0.9, 0.1]})
    one = runs_of([Run("a", curve)], "here", batch_size=8)
    two = runs_of([Run("a", curve), Run("b", curve)], "here", batch_size=8)
    for runs, read in ((one, 1), (one, 0), (two, 1)):
        done = write_runs(runs, tmp_path / "s", GOAL)
        assert len(done.read) == read
    assert len(load(tmp_path / "s").trials) == 2


@pytest.fixture(scope="module", name="fitted")
def _fitted(tmp_path_factory):
    """Returns histories of Keras, and the folder of event files of the same runs."""
    logs = tmp_path_factory.mktemp("logs")
    draws = np.random.default_rng(0)
    inputs = draws.normal(size=(64, 3)).astype(np.float32)
    labels = inputs.sum(axis=1, keepdims=True)
    histories = {}
    for name, epochs, rate in (("fast", 4, 0.1), ("stopped", 9, 0.2)):
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
        model.compile(keras.optimizers.legacy.SGD(rate), "mse")
        stop = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, _, model=model, name=name: setattr(
                model, "stop_training", name == "stopped" and epoch == 1
            )
        )
        board = keras.callbacks.TensorBoard(
            logs / name, write_graph=False, profile_batch=0
        )
        histories[name] = model.fit(
            inputs,
            labels,
            batch_size=16,
            epochs=epochs,
            validation_data=(inputs, labels),
            callbacks=[stop, board],
            verbose=0,
        )
    return histories, logs


def test_histories_and_event_files_of_keras_tell_the_same(fitted):
    histories, logs = fitted
    about = {"fast": {"learning_rate": 0.1}, "stopped": {"learning_rate": 0.2}}
    kept = from_keras(histories, about=about, batch_size=16)
    assert kept.trials["status"].tolist() == ["COMPLETE", "INCOMPLETE"]
    assert kept.trials["learning_rate"].tolist() == [0.1, 0.2]
    loss = histories["fast"].history["val_loss"]
    fast = kept.evaluations[kept.evaluations["trial"] == 0]
    assert fast["step"].tolist() == [4, 8, 12, 16], "64 / 16 updates an epoch"
    assert fast["validation/loss"].tolist() == loss
    read = from_tensorboard(
        logs,
        about={**about, "stopped": {"status": "INCOMPLETE", "learning_rate": 0.2}},
        batch_size=16,
        steps_per_report=4,
        first_report=0,
        leave_out=["train/learning_rate", "validation/evaluation_loss_vs_iterations"],
    )
    pd.testing.assert_frame_equal(
        read.trials[sorted(read.trials)], kept.trials[sorted(kept.trials)]
    )
    columns = ["trial", "step", "train/loss", "validation/loss"]
    pd.testing.assert_frame_equal(
        read.evaluations[columns].astype(float),
        kept.evaluations[columns].astype(float),
        rtol=1e-6,
    )


CURVES = {"red": [0.9, 0.6, 0.15], "blue": [0.8, 0.7]}
PARAMETERS = {"red": {"lr": 0.1}, "blue": {"lr": 0.2}}
FINISHED = {"red": True, "blue": False}


def write_mlruns(root: Path) -> None:
    """Writes MLflow's file store, `timestamp value step` in a line."""
    for name, values in CURVES.items():
        run = root / "123456" / name
        (run / "metrics" / "val").mkdir(parents=True)
        (run / "params").mkdir()
        (run / "tags").mkdir()
        lines = [f"17000000{n} {v} {10 * (n + 1)}" for n, v in enumerate(values)]
        (run / "metrics" / "val" / "error").write_text("\n".join(lines) + "\n")
        params = {**PARAMETERS[name], "batch_size": 8, "data": "/some/where"}
        for key, value in params.items():
            (run / "params" / key).write_text(str(value))
        status = 3 if FINISHED[name] else 5
        (run / "meta.yaml").write_text(f"run_id: {name}\nstatus: {status}\ntags: []\n")


MLFLOW_TABLES = """
    CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256));
    CREATE TABLE runs (run_uuid VARCHAR(32), name VARCHAR(250), status VARCHAR(9),
        start_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER);
    CREATE TABLE params (key VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32));
    CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT,
        run_uuid VARCHAR(32), step BIGINT, is_nan BOOLEAN);
    INSERT INTO experiments VALUES (0, 'Default'), (1, 'mine');
"""
"""Columns of MLflow 3.17 that are read."""


def write_mlflow_database(path: Path) -> None:
    """Writes what MLflow's own library does by default, with a run that was deleted."""
    with sqlite3.connect(path) as database:
        database.executescript(MLFLOW_TABLES)
        runs = {**CURVES, "gone": [0.0]}
        for start, (name, values) in enumerate(runs.items()):
            status = "FINISHED" if FINISHED.get(name) else "KILLED"
            stage = "active" if name in CURVES else "deleted"
            database.execute(
                "INSERT INTO runs VALUES (?, 'any', ?, ?, ?, 1)",
                (name, status, 1700 + start, stage),
            )
            params = {**PARAMETERS.get(name, {}), "batch_size": 8, "data": "/where"}
            for key, value in params.items():
                database.execute(
                    "INSERT INTO params VALUES (?, ?, ?)", (key, str(value), name)
                )
            # A step that was logged twice: the later value counts.
            rows = [(0.99, 16, 10), *((v, 17, 10 * n) for n, v in enumerate(values, 1))]
            for value, time, step in rows:
                database.execute(
                    "INSERT INTO metrics VALUES ('val/error', ?, ?, ?, ?, 0)",
                    (value, time, name, step),
                )
    database.close()


def write_mlflow_export(root: Path) -> None:
    """Writes what mlflow-export-import does, a run.json per run."""
    for name, values in CURVES.items():
        (root / name).mkdir(parents=True)
        rows = [
            {"value": v, "timestamp": 17, "step": 10 * (n + 1)}
            for n, v in enumerate(values)
        ]
        status = "FINISHED" if FINISHED[name] else "KILLED"
        params = {key: str(value) for key, value in PARAMETERS[name].items()}
        content = {
            "info": {"run_id": name, "status": status},
            "params": {**params, "batch_size": "8"},
            "metrics": {"val_error": rows},
        }
        (root / name / "run.json").write_text(json.dumps({"mlflow": content}))


def wandb_api_runs() -> list[SimpleNamespace]:
    """Returns stand-ins of `wandb.Api().runs(...)`: what of them is read."""
    return [
        SimpleNamespace(
            name=name,
            config={**PARAMETERS[name], "batch_size": 8, "arch": "mlp"},
            state="finished" if FINISHED[name] else "crashed",
            scan_history=lambda values=values: [
                {
                    "_step": 10 * (n + 1),
                    "_runtime": 3.0,
                    "val/error": v,
                    "note": "x",
                    "norm": "Infinity",
                }
                for n, v in enumerate(values)
            ],
        )
        for name, values in CURVES.items()
    ]


def write_chart(path: Path) -> None:
    """Writes a chart as the web page of Weights & Biases exports it."""
    steps = [10, 20, 30]
    chart = pd.DataFrame({"Step": steps})
    for name, values in CURVES.items():
        for end in ("", "__MIN", "__MAX"):
            padded = [*values, *[math.nan] * (len(steps) - len(values))]
            chart[f"{name} - val/error{end}"] = padded
    chart.to_csv(path, index=False)


def test_every_tracker_gives_the_same_runs(tmp_path):
    write_mlruns(tmp_path / "mlruns")
    write_mlflow_database(tmp_path / "mlflow.db")
    write_mlflow_export(tmp_path / "export")
    write_chart(tmp_path / "chart.csv")
    told = {
        "blue": {"lr": 0.2, "status": "INCOMPLETE"},
        "red": {"lr": 0.1},
    }
    found = {
        "mlruns": from_mlflow(tmp_path / "mlruns"),
        "database": from_mlflow(tmp_path / "mlflow.db"),
        "export": from_mlflow(tmp_path / "export"),
        "api": from_wandb(wandb_api_runs()),
        "chart": from_wandb(tmp_path / "chart.csv", about=told, batch_size="8"),
    }
    for name, runs in found.items():
        assert sorted(runs.trials.index) == ["blue", "red"], name
        by_run = runs.trials["trial"]
        for run, values in CURVES.items():
            row = runs.trials.loc[run]
            assert row["batch_size"] == 8 and row["lr"] == PARAMETERS[run]["lr"], name
            assert (row["status"] == "COMPLETE") == FINISHED[run], name
            mine = runs.evaluations[runs.evaluations["trial"] == by_run[run]]
            assert mine["step"].tolist() == [10, 20, 30][: len(values)], name
            assert mine["validation/error"].tolist() == values, name
            if name == "api":
                assert mine["logged/norm"].tolist() == [math.inf] * len(values)
        write_runs(runs, tmp_path / f"sweep_{name}", GOAL)
        row = load(tmp_path / f"sweep_{name}").results.iloc[0]
        assert (row["steps_to_result"], row["steps_bound"]) == (30, ""), name
        assert row["censored"] == 1, name


def test_runs_of_several_experiments_are_not_mixed(tmp_path):
    path = tmp_path / "mlflow.db"
    write_mlflow_database(path)
    with sqlite3.connect(path) as database:
        database.execute(
            "INSERT INTO runs VALUES ('other', 'any', 'FINISHED', 9, 'active', 0)"
        )
    database.close()
    with pytest.raises(UserError, match=r"several experiments.*'Default', 'mine'"):
        from_mlflow(path)
    with pytest.raises(UserError, match="did you mean 'mine'"):
        from_mlflow(path, "mime")
    # In the order in which they began.
    assert from_mlflow(path, "mine").trials.index.tolist() == ["red", "blue"]
    done = archive(
        "--format=mlflow", f"--read={path}", "--study=mine", "--goal=0.2",
        f"--metric={GOAL.metric}", f"--sweep_dir={tmp_path / 's'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "s").results["steps_to_result"].tolist() == [30]


def test_models_and_deleted_runs_of_mlruns_are_no_runs(tmp_path):
    write_mlruns(tmp_path)
    meta = tmp_path / "123456" / "blue" / "meta.yaml"
    meta.write_text(meta.read_text() + "lifecycle_stage: deleted\n")
    model = tmp_path / "123456" / "models" / "m-1"
    (model / "metrics").mkdir(parents=True)
    (model / "meta.yaml").write_text("model_id: m-1\nstatus: 2\n")
    assert from_mlflow(tmp_path).trials.index.tolist() == ["red"]


@pytest.mark.parametrize("kind", ["text", "view", "value", "folder"])
def test_what_is_no_database_of_mlflow_is_one_sentence(tmp_path, kind):
    path = tmp_path / "mlflow.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no database\n" * 99)
    else:
        write_mlflow_database(path)
        with sqlite3.connect(path) as database:
            if kind == "value":
                database.execute("UPDATE metrics SET value = 'nought'")
            else:
                # What is looked up there would never end.
                database.executescript(
                    "DROP TABLE params; CREATE VIEW params AS WITH RECURSIVE n(i) AS "
                    "(VALUES(1) UNION ALL SELECT i + 1 FROM n) SELECT i AS key, "
                    "i AS value, i AS run_uuid FROM n;"
                )
        database.close()
    with pytest.raises(UserError, match=r"no (database|run) of MLflow") as refusal:
        from_mlflow(path)
    assert "\n" not in str(refusal.value)


def test_weights_and_biases_of_a_machine_are_named(tmp_path):
    (tmp_path / "offline-run-1").mkdir()
    (tmp_path / "offline-run-1" / "run-1.wandb").write_bytes(b":W&B")
    for place in (tmp_path, tmp_path / "offline-run-1" / "run-1.wandb"):
        with pytest.raises(UserError, match="wandb sync"):
            from_wandb(place, batch_size=8)


@pytest.mark.parametrize(
    ("place", "content", "sentence"),
    [
        ("run.json", '{"mlflow": []}', "is no run of MLflow"),
        ("run.json", '{"mlflow": {"metrics": {"a": [{"v": 1}]}}}', "no run of MLflow"),
        ("run.json", "[", "cannot be read as JSON"),
        ("metrics/loss", "17 nought 3", "is no run of MLflow: could not convert"),
    ],
)
def test_damaged_runs_of_mlflow_are_one_sentence(tmp_path, place, content, sentence):
    path = tmp_path / "run" / place
    path.parent.mkdir(parents=True)
    (tmp_path / "run" / "meta.yaml").write_text("run_id: run\n")
    path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        from_mlflow(tmp_path, batch_size=8)


def test_an_event_file_that_ends_in_half_a_record_counts_up_to_there(fitted, tmp_path):
    _, logs = fitted
    [whole] = (logs / "fast" / "validation").iterdir()
    (tmp_path / "run").mkdir()
    data = whole.read_bytes()
    (tmp_path / "run" / whole.name).write_bytes(data[:-20])
    os.mkfifo(tmp_path / "run" / "events.out.tfevents.pipe")
    cut, kept = (
        from_tensorboard(folder, batch_size=8, rename={"epoch_loss": "val_loss"})
        for folder in (tmp_path, logs / "fast" / "validation")
    )
    assert 0 < len(cut.evaluations) <= len(kept.evaluations)
    (tmp_path / "run" / whole.name).write_bytes(b"no record" * 10)
    with pytest.raises(UserError, match="no metric|no run|has the metric"):
        runs = from_tensorboard(tmp_path, batch_size=8)
        write_runs(runs, tmp_path / "s", GOAL)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_two_tables_are_read_by_the_command(tmp_path, ending):
    trials = pd.DataFrame(
        {
            "workload": "mine",
            "optimizer": "adam",
            "batch_size": [8, 8, 16],
            "trial": [0, 1, 2],
            "status": ["COMPLETE", "INCOMPLETE", "COMPLETE"],
            "rate": [0.1, 0.2, 0.3],
        }
    )
    evaluations = pd.DataFrame(
        {
            "trial": [0, 0, 1, 2, 2],
            "step": [5, 10, 5, 5, 10],
            GOAL.metric: [0.5, 0.1, 0.6, 0.4, 0.2],
        }
    )
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, frame in (("trials", trials), ("evaluations", evaluations)):
        path = folder / f"{name}.{ending}"
        if ending == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path)
    done = archive(
        "--format=tables", f"--read={folder}", "--goal=0.2", f"--metric={GOAL.metric}",
        "--inclusive", f"--sweep_dir={tmp_path / 'sweep'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 studies in" in done.stdout
    tables = load(tmp_path / "sweep")
    assert tables.results["steps_to_result"].tolist() == [10, 10]
    assert tables.trials["outcome"].tolist() == ["complete", "censored", "complete"]
    assert read_runs(folder).trials["rate"].tolist() == [0.1, 0.2, 0.3]


def archive(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command that reads runs."""
    words = ["-m", "dps_tf.archive", *arguments]
    return interpreter.run(words, modules=interpreter.TABLES)


def test_the_command_reads_the_database_of_a_study(studies, tmp_path):
    database = str(studies[16]._storage._backend.engine.url.database)
    assert load_optuna(database, "b16").study_name == "b16"
    with pytest.raises(UserError, match="has no such study"):
        load_optuna(database)
    done = archive(
        "--format=optuna", f"--read={database}", "--study=b16", "--goal=0.2",
        "--inclusive", f"--metric={GOAL.metric}", "--set=batch_size=16",
        "--set=workload=line", "--set=optimizer=sgd", f"--sweep_dir={tmp_path / 's'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [row] = load(tmp_path / "s").results.to_dict("records")
    check_cell(pd.Series(row), load(tmp_path / "s").trials, studies[16])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--format=tables"], "--goal is missing"),
        (["--format=tabels"], "did you mean 'tables'"),
        (["--format=tables", "--goal=1"], "must hold one of trials.csv and"),
        (["--format=wandb", "--goal=1"], "no run"),
        (["--format=tensorboard", "--goal=1", "--set=batch_size"], "NAME=VALUE"),
        (["--format=optuna", "--goal=1"], "is no file"),
    ],
)
def test_what_the_command_cannot_read_is_one_sentence(tmp_path, arguments, sentence):
    done = archive(*arguments, f"--read={tmp_path}", f"--sweep_dir={tmp_path / 's'}")
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("error: ") and sentence in line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val_loss", "validation/loss"),
        ("eval/accuracy", "validation/accuracy"),
        ("Valid.top-5", "logged/Valid.top-5"),
        ("train/loss", "train/loss"),
        ("loss", "logged/loss"),
        ("validation/error", "validation/error"),
        ("test_val_x", "test/val_x"),
    ],
)
def test_metrics_of_others_get_a_split(name, expected):
    assert metric_name(name) == expected


def test_runs_that_cannot_be_are_one_sentence(tmp_path):
    curve = pd.DataFrame({"step": [1], "val_loss": [0.1], "eval_loss": [0.2]})
    with pytest.raises(UserError, match="would both be called 'validation/loss'"):
        runs_of([Run("a", curve)], "here", batch_size=8)
    plain = curve.drop(columns="eval_loss")
    with pytest.raises(UserError, match="does not tell its batch size"):
        runs_of([Run("a", plain)], "here")
    with pytest.raises(UserError, match="batch_size is 'large'; it must be a number"):
        runs_of([Run("a", plain)], "here", batch_size="large")
    with pytest.raises(UserError, match="has no run 'b': did you mean|known: 'a'|a"):
        runs_of([Run("a", plain)], "here", batch_size=8, about={"b": {}})
    runs = runs_of([Run("a", plain)], "here", batch_size=8)
    with pytest.raises(UserError, match="did you mean 'validation/loss'"):
        write_runs(runs, tmp_path / "s", Goal("validation/los", 0.1))
    with pytest.raises(UserError, match="outcome"):
        bad = runs_of([Run("a", plain)], "here", batch_size=8, outcome=1.0)
        write_runs(bad, tmp_path / "s", Goal("validation/loss", 0.1))
    with pytest.raises(UserError, match="holds no event file"):
        from_tensorboard(tmp_path, batch_size=8)
    with pytest.raises(UserError, match="no runs to join"):
        join([])
