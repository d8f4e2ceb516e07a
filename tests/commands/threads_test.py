"""Does a sweep run wherever TensorFlow was started first, and say what that changes?"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dps_tf.store import LocalFiles, SweepReader
from tests import interpreter

TINY = {"sweep.batch_sizes": [64], "workload.points": 2, "workload.step_budget": 4}
STARTED = {
    "nothing": "pass",
    "a model's summary": """
import tf_keras as keras
keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).summary()
""",
    "a constant": "tf.constant(1.0)",
    "own threads": """
tf.config.threading.set_intra_op_parallelism_threads(3)
tf.constant(1.0)
""",
    "one thread": """
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.constant(1.0)
""",
}
SWEEP = """
import json, sys
import dps_tf
import tensorflow as tf

exec(sys.argv[1])
sweep = dps_tf.sweep("smoke/quickstart", values=json.loads(sys.argv[2]))
tables = dps_tf.run(sweep, "sweep", slots=1)
print("closed", tables.results["closed"].tolist())
print("threads", tf.config.threading.get_intra_op_parallelism_threads())
"""
NOTE = "begin a notebook with tf.config.threading.set_intra_op_parallelism_threads(1)"


def run(folder: Path, start: str, **more: object) -> subprocess.CompletedProcess[str]:
    values = json.dumps({**TINY, **more})
    # TensorFlow chooses no other number on machines with more processors.
    env = {**os.environ, "TF_NUM_INTRAOP_THREADS": "2"}
    return interpreter.run(["-c", SWEEP, start, values], cwd=folder, env=env)


def recorded(folder: Path) -> int | None:
    return SweepReader(LocalFiles(), str(folder / "sweep")).intra_op_threads


@pytest.mark.parametrize(
    ("first", "threads"),
    [
        ("nothing", 1),
        ("a model's summary", 2),
        ("a constant", 2),
        ("own threads", 3),
        ("one thread", 1),
    ],
)
def test_a_sweep_runs_with_the_threads_that_tensorflow_has(tmp_path, first, threads):
    done = run(tmp_path, STARTED[first])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "closed [True]" in done.stdout
    assert recorded(tmp_path) == threads
    notes = [line for line in done.stdout.splitlines() if NOTE in line]
    assert len(notes) == (threads > 1)
    assert all(f"with {threads} threads per operation" in note for note in notes)


def test_a_directory_keeps_the_threads_it_was_begun_with(tmp_path):
    assert run(tmp_path, STARTED["a constant"]).returncode == 0
    larger = {"sweep.batch_sizes": [64, 128]}
    # What is finished needs no threads; what is not, those of the directory.
    assert run(tmp_path, STARTED["own threads"]).returncode == 0
    refused = run(tmp_path, STARTED["own threads"], **larger)
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert "has 2 thread(s) per operation" in last and "started here with 3" in last
    assert "restart Python and run the sweep first" in last
    assert "closed [True, True]" in run(tmp_path, STARTED["nothing"], **larger).stdout


@pytest.mark.slow
def test_a_sweep_goes_on_after_one_of_its_trials_was_loaded(tmp_path):
    assert run(tmp_path, "pass").returncode == 0
    load = "dps_tf.load_trial('sweep', trial=0).model.summary()"
    done = run(tmp_path, load, **{"sweep.batch_sizes": [64, 128]})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "closed [True, True]" in done.stdout and "threads 1" in done.stdout


def test_importing_the_package_starts_and_sets_nothing():
    code = "import dps_tf, sys; dir(dps_tf); print('tensorflow' in sys.modules)"
    done = interpreter.run(["-c", code], modules=interpreter.TABLES)
    assert done.stdout == "False\n"


def test_a_callback_leaves_the_threads_of_its_program():
    code = """
import tensorflow as tf
import dps_tf
dps_tf.StepsToResult
threads = tf.config.threading
print(threads.get_intra_op_parallelism_threads())
threads.set_intra_op_parallelism_threads(3)
"""
    done = interpreter.run(["-c", code])
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
