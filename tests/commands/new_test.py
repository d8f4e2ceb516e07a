"""Do the files that `new` writes run as they are, and is nothing written over?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from dps_tf.new import files_of_workload
from tests import interpreter


def new(folder, name):
    return interpreter.run(["-m", "dps_tf.new", f"--name={name}"], cwd=folder)


def test_three_files_are_written_and_never_over_others(tmp_path):
    done = new(tmp_path, "my_task")
    assert done.returncode == 0, done.stderr
    names = {"my_task.py", "my_task.gin", "my_task_test.py"}
    assert {path.name for path in tmp_path.iterdir()} == names
    (tmp_path / "my_task.py").unlink()
    (tmp_path / "my_task.gin").write_text("mine")
    again = new(tmp_path, "my_task")
    assert again.returncode == 2
    assert again.stderr == (
        "error: my_task.gin exists already: choose another --name.\n"
    )
    assert (tmp_path / "my_task.gin").read_text() == "mine"


@pytest.mark.parametrize("name", ["my-task", "2nd", "class", "json", "a/b"])
def test_a_name_that_is_no_module_or_hides_one_is_refused(name, tmp_path):
    done = new(tmp_path, name)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"--name={name} is" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_files_keep_the_style_of_the_project(tmp_path):
    for name, text in files_of_workload("my_task").items():
        (tmp_path / name).write_text(text)
        assert max(map(len, text.splitlines())) <= 88
    words = ["-m", "ruff", "check", "--isolated", "--select=E,F,B", str(tmp_path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_what_is_written_trains_and_its_test_passes(tmp_path):
    assert new(tmp_path, "my_task").returncode == 0
    told = interpreter.run(
        [
            *("-m", "dps_tf.train", "--import=my_task", "--gin_file=my_task.gin"),
            *("--sweep_dir=sweep", "--slots=1", "--dry_run"),
        ],
        cwd=tmp_path,
    )
    assert told.returncode == 0 and "cells: 4" in told.stdout, told.stderr
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "my_task_test.py"]
    done = interpreter.run(words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
