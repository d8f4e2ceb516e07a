"""Do local workers run until nothing is left to do, and stop when asked to?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import dps_tf
from dps_tf.store import CellLayout, LocalFiles, StudyReader
from tests import interpreter
from tests.launch.rendered import LAUNCH
from tests.packaging.launch_test import Machine

# Nobody reaches the goal, so every trial takes as long as it may.
BINDINGS = (
    "--gin_bindings=workload.step_budget = 160",
    "--gin_bindings=goal.threshold = 0.0",
)
LOCAL = LAUNCH / "local"
OPTIONS = ("--gin_file=quickstart", "--sweep_dir=a sweep")


@pytest.fixture
def machine(tmp_path) -> Machine:
    """A machine whose stand-in for Python runs `training` in the place of training."""
    machine = Machine(tmp_path)
    machine.make_environment()
    python = machine.environment / "bin" / "python"
    code = python.read_text().replace(
        'dps_tf.*) exit "$(cat',
        f'dps_tf.*) exec bash {tmp_path}/training ;;\n  never) exit "$(cat',
    )
    python.write_text(code)
    return machine


def training(machine: Machine, code: str) -> None:
    (machine.folder / "training").write_text(code)


def test_training_gets_the_number_of_workers_and_the_options(machine):
    training(machine, "exit 0")
    result = machine.run(LOCAL, 3, *OPTIONS)
    assert result.returncode == 0, result.stderr
    assert machine.modules_run() == [
        "dps_tf.train --workers=3 --gin_file=quickstart --sweep_dir=a sweep"
    ]


@pytest.mark.parametrize("code", [75, 137, 143])
def test_training_is_started_again_until_it_is_finished(machine, code):
    training(
        machine,
        f"[ -e twice ] && exit 0; [ -e once ] && touch twice; touch once; exit {code}",
    )
    result = machine.run(LOCAL, 2, *OPTIONS, DPS_TF_WAIT="0")
    assert result.returncode == 0
    assert len(machine.modules_run()) == 3
    assert f"left with {code}; it is started again" in result.stdout


def test_starting_again_has_an_end(machine):
    training(machine, "exit 75")
    result = machine.run(LOCAL, 2, *OPTIONS, DPS_TF_WAIT="0", DPS_TF_RESTARTS="2")
    assert result.returncode == 75
    assert len(machine.modules_run()) == 3


@pytest.mark.parametrize("code", [1, 2])
def test_a_defect_or_a_mistake_is_not_tried_again(machine, code):
    training(machine, f"exit {code}")
    assert machine.run(LOCAL, 2, *OPTIONS, DPS_TF_WAIT="0").returncode == code
    assert len(machine.modules_run()) == 1


@pytest.mark.parametrize("arguments", [[], ["0"], ["--gin_file=f"], ["two"]])
def test_a_missing_number_of_workers_is_told(machine, arguments):
    result = machine.run(LOCAL, *arguments)
    assert result.returncode == 2
    assert "error: name the number of workers first" in result.stderr


@pytest.mark.parametrize("while_waiting", [False, True])
def test_a_signal_is_handed_on_and_ends_the_run(machine, while_waiting):
    if while_waiting:
        training(machine, "echo begun; exit 75")
    else:
        training(machine, "trap 'sleep 0.5; exit 75' TERM; echo begun; sleep 60 & wait")
    with subprocess.Popen(
        [LOCAL, "2", *OPTIONS],
        cwd=machine.folder,
        env={"PATH": "/usr/bin:/bin", "DPS_TF_VENV": str(machine.environment)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        awaited = "started again" if while_waiting else "begun"
        while awaited not in process.stdout.readline():
            assert process.poll() is None
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        # A second one must not cut the saving short.
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 75
        assert time.monotonic() - started < 20
    assert len(machine.modules_run()) == 1


@pytest.mark.slow
@pytest.mark.fault
def test_two_real_workers_stopped_and_started_again_equal_one(machine):
    folder = machine.folder
    training(
        machine,
        f"export PYTHONPATH={Path(dps_tf.__file__).parents[1]}\n"
        f'exec {sys.executable} "$@"\n',
    )
    python = machine.environment / "bin" / "python"
    code = python.read_text()
    python.write_text(
        code.replace(f"bash {folder}/training", f'bash {folder}/training "$@"')
    )
    options = ["--gin_file=smoke/quickstart", *BINDINGS]
    # Beside the others, as they do not depend on each other.
    alone = ["-m", "dps_tf.train", *options, "--sweep_dir=one"]
    one = interpreter.start(alone, cwd=folder)
    command = [str(LOCAL), "2", *options, "--sweep_dir=two"]
    variables = {**os.environ, "DPS_TF_VENV": str(machine.environment)}
    with subprocess.Popen(command, cwd=folder, env=variables) as process:
        while not list(folder.glob("two/cells/*/log/*")):
            assert process.poll() is None, "ended before it could be stopped"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 75
    assert (
        subprocess.run(command, cwd=folder, env=variables, check=False).returncode == 0
    )
    assert one.wait(300) == 0
    for cell in sorted((folder / "one" / "cells").iterdir()):
        tables = {}
        for sweep in ("one", "two"):
            place = folder / sweep / "cells" / cell.name
            tables[sweep] = StudyReader(LocalFiles(), CellLayout(str(place))).closed()
        for name in ("trials", "curves"):
            pd.testing.assert_frame_equal(
                tables["two"][name], tables["one"][name], check_exact=True
            )
