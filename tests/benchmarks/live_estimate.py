"""Does the estimate of a running sweep hold its end, replayed on recorded sweeps?

`python -m tests.benchmarks.live_estimate [KNEE]` replays the quickstart and five
shipped sweeps: cells finish in the order in which a sweep takes them, and a step takes
1 + B/KNEE units (20 by default, as on a CPU). At a third, a half and two thirds of the
whole time it prints the 80 % interval of the end over the true end, and how wide the
time left is. Nothing is trained.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

from dps_tf.analysis import plan
from tests.packaging.source_tree import SOURCE_TREE

SWEEPS = (
    "lee2021/mnist_curves",
    "lee2021/fashion_mnist_curves",
    "lee2021/proportional",
    "optimizers/text_transformer",
    "optimizers/fashion_mnist_fc",
)
QUICKSTART = {4: 32112, 8: 13920, 16: 8556, 32: 4994, 64: 3442, 128: 2921}
QUICKSTART |= {256: 2626, 512: 2416, 1024: 2324}
"""Steps of all 96 trials of a cell, by batch size."""
_OF_ROW = ["trial", "step", "is_bound"]


def work_of(name):
    """Returns the cells of a recorded sweep: curve, batch_size, trials, steps."""
    path = SOURCE_TREE / "gin_configs" / f"{name}_evaluations.csv.gz"
    table = pd.read_csv(path)
    key = [c for c in table if c not in _OF_ROW and "/" not in c]
    last = table.groupby([*key, "trial"], dropna=False)["step"].max()
    cells = last.groupby(key, dropna=False).agg(steps="sum", trials="count")
    cells = cells.reset_index()
    of_curve = cells[[c for c in key if c not in ("batch_size", "seed")]].astype(str)
    return cells.assign(curve=of_curve.agg("-".join, axis=1))


def in_order(cells):
    """Returns cells in the order in which a sweep runs them."""
    cells = cells.sort_values("batch_size", kind="stable").reset_index(drop=True)
    order, left = [0], list(range(1, len(cells)))
    while left:
        waiting = cells.loc[left]
        steps = np.median(plan.predicted_steps(cells.loc[order], waiting), axis=0)
        examples = steps * waiting["batch_size"] * waiting["trials"]
        order.append(int(examples.idxmin()))
        left.remove(order[-1])
    return cells.loc[order].reset_index(drop=True)


def estimate(cells, share, knee):
    """Returns low and high of the end over the true one, and the width of what is left.

    None before a cell is finished.
    """
    cells = cells.assign(seconds=cells["steps"] * (1 + cells["batch_size"] / knee))
    ends = cells["seconds"].cumsum().to_numpy()
    now = share * ends[-1]
    done = int((ends <= now).sum())
    if not done:
        return None
    _, seconds = plan.forecast(cells[:done], cells[done:])
    _, low, high = plan.interval_of(seconds.sum(axis=1))
    low, high = (max(end, now - ends[done - 1]) for end in (low, high))
    end = ends[done - 1] + np.array([low, high])
    left = np.maximum(end - now, 1e-9)
    return end[0] / ends[-1], end[1] / ends[-1], left[1] / left[0]


def main():
    knee = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    quickstart = pd.Series(QUICKSTART, name="steps").rename_axis("batch_size")
    sweeps = {"quickstart": quickstart.reset_index().assign(curve="q", trials=96)}
    sweeps |= {name: work_of(name) for name in SWEEPS}
    print("| sweep | a third | a half | two thirds |\n| --- | --- | --- | --- |")
    held = 0
    for name, cells in sweeps.items():
        ordered, texts = in_order(cells), []
        for share in (1 / 3, 1 / 2, 2 / 3):
            found = estimate(ordered, share, knee)
            held += found is not None and found[0] <= 1 <= found[1]
            texts.append(
                "none yet"
                if found is None
                else f"{found[0]:.2f} to {found[1]:.2f}, left within {found[2]:.1f}"
            )
        print(f"| {name} | {' | '.join(texts)} |", flush=True)
    print(f"{held} of {3 * len(sweeps)} hold the end")


if __name__ == "__main__":
    main()
