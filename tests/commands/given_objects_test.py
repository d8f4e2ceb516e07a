"""Are networks and arrays that Python gives measured as those of a gin file are?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tf_keras as keras

import dps_tf
from dps_tf.core import Registry, UserError
from dps_tf.store import LocalFiles, SweepReader
from tests import interpreter

RINGS = """
import numpy as np
import tf_keras as keras
from dps_tf.data import Source

WIDTH = 8

def ring_network(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(WIDTH, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))

generator = np.random.default_rng(7)
labels = np.arange(200) % 2
points = generator.normal(size=(200, 2)) + 2 * labels[:, np.newaxis]

def rings(data_dir):
    return Source(points.astype(np.float32), labels, 2, 40)
"""
GIN = """
workload.name = 'ring_network'
workload.dataset = 'own_rings.rings'
workload.network = 'own_rings.ring_network'
workload.optimizer = 'sgd'
workload.space = 'default'
workload.points = 4
workload.step_budget = 60
workload.evaluation = @evaluation()
evaluation.examples = 8
workload.goal = @goal()
goal.threshold = 0.15
sweep.workloads = @workload()
sweep.batch_sizes = (8, 32)
"""
RUN = """
import dps_tf
from dps_tf.core import UserError

def measured(**more):
    parts = {"network": ring_network, "dataset": (points, labels), "goal": 0.15,
             "batch_sizes": (8, 32), "step_budget": 60,
             "values": {"workload.points": 4}, **more}
    return dps_tf.run(sweep_dir="python", slots=1, **parts)
"""
FIRST = """
tables = measured()
cell = tables.best["cell"].iloc[0]
print("LOADED", dps_tf.load_trial("python", cell, 0).model.count_params())
measured()
WIDTH = 9
for text in ("WIDTH", "labels[::-1]"):
    try:
        measured(dataset=(points, labels if text == "WIDTH" else labels[::-1].copy()))
    except UserError as refusal:
        print("REFUSED", refusal)
    WIDTH = 8
"""
AGAIN = """
cell = dps_tf.load("python").best["cell"].iloc[0]
try:
    dps_tf.load_trial("python", cell, 0)
except UserError as refusal:
    print("REFUSED", refusal)
given = {"network": ring_network, "dataset": (points, labels)}
print("LOADED", dps_tf.load_trial("python", cell, 0, **given).model.count_params())
print("CELLS", len(measured(batch_sizes=(8, 32, 128)).results))
"""


def python(folder: Path, *arguments: str) -> str:
    done = interpreter.run(arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def closed_tables(sweep_dir: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(sweep_dir)): path.read_bytes()
        for name in ("trials.parquet", "curves.parquet")
        for path in sweep_dir.rglob(name)
    }


@pytest.fixture(scope="module", name="ran")
def _ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("rings")
    first = python(folder, "-c", RINGS + RUN + FIRST)
    (folder / "own_rings.py").write_text(RINGS)
    (folder / "own_rings.gin").write_text(GIN)
    words = ["--gin_file=own_rings.gin", "--sweep_dir=gin", "--slots=1"]
    python(folder, "-m", "dps_tf.train", *words)
    tables = closed_tables(folder / "python")
    assert len(tables) == 4
    assert tables == closed_tables(folder / "gin")
    return folder, first, python(folder, "-c", RINGS + RUN + AGAIN)


@pytest.mark.slow
def test_tables_are_those_of_the_gin_file_and_the_gin_file_is_kept(ran):
    folder, first, _ = ran
    kept = (folder / "python" / "config.gin").read_text()
    assert "workload.network = 'ring_network'" in kept
    assert "nothing to do: all 2 cells are finished." in first
    assert "ring_network and arrays_" in first and "Give it again to resume" in first


@pytest.mark.slow
def test_a_program_that_gives_other_objects_is_refused(ran):
    _, first, _ = ran
    network, data = [line for line in first.splitlines() if line[:7] == "REFUSED"]
    assert "was trained with another network than 'ring_network' builds now" in network
    assert "workload.dataset: stored 'arrays_" in data
    assert "LOADED 42" in first


@pytest.mark.slow
def test_another_program_gives_the_objects_again(ran):
    _, _, again = ran
    assert "in Python it is given again" in again
    assert "LOADED 42" in again
    assert "CELLS 3" in again


@pytest.mark.slow
def test_functions_of_a_module_are_found_by_their_name(ran):
    folder, *_ = ran
    study = next(iter(SweepReader(LocalFiles(), str(folder / "gin")).studies.values()))
    words = ["--sweep_dir=gin", f"--cell={study.name}", "--trial=0", "--out=saved"]
    assert "saved in saved" in python(folder, "-m", "dps_tf.export", *words)


def network(input_shape, classes):
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, keras.layers.Dense(classes)(inputs))


INPUTS = np.zeros((50, 3))
LABELS = np.arange(50) % 2
WHOLE = {
    "network": network,
    "dataset": (INPUTS, LABELS),
    "goal": 0.1,
    "batch_sizes": (4, 8),
    "step_budget": 10,
}


def test_objects_become_the_values_of_a_gin_file():
    goal = dps_tf.Goal("validation/accuracy", 0.9, "maximize")
    sweep = dps_tf.sweep(**{**WHOLE, "goal": goal, "values": {"workload.points": 3}})
    study = sweep.specification.studies[0]
    assert study.goal == goal and study.workload.points == 3
    assert study.workload.network == f"{__name__}.network"
    assert study.workload.evaluation_interval.examples == 2
    assert sweep.objects == (study.workload.dataset,)
    larger = dps_tf.sweep("quickstart", goal=0.2, batch_sizes=(16,))
    assert [s.cell.batch_size for s in larger.specification.studies] == [16]
    assert larger.specification.studies[0].goal.threshold == 0.2


def test_numbers_of_less_precision_are_the_decimals_that_they_show():
    values = {"sweep.sparsities": (np.float32(0.9), np.float16(0.5))}
    values["sweep.sparsity_methods"] = ("snip",)
    given = {**WHOLE, "goal": np.float32(0.1), "values": values}
    studies = dps_tf.sweep(**given).specification.studies
    assert {study.cell.sparsity for study in studies} == {0.5, 0.9}
    assert {study.goal.threshold for study in studies} == {0.1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"network": None}, "workload.network is missing: give for example network="),
        ({"dataset": None}, "workload.dataset is missing"),
        ({"goal": None}, "goal.threshold is missing: give for example goal=0.05"),
        ({"batch_sizes": None}, "sweep.batch_sizes is missing"),
        ({"step_budget": None}, "workload.step_budget is missing"),
        ({"network": lambda shape, classes: None}, "give a function, with a name"),
        ({"network": lambda: None}, r"of \(input_shape, classes\)"),
        ({"network": 3}, "network is a int: give a function"),
        ({"dataset": (INPUTS, LABELS, 1)}, "or one pair"),
        ({"dataset": ((INPUTS, LABELS), (INPUTS, LABELS))}, "or one pair"),
        ({"dataset": (INPUTS, LABELS / 2)}, "the labels of a pair are float64"),
        ({"dataset": (INPUTS, LABELS - 1)}, "classes from 0"),
        ({"dataset": (INPUTS, LABELS[:, None])}, r"int64 \[50, 1\]"),
        ({"dataset": (INPUTS, LABELS + 1)}, "are 1, 2: .* all classes from 0 on"),
        ({"dataset": (INPUTS, LABELS * 10**9)}, "are 0, 1000000000: "),
        ({"dataset": (INPUTS, LABELS * 0)}, "two at least"),
        ({"dataset": (np.ma.array(INPUTS), LABELS)}, "inputs are a masked array"),
        ({"dataset": (INPUTS, np.ma.array(LABELS))}, "labels are a masked array"),
        ({"dataset": (INPUTS.astype("M8[s]"), LABELS)}, "inputs are datetime64"),
        ({"dataset": (INPUTS.astype(np.longdouble), LABELS)}, "inputs are .*128"),
        ({"dataset": ([[1], [1, 2]] * 25, LABELS)}, "the pair holds no arrays"),
        ({"batch_sizes": 8}, "it must be a list"),
        ({"goal": "low"}, "threshold"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence) as refusal:
        dps_tf.sweep(**{**WHOLE, **change})
    assert len(str(refusal.value).splitlines()) == 1


def test_a_model_is_no_builder_of_models():
    with pytest.raises(UserError, match="that builds it anew"):
        dps_tf.sweep(**{**WHOLE, "network": network((3,), 2)})


def test_run_takes_a_sweep_or_its_parts_and_a_directory(tmp_path):
    with pytest.raises(UserError, match="and sweep_dir=FOLDER"):
        dps_tf.run(str(tmp_path), "x", network=network)
    with pytest.raises(UserError, match="and sweep_dir=FOLDER"):
        dps_tf.run(**WHOLE)
    with pytest.raises(UserError, match="did you mean 'dataset'"):
        dps_tf.run(sweep_dir=tmp_path, datast=(INPUTS, LABELS))
    with pytest.raises(UserError, match="the processes of Ray need it"):
        dps_tf.run(sweep_dir=tmp_path, engine="ray", **WHOLE)


def test_a_cell_of_a_notebook_may_be_run_again():
    found: Registry[object] = Registry("thing")
    for number in (1, 2):
        scope = {"__name__": "__main__"}
        exec(f"def thing(): return {number}", scope)
        found.register("thing", scope["thing"])
    assert found["thing"]() == 2
    with pytest.raises(UserError, match="registered already"):
        found.register("thing", network)


def test_a_module_that_cannot_be_imported_is_one_sentence():
    for name in ("no_such_module.build", f"{__name__}.nothing"):
        sweep = dps_tf.sweep(**{**WHOLE, "network": name})
        with pytest.raises(UserError, match="cannot be imported"):
            dps_tf.run(sweep, "nowhere")


def test_completion_knows_the_names():
    assert set(dps_tf.__all__) <= set(dir(dps_tf))
