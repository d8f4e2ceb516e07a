"""The command `python -m dps_tf.recommend`, and the tutorial that shows it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd

from tests import interpreter
from tests.packaging.source_tree import SOURCE_TREE

TUTORIAL = SOURCE_TREE / "docs" / "pages" / "tutorial" / "decide.md"


def tutorial(language: str) -> list[str]:
    """Returns the fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text("utf-8"), re.S)


def quickstart(folder: Path) -> Path:
    """Writes the table of the quickstart as README.md shows it; returns its path."""
    text = (SOURCE_TREE / "README.md").read_text("utf-8")
    rows = re.findall(r"^ *(\d+) +(\d+) \((\d+), \d+\]", text, re.M)
    table = pd.DataFrame(rows, columns=["batch_size", "steps_to_result", "bracket_low"])
    assert len(table) == 9
    path = folder / "quickstart.csv"
    table.to_csv(path, index=False)
    return path


def recommend(folder: Path, *words: str):
    """Runs the command in a folder."""
    return interpreter.run(["-m", "dps_tf.recommend", *words], cwd=folder)


def test_the_tutorial_shows_what_the_command_prints(tmp_path):
    (tmp_path / "step_times.csv").write_text(tutorial("text")[0])
    command = shlex.split(tutorial("bash")[0].replace("\\\n", ""))[3:]
    assert command[0] == "--sweep_dir=sweeps/quickstart"
    done = recommend(tmp_path, f"--csv={quickstart(tmp_path)}", *command[1:])
    assert done.returncode == 0, done.stderr
    printed = done.stdout.removeprefix("all: ")
    assert printed.startswith(tutorial("text")[1].rstrip("\n "))
    written = {path.name for path in (tmp_path / "decision").iterdir()}
    assert written == {"candidates.csv", "choices.csv", "recommendation.png"}
    fastest = pd.read_csv(tmp_path / "decision" / "choices.csv").iloc[0]
    assert (fastest["batch_size"], fastest["devices"]) == (256, 4)


def test_batch_sizes_are_not_rounded(tmp_path):
    sizes = pd.Series([256, 512, 1024, 2048, 4096])
    steps = {"steps_to_result": 24_000_000 // sizes + 26_000}
    seconds = {"devices": 1, "seconds": 0.01 + sizes * 1e-5}
    for name, columns in (("steps", steps), ("times", seconds)):
        table = pd.DataFrame({"batch_size": sizes, **columns})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    done = recommend(tmp_path, "--csv=steps.csv", "--step_times=times.csv")
    sentence, *rows = done.stdout.splitlines()
    assert "the fastest batch size is 1,024 to 1,024." in sentence
    assert rows[1].split()[:5] == ["fastest", "1,024", "1", "1,024", "1,024"]


def test_mistakes_are_one_sentence(tmp_path):
    table = quickstart(tmp_path)
    times = tmp_path / "times.csv"
    times.write_text("batch_size,devices,seconds\n8,1,0.1\n16,1,0.2\n")
    several = tmp_path / "several.csv"
    rows = [f"{name},{b},1,0.1\n" for name in "ab" for b in (8, 16, 32)]
    several.write_text("workload,batch_size,devices,seconds\n" + "".join(rows))
    cases = {
        (): "give --sweep_dir",
        (f"--csv={table}",): "step_times is missing",
        (f"--csv={table}", "--step_times=none.csv"): "none.csv",
        (f"--csv={table}", f"--step_times={several}"): "no time of a step is recorded",
        (f"--csv={table}", f"--step_times={times}"): "2 batch sizes on 1 device",
        (f"--csv={table}", f"--step_times={times}", "--devices=0"): "devices is 0",
    }
    for words, reason in cases.items():
        done = recommend(tmp_path, *words)
        assert done.returncode == 2, words
        assert reason in done.stderr and done.stderr.count("\n") == 1, done.stderr
