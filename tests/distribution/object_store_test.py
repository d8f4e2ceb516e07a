"""Does a sweep on an object store give what it gives on a disk, kills included?

The store is a stand-in on a disk, without atomic renaming: it has never been a bucket.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pandas as pd
import pytest

from dps_tf.store import FileSystem, LocalFiles, read_closed
from dps_tf.training import GFileFiles
from tests import interpreter
from tests.training.object_gfile import DiskObjects, ObjectGfile

pytestmark = [pytest.mark.slow, pytest.mark.fault]

SWEEP_DIR = "gs://bucket/sweep"
# Runs a sweep; its process dies at the n-th change of an object, 0 is never.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from dps_tf.cli.command_line import import_tensorflow
import_tensorflow()
from dps_tf.training import GFileFiles, files_for
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.interruption import StopRequest
from dps_tf.tuning.options import Options
from dps_tf.tuning.resources import configure_threads
from dps_tf.tuning.sweep import Sweep
from dps_tf.workloads.reading import read_configuration
from tests import interpreter
from tests.training.object_gfile import DiskObjects, ObjectGfile

sweep_dir, folder, die_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
changes = 0

def at_point(doing, path):
    global changes
    if doing != "read":
        changes += 1
        if changes == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

sweep, text = read_configuration(["smoke/quickstart"], ["workload.step_budget = 120"])
configure_threads()
options, files = Options(sweep_dir=sweep_dir, slots=1), files_for(sweep_dir)
if "://" in sweep_dir:
    gfile = ObjectGfile(at_point, DiskObjects(folder))
    files = GFileFiles(gfile, gfile.put_if_absent)
backends = Backends(options, files)
outcome = Sweep(files, sweep, options, backends, StopRequest()).run(text)
assert not outcome.failed
told = folder.with_name(f"{folder.name}.{os.getpid()}.json")
told.write_text(json.dumps([list(outcome.ran), changes]))
"""


def start(sweep_dir: str, folder: Path, die_at: int = 0) -> interpreter.Process:
    """Starts a run whose objects are kept in a folder."""
    words = ["-c", SCRIPT, sweep_dir, str(folder), str(die_at)]
    return interpreter.start(words, cwd=Path(__file__).parents[2])


def end(process: interpreter.Process, folder: Path) -> tuple[list[str], int]:
    """Returns the cells that a run has run, and how often it changed an object.

    Nothing for a run that has died as it was told to.
    """
    code = process.wait(600)
    assert code in (0, -signal.SIGKILL)
    if code:
        return [], 0
    told = folder.with_name(f"{folder.name}.{process.pid}.json")
    ran, changes = json.loads(told.read_text())
    return ran, changes


def tables(files: FileSystem, sweep_dir: str) -> dict[str, pd.DataFrame]:
    found = {}
    for cell in files.list_names(f"{sweep_dir}/cells"):
        closed, problems = read_closed(files, f"{sweep_dir}/cells/{cell}")
        assert closed is not None and not problems, f"{cell}: {problems}"
        for name in ("trials", "curves"):
            found[f"{cell} {name}"] = closed.frame(name)
    return found


def test_a_sweep_killed_again_and_again_on_an_object_store_equals_one_on_a_disk(
    tmp_path,
):
    plain = start(f"{tmp_path}/plain", tmp_path / "unused")
    undisturbed = tmp_path / "undisturbed"
    _, changes = end(start(SWEEP_DIR, undisturbed), undisturbed)
    assert changes > 20
    end(plain, tmp_path / "unused")
    expected = tables(LocalFiles(), f"{tmp_path}/plain")

    killed = tmp_path / "killed"
    deaths = [changes * percent // 100 for percent in (10, 35, 60)]
    processes = []
    for die_at in deaths:
        processes.append(start(SWEEP_DIR, killed, die_at))
        end(processes[-1], killed)
    assert sum(process.returncode != 0 for process in processes) >= 2
    end(start(SWEEP_DIR, killed), killed)

    for folder in (undisturbed, killed):
        files = GFileFiles(ObjectGfile(objects=DiskObjects(folder)))
        found = tables(files, SWEEP_DIR)
        assert found.keys() == expected.keys() and len(found) == 4
        for name, frame in expected.items():
            pd.testing.assert_frame_equal(found[name], frame, check_exact=True)


def test_of_two_machines_on_an_object_store_one_runs_each_cell(tmp_path):
    folder = tmp_path / "objects"
    processes = [start(SWEEP_DIR, folder) for _ in range(2)]
    ran = [cell for process in processes for cell in end(process, folder)[0]]
    assert [process.returncode for process in processes] == [0, 0]
    files = GFileFiles(ObjectGfile(objects=DiskObjects(folder)))
    assert sorted(ran) == files.list_names(f"{SWEEP_DIR}/cells") and len(ran) == 2
