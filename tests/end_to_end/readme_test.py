"""Do the commands of the README do what it says?

`launch/quickstart` and `launch/test` themselves are run by CI; here what they run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import dps_tf
from tests.data import raw_files
from tests.packaging.source_tree import SOURCE_TREE

_SECONDS = 900


def readme() -> str:
    """Returns the text of README.md."""
    return (SOURCE_TREE / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Returns the fenced blocks of one language, in order, without indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", readme(), re.M | re.S)
    return [
        "\n".join(line[len(indent) :] for line in text.splitlines())
        for indent, text in found
    ]


def commands() -> list[list[str]]:
    """Returns every command of the README as words."""
    joined = "\n".join(blocks("bash")).replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.strip()]


def run(words: list[str], folder: Path) -> str:
    """Runs a command of this Python in a folder and returns what it prints."""
    here = [str(folder), str(Path(dps_tf.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(here)}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_command_of_the_readme_is_known_here() -> None:
    kinds = {words[0] if words[0] != "python" else words[2] for words in commands()}
    assert kinds == {
        "launch/quickstart",
        "launch/test",
        "dps_tf.prepare",
        "dps_tf.train",
        "dps_tf.status",
        "dps_tf.report",
    }


def test_the_recipe_for_a_workload_works(tmp_path: Path) -> None:
    recipe = next(block for block in blocks("python") if "register_dataset" in block)
    (tmp_path / "my_workloads.py").write_text(recipe)
    quickstart = (SOURCE_TREE / "gin_configs" / "quickstart.gin").read_text()
    changed = (
        quickstart.replace("'digits'", "'two_moons'")
        .replace("'digits_mlp'", "'moons_perceptron'")
        .replace("'mlp'", "'perceptron'")
        .replace("{'widths': (64,)}", "{'width': 8}")
        .replace("goal.threshold = 0.03", "goal.threshold = 0.4")
    )
    tiny = "\nworkload.points = 2\nworkload.step_budget = 40\n"
    tiny += "sweep.batch_sizes = (16,)\n"
    (tmp_path / "my.gin").write_text(changed + tiny)
    line = re.search(r"`python (-m dps_tf.train --import=my_workloads[^`]*)`", readme())
    assert line is not None
    words = shlex.split(line[1])
    assert "moons_perceptron-sgd-none-seed0-b16" in run(words, tmp_path)
    words.remove("--dry_run")
    assert "K* = " in run(words, tmp_path)


@pytest.mark.slow
def test_the_commands_for_mnist_work(tmp_path: Path) -> None:
    raw = raw_files.raw_dir()
    for words in commands():
        if words[0] != "python":
            continue
        arguments = words[1:]
        if "dps_tf.prepare" in words:
            arguments.append(f"--raw_dir={raw}")
        if "dps_tf.train" in words:
            # The same command at less cost: its numbers are not looked at.
            arguments += ["--gin_bindings=workload.step_budget = 100"]
            arguments += ["--gin_bindings=workload.points = 2"]
        printed = run(arguments, tmp_path)
    assert "mnist_simple_cnn" in printed
    assert (tmp_path / "sweeps/mnist/report/report.html").exists()


@pytest.mark.slow
def test_steps_fall_and_flatten_in_the_quickstart(tmp_path: Path) -> None:
    run(["-m", "dps_tf.train", "--gin_file=quickstart", "--sweep_dir=q"], tmp_path)
    printed = run(["-m", "dps_tf.report", "--sweep_dir=q"], tmp_path)
    shown = next(b for b in blocks("text") if b.startswith("workload digits_mlp"))
    # The head of the table is that of the README, numbers may round otherwise here.
    assert printed.splitlines()[:2] == shown.splitlines()[:2]
    results = pd.read_csv(tmp_path / "q/report/results.csv")
    steps = results.set_index("batch_size")["steps_to_result"]
    assert steps[4] > 1.5 * steps[8] > 2.25 * steps[16]
    assert steps.loc[128:].max() < 2 * steps.loc[128:].min()
