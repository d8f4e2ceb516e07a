"""Are the commands beside the shipped gin files understood by the real command?"""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
from importlib.machinery import SourceFileLoader
from pathlib import Path

import numpy as np
import pandas as pd

from dps_tf.analysis.law import Observations, compare, fit_law, prefers_power_law
from dps_tf.analysis.report import summary
from dps_tf.workloads import reading as configurations
from tests import interpreter
from tests.analysis.synthetic_sweeps import write_open_study, write_sweep
from tests.analysis.synthetic_tables import Sweep, make
from tests.launch.dry_runs import dry_run
from tests.packaging.source_tree import SOURCE_TREE

README = configurations.resolve("lee2021/mnist_sgd").parent / "README.md"
FOLDERS = ("lee2021", "optimizers", "parallelism", "shallue2019")
TRAIN = "python -m dps_tf.train "


def shown_commands(readme: Path = README) -> list[str]:
    """Returns the command lines of README.md, each as one line."""
    blocks = re.findall(r"```bash\n(.*?)```", readme.read_text(), re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def test_commands_are_understood(tmp_path):
    readmes = [README.parents[1] / folder / "README.md" for folder in FOLDERS]
    shown = [line for readme in readmes for line in shown_commands(readme)]
    trains = [line for line in shown if line.startswith(TRAIN)]
    assert len(trains) > 4
    commands = [shlex.split(line.removeprefix(TRAIN)) for line in trains]
    for line, (code, said) in zip(trains, dry_run(commands, tmp_path), strict=True):
        assert code == 0, f"{line}\n{said}"


def directories(module: str) -> list[str]:
    """Returns the sweep directories that the commands of a module are given."""
    mine = [c for c in shown_commands() if c.startswith(f"python -m dps_tf.{module} ")]
    return [re.search(r"--sweep_dir=(\S+)", command)[1] for command in mine]


def test_every_sweep_shown_is_reported_from_where_it_was_written():
    trained = directories("train")
    assert len(set(trained)) == len(trained)
    assert directories("report") == trained
    measured = directories("measure")
    assert set(measured) <= set(trained)
    assert len(shown_commands()) == 2 * len(trained) + len(measured)


def test_the_misfit_of_the_quickstart_that_is_told_is_one_that_is_warned_of():
    text = (SOURCE_TREE / "README.md").read_text()
    assert "more abruptly" in text and "Before trusting a number" in text
    rows = re.findall(r"^ *(\d+) +(\d+) \((\d+), \d+\] ", text, re.MULTILINE)
    sizes, steps, low = np.array(rows, float).T
    assert len(sizes) == 9
    fit = fit_law(Observations.of(sizes, steps, low))
    far = np.abs(fit.residuals).max() >= summary.MISFIT
    assert far or prefers_power_law(compare(fit.observations))


def test_tables_are_those_of_the_records_beside_them():
    words = [SOURCE_TREE / "launch" / "documents", "--check"]
    done = interpreter.run(words, modules=interpreter.TABLES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_study_that_is_recorded_from_several_sweeps_is_that_of_one(tmp_path):
    loader = SourceFileLoader("documents", str(SOURCE_TREE / "launch" / "documents"))
    specification = importlib.util.spec_from_loader("documents", loader)
    documents = importlib.util.module_from_spec(specification)
    loader.exec_module(documents)

    def recorded(stem: str, *batch_sizes: int) -> None:
        folder = tmp_path / f"{stem}_{batch_sizes}"
        made = make(Sweep(batch_sizes=batch_sizes))
        documents.record(str(write_sweep(folder, made)), str(tmp_path / stem))

    recorded("one", 4, 8, 16)
    for some in ((16,), (8,), (4, 16)):
        recorded("several", *some)
    # A cell that is under way is left out.
    under_way = write_open_study(tmp_path / "under_way")
    documents.record(str(under_way), str(tmp_path / "several"))
    for kind in ("", "_trials", "_measurements"):
        text = (tmp_path / f"several{kind}.csv").read_text()
        assert text == (tmp_path / f"one{kind}.csv").read_text()
        assert set(pd.read_csv(io.StringIO(text))["batch_size"]) == {4, 8, 16}
