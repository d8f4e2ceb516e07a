"""Do the commands of the README, and of the pages it names, do what they say?

`launch/quickstart` and `launch/test` themselves are run by CI; here what they run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dps_tf.data.raw import PUBLISHED
from dps_tf.store import LocalFiles, write_json
from tests import interpreter
from tests.analysis import few_sections
from tests.made_up.archives import write_study
from tests.made_up.sweeps import Sweep, write_sweep
from tests.packaging.source_tree import SOURCE_TREE

PAGES = SOURCE_TREE / "docs" / "pages"
DOCUMENTS = (
    SOURCE_TREE / "README.md",
    PAGES / "how-to" / "ask_more.md",
    PAGES / "how-to" / "costs.md",
    PAGES / "tutorial" / "own_runs.md",
)


def blocks(language: str) -> list[str]:
    """Returns the fenced blocks of one language, document after document."""
    texts = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    return re.findall(rf"^```{language}\n(.*?)^```", texts, re.M | re.S)


def commands() -> list[list[str]]:
    """Returns every command of the documents as words."""
    joined = "\n".join(blocks("bash")).replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.strip()]


FEW = few_sections.command("headline", "table", "published")


def run(words: list[str], folder: Path) -> str:
    """Runs a command of this Python in a folder and returns what it prints."""
    modules = interpreter.TENSORFLOW
    if reads_records(["python", *words]):
        modules = interpreter.TABLES
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{interpreter.ROOT}"}
    done = interpreter.run(words, modules=modules, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_can_be_read_in_five_minutes() -> None:
    text = DOCUMENTS[0].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200


def test_every_command_of_the_documents_is_known_here() -> None:
    kinds = {words[0] if words[0] != "python" else words[2] for words in commands()}
    assert kinds == {
        # The installation, as CI does it too.
        "python3",
        "source",
        "pip",
        "launch/quickstart",
        "launch/test",
        "dps_tf.prepare",
        "dps_tf.train",
        "dps_tf.status",
        "dps_tf.report",
        "dps_tf.measure",
        "dps_tf.fit",
        "dps_tf.import_runs",
        "dps_tf.export",
    }


def reads_records(words: list[str]) -> bool:
    """Returns whether a command of the README trains nothing and needs no data."""
    known = ("dps_tf.report", "dps_tf.fit", "dps_tf.import_runs", "dps_tf.status")
    return words[0] == "python" and any(module in words for module in known)


def write_batch_science(folder: Path) -> None:
    """Writes a small archive where the README says that the public one is unpacked."""
    errors = np.geomspace(0.9, 0.005, 30)
    for batch_size in (2, 16, 128):
        trials = [("COMPLETE", np.arange(30) * 100, errors)] * 2
        place = (folder / "batch_science", "mnist", "simple_cnn_base", "sgd")
        write_study(*place, batch_size, trials)


def write_my_runs(folder: Path) -> None:
    """Writes the two tables of runs that the README reads."""
    place = folder / "my_runs"
    place.mkdir()
    runs = [(trial, size) for trial, size in enumerate((8, 64, 256))]
    trials = pd.DataFrame(runs, columns=["trial", "batch_size"])
    trials.assign(workload="mine", optimizer="adam").to_csv(
        place / "trials.csv", index=False
    )
    curves = [(n, 10 * k, 0.5 / k) for n, _ in runs for k in range(1, 9)]
    names = ["trial", "step", "validation/classification_error"]
    pd.DataFrame(curves, columns=names).to_csv(place / "evaluations.csv", index=False)


def test_the_commands_that_read_records_work(tmp_path: Path) -> None:
    made = Sweep(sparsities=(0.0,), batch_sizes=(8, 64, 256), points=6)
    for name in ("mnist", "nqm"):
        write_sweep(tmp_path / "sweeps" / name, made)
        cells = {"cells": []}
        write_json(LocalFiles(), str(tmp_path / "sweeps" / name / "sweep.json"), cells)
    write_batch_science(tmp_path)
    write_my_runs(tmp_path)
    # What sections show is no matter here: those of one report are all drawn.
    known = [
        words[1:] if "sweeps/nqm" in words[3] else [*FEW, *words[2:]]
        for words in commands()
        if reads_records(words)
    ]
    # Two pages show the same import.
    printed = [run(list(words), tmp_path) for words in dict.fromkeys(map(tuple, known))]
    assert any("c1" in text and "critical batch size" in text for text in printed)
    reports = ("shallue2019/report", "my_runs/report", "nqm/report")
    for name in ("looser", *reports):
        assert (tmp_path / "sweeps" / name / "report.html").exists()


# The command as it is, on a few made-up images in place of the 70,000 published ones.
SMALL = """
from pathlib import Path
from unittest import mock
from dps_tf import prepare
from tests.data import tiny_published
with mock.patch.object(tiny_published, "TRAIN", 400):
    tiny_published.write("mnist", Path("raw", "mnist"))
    with tiny_published.in_place_of_published("mnist"):
        prepare.main()
"""


def pass_for_published(data_dir: Path) -> None:
    """Lets a small prepared MNIST be read as the published one."""
    (manifest,) = data_dir.glob("mnist/*/dps_tf/manifest.json")
    told = json.loads(manifest.read_text())
    told["facts"]["published"] = PUBLISHED["mnist"].content
    manifest.write_text(json.dumps(told))


READ_HERE = [[f"dps_tf.{c}", "--sweep_dir=sweeps/mnist"] for c in ("status", "report")]


@pytest.mark.slow
def test_the_commands_for_mnist_work(tmp_path: Path) -> None:
    for words in commands():
        # That records are read is shown above; here, that one was made.
        is_read = reads_records(words) and words[2:] not in READ_HERE
        if words[0] != "python" or is_read:
            continue
        # So short a run has no winner.
        arguments = ["--trial=0" if w == "--trial=best" else w for w in words[1:]]
        if "dps_tf.measure" in words:
            arguments += ["--trial=0", "--times=2", "--examples=200"]
        if "dps_tf.prepare" in words:
            arguments = ["-c", SMALL, *words[3:], "--raw_dir=raw"]
        if "dps_tf.train" in words and "--data_dir=data" in words:
            # The same command at less cost: its numbers are not looked at.
            arguments += ["--gin_bindings=workload.step_budget = 20"]
            arguments += ["--gin_bindings=evaluation.steps = 20"]
            arguments += ["--gin_bindings=workload.points = 1"]
            arguments += ["--gin_bindings=sweep.batch_sizes = (64,)", "--slots=1"]
            # Pruned cells of this network are trained by the tests of gin files.
            arguments += ["--gin_bindings=sweep.sparsities = (0.0,)"]
        if "--gin_file=nqm/sgd" in words:
            arguments += ["--gin_bindings=workload.points = 2"]
            arguments += ["--gin_bindings=sweep.batch_sizes = (65536, 16384)"]
        if "dps_tf.report" in words:
            arguments[0:1] = FEW
        printed = run(arguments, tmp_path)
        if "dps_tf.prepare" in words:
            pass_for_published(tmp_path / "data")
        if "dps_tf.status" in words:
            assert "mnist_simple_cnn" in printed
    assert (tmp_path / "sweeps/mnist/report/report.html").exists()


@pytest.mark.slow
def test_the_lines_for_python_work(tmp_path: Path) -> None:
    lines = next(block for block in blocks("python") if "dps_tf.run(" in block)
    tiny = lines.replace("(16, 64, 256),", "(64, 256), values={'workload.points': 1},")
    tiny = tiny.replace("step_budget=2000", "step_budget=100")
    assert tiny.count("1}") == tiny.count("=100") == 1
    (tmp_path / "lines.py").write_text(tiny)
    run(["lines.py"], tmp_path)
    assert len(list((tmp_path / "sweeps" / "mine" / "cells").iterdir())) == 2


@pytest.mark.slow
def test_steps_fall_and_flatten_in_the_quickstart(tmp_path: Path) -> None:
    # Fewer points and cells than the reader has, enough to see the law.
    less = ("workload.points = 4", "sweep.batch_sizes = (4, 16, 128, 512)")
    less += ("sweep.finishers = 1",)
    train = ["-m", "dps_tf.train", "--gin_file=quickstart", "--sweep_dir=q"]
    train.append("--slots=1")
    run([*train, *(f"--gin_bindings={binding}" for binding in less)], tmp_path)
    printed = run([*FEW, "dps_tf.report", "--sweep_dir=q"], tmp_path)
    shown = next(b for b in blocks("text") if b.startswith("workload digits_mlp"))
    # The head of the table is that of the README, numbers may round otherwise here.
    assert printed.splitlines()[:2] == shown.splitlines()[:2]
    results = pd.read_csv(tmp_path / "q/report/results.csv")
    steps = results.set_index("batch_size")["steps_to_result"]
    assert steps[4] > 2.25 * steps[16]
    assert steps.loc[128:].max() < 2 * steps.loc[128:].min()


@pytest.mark.slow
def test_the_stock_tuner_opens_a_closed_study(tmp_path: Path) -> None:
    text = (PAGES / "tutorial" / "keras_tuner.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    (lines,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    run(shlex.split(command.replace("\\\n", " "))[1:], tmp_path)
    printed = run(["-c", lines], tmp_path)
    # The quickstart's cell at batch size 64 with these four points.
    assert "Showing 2 best trials" in printed and "Trial 1 summary" in printed
    best = pd.read_parquet(next(tmp_path.glob("sweeps/tuned/cells/*/trials.parquet")))
    least = best["steps_to_result"].min()
    assert printed.splitlines()[1].startswith(f"{float(least)} ")
