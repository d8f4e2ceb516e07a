"""Do the launch commands do the right thing on machines that this one is not?

A stand-in for the interpreter writes down what it is asked to run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.stand_ins import ran
from tests.packaging.source_tree import SOURCE_TREE

LAUNCH = SOURCE_TREE / "launch"
SCRIPTS = (LAUNCH / "quickstart", LAUNCH / "test", SOURCE_TREE / ".ci" / "run")

# Runs code and files for real, notes modules, and ends as the file `status` says.
STAND_IN = """#!/usr/bin/env bash
case $1 in
  -c | -) exec {python} "$@" ;;
  -m) printf '%s\\n' "${{*:2}}" >>{log} ;;
esac
case $2 in
  dps_tf.*) exit "$(cat {status} 2>/dev/null || echo 0)" ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


class Machine:
    """A machine whose virtual environment holds a stand-in for Python."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "log"
        self.status = folder / "status"
        self.environment = folder / "environment"

    def make_environment(self) -> None:
        binaries = self.environment / "bin"
        binaries.mkdir(parents=True)
        (self.environment / "pyvenv.cfg").write_text("")
        python = binaries / "python"
        python.write_text(
            STAND_IN.format(python=sys.executable, log=self.log, status=self.status)
        )
        python.chmod(0o755)

    def run(self, *command: object, **variables: str):
        environment = {**os.environ, "DPS_TF_VENV": str(self.environment), **variables}
        return ran(command, self.folder, environment)

    def find_interpreter(self, **variables: str):
        """Asks the shell piece for an interpreter."""
        script = f'. "{LAUNCH}/_environment.sh"; find_interpreter'
        return self.run("/bin/bash", "-c", script, **variables)

    def modules_run(self) -> list[str]:
        """Returns the commands of the package that were started, with arguments."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if line.startswith("dps_tf.")]

    def installations(self) -> list[str]:
        """Returns the calls of pip that install something."""
        return [
            line for line in self.log.read_text().splitlines() if "pip install" in line
        ]

    def interpreter(self, name: str, code: str) -> str:
        """Puts an interpreter on a PATH of its own and returns that PATH."""
        folder = self.folder / "path"
        folder.mkdir(exist_ok=True)
        script = folder / name
        script.write_text(f"#!/bin/bash\n{code}\n")
        script.chmod(0o755)
        # dirname is all that the shell piece needs before it has found Python.
        tool = folder / "dirname"
        if not tool.exists():
            tool.write_text('#!/bin/bash\nprintf "%s\\n" "${1%/*}"\n')
            tool.chmod(0o755)
        return str(folder)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_can_be_run_and_parsed(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["/bin/bash", "-n", script], check=True)


def test_supported_interpreter_is_found(machine):
    path = machine.interpreter("python3", f'exec {sys.executable} "$@"')
    result = machine.find_interpreter(PATH=path)
    assert result.stdout.strip() == "python3"


def test_unsupported_interpreter_is_passed_over(machine):
    machine.interpreter("python3", "exit 1")
    path = machine.interpreter("python3.10", f'exec {sys.executable} "$@"')
    assert machine.find_interpreter(PATH=path).stdout.strip() == "python3.10"


def test_no_supported_interpreter_says_which_are(machine):
    path = machine.interpreter("python3", "exit 1")
    result = machine.find_interpreter(PATH=path)
    assert result.returncode == 2
    assert "3.10, 3.11, 3.12 or 3.13" in result.stderr


def test_interpreter_without_venv_names_the_package_to_install(machine):
    code = f'case $2 in *ensurepip*) exit 1 ;; esac; exec {sys.executable} "$@"'
    result = machine.find_interpreter(PATH=machine.interpreter("python3", code))
    assert result.returncode == 2
    assert "python3-venv" in result.stderr


def test_interpreter_named_by_the_user_is_not_replaced(machine):
    path = machine.interpreter("python3", f'exec {sys.executable} "$@"')
    result = machine.find_interpreter(PATH=path, DPS_TF_PYTHON="/nowhere/python")
    assert result.returncode == 2
    assert "DPS_TF_PYTHON=/nowhere/python" in result.stderr


def test_folder_that_is_no_environment_is_left_alone(machine):
    machine.environment.mkdir()
    (machine.environment / "thesis.tex").write_text("")
    result = machine.run(LAUNCH / "quickstart")
    assert result.returncode == 2
    assert "is not a virtual environment" in result.stderr
    assert [path.name for path in machine.environment.iterdir()] == ["thesis.tex"]


def test_quickstart_trains_and_reports(machine):
    machine.make_environment()
    sweep_dir = machine.folder / "sweeps" / "quickstart"
    result = machine.run(LAUNCH / "quickstart")
    assert machine.modules_run() == [
        f"dps_tf.train --gin_file=quickstart --sweep_dir={sweep_dir}",
        f"dps_tf.report --sweep_dir={sweep_dir} --out={sweep_dir}/report",
    ]
    assert f"{sweep_dir}/report/steps_to_result.png" in result.stdout
    assert result.returncode == 0


@pytest.mark.parametrize(
    "given", [["--sweep_dir=my sweep"], ["--sweep_dir", "my sweep"]]
)
def test_quickstart_passes_options_on_and_reports_the_sweep_named(machine, given):
    machine.make_environment()
    machine.run(LAUNCH / "quickstart", "--gin_bindings=a = 1", *given)
    train, report = machine.modules_run()
    assert train.endswith(f"--gin_bindings=a = 1 {' '.join(given)}")
    assert report == "dps_tf.report --sweep_dir=my sweep --out=my sweep/report"


@pytest.mark.parametrize("option", ["--dry_run", "--help"])
def test_quickstart_without_training_makes_no_report(machine, option):
    machine.make_environment()
    machine.run(LAUNCH / "quickstart", option)
    assert [line.split()[0] for line in machine.modules_run()] == ["dps_tf.train"]


@pytest.mark.parametrize("status", [2, 75])
def test_quickstart_ends_as_training_ended(machine, status):
    machine.make_environment()
    machine.status.write_text(str(status))
    result = machine.run(LAUNCH / "quickstart")
    assert result.returncode == status
    assert ("again to continue" in result.stdout) == (status == 75)
    assert len(machine.modules_run()) == 1


def test_a_further_run_installs_changed_source_without_what_it_needs(machine):
    machine.make_environment()
    machine.run(LAUNCH / "quickstart")
    installed = machine.installations()
    assert installed
    machine.run(LAUNCH / "quickstart")
    assert machine.installations() == installed
    (machine.environment / "dps_tf-package.stamp").write_text("another")
    machine.run(LAUNCH / "quickstart")
    (line,) = machine.installations()[len(installed) :]
    assert "--no-deps" in line


@pytest.mark.parametrize(
    ("slow", "left_out", "place"),
    [
        ("", "-m not (slow or by_hand) ", "tests/store"),
        ("1", "", "tests/core/goal_test.py::test_x"),
    ],
)
def test_a_folder_or_file_of_tests_runs_alone(machine, place, slow, left_out):
    machine.make_environment()
    test = machine.run(LAUNCH / "test", place, "-x", CI="", DPS_TF_SLOW=slow)
    *before, tests = machine.log.read_text().splitlines()
    cache = machine.environment / "pytest_cache"
    assert tests == f"pytest -o cache_dir={cache} {left_out}{place} -x"
    # Nothing is built or checked.
    assert all(line.startswith(("pip ", "compileall ")) for line in before)
    assert test.returncode == 0
    machine.run(LAUNCH / "test", place, "-x", CI="", DPS_TF_SLOW=slow)
    assert machine.log.read_text().splitlines() == [*before, tests, tests]
