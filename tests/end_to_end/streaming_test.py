"""The command with streamed data: the tables of data on the device, byte for byte."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import interpreter

TINY = (
    "--gin_file=quickstart",
    "--slots=1",
    "--gin_bindings=workload.points = 4",
    "--gin_bindings=workload.step_budget = 60",
    "--gin_bindings=goal.metric = 'validation/classification_error'",
    "--gin_bindings=goal.threshold = 0.3",
    "--gin_bindings=evaluation.examples = 640",
    "--gin_bindings=sweep.batch_sizes = (32,)",
    "--gin_bindings=sweep.sparsities = (0.0, 0.5)",
    "--gin_bindings=sweep.sparsity_methods = ('snip',)",
    "--gin_bindings=sweep.evaluation_mode = 'goal'",
    "--gin_bindings=sweep.finishers = 2",
)


def train(*arguments: str) -> str:
    """Runs the command and returns what it printed."""
    done = interpreter.run(["-m", "dps_tf.train", *TINY, *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


def tables_of(directory: Path) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for name in ("trials", "curves")
        for path in sorted(directory.glob(f"cells/*/{name}.parquet"))
    }


@pytest.mark.slow
def test_tables_are_those_of_data_on_the_device(tmp_path):
    def trained(placement: str) -> str:
        where = f"--sweep_dir={tmp_path / placement}"
        return train(f"--data_placement={placement}", where)

    placements = ("device", "stream")
    with ThreadPoolExecutor(2) as both:
        told = dict(zip(placements, both.map(trained, placements), strict=True))
    assert "streamed" not in told["device"]
    # 1,797 examples of 64 float32 and an int32 label; said once for all cells.
    assert told["stream"].count("digits: 0.5 MB, streamed from the host") == 1
    tables = tables_of(tmp_path / "device")
    assert len(tables) == 4
    assert tables_of(tmp_path / "stream") == tables
    # A sweep that was begun one way goes on, and is finished, the other way.
    again = train("--data_placement=stream", f"--sweep_dir={tmp_path / 'device'}")
    assert "nothing to do" in again


def test_dry_run_says_where_data_will_lie():
    told = train("--dry_run", "--data_placement=stream")
    assert told.splitlines()[-1] == "data: streamed from the host"
