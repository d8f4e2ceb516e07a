"""Seconds of a step by strategy, batch size and devices: the table of cost analysis.

`python -m dps_tf.recommend --step_times=FILE` reads what this writes. One trial whose
batch is shared by the devices; nothing else runs beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import tensorflow as tf

from dps_tf import models
from dps_tf.core import UserError, examples_at
from dps_tf.training import DeviceData, Program
from dps_tf.training import strategy as strategies
from tests.benchmarks import engine, problem


def step_seconds(
    strategy: tf.distribute.Strategy, batch_size: int, repeats: int, seconds: float
) -> float:
    """Returns the median over repeats of the time of a step, the transfer of its order
    of examples included."""
    data = engine.dataset()
    program = Program(engine.task(data), DeviceData(data, strategy), batch_size)
    initial = models.initial_point(program.network, 0)
    program.load(program.fresh_state(initial), {"learning_rate": problem.LEARNING_RATE})

    def timed(steps: int) -> float:
        rows = examples_at(0, steps, 0, problem.TRAIN_EXAMPLES, batch_size)
        begun = problem.now()
        program.advance(rows)
        return (problem.now() - begun) / steps

    timed(2)
    steps = max(2, int(seconds / timed(4)))
    return statistics.median(timed(steps) for _ in range(repeats))


def write_table(
    path: Path,
    strategy: str,
    batch_sizes: Sequence[int],
    *,
    devices: Sequence[str] = (),
    price_per_device_hour: float | None = None,
    repeats: int = 3,
    seconds: float = 5.0,
) -> list[dict[str, float | str]]:
    """Returns and writes one row per batch size that the devices can share."""
    built = strategies.build(strategy, devices=tuple(devices))
    replicas = built.num_replicas_in_sync
    rows: list[dict[str, float | str]] = []
    for batch_size in batch_sizes:
        try:
            strategies.check_batch_size(batch_size, built)
        except UserError as error:
            print(f"left out: {error}")
            continue
        rows.append(
            {
                "strategy": strategy,
                "batch_size": batch_size,
                "devices": replicas,
                "seconds": step_seconds(built, batch_size, repeats, seconds),
            }
        )
    table = pd.DataFrame(rows)
    if price_per_device_hour is not None:
        table["price"] = price_per_device_hour * table["devices"]
    table.to_csv(path, index=False)
    return rows
