"""Are the commands beside the shipped gin files understood by the real command?"""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
import tempfile
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dps_tf.analysis.fit_table import fit_table
from dps_tf.analysis.law import MISFIT, Observations, fit_law
from dps_tf.analysis.regimes import ends
from dps_tf.workloads import reading as configurations
from tests import interpreter
from tests.launch.dry_runs import dry_run
from tests.made_up.sweeps import Sweep, write_open_study, write_sweep
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
    prepared = [c for c in shown_commands() if c.startswith("python -m dps_tf.prepare")]
    others = len(shown_commands()) - len(prepared)
    assert others == 2 * len(trained) + len(measured)


def test_the_quickstart_shows_three_regimes_that_the_law_fits():
    text = (SOURCE_TREE / "README.md").read_text()
    rows = re.findall(r"^ *(\d+) +(\d+) \((\d+), \d+\] ", text, re.MULTILINE)
    sizes, steps, low = np.array(rows, float).T
    assert len(sizes) == 9
    fit = fit_law(Observations.of(sizes, steps, low))
    assert fit.rms <= 0.15 and np.abs(fit.residuals).max() < MISFIT
    assert fit.exponent.low <= 1 <= fit.exponent.high
    found = ends(fit)
    assert sizes.min() < found.perfect.value < found.flat.value < sizes.max()
    assert found.is_flat


@pytest.mark.slow
def test_tables_are_those_of_the_records_beside_them():
    words = [SOURCE_TREE / "launch" / "documents", "--check"]
    # Every law of every table: four minutes alone, more beside other tests.
    done = interpreter.run(words, modules=interpreter.TABLES, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


def documents() -> ModuleType:
    """Returns the script launch/documents as a module."""
    loader = SourceFileLoader("documents", str(SOURCE_TREE / "launch" / "documents"))
    specification = importlib.util.spec_from_loader("documents", loader)
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


def test_short_curves_have_the_constants_of_the_joint_fit(tmp_path):
    sizes = 2.0 ** np.arange(2, 14)
    rows = {"curve": "sgd", "batch_size": sizes, "steps_to_result": 64_000 / sizes + 50}
    short = {"curve": "momentum", "batch_size": [4, 512], "steps_to_result": [9e3, 90]}
    frame = pd.concat([pd.DataFrame(rows), pd.DataFrame(short)], ignore_index=True)
    frame["bracket_low"] = frame["steps_to_result"] - 10
    frame.loc[frame.index[-1], "bracket_low"] = 0
    frame.to_csv(tmp_path / "table.csv", index=False)
    script = documents()
    records = script.Comparisons(tmp_path)
    shown = script.fits(records, ["table"]).set_index("curve")
    joined = fit_table(frame).joined["momentum"]
    assert list(shown["by"]) == ["alone", "joint"]
    assert shown.loc["momentum", "c1"] == pytest.approx(joined.c1.value)
    # Whether an exponent refuses the law is asked of curves with one of their own.
    found = records.law("table", "momentum", "sgd", "c1/c2")
    assert found.high == np.inf and found.low > 0.3


def recorded(stem: Path, *sweeps: Sweep) -> dict[str, pd.DataFrame]:
    """Returns the tables of a record in which sweeps were put one after another."""
    for sweep in sweeps:
        folder = Path(tempfile.mkdtemp(dir=stem.parent)) / "sweep"
        documents().record(str(write_sweep(folder, sweep)), str(stem))
    ends = {"": ".csv", "_trials": ".csv", "_measurements": ".csv"}
    ends["_evaluations"] = ".csv.gz"
    files = {end: stem.with_name(f"{stem.name}{end}{of}") for end, of in ends.items()}
    return {
        end: pd.read_csv(file, dtype=str, keep_default_na=False)
        for end, file in files.items()
        if file.exists()
    }


def test_a_figure_shows_all_that_was_recorded(tmp_path):
    stem = tmp_path / "one"
    recorded(stem, Sweep(batch_sizes=(16, 32)), Sweep(batch_sizes=(64,)))
    drawn = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Figure, "savefig", lambda figure, *_, **__: drawn.append(figure)
        )
        documents().draw(str(stem))
    axis = drawn[0].axes[0]
    sizes = {float(size) for line in axis.get_lines() for size in line.get_xdata()}
    assert {16.0, 32.0, 64.0} <= sizes


def test_measurements_of_a_cell_that_is_recorded_anew_are_gone(tmp_path):
    sizes = {"batch_sizes": (16, 32)}
    again = Sweep(batch_sizes=(16,), measured=False)
    found = recorded(tmp_path / "one", Sweep(**sizes), again)
    assert set(found[""]["batch_size"]) == {"16", "32"}
    assert set(found["_measurements"]["batch_size"]) == {"32"}


@pytest.mark.parametrize("axis_first", [True, False])
def test_cells_of_a_further_axis_are_other_cells(tmp_path, axis_first):
    plain = Sweep(batch_sizes=(16,))
    axis = "workload.fixed.delay"
    slow = [replace(plain, axes=((axis, value),)) for value in ("0", "4")]
    order = [*slow, plain] if axis_first else [plain, *slow]
    for table in recorded(tmp_path / "one", *order, order[0]).values():
        assert set(table[axis]) == {"", "0", "4"}
        assert not table.duplicated().any()


def test_a_table_of_something_else_is_not_written_over(tmp_path):
    other = tmp_path / "one_trials.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="one_trials.csv has no column 'batch_size'"):
        recorded(tmp_path / "one", Sweep(batch_sizes=(16,)))
    assert [path.name for path in tmp_path.glob("*.csv")] == [other.name]


def test_a_study_that_is_recorded_from_several_sweeps_is_that_of_one(tmp_path):
    for stem, parts in (("one", [(4, 8, 16)]), ("several", [(16,), (8,), (4, 16)])):
        for sizes in parts:
            recorded(tmp_path / stem, Sweep(batch_sizes=sizes))
    # A cell that is under way is left out.
    under_way = write_open_study(tmp_path / "under_way")
    documents().record(str(under_way), str(tmp_path / "several"))
    for kind in ("", "_trials", "_measurements"):
        text = (tmp_path / f"several{kind}.csv").read_text()
        assert text == (tmp_path / f"one{kind}.csv").read_text()
        assert set(pd.read_csv(io.StringIO(text))["batch_size"]) == {4, 8, 16}
