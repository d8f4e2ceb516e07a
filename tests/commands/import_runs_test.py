"""The command `python -m dps_tf.import_runs` on the archive of Shallue et al. 2019."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.loading import load
from tests import interpreter
from tests.made_up.archives import write_study

ROOT = Path(__file__).parents[2]
MODEL = "simple_cnn_base"
ARCHIVE = ("--read=batch_science", "--format=shallue2019")


def run(
    place: Path, *arguments: str, command: str = "import_runs"
) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(place / "blocked"), str(ROOT)])
    return interpreter.run(
        ["-W", "error", "-m", f"dps_tf.{command}", *arguments],
        modules=interpreter.TABLES,
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
    )


def write_archive_of_known_law(root: Path, batch_sizes: list[int]) -> None:
    """Writes studies whose best trial needs 16,000 / B + 400 steps, the second twice.

    The goal of the published figures, an error below 0.01, is met by halving.
    """
    for b in batch_sizes:
        best = 16_000 // b + 400
        steps = np.arange(0, 20_001, 50)
        trials = [
            ("COMPLETE", steps, np.where(steps >= factor * best, 0.009, 0.5))
            for factor in (2, 1)
        ]
        trials.append(("INFEASIBLE", steps[:2], [0.9, 0.9]))
        write_study(
            root, "mnist", MODEL, "nesterov_momentum", b, trials, train_steps=20_000
        )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Returns a folder with an archive, and a TensorFlow that must not be imported."""
    write_archive_of_known_law(tmp_path / "batch_science", [8, 16, 32, 64, 128, 256])
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "tensorflow.py").write_text("raise RuntimeError('not needed')\n")
    return tmp_path


def test_an_archive_is_read_reported_on_and_fitted(place):
    done = run(place, *ARCHIVE, "--sweep_dir=published")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"1 of 6: mnist-{MODEL}-nesterov-none-seed0-b8-s0.0: 3")
    assert lines[-1].startswith("6 studies in published")
    status = run(place, "--sweep_dir=published", command="status")
    assert "K* 2400 in (2350, 2400]; 2 complete, 1 infeasible" in status.stdout
    report = run(place, "--sweep_dir=published", command="report")
    assert report.returncode == 0, report.stderr
    results = pd.read_csv(place / "published/report/results.csv")
    assert results["steps_to_result"].tolist() == [2400, 1400, 900, 650, 550, 500]
    table = "--csv=published/report/results.csv"
    [curve] = json.loads(run(place, table, "--json", command="fit").stdout)["curves"]
    assert curve["fit"]["c1"]["value"] == pytest.approx(16_000, rel=0.05)
    assert curve["fit"]["c2"]["value"] == pytest.approx(400, rel=0.1)


def test_flags_choose_the_goal_of_studies_below_any_folder(place):
    done = run(
        place,
        "--read=batch_science/mnist/simple_cnn_base/nesterov_momentum/8",
        "--format=shallue2019",
        "--sweep_dir=some",
        "--goal=0.009",
        "--metric=val/classification_error",
    )
    assert done.returncode == 0, done.stderr
    results = load(place / "some").results
    assert results["workload"].tolist() == ["mnist-simple_cnn_base"]
    assert results["steps_to_result"].tolist() == [2400]


def test_what_was_read_cannot_be_trained_again(place):
    run(place, *ARCHIVE, "--sweep_dir=p")
    (place / "blocked" / "tensorflow.py").unlink()
    done = run(place, "--sweep_dir=p", command="measure")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "nothing to train again" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sweep_dir=p"], "--read is missing"),
        ([*ARCHIVE], "--sweep_dir is missing"),
        (["--read=x", "--format=archive", "--sweep_dir=p"], "known: optuna"),
        (["--read=nowhere", ARCHIVE[1], "--sweep_dir=p"], "no study.json below"),
        ([*ARCHIVE, "--sweep_dir=batch_science"], "no sweep"),
        ([*ARCHIVE, "--sweep_dir=p", "--sweep_dir=q"], "given twice"),
        (
            ["--read=x", "--study=a", "--goal=1", "--sweep_dir=p"],
            "--study is of --format=optuna, and not of --format=tables",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_two(place, arguments, text):
    done = run(place, *arguments)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert text in done.stderr
