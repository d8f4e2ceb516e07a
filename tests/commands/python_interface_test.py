"""Sweeps from Python: are they those of the commands, and do notebooks show them?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import dps_tf
from dps_tf.analysis.tables import entries, meaning
from dps_tf.core import UserError
from dps_tf.store import MEANINGS, SCHEMAS
from dps_tf.workloads.reading import read_configuration
from tests import interpreter
from tests.made_up.sweeps import Sweep, write_sweep

VALUES = {
    "workload.points": 4,
    "workload.step_budget": 60,
    "goal.metric": "validation/classification_error",
    "goal.threshold": 0.5,
    "sweep.batch_sizes": (16, np.int64(64)),
}
BINDINGS = [
    "workload.points = 4",
    "workload.step_budget = 60",
    "goal.metric = 'validation/classification_error'",
    "goal.threshold = 0.5",
    "sweep.batch_sizes = (16, 64)",
]
# As in quickstart.gin, without a gin file.
WHOLE = {
    "workload.name": "digits_mlp",
    "workload.dataset": "digits",
    "workload.network": "mlp",
    "workload.network_arguments": {"widths": (64,)},
    "workload.optimizer": "sgd",
    "workload.space": {"learning_rate": ("log", 0.12, 1.8)},
    "evaluation.examples": 64,
    "evaluation.minimum": 1,
    **VALUES,
}


def tables_on_disk(sweep_dir: Path) -> dict[str, bytes]:
    """Returns the files of closed studies, which do not tell of their way."""
    return {
        str(path.relative_to(sweep_dir)): path.read_bytes()
        for name in ("trials.parquet", "curves.parquet", "sweep.json")
        for path in sweep_dir.rglob(name)
    }


# In a process of its own: TensorFlow's threads are fixed at its first use.
SCRIPT = """
import json, sys
import numpy as np
import dps_tf
from dps_tf import data
from dps_tf.core.errors import UserError

sweep = dps_tf.sweep("quickstart", values=json.loads(sys.argv[1]))
for name in ("command", "begun"):
    print(name, dps_tf.run(sweep, name).results["trials"].tolist())
tables = dps_tf.run(sweep, "python", slots=2)
assert tables.results["closed"].all(), tables.results
row = tables.best.iloc[0]
trial = dps_tf.load_trial("python", row["cell"])
assert trial.trial == row["best_trial"], trial
assert trial.step >= row["steps_to_result"]
assert trial.point["learning_rate"] == row["learning_rate"]
np.testing.assert_array_equal(
    next(iter(trial.weights.values())), trial.model.trainable_weights[0].numpy())
curve = tables.curves.query("batch_size == 16 and trial == @trial.trial")
error = curve.set_index("step")["validation/classification_error"][trial.step]
found = data.load("digits").validation
guess = np.argmax(trial.model(found.inputs), axis=-1)
np.testing.assert_allclose(np.mean(guess != found.labels), error)
print("names", sorted(trial.weights), sorted(trial.masks))
try:
    dps_tf.load_trial("python")
except UserError as refusal:
    print("refused", refusal)
"""


@pytest.fixture(scope="module", name="ran")
def _ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Returns a folder of sweeps by the command and by Python, and what that said."""
    folder = tmp_path_factory.mktemp("sweeps")
    # With 3 points as with 4 there are three lanes.
    for name, more in (("command", ()), ("begun", ("workload.points = 3",))):
        flags = [f"--gin_bindings={binding}" for binding in (*BINDINGS, *more)]
        words = ["dps_tf.train", "--gin_file=quickstart", f"--sweep_dir={name}", *flags]
        words.append("--slots=1")
        python(folder, "-m", *words)
    values = json.dumps({**VALUES, "sweep.batch_sizes": [16, 64]})
    return folder, python(folder, "-c", SCRIPT, values)


def python(folder: Path, *arguments: str) -> str:
    """Runs this Python in a folder; returns what it prints."""
    done = interpreter.run(arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fits_a_terminal(shown: object) -> None:
    lines = repr(shown).splitlines()
    assert 3 <= len(lines) <= 12 and max(map(len, lines)) <= 120


def test_a_large_sweep_fits_a_terminal_too():
    large = dps_tf.sweep("lee2021/mnist_sgd")
    fits_a_terminal(large)
    assert "and 52 more" in str(large)


@pytest.mark.parametrize("values", [VALUES, WHOLE])
def test_values_make_the_sweep_that_a_gin_file_makes(values):
    files = ["quickstart"] if values is VALUES else []
    made = dps_tf.sweep(*files, values=values)
    expected, text = read_configuration(["quickstart"], BINDINGS)
    assert made.specification == expected
    assert made.gin == text
    fits_a_terminal(made)
    assert str(made).startswith("sweep of 2 cells, goal validation/")


def test_the_gin_text_of_a_sweep_is_a_gin_file_of_it(tmp_path):
    made = dps_tf.sweep(values=WHOLE)
    (tmp_path / "mine.gin").write_text(made.gin)
    assert dps_tf.sweep(str(tmp_path / "mine.gin")).specification == made.specification


def test_several_workloads_are_named_by_references():
    values = {
        **{name: x for name, x in WHOLE.items() if name != "workload.optimizer"},
        "sweep.workloads": ["@sgd/workload()", "@adam/workload()"],
        "sgd/workload.optimizer": "sgd",
        "adam/workload.optimizer": "adam",
    }
    cells = [s.cell for s in dps_tf.sweep(values=values).specification.studies]
    assert sorted({cell.optimizer for cell in cells}) == ["adam", "sgd"]


def test_included_files_are_looked_for_in_silence():
    code = "import dps_tf; dps_tf.sweep('lee2021/mnist_reproduction')"
    done = interpreter.run(["-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"points": 3}, "'points' is no name of a value"),
        ({"workload.points\nx.y": 3}, "is no name of a value"),
        ({"goal.threshold": float("nan")}, "goal.threshold holds nan"),
        ({"workload.fixed": {"momentum": object()}}, "workload.fixed holds <object"),
        ({"workload.pints": 3}, "did you mean 'points'"),
    ],
)
def test_values_that_cannot_be_are_one_sentence(values, sentence):
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        dps_tf.sweep("quickstart", values=values)


def test_a_misspelt_name_is_named_before_what_is_missing():
    with pytest.raises(UserError, match=r"'nam' is unknown.*did you mean 'name'"):
        dps_tf.sweep(values={"workload.nam": 3})


@pytest.mark.slow
def test_what_python_runs_or_goes_on_with_is_what_the_command_runs(ran):
    folder, said = ran
    assert "begun [4, 4]" in said
    for name in ("python", "begun"):
        assert tables_on_disk(folder / name) == tables_on_disk(folder / "command")
    assert "nothing to do: all 2 cells are finished." in said


@pytest.mark.slow
def test_the_best_trial_is_a_model_with_weights_by_name(ran):
    _, said = ran
    names = "['dense1/bias', 'dense1/kernel', 'dense2/bias', 'dense2/kernel']"
    assert f"names {names} {names}" in said
    assert "refused python has 2 cells: name one" in said


def test_options_that_are_not_taken_are_refused(tmp_path):
    sweep = dps_tf.sweep("quickstart")
    for options, sentence in (
        ({"slotz": 1}, "did you mean 'slots'"),
        ({"strategy": "miror"}, "did you mean 'mirrored'"),
    ):
        with pytest.raises(UserError, match=sentence):
            dps_tf.run(sweep, tmp_path, **options)


@pytest.fixture(scope="module", name="tables")
def _tables(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("synthetic") / "sweep")
    write_sweep(folder, Sweep(batch_sizes=(16, 64, 256), points=8))
    return dps_tf.load(folder)


TABLES = ("results", *SCHEMAS, "bounded", "repeats")


@pytest.mark.slow
def test_every_column_of_real_tables_is_documented(tables, ran):
    known = {name for table in TABLES for name in entries(table)}
    for loaded in (tables, dps_tf.load(ran[0] / "python")):
        told = loaded.columns
        fixed = told[~told["meaning"].str.startswith(("Metric of", "Metaparameter"))]
        assert set(fixed["column"]) <= known
        further = told.drop(fixed.index)
        assert set(further["table"]) == {"trials", "curves", "results", "bounded"}
        metaparameters = further[further["meaning"].str.startswith("Metaparameter")]
        assert set(metaparameters["column"]) <= {"learning_rate", "momentum"}
        assert all("/" in name for name in further["column"][further.table == "curves"])
    assert (told["meaning"].str.len() > 10).all()


def test_the_store_documents_the_columns_it_has_and_no_others():
    names = {name for schema in SCHEMAS.values() for name in schema.names}
    assert names == set(MEANINGS)
    assert meaning("trials", "workload.fixed.delay").startswith("Value of this further")


def test_printed_tables_fit_a_terminal(tables):
    fits_a_terminal(tables)
    row = tables.results.iloc[0]
    assert f"{len(tables.results)} cells" in repr(tables)
    assert f"{int(row['steps_to_result']):,} (" in repr(tables)


def test_best_has_the_name_and_point_of_the_winner(tables):
    best, results = tables.best, tables.results
    assert best["cell"].tolist()[0].endswith("-s0.0")
    assert best["best_trial"].equals(results["best_trial"])
    row = best.iloc[0]
    cell = tables.trials[tables.trials["batch_size"] == row["batch_size"]]
    cell = cell[(cell["sparsity"] == row["sparsity"]) & (cell["seed"] == row["seed"])]
    winner = cell[cell["trial"] == row["best_trial"]].iloc[0]
    assert winner["steps_to_result"] == row["steps_to_result"]
    assert winner["learning_rate"] == row["learning_rate"]


@pytest.fixture(name="shell")
def _shell():
    shell = InteractiveShell.instance()
    shell.kernel = object()  # As that of a notebook has.
    yield shell
    InteractiveShell.clear_instance()


def test_notebooks_show_results_and_figures(shell, tables):
    bundle, _ = shell.display_formatter.format(tables)
    assert bundle["text/html"].count("<tr>") == len(tables.results) + 0
    row = tables.results.iloc[0]
    assert f"{int(row['steps_to_result']):,}" in bundle["text/html"]
    figure = tables.plot()
    bundle, _ = shell.display_formatter.format(figure)
    assert bundle["image/png"].startswith(b"\x89PNG")
    marks = {len(line.get_xdata()) for axis in figure.axes for line in axis.lines}
    assert marks
