"""The predicted cost of a sweep, replayed on recorded ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.plan import predicted_steps
from dps_tf.core import Cell
from tests.packaging.source_tree import SOURCE_TREE

RECORDED = (
    "lee2021/rivals",
    "lee2021/mnist_repeats",
    "optimizers/fashion_mnist_fc",
    "optimizers/text_transformer",
    "parallelism/delay",
    "parallelism/local_sgd",
    "shallue2019/mnist_fc_ghosts",
    "shallue2019/mnist_fc_sizes",
    "shallue2019/mnist_optimizers",
    "shallue2019/mnist_subsets",
    "shallue2019/text_networks",
)
IDENTITY = ["curve", "workload", "optimizer", "sparsity_method", "sparsity"]


def recorded_work(name: str) -> pd.DataFrame:
    """Returns curve, batch_size, trials and steps of each raced cell.

    A race followed its censored trials to the last finisher, which the committed tables
    name; those that diverged had done a part of that.
    """
    trials = pd.read_csv(SOURCE_TREE / "gin_configs" / f"{name}_trials.csv")
    if "repeat" in trials.columns:
        trials = trials[trials["repeat"].isna()]
    axes = [column for column in trials.columns if "." in column]
    keys = [column for column in [*IDENTITY, *axes] if column in trials.columns]
    texts = trials[keys].astype(str).agg("|".join, axis=1)
    seeds = trials["seed"].astype(str) if "seed" in trials else "0"
    trials = trials.assign(curve=texts, of_seed=seeds)
    cell = ["curve", "of_seed", "batch_size"]
    last = trials.groupby(cell)["steps_to_result"].transform("max")
    share = np.where(trials["outcome"] == "infeasible", 0.3, 1.0)
    trials = trials.assign(end=trials["steps_to_result"].fillna(last * share))
    trials = trials[last.notna()]
    found = trials.groupby(cell)["end"].agg(trials="size", steps="sum").reset_index()
    return found[found["trials"] > 1].reset_index(drop=True)


def replayed(name: str, rng: np.random.Generator) -> list[bool]:
    """Returns whether 80 % intervals hold the true work, over some replays."""
    cells = recorded_work(name)
    held: list[bool] = []
    for _ in range(5):
        # Cheap cells come first, more or less; some of them are done.
        cost = cells["steps"] / cells["trials"] * np.sqrt(cells["batch_size"])
        order = np.argsort(cost.to_numpy() * np.exp(rng.normal(0, 0.7, len(cells))))
        number = int(rng.integers(1, len(cells) - 2))
        done, waiting = cells.iloc[order[:number]], cells.iloc[order[number:]]
        low, high = np.quantile(predicted_steps(done, waiting), [0.1, 0.9], axis=0)
        truth = (waiting["steps"] / waiting["trials"]).to_numpy()
        held += list((low <= truth) & (truth <= high))
    return held


def test_intervals_hold_what_they_say_on_recorded_sweeps():
    rng = np.random.default_rng(0)
    held = [hit for name in RECORDED for hit in replayed(name, rng)]
    assert len(held) > 400
    assert 0.7 <= np.mean(held) <= 0.9


CURVES = ("a", 0), ("a", 1), ("b", 0)
"""Workload and seed of cells."""


def test_curves_that_differ_in_their_seed_alone_follow_one_law():
    sizes = 2.0 ** np.arange(3, 12)
    cells = [Cell(name, "sgd", "none", seed, 64, 0.0) for name, seed in CURVES]
    done = pd.DataFrame(
        {"batch_size": sizes, "trials": 1, "steps": 40_000 / sizes + 80}
    )
    done["curve"] = [cells[0].curve] * len(sizes)
    waiting = pd.DataFrame({"curve": [c.curve for c in cells], "batch_size": 64.0})
    draws = np.log2(predicted_steps(done, waiting))
    own, further, other = np.ptp(np.quantile(draws, [0.1, 0.9], axis=0), axis=0)
    assert further < 1.2 * own < 0.6 * other


def test_a_curve_of_the_law_is_followed_to_its_other_end():
    sizes = 2.0 ** np.arange(3, 12)
    steps = 40_000 / sizes + 80
    cells = pd.DataFrame({"curve": "a", "batch_size": sizes, "trials": 10})
    cells["steps"] = 10 * steps
    draws = predicted_steps(cells.iloc[:7], cells.iloc[7:])
    assert np.median(draws, axis=0) == pytest.approx(steps[7:], rel=0.1)


def test_curves_teach_each_other():
    """One cell of a second curve suffices where the first one is known."""
    sizes = 2.0 ** np.arange(3, 12)
    first = pd.DataFrame({"curve": "a", "batch_size": sizes, "trials": 10})
    first["steps"] = 10 * (40_000 / sizes + 80)
    second = first.assign(curve="b", steps=4 * first["steps"])
    both = predicted_steps(pd.concat([first, second.iloc[[0]]]), second.iloc[[8]])
    alone = predicted_steps(second.iloc[[0]], second.iloc[[8]])
    low, high = np.quantile(both, [0.1, 0.9])
    assert low <= second["steps"].iloc[8] / 10 <= high
    width = np.log2(high / low)
    assert width < 0.7 * np.log2(np.divide(*np.quantile(alone, [0.9, 0.1])))


def test_sums_over_cells_know_that_their_errors_go_together():
    cells = pd.DataFrame({"curve": "a", "batch_size": [8.0], "trials": 10})
    done = cells.assign(steps=10_000.0)
    waiting = pd.DataFrame({"curve": "a", "batch_size": [256.0, 512.0, 1024.0]})
    logs = np.log2(predicted_steps(done, waiting))
    assert np.corrcoef(logs.T)[0, 2] > 0.5
