"""Runs of other software: are they read as they were, and is a cut-off never a miss?"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import optuna
import pandas as pd
import pytest

from dps_tf._keras import keras
from dps_tf.analysis import report
from dps_tf.analysis.interchange.event_files import from_tensorboard
from dps_tf.analysis.interchange.optuna_studies import from_optuna, load_optuna
from dps_tf.analysis.interchange.run_tables import Runs, join, read_runs
from dps_tf.analysis.interchange.runs import Run, from_keras, metric_name, runs_of
from dps_tf.analysis.interchange.sweep import write_runs
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
    assert len(apart.by_cell()) == 2
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
    # Trained to 100, but evaluated to 30 only.
    runs = replace(runs, trials=runs.trials.assign(steps=100))
    write_runs(runs, tmp_path / "s", GOAL)
    assert load(tmp_path / "s").results["steps_bound"].tolist() == [">= 40"]


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
        assert sum(done.values()) == read
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
    done = import_runs(
        f"--read={folder}", "--goal=0.2", f"--metric={GOAL.metric}",
        f"--sweep_dir={tmp_path / 'sweep'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 studies in" in done.stdout and "validation/error <= 0.2" in done.stdout
    tables = load(tmp_path / "sweep")
    assert tables.results["steps_to_result"].tolist() == [10, 10]
    assert tables.trials["outcome"].tolist() == ["complete", "censored", "complete"]
    assert read_runs(folder).trials["rate"].tolist() == [0.1, 0.2, 0.3]


def import_runs(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command that reads runs."""
    words = ["-m", "dps_tf.import_runs", *arguments]
    return interpreter.run(words, modules=interpreter.TABLES)


def test_the_command_reads_the_database_of_a_study(studies, tmp_path):
    database = str(studies[16]._storage._backend.engine.url.database)
    assert load_optuna(database, "b16").study_name == "b16"
    with pytest.raises(UserError, match=r"holds 3 studies: name one by --study"):
        load_optuna(database)
    with pytest.raises(UserError, match="has no study 'b17' .--study.: did you mean"):
        load_optuna(database, "b17")
    done = import_runs(
        "--format=optuna", f"--read={database}", "--study=b16", "--goal=0.2",
        f"--metric={GOAL.metric}", "--set=batch_size=16",
        "--set=workload=line", "--set=optimizer=sgd", f"--sweep_dir={tmp_path / 's'}",
        "--steps_per_report=1", "--first_report=1",
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
        (["--format=tensorboard", "--goal=1", "--set=batch_size"], "NAME=VALUE"),
        (["--format=optuna", "--goal=1"], "is no file"),
    ],
)
def test_what_the_command_cannot_read_is_one_sentence(tmp_path, arguments, sentence):
    done = import_runs(
        *arguments, f"--read={tmp_path}", f"--sweep_dir={tmp_path / 's'}"
    )
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
    with pytest.raises(UserError, match="has no batch size"):
        runs_of([Run("a", plain)], "here")
    with pytest.raises(UserError, match="batch_size is 'large'; it must be a number"):
        runs_of([Run("a", plain)], "here", batch_size="large")
    with pytest.raises(UserError, match="has no run 'b': did you mean|known: 'a'|a"):
        runs_of([Run("a", plain)], "here", batch_size=8, about={"b": {}})
    runs = runs_of([Run("a", plain)], "here", batch_size=8)
    with pytest.raises(UserError, match="did you mean 'validation/loss'"):
        write_runs(runs, tmp_path / "s", Goal("validation/los", 0.1, "minimize"))
    with pytest.raises(UserError, match="outcome"):
        bad = runs_of([Run("a", plain)], "here", batch_size=8, outcome=1.0)
        write_runs(bad, tmp_path / "s", Goal("validation/loss", 0.1))
    with pytest.raises(UserError, match="holds no event file"):
        from_tensorboard(tmp_path, batch_size=8)
    with pytest.raises(UserError, match="no runs to join"):
        join([])


def test_tensorboard_is_named_when_it_is_missing(tmp_path, monkeypatch):
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(UserError, match="pip install 'tensorboard>=2.20'"):
        from_tensorboard(tmp_path, batch_size=8)
