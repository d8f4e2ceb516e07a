"""Runs of others that are damaged, odd or made to do harm.

Each is refused in one sentence, or read as far as it is sound: nothing is read wrongly
in silence, nothing is written but the sweep directory, and nothing steers a terminal.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis import report
from dps_tf.analysis.fit_table import fit_table, read_table
from dps_tf.analysis.interchange.event_files import from_tensorboard
from dps_tf.analysis.interchange.optuna_studies import from_optuna, load_optuna
from dps_tf.analysis.interchange.run_tables import join, read_runs
from dps_tf.analysis.interchange.runs import Run, runs_of
from dps_tf.analysis.interchange.sweep import write_runs
from dps_tf.analysis.loading import load
from dps_tf.core import UserError
from tests import interpreter
from tests.faults.recorded_runs import (
    ERRORS,
    EVALUATIONS,
    GOAL,
    METRIC,
    TRIALS,
    check_sentence,
    write_database,
    write_event_file,
    write_tables,
)

pytestmark = pytest.mark.fault
CURVE = pd.DataFrame({"step": [10, 20], METRIC: [0.5, 0.1]})


# Rows and headers


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch_size,steps_to_result\n1,1000,5\n", "has 3 fields in line 2 and 2 in"),
        ("batch_size,steps_to_result\n1,1000\n2,500,\n", "has 3 fields in line 3"),
        ("batch_size,steps_to_result\n1,1000\n2\n", "has 1 fields in line 3"),
        ("batch_size,steps_to_result\n1,10\0000\n", "it holds a NUL byte"),
        ("batch_size,steps_to_result\nTrue,100\n", "it must be a number"),
    ],
)
def test_fit_names_the_line_that_does_not_fit_the_header(tmp_path, text, sentence):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence) as refusal:
        read_table(path)
    check_sentence(refusal.value)


def test_lines_without_fields_and_quoted_commas_are_no_mistake(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('curve, batch_size,steps_to_result\n\n"a,b", 1,1000\n  \n"c",2,9\n')
    table = read_table(path)
    assert table["curve"].tolist() == ["a,b", "c"]
    assert table["steps_to_result"].tolist() == [1000, 9]


@pytest.mark.parametrize("name", ["trials", "evaluations"])
def test_a_long_row_of_runs_is_refused(tmp_path, name):
    folder = write_tables(tmp_path / "runs")
    path = folder / f"{name}.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + ",1\n")
    with pytest.raises(UserError, match=rf"{name}\.csv' has \d fields in line") as said:
        read_runs(folder)
    check_sentence(said.value)


# Event files


def read_events(folder: Path, **about: object):
    return from_tensorboard(folder, batch_size=8, **about)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_event_file_cuts_its_run_off(tmp_path, damage):
    path = tmp_path / "logs" / "a" / "events.out.tfevents.1"
    data = write_event_file(path)
    place = data.index(np.float32(ERRORS[3]).tobytes())
    rest = b"" if damage == "cut" else b"x" + data[place + 1 :]
    path.write_bytes(data[:place] + rest)
    # Another file of the run goes on after the loss: K* may lie in what is lost.
    write_event_file(path.with_name("events.out.tfevents.2"), [0.1], first=5)
    runs = read_events(tmp_path / "logs")
    assert runs.evaluations["step"].tolist() == [10, 20, 30]
    [note] = runs.notes
    assert "events.out.tfevents.1" in note and "cut off after step 30" in note
    lines: list[str] = []
    write_runs(runs, tmp_path / "sweep", GOAL, lines.append)
    assert lines[0] == f"note: {note}"
    tables = load(tmp_path / "sweep")
    assert tables.trials["outcome"].tolist() == ["censored"]
    assert tables.results["steps_bound"].tolist() == [">= 40"]


def test_pipes_and_links_among_event_files_are_passed_over(tmp_path):
    folder = tmp_path / "logs" / "a"
    write_event_file(folder / "events.out.tfevents.1")
    write_event_file(tmp_path / "elsewhere" / "events.out.tfevents.1", [0.0])
    os.mkfifo(folder / "events.out.tfevents.pipe")
    (folder / "events.out.tfevents.link").symlink_to(tmp_path / "elsewhere")
    (folder / "circle").symlink_to("..")
    runs = read_events(tmp_path / "logs")
    assert runs.evaluations[METRIC].tolist() == pytest.approx(ERRORS)


# Databases


def test_the_database_of_a_study_is_not_written_to(tmp_path):
    path = tmp_path / "a{b}?c.db"
    before = write_database(tmp_path / "plain.db")
    (tmp_path / "plain.db").rename(path)
    study = load_optuna(path)
    runs = from_optuna(study, METRIC, steps_per_report=1, first_report=1, batch_size=8)
    assert runs.evaluations["step"].tolist() == [10, 20, 30, 40, 50]
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_tables_of_others_stay_alone_in_their_database(tmp_path):
    path = tmp_path / "history.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE visits (url TEXT)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match="it has no table studies") as refusal:
        load_optuna(path)
    check_sentence(refusal.value)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def with_log_of_writes(path: Path) -> sqlite3.Connection:
    """Returns a connection to a new database whose writes go to a log first."""
    write_database(path)
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    return database


def test_a_database_with_a_log_of_writes_gets_no_files_beside_it(tmp_path):
    path = tmp_path / "study.db"
    with_log_of_writes(path).close()
    before = path.read_bytes()
    study = load_optuna(path)
    assert len(study.trials) == 1
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_writes_that_are_still_in_the_log_are_read(tmp_path):
    path = tmp_path / "study.db"
    database = with_log_of_writes(path)
    database.execute("UPDATE studies SET study_name = 'other'")
    database.commit()
    assert load_optuna(path).study_name == "other"
    database.close()


@pytest.mark.parametrize("table", ["trial_user_attributes", "trials"])
def test_a_view_whose_query_never_ends_is_refused(table, tmp_path):
    path = tmp_path / "study.db"
    write_database(path)
    with sqlite3.connect(path) as database:
        database.executescript(
            f"DROP TABLE {table}; CREATE VIEW {table} AS "
            "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n) "
            "SELECT i AS trial_id FROM n;"
        )
    database.close()
    with pytest.raises(UserError, match=f"has a view {table}") as refusal:
        load_optuna(path)
    check_sentence(refusal.value)


@pytest.mark.slow
def test_numbers_of_reports_are_not_taken_for_steps(tmp_path):
    write_database(tmp_path / "s.db")
    words = ["-m", "dps_tf.import_runs", "--format=optuna", "--goal=1"]
    words += [f"--read={tmp_path / 's.db'}", f"--sweep_dir={tmp_path / 'sweep'}"]
    done = interpreter.run([*words, "--steps_per_report=1"], modules=interpreter.TABLES)
    assert done.returncode == 2
    assert "--first_report is missing" in done.stderr


# Files that are none, and names that no file has


def test_tables_that_are_pipes_are_refused_and_not_waited_for(tmp_path):
    folder = write_tables(tmp_path / "runs")
    (folder / "trials.csv").unlink()
    os.mkfifo(folder / "trials.csv")
    with pytest.raises(UserError, match="is no regular file"):
        read_runs(folder)
    with pytest.raises(UserError, match="is no file"):
        load_optuna(folder / "trials.csv")


@pytest.mark.parametrize("name", [b"caf\xe9", b"x" * 5000, b"a/" * 3000])
@pytest.mark.parametrize("kind", ["tables", "tensorboard", "optuna", "shallue2019"])
def test_names_that_no_file_has_are_one_sentence(tmp_path, kind, name):
    words = ["-m", "dps_tf.import_runs", f"--format={kind}", "--goal=1"]
    place = os.fsdecode(name)
    if kind in ("tensorboard", "optuna"):
        words.append("--set=batch_size=8")
    done = interpreter.run(
        [*words, f"--read={place}", f"--sweep_dir={tmp_path / 'sweep'}"],
        modules=interpreter.TABLES,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_runs_below_a_folder_whose_name_is_no_text_are_read(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_event_file(folder / os.fsdecode(b"r\xfcn") / "events.out.tfevents.1")
    write_runs(read_events(folder), tmp_path / "sweep", GOAL)
    assert load(tmp_path / "sweep").results["steps_to_result"].tolist() == [40]


# Flags and columns


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rename": {"step": "x"}}, "step numbers the evaluations"),
        ({"rename": {METRIC: "step"}}, "cannot be renamed to 'step'"),
        ({"rename": {METRIC: "trial"}}, "cannot be renamed to 'trial'"),
        ({"batch_size": "9" * 20}, "batch_size is 1e+20"),
        ({"batch_size": "9" * 400}, "batch_size is inf"),
        ({"seed": "nan"}, "seed is 'nan'; it must be a number"),
        ({"steps_per_report": 10**20}, "whole number, at least 1, below 2**63"),
        ({"steps_per_report": 10**17}, "it must be a whole number from 0, below 2^53"),
        ({"first_report": 10**20}, "whole number, at least 0, below 2**63"),
        ({"steps_per_report": 0.25}, "steps_per_report is 0.25; it must be a whole"),
        ({"first_report": 30}, "step in row 1 is -19"),
        ({"trial": 3}, "has a column 'trial'"),
        ({"steps": 5}, "has 5 steps and an evaluation at step 20"),
        ({"steps": "all"}, "steps is 'all'; it must be a number"),
        ({"status": "\x1b[2J"}, "status in run 'a' is"),
        ({"workload": "\udcff"}, "workload is '\\udcff'; it must be printable"),
        ({"optimizer": "../sgd"}, "cannot be part of a path"),
        ({"learning_rate": "inf"}, "learning_rate in run 'a' is inf"),
        ({"learning_rate": -1}, "learning_rate in run 'a' is -1"),
        ({"base_lr": -0.5}, "base_lr in run 'a' is -0.5"),
    ],
)
def test_what_is_said_of_all_runs_is_checked(tmp_path, options, sentence):
    with pytest.raises(UserError) as refusal:
        runs = runs_of([Run("a", CURVE)], "here", **{"batch_size": 8, **options})
        write_runs(runs, tmp_path / "sweep", GOAL)
    assert sentence in str(refusal.value)
    check_sentence(refusal.value)


def test_a_column_is_not_lost_by_renaming_another_to_it():
    run = Run("a", CURVE, {"batch_size": 8, "lr": 0.1})
    with pytest.raises(UserError, match="both be called 'batch_size'") as refusal:
        runs_of([run], "here", rename={"lr": "batch_size"})
    check_sentence(refusal.value)


@pytest.mark.parametrize("name", ["trial", "steps", "status"])
def test_a_metaparameter_is_not_taken_for_a_column_of_the_table(name):
    run = Run("a", CURVE, {name: 3})
    with pytest.raises(UserError, match=f"has a column '{name}'"):
        runs_of([run], "here", batch_size=8)
    runs = runs_of([run], "here", batch_size=8, rename={name: "other"})
    assert runs.trials["other"].tolist() == [3]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--set=about=x"], "about is no column of runs"),
        (["--steps_per_report=99999999999999999999"], "steps_per_report"),
        (["--rename=step=x"], "step numbers the evaluations"),
        (["--study=a"], "--study is of --format=optuna, and not of"),
        (["--goal=nan"], "nan"),
    ],
)
def test_flags_that_cannot_be_are_one_sentence(tmp_path, flags, sentence):
    write_event_file(tmp_path / "logs" / "events.out.tfevents.1")
    words = ["-m", "dps_tf.import_runs", "--format=tensorboard", "--goal=1"]
    words += [f"--read={tmp_path / 'logs'}", f"--sweep_dir={tmp_path / 'sweep'}"]
    done = interpreter.run(
        [*words, "--set=batch_size=8", *flags], modules=interpreter.TABLES
    )
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr


# Goals


def test_a_value_equal_to_the_goal_meets_it_unless_the_flag_says_no(tmp_path):
    folder = write_tables(tmp_path / "runs")
    found = {}
    for flag, sign in (("--inclusive", "<="), ("--noinclusive", "<")):
        sweep = tmp_path / flag
        words = ["-m", "dps_tf.import_runs", f"--read={folder}", "--goal=0.15"]
        words += [f"--metric={METRIC}", f"--sweep_dir={sweep}"]
        words += [flag] if flag == "--noinclusive" else []
        done = interpreter.run(words, modules=interpreter.TABLES)
        assert done.returncode == 0, done.stderr
        assert f"{METRIC} {sign} 0.15" in done.stdout
        found[flag] = load(sweep).results["steps_to_result"].tolist()
    assert found == {"--inclusive": [40], "--noinclusive": [50]}


@pytest.mark.slow
def test_a_goal_that_is_met_untrained_has_a_report(tmp_path):
    curves = {4: [0.5, 0.3, 0.1], 8: [0.5, 0.1, 0.1], 16: [0.1, 0.1, 0.1]}
    parts = [
        runs_of(
            [
                Run(str(rate), pd.DataFrame({"step": [0, 10, 20], METRIC: errors}))
                for rate in (1, 2)
            ],
            "here",
            batch_size=size,
        )
        for size, errors in curves.items()
    ]
    write_runs(join(parts), tmp_path / "sweep", GOAL)
    tables = load(tmp_path / "sweep")
    assert tables.results["steps_to_result"].tolist() == [20, 10, 0]
    found = report.write_report(tables, tmp_path / "report")
    assert "1 batch size at which K* is 0" in found.summary[0]


@pytest.mark.filterwarnings("error")
def test_curves_that_have_step_0_alone_are_drawn_without_a_complaint(tmp_path):
    curve = pd.DataFrame({"step": [0], METRIC: [0.1]})
    runs = runs_of([Run("a", curve)], "here", batch_size=8)
    write_runs(runs, tmp_path / "sweep", GOAL)
    report.write_report(load(tmp_path / "sweep"), tmp_path / "report")


# What is shown


@pytest.mark.slow
def test_escapes_in_tables_never_reach_a_terminal(tmp_path):
    steer = "\x1b]0;x\x07"
    path = tmp_path / "t.csv"
    rows = "".join(f"{steer},{size},{1000 // size}\n" for size in (1, 2, 4))
    path.write_text(f"curve,batch_size,steps_to_result\n{rows}")
    assert fit_table(read_table(path)).curves[0].curve == steer
    done = interpreter.run(
        ["-m", "dps_tf.fit", f"--csv={path}"], modules=interpreter.TABLES
    )
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr
    folder = write_tables(tmp_path / "runs", TRIALS.replace(",w,", f",{steer},"))
    with pytest.raises(UserError) as refusal:
        write_runs(read_runs(folder), tmp_path / "sweep", GOAL)
    check_sentence(refusal.value)
    named = write_tables(tmp_path / "more", rows=EVALUATIONS.replace("error", steer))
    with pytest.raises(UserError) as refusal:
        write_runs(read_runs(named), tmp_path / "sweep", GOAL)
    check_sentence(refusal.value)
