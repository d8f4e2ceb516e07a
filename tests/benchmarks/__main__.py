"""Benchmarks by hand: `python -m tests.benchmarks NAME ...`.

`grid_cost` measures both networks on all devices of this machine and prints what the
whole grid of Lee et al. costs there.

Needs a machine that nobody else uses. All ratios come from one run, candidate after
candidate, round after round; the medians are printed as a table and everything is
written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

_BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["8", "64", "512"], "Batch sizes.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Rounds over all candidates.")
_SECONDS = flags.DEFINE_float("seconds", 6.0, "Length of one measurement.")
_OUT = flags.DEFINE_string("out", "benchmarks.json", "JSON file of all numbers.")
_STRATEGY = flags.DEFINE_string("strategy", "auto", "Strategy of grid_cost.")
_GRID_SECONDS = flags.DEFINE_string(
    "grid_seconds", "seconds.csv", "CSV file of the times that grid_cost measures."
)
_SLOTS = flags.DEFINE_integer(
    "slots", 0, "Trials side by side in grid_cost; 0 for one on each device."
)
_GRID_BATCH_SIZES = (2, 8, 32, 128, 512, 2048)

Rows = list[dict[str, Any]]


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints one line per quantity and one column per row."""
    for name in rows[0]:
        if isinstance(rows[0][name], dict):
            continue
        values = [row[name] for row in rows]
        text = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
        print(f"{name:26}" + "".join(f"{value:>17}" for value in text))
    print(flush=True)


def _grid_cost(batch_sizes: Sequence[int]) -> Rows:
    from dps_tf.tuning.resources import Resources, configure_threads
    from tests.benchmarks import grid_cost, machine_rate

    configure_threads()
    table = machine_rate.write_table(
        Path(_GRID_SECONDS.value),
        Resources.of_this_machine(_SLOTS.value, _STRATEGY.value),
        batch_sizes if _BATCH_SIZES.present else _GRID_BATCH_SIZES,
        repeats=_REPEATS.value,
        seconds=_SECONDS.value,
    )
    print(grid_cost.show(table))
    return table.to_dict("records")


def main(arguments: Sequence[str]) -> None:
    """Runs the benchmarks that are named."""
    batch_sizes = [int(b) for b in _BATCH_SIZES.value]
    known: dict[str, Callable[[], Rows]] = {
        "grid_cost": lambda: _grid_cost(batch_sizes),
    }
    names = arguments[1:]
    unknown = set(names) - set(known)
    if unknown:
        raise app.UsageError(f"no benchmark is named {', '.join(sorted(unknown))}.")
    found: dict[str, Rows] = {}
    for name in names:
        print(name)
        found[name] = known[name]()
        _print_table(found[name])
        Path(_OUT.value).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
