"""Do the commands of the tutorial do what it says, and does the notebook run?"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests import interpreter
from tests.analysis import few_sections
from tests.packaging.source_tree import SOURCE_TREE

TUTORIAL = SOURCE_TREE / "docs" / "pages" / "tutorial"


def blocks(language: str) -> list[str]:
    """Returns the fenced blocks of one language of the tutorial, in order."""
    text = (TUTORIAL / "index.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands() -> list[list[str]]:
    """Returns every command of the tutorial as words."""
    joined = "".join(blocks("bash")).replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.strip()]


def run(words: list[str], folder: Path) -> str:
    """Runs this Python in a folder and returns what it prints."""
    done = interpreter.run(words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tutorial_installs_and_then_runs_modules_only():
    kinds = [words[0] for words in commands()]
    assert kinds[:2] == ["launch/quickstart", "source"]
    assert set(kinds[2:]) == {"python"}
    assert (SOURCE_TREE / "launch" / "quickstart").is_file()


@pytest.mark.slow
def test_the_first_hour_ends_with_two_curves_in_a_figure(tmp_path):
    for name in ("noisy_digits.py", "noisy_digits.gin"):
        shutil.copy(TUTORIAL / name, tmp_path)
    # One slot compiles once, and a report of few sections takes as many seconds less.
    few = few_sections.command("headline", "table")
    less = ["--gin_bindings=workload.points = 2", "--slots=1"]
    less.append("--gin_bindings=sweep.batch_sizes = (8, 32, 512)")
    printed = [
        run([*few, *words[2:]], tmp_path)
        if "dps_tf.report" in words
        else run([*words[1:], *(less if "--dry_run" not in words else [])], tmp_path)
        for words in commands()[2:]
    ]
    assert "noisy_digits_perceptron-sgd-none-seed0-b512" in printed[0]
    assert "trials: 32" in printed[0]
    shown = next(block for block in blocks("text") if block.startswith("workload"))
    assert printed[-1].splitlines()[:2] == shown.splitlines()[:2]
    assert (tmp_path / "together" / "steps_to_result.png").stat().st_size > 10_000
    results = pd.read_csv(tmp_path / "together" / "results.csv")
    steps = results.set_index(["optimizer", "batch_size"])["steps_to_result"]
    for optimizer in ("sgd", "momentum"):
        assert steps[optimizer, 8] > 1.5 * steps[optimizer, 32]
        assert steps[optimizer, 32] > steps[optimizer, 512]
    script = "\n".join(
        [*blocks("python")[-2:], "print(looser.results['goal'].iloc[0])"]
    )
    looser = run(["-c", script], tmp_path)
    assert "worst_digit_error <= 0.2" in looser


@pytest.mark.slow
def test_python_alone_ends_with_k_star(tmp_path):
    printed = run([str(TUTORIAL / "python_only.py")], tmp_path)
    rows = re.findall(r"^\d +(8|32|128) +(\d+) +[\d.]+$", printed, re.M)
    steps = {int(batch): int(number) for batch, number in rows}
    assert list(steps) == [8, 32, 128]
    assert steps[8] > steps[32] > steps[128]


# The notebook.

# Runs the cells of a notebook in one IPython, as a kernel does; one that fails ends it.
CELLS = """
import json, sys
import matplotlib
matplotlib.use("agg")
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for number, source in enumerate(json.load(sys.stdin)):
    result = shell.run_cell(source, store_history=True)
    result.raise_error()
    data, _ = shell.display_formatter.format(result.result)
    print("SHOWN", number, json.dumps(sorted(data)), flush=True)
print("CELLS", len(shell.user_ns["tables"].results), flush=True)
"""


def notebook() -> list[str]:
    """Returns the sources of the code cells, checked to hold no output."""
    path = SOURCE_TREE / "docs" / "quickstart.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    return ["".join(cell["source"]) for cell in code]


def test_the_notebook_holds_no_output_and_begins_with_its_installation():
    sources = notebook()
    assert sources[0].startswith("%pip install")
    assert not [source for source in sources[1:] if source.startswith(("%", "!"))]


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path):
    done = interpreter.run(
        ["-c", CELLS],
        input=json.dumps(notebook()[1:]),
        cwd=tmp_path,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = dict(re.findall(r"^SHOWN (\d+) (.*)$", done.stdout, re.M))
    assert len(shown) == len(notebook()) - 1
    assert "text/html" in shown["1"]
    assert "CELLS 3" in done.stdout
