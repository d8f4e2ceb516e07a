"""Do all commands work on an object store, and give what they give on a disk?

The store is that of obstore for `file://`: it has never been a bucket.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dps_tf.analysis import loading
from dps_tf.store import files_for
from tests.faults.victim import Victim

pytestmark = pytest.mark.slow

TINY = (
    "--gin_file=smoke/one_run",
    "--gin_bindings=sweep.sparsities = (0.0, 0.8)",
    "--gin_bindings=sweep.sparsity_methods = ('snip',)",
    "--gin_bindings=workload.step_budget = 20",
)
PRUNED = "digits_mlp-nesterov-snip-seed0-b32-s0.8"

Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def command(children: Victim, tmp_path_factory) -> Command:
    """Runs a command of the package; returns its exit code and what it printed."""
    folder = tmp_path_factory.mktemp("objects")
    output = folder / "output"

    def run(name: str, *arguments: str) -> tuple[int, str]:
        children.start(
            kind="command", command=name, arguments=arguments, output=str(output)
        )
        code = children.end()
        # TensorFlow's libraries tell of the graphics cards that they do not find.
        lines = output.read_text().splitlines()
        return code, "\n".join(x for x in lines if not re.match(r"[EIW]\d{4} ", x))

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> str:
    """The sweep directory in the store."""
    return f"file://{tmp_path_factory.mktemp('objects')}/bucket/sweep"


@pytest.fixture(scope="module")
def disk(command, tmp_path_factory) -> Path:
    """The same sweep on a disk."""
    sweep = tmp_path_factory.mktemp("disk") / "sweep"
    code, said = command("train", *TINY, f"--sweep_dir={sweep}")
    assert code == 0, said
    return sweep


@pytest.fixture(scope="module")
def trained(command, place) -> str:
    """What training on the store has printed."""
    code, said = command("train", *TINY, f"--sweep_dir={place}")
    assert code == 0, said
    return said


def test_training_on_a_store_equals_training_on_a_disk(place, disk, trained):
    files = files_for(place)
    found = loading.load(place)
    expected = loading.load(disk)
    for name in ("results", "trials", "curves"):
        pd.testing.assert_frame_equal(
            getattr(found, name), getattr(expected, name), check_exact=True
        )
    assert found.problems == ()
    scores = files.list_names(f"{place}/scores")
    assert scores == sorted(path.name for path in (disk / "scores").iterdir())
    assert scores
    for cell in files.list_names(f"{place}/cells"):
        names = files.list_names(f"{place}/cells/{cell}")
        assert "lock" not in names and "keras_tuner" not in names
        assert files.list_names(f"{place}/cells/{cell}/log") == ["main.log.segments"]


def test_a_finished_sweep_on_a_store_is_not_run_again(command, place, trained):
    code, said = command("train", *TINY, f"--sweep_dir={place}")
    assert code == 0
    assert "nothing to do: all 2 cells are finished" in said


def test_status_and_report_of_a_store_are_those_of_a_disk(
    command, place, disk, trained, tmp_path
):
    for name, *arguments in (("status",), ("report", f"--out={tmp_path / 'report'}")):
        local = command(name, f"--sweep_dir={disk}", *arguments)
        assert local[0] == 0, local[1]
        assert command(name, f"--sweep_dir={place}", *arguments) == local
    code, said = command("report", f"--sweep_dir={place}")
    assert code == 2 and "--out is missing" in said


def test_a_trial_of_a_store_is_exported_and_measured(
    command, place, disk, trained, tmp_path
):
    trial = (f"--cell={PRUNED}", "--trial=0")
    told = {}
    for sweep in (place, str(disk)):
        out = tmp_path / str(len(told))
        code, said = command("export", f"--sweep_dir={sweep}", *trial, f"--out={out}")
        assert code == 0, said
        told[sweep] = (
            said.partition("saved in")[0],
            sorted(path.name for path in out.iterdir()),
        )
        code, said = command("measure", f"--sweep_dir={sweep}", *trial, "--times=2")
        assert code == 0, said
        told[sweep] += (said,)
    assert told[place] == told[str(disk)]
    code, said = command(
        "export", f"--sweep_dir={place}", *trial, "--out=gs://bucket/out"
    )
    assert code == 2 and "on no disk of this machine" in said
