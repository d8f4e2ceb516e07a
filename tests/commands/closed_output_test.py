"""Behind `| head`, when nobody reads any more, every command ends without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dps_tf.store import LocalFiles, write_json
from tests import interpreter
from tests.made_up.sweeps import Sweep, write_sweep
from tests.packaging.source_tree import command_names

ROOT = Path(__file__).parents[2]
TINY = Sweep(sparsities=(0.0,), batch_sizes=(16, 64, 256), points=4, measured=False)


def run(
    place: Path, command: str, *arguments: str, unbuffered: bool
) -> subprocess.CompletedProcess:
    """Runs a command whose output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)
    if unbuffered:
        environment["PYTHONUNBUFFERED"] = "1"
    try:
        return interpreter.run(
            ["-m", f"dps_tf.{command}", *arguments],
            cwd=place,
            env=environment,
            stdout=writing,
        )
    finally:
        os.close(writing)


@pytest.mark.slow
@pytest.mark.parametrize("command", command_names())
def test_help_ends_quietly(tmp_path, command):
    assert run(tmp_path, command, "--help", unbuffered=True).stderr == ""


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("fit", ["--csv=table.csv"]),
        ("status", ["--sweep_dir=sweep"]),
        ("train", ["--gin_file=smoke/nqm_sgd", "--sweep_dir=new"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_ends_quietly(tmp_path, command, arguments, unbuffered):
    write_sweep(tmp_path / "sweep", TINY)
    write_json(LocalFiles(), str(tmp_path / "sweep" / "sweep.json"), {"cells": []})
    rows = "\n".join(f"{2**k},{100_000 / 2**k + 400}" for k in range(8))
    (tmp_path / "table.csv").write_text(f"batch_size,steps_to_result\n{rows}\n")
    done = run(tmp_path, command, *arguments, unbuffered=unbuffered)
    assert done.stderr == ""
    # Done before its words were lost, or stopped by losing them: run it again.
    assert done.returncode in (0, 75)
    if unbuffered:
        assert done.returncode == 75


def test_a_mistake_is_still_told(tmp_path):
    done = run(tmp_path, "fit", "--csv=absent", unbuffered=True)
    assert done.returncode == 2
    assert done.stderr == "error: 'absent' cannot be read: No such file or directory.\n"


def test_another_broken_pipe_is_a_defect():
    script = (
        "from dps_tf.cli.command_line import command\n"
        "@command\n"
        "def main():\n"
        "    raise BrokenPipeError('of a worker')\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "BrokenPipeError: of a worker" in done.stderr
