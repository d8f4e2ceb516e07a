"""Milliseconds of a trial's step on a device: `python -m tests.benchmarks.accelerator`.

For one that is lent for minutes: rows as of `grid/h200.csv`, the most important first,
and none is begun after `--minutes`. What else to run there, in this order: the
quickstart with `--deterministic` twice, whose tables are compared, and then
`--gin_file=lee2021/mnist_sgd`, as far as it goes.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from absl import app, flags

from dps_tf import models
from dps_tf.training import DeviceData, Program
from dps_tf.training import strategy as strategies
from dps_tf.training.program import Loaded
from tests.benchmarks.machine_rate import task_of

_MINUTES = flags.DEFINE_float("minutes", 3.0, "After them no row is begun.")
_SMALLEST = flags.DEFINE_boolean("smallest", False, "Only batch size 8 and 3 lanes.")
_STEPS, _CALLS = 64, 8
_ROWS = (
    *(("simple_cnn", size, lanes, True) for lanes in (15, 1, 63) for size in (8, 128)),
    *(("resnet8", size, lanes, True) for lanes in (15, 1) for size in (8, 128)),
    *(("simple_cnn", size, lanes, True) for lanes in (15, 1) for size in (512, 4096)),
    *(("resnet8", size, 1, True) for size in (512, 4096)),
    *((net, size, 1, False) for net in ("simple_cnn", "resnet8") for size in (8, 128)),
)
"""Network, batch size, lanes and whether XLA compiles."""


def _milliseconds(network: str, batch_size: int, lanes: int, xla: bool) -> float:
    """Returns the median time of a trial's step in slices of 64."""
    task = task_of(network, 10_000)
    data = DeviceData(task.dataset, strategies.build("one_device"))
    program = Program(task, data, batch_size, lanes=lanes, jit_compile=xla)
    trials = [
        Loaded(
            lane,
            program.fresh_state(models.initial_point(program.network, lane)),
            {"learning_rate": 0.001 * (lane + 1)},
        )
        for lane in range(lanes)
    ]
    program.load_lanes(trials)
    shape = _STEPS, batch_size
    rows = np.random.default_rng(0).integers(0, 10_000, shape, np.int32)
    seconds = []
    for _ in range(_CALLS + 2):
        begun = time.perf_counter()
        made = program.advance_lanes(dict.fromkeys(range(lanes), rows))
        seconds.append(time.perf_counter() - begun)
        assert all(advance.steps == _STEPS for advance in made.values())
    # The first call compiles.
    return 1e3 * statistics.median(seconds[2:]) / _STEPS / lanes


def main(_: list[str]) -> None:
    end = time.monotonic() + 60 * _MINUTES.value
    print("form,network,batch_size,lanes,xla,milliseconds_per_trial_step")
    for network, batch_size, lanes, xla in _ROWS:
        if time.monotonic() > end:
            break
        if _SMALLEST.value:
            if batch_size > 8:
                continue
            lanes = min(lanes, 3)
        found = _milliseconds(network, batch_size, lanes, xla)
        print(f"dps_tf,{network},{batch_size},{lanes},{xla},{found:.4g}", flush=True)


if __name__ == "__main__":
    app.run(main)
