"""Does a sweep on an object store give what it gives on a disk, kills included?

The store is that of obstore for `file://`: it has never been a bucket.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pandas as pd
import pytest

from dps_tf.store import SweepReader, files_for
from tests import interpreter

pytestmark = [pytest.mark.slow, pytest.mark.fault]

# Runs a sweep; its process dies at the n-th change of an object, 0 is never.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from dps_tf._tensorflow import import_tensorflow
import_tensorflow()
from dps_tf.store import files_for
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.resources import configure_threads
from dps_tf.tuning.sweep import Sweep
from dps_tf.workloads.reading import read_configuration

sweep_dir, told, die_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
changes = 0

def counted(change):
    def call(*arguments):
        global changes
        changes += 1
        if changes == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*arguments)
    return call

sweep, text = read_configuration(["smoke/quickstart"], ["workload.step_budget = 120"])
configure_threads()
options, files = Options(sweep_dir=sweep_dir, slots=1), files_for(sweep_dir)
for name in ("write_atomic", "create_exclusive", "move", "remove"):
    setattr(files, name, counted(getattr(files, name)))
backends = Backends(options, files)
outcome = Sweep(files, sweep, options, backends, StopRequest()).run(text)
assert not outcome.failed
(told / str(os.getpid())).write_text(json.dumps([list(outcome.ran), changes]))
"""


def start(sweep_dir: str, told: Path, die_at: int = 0) -> interpreter.Process:
    """Starts a run, which says in the folder `told` what it has done."""
    words = ["-c", SCRIPT, sweep_dir, str(told), str(die_at)]
    return interpreter.start(words, cwd=Path(__file__).parents[2])


def end(process: interpreter.Process, told: Path) -> tuple[list[str], int]:
    """Returns the cells that a run has run, and how often it changed an object.

    Nothing for a run that has died as it was told to.
    """
    code = process.wait(600)
    assert code in (0, -signal.SIGKILL)
    if code:
        return [], 0
    ran, changes = json.loads((told / str(process.pid)).read_text())
    return ran, changes


def tables(sweep_dir: str) -> dict[str, pd.DataFrame]:
    found = SweepReader(files_for(sweep_dir), sweep_dir).tables()
    assert not found.problems
    assert len(found.studies) == 2 and found.studies["closed"].all()
    return {"trials": found.trials, "curves": found.curves}


def test_a_sweep_killed_again_and_again_on_an_object_store_equals_one_on_a_disk(
    tmp_path,
):
    plain = start(f"{tmp_path}/plain", tmp_path)
    undisturbed = f"file://{tmp_path}/undisturbed"
    _, changes = end(start(undisturbed, tmp_path), tmp_path)
    assert changes > 20
    end(plain, tmp_path)
    expected = tables(f"{tmp_path}/plain")

    killed = f"file://{tmp_path}/killed"
    processes = []
    for percent in (10, 35, 60):
        processes.append(start(killed, tmp_path, changes * percent // 100))
        end(processes[-1], tmp_path)
    assert sum(process.returncode != 0 for process in processes) >= 2
    end(start(killed, tmp_path), tmp_path)

    for sweep_dir in (undisturbed, killed):
        found = tables(sweep_dir)
        for name, frame in expected.items():
            pd.testing.assert_frame_equal(found[name], frame, check_exact=True)


def test_of_two_machines_on_an_object_store_one_runs_each_cell(tmp_path):
    sweep_dir = f"file://{tmp_path}/sweep"
    processes = [start(sweep_dir, tmp_path) for _ in range(2)]
    ran = [cell for process in processes for cell in end(process, tmp_path)[0]]
    assert [process.returncode for process in processes] == [0, 0]
    cells = files_for(sweep_dir).list_names(f"{sweep_dir}/cells")
    assert sorted(ran) == cells and len(ran) == 2
