"""The command `python -m dps_tf.report`: what it writes, prints and refuses."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tests import interpreter
from tests.analysis import few_sections
from tests.made_up.sweeps import Sweep, write_open_study, write_sweep

ROOT = Path(__file__).parents[2]
TINY = Sweep(sparsities=(0.0,), batch_sizes=(16, 64, 256), points=4, measured=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Returns a folder with sweeps, and a TensorFlow that must not be imported."""
    folder = tmp_path_factory.mktemp("commands")
    write_sweep(folder / "sgd", TINY)
    write_sweep(
        folder / "nesterov", dataclasses.replace(TINY, optimizers=("nesterov",))
    )
    write_open_study(folder / "open")
    (folder / "empty").mkdir()
    blocked = folder / "blocked"
    blocked.mkdir()
    (blocked / "tensorflow.py").write_text("raise RuntimeError('not needed')\n")
    return folder


FEW = few_sections.command("headline", "table", "published")


def run(
    place: Path, *arguments: str, program: tuple[str, ...] = FEW
) -> subprocess.CompletedProcess:
    """Runs the command; what most sections show is no matter of most tests here."""
    path = os.pathsep.join([str(place / "blocked"), str(ROOT)])
    return interpreter.run(
        ["-W", "error", *program, "dps_tf.report", *arguments],
        modules=interpreter.TABLES,
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_reports_into_the_sweep_and_prints_a_table(place):
    done = run(place, "--sweep_dir=sgd", program=("-m",))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    folder = place / "sgd" / "report"
    for name in ("report.html", "results.csv", "steps_to_result.png"):
        assert (folder / name).stat().st_size > 0
    results = pd.read_csv(folder / "results.csv")
    for steps in results["steps_to_result"]:
        assert f"{int(steps):,} (" in done.stdout
    assert done.stdout.rstrip().endswith("report: sgd/report/report.html")


def test_reports_on_several_sweeps_for_another_goal(place):
    done = run(
        place,
        "--sweep_dir=sgd",
        "--sweep_dir=nesterov",
        "--label=first",
        "--label=again",
        "--goal=0.05",
        "--out=both",
        "--published=shallue2019/published.csv",
        "--published_curves=mnist-simple*sgd",
    )
    assert done.returncode == 0, done.stderr
    results = pd.read_csv(place / "both" / "results.csv")
    labels = dict(zip(results["optimizer"], results["workload.label"], strict=True))
    assert labels == {"sgd": "first", "nesterov": "again"}
    assert results["goal"].str.endswith("<= 0.05").all()
    page = (place / "both" / "report.html").read_text()
    assert "mnist-simple_cnn_base-sgd (published)" in page
    assert not (place / "nesterov" / "report").exists()


def test_reports_on_a_sweep_that_still_runs(place):
    done = run(place, "--sweep_dir=open")
    assert done.returncode == 0, done.stderr
    assert "at most 300 so far" in done.stdout
    assert "not finished: 1 study of 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--sweep_dir is missing"),
        (["--sweep_dir=nowhere"], "no directory nowhere"),
        (["--sweep_dir=empty"], "holds no sweep"),
        (["--sweep_dir=sgd", "--sweep_dir=sgd"], "hold the same cell"),
        (["--sweep_dir=sgd", "--label=a", "--label=b"], "2 labels for 1 sweeps"),
        (["--sweep_dir=sgd", "--goal=low"], "--goal=low"),
        (["--sweep_dir=sgd", "--gaol=0.1"], "gaol"),
        (["sgd"], "'sgd' is not understood"),
        (["--published=a.csv"], "--sweep_dir is missing"),
        (["--sweep_dir=sgd", "--published=a.csv", "--out=x"], "'a.csv'"),
        (["--sweep_dir=sgd", "--published_curves=a"], "--published_curves needs"),
        (["--sweep_dir=sgd", "--out=blocked/tensorflow.py/x"], "cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_two(place, arguments, text):
    done = run(place, *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_watching_a_finished_sweep_ends(place):
    done = run(place, "--sweep_dir=sgd", "--watch", "--out=watched")
    assert done.returncode == 0, done.stderr
    assert "watching: open watched/report.html" in done.stdout
    page = (place / "watched" / "report.html").read_text()
    assert 'http-equiv="refresh"' not in page


STOPPED_AFTER_ONE_LOOK = """
from dps_tf import report
from dps_tf.analysis.report import assembly
del assembly.SECTIONS[2:]
def pause(seconds):
    raise KeyboardInterrupt
report.time.sleep = pause
report.main()
"""


def test_a_watched_page_tells_how_far_the_sweep_is(place):
    done = interpreter.run(
        ["-c", STOPPED_AFTER_ONE_LOOK, "--sweep_dir=open", "--watch", "--out=looked"],
        modules=interpreter.TABLES,
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    page = (place / "looked" / "report.html").read_text()
    assert 'http-equiv="refresh"' in page
    assert "Now: 0 of 1 cells finished; at most " in page


def test_another_metric_is_reported_with_its_own_threshold(place):
    of = ("--sweep_dir=sgd", "--out=other")
    done = run(place, *of, "--metric=train/lost", "--goal=1")
    assert done.returncode == 2, done.stdout
    assert "train/lost" in done.stderr and done.stderr.count("\n") == 1
    done = run(place, *of, "--metric=train/loss", "--goal=1")
    assert done.returncode == 0 and "goal train/loss <= 1.0" in done.stdout
    metric = "validation/classification_error"
    done = run(place, *of, f"--metric={metric}", "--goal=0", "--direction=maximize")
    assert done.returncode == 0, done.stderr
    assert f"{metric} >= 0" in done.stdout
    for words, told in (
        (("--metric=a/b",), "--metric=a/b needs --goal"),
        (("--direction=maximize",), "--direction needs --metric"),
    ):
        done = run(place, *of, *words)
        assert done.returncode == 2 and told in done.stderr


def test_another_metric_has_the_direction_of_its_name():
    program = (
        "from absl import flags; from dps_tf import report; "
        "flags.FLAGS(['report', '--metric=validation/accuracy', '--goal=0.5']); "
        "print(report._wanted_goal())"
    )
    done = interpreter.run(["-c", program])
    assert done.stdout == "validation/accuracy >= 0.5\n", done.stderr


def test_help_names_every_flag(place):
    done = run(place, "--help")
    flags = "sweep_dir label out goal metric direction published published_curves"
    flags += " watch"
    for flag in flags.split():
        assert f"--{flag}" in done.stdout or f"--[no]{flag}" in done.stdout
