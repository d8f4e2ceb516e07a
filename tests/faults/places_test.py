"""Directories that are odd, shared, full or not writable; real processes in them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from dps_tf.analysis.loading import load
from dps_tf.store import LocalFiles, StoreError, encode_event, read_json, read_log
from tests import interpreter
from tests.core.naive_race import Study
from tests.faults.victim import STUDY, TRIALS
from tests.made_up.studies import (
    SyntheticRunner,
    launch,
    reader_of,
    run,
    study_of,
    tables,
    trials_of,
)
from tests.store.records_test import of_format

pytestmark = pytest.mark.fault

SMALL = Study(0.25, 10, 30, points=3, finishers=1, feasible=False, max_draws=0)
SMALL_TRIALS = trials_of([1, 0, 0], [1, 1, 1], ([1, 1, 1], 15))


@pytest.mark.parametrize(
    "name",
    ["with a space", "Größe-数据-🌱", "a'b\"c", "new\nline", "$HOME;*?[x]", "-x"],
)
def test_names_of_directories_may_be_odd(tmp_path, name):
    directory = tmp_path / name / "sweep"
    study = study_of(SMALL)
    launch(directory, [study], SyntheticRunner(SMALL_TRIALS))
    assert list(load(directory).trials["outcome"]) == [
        "complete",
        "censored",
        "censored",
    ]
    assert not launch(directory, [study], SyntheticRunner(SMALL_TRIALS)).ran


def test_relative_directory_is_where_it_was_when_the_run_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = study_of(SMALL)

    def elsewhere(trial: int, step: int) -> None:
        os.chdir("/")

    launch(
        "sweeps/small", [study], SyntheticRunner(SMALL_TRIALS, before_slice=elsewhere)
    )
    assert load(tmp_path / "sweeps/small").trials.shape[0] == 3


def test_directory_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "sweep"):
        with pytest.raises(StoreError) as caught:
            launch(place, [study_of(SMALL)], SyntheticRunner(SMALL_TRIALS))
        assert "file" in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def bytes_written(directory: Path) -> int:
    return max(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_disk_that_is_full_stops_cleanly_at_any_size(children, undisturbed, tmp_path):
    study = study_of(STUDY)
    run(tmp_path / "whole", study, SyntheticRunner(TRIALS))
    largest = bytes_written(tmp_path / "whole")
    directory = tmp_path / "sweep"
    codes = []
    # A limit on the size of files acts like a full disk on whatever is being written,
    # our files and those of keras-tuner, which have many sizes.
    for limit in (3000, 100, 400, 800, 1600, *range(4000, largest, largest // 9)):
        children.start(
            kind="synthetic", directory=str(directory), slots=2, file_limit=limit
        )
        codes.append(children.end())
    assert set(codes) == {2}
    children.start(kind="synthetic", directory=str(directory))
    assert children.end() == 0
    assert tables(directory, study) == undisturbed


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_cell_that_another_process_runs_is_left_to_it(children, undisturbed, tmp_path):
    study = study_of(STUDY)
    child = children.start(
        kind="synthetic", directory=str(tmp_path), slots=2, seconds=0.02
    )
    wait_for(Path(reader_of(tmp_path, study).layout.log("main")))
    runner = SyntheticRunner(TRIALS)
    outcome = launch(tmp_path, [study], runner)
    assert runner.turns == []
    assert not outcome.ran
    (holder,) = outcome.busy.values()
    assert f"process {child} on " in holder and "last heartbeat" in holder
    assert children.end() == 0
    again = launch(tmp_path, [study], SyntheticRunner(TRIALS))
    assert again.finished_before and not again.busy
    assert tables(tmp_path, study) == undisturbed


COMMANDS = (
    "train --gin_file=smoke/nqm_sgd",
    "train --dry_run --gin_file=smoke/nqm_sgd",
    "status",
    "report --out=/nowhere",
    "export --cell=noisy_quadratic-sgd-none-seed0-b16-s0.0 --trial=0 --out=/nowhere",
    "measure",
)


def refusal(command: str, directory: Path | str) -> str:
    """Returns the sentence with which a command refuses a sweep directory."""
    name, *flags = command.split()
    done = interpreter.run(["-m", f"dps_tf.{name}", *flags, f"--sweep_dir={directory}"])
    assert done.returncode == 2 and "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow
def test_every_command_refuses_a_path_that_no_system_takes(command):
    for path in (f"/tmp/{'x' * 300}", f"/tmp{'/name' * 1000}", "/tmp/a\udcff"):
        assert refusal(command, path).startswith("error: the path ")


@pytest.mark.parametrize(
    "command",
    [
        "fit --csv=LONG",
        "prepare --dataset=text_folder --data_dir=data --raw_dir=LONG",
        "train --sweep_dir=sweep --gin_file=LONG",
    ],
)
@pytest.mark.slow
def test_a_file_name_that_no_system_takes_is_one_sentence(command, tmp_path):
    name, *flags = command.replace("LONG", "x" * 5000).split()
    done = interpreter.run(["-m", f"dps_tf.{name}", *flags], cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "too long" in done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory) -> Path:
    """A sweep of noisy quadratics, simulated by the command."""
    sweep = tmp_path_factory.mktemp("simulated") / "sweep"
    words = ["-m", "dps_tf.train", "--gin_file=smoke/nqm_sgd", f"--sweep_dir={sweep}"]
    assert interpreter.run(words).returncode == 0
    return sweep


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        *((command, lost) for command in COMMANDS for lost in ("nothing", "marker")),
        # The others read no log whose study has lost its record.
        (COMMANDS[0], "all but logs"),
    ],
)
@pytest.mark.slow
def test_every_command_refuses_a_directory_of_before_formats(
    simulated, tmp_path, command, lost
):
    sweep = Path(shutil.copytree(simulated, tmp_path / "sweep"))
    for path in [*sweep.rglob("*.json"), sweep / ".dps_tf"]:
        if "keras_tuner" not in path.parts:
            path.write_bytes(of_format(read_json(LocalFiles(), str(path)), None))
    for path in sweep.rglob("*.log"):
        events, _ = read_log(LocalFiles(), str(path))
        plain = [{k: v for k, v in e.items() if k != "format"} for e in events]
        path.write_bytes(b"".join(map(encode_event, plain)))
    if lost != "nothing":
        (sweep / ".dps_tf").unlink()
    if lost == "all but logs":
        for path in [*sweep.rglob("*.json"), *sweep.rglob("*.parquet")]:
            path.unlink()
    before = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    told = refusal(command, sweep)
    assert "was written before formats had numbers" in told and "31a3605" in told
    after = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    assert after == before
