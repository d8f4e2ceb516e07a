"""Makes the tables and figures of the atlas from its facts.

    python gin_configs/atlas/atlas.py

reads `facts.csv` (what the runs of each benchmark counted), `benchmarks.csv` (what that
unit is) and the digitized curves of Shallue et al. 2019, and writes `steps.csv` (the
input of `python -m dps_tf.fit --csv`), `fits.csv`, `comparisons.csv`, `same_lists.csv`,
`collapsed.png` and `critical.png`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

import dps_tf

HERE = Path(__file__).parent
SHALLUE = HERE.parent / "shallue2019" / "published.csv"
LEFT_OUT = {
    "openfold": "two batch sizes",
    "qwen35_397b_grpo": "every run met the target at its first evaluation",
}
"""Benchmarks without a curve, with the reason."""
ALIASES = {"gnn": "rgat"}
"""Names of one benchmark; `ssd` from 2.0 on is `retinanet` too."""
ROUNDS = {
    "RNN-T": ("1.1", "3.1"),
    "Stable Diffusion 2": ("4.1", "5.0"),
    "FLUX.1": ("5.1", "6.1"),
    "Llama 3.1 405B": ("5.0", "6.0"),
    "ResNet-50": ("1.0", "4.0"),
    "BERT-large": ("1.1", "5.1"),
}
"""Benchmarks whose owners trained anew between two rounds, at one target."""
OPTIMIZERS = {
    "RetinaNet": "SSD ResNet-34",
    "DLRM DCNv2": "DLRM",
    "ResNet-8 CIFAR-10 nesterov": "ResNet-8 CIFAR-10 sgd",
}
MODELS = {"Llama 3.1 405B": "Llama 3.1 8B"}
MARGIN, EXPONENT_MARGIN, LEVEL = 1.25, 0.1, 0.95
DIGITIZED = 0.07
"""Octaves: 5 %, the error of reading a figure."""


def facts() -> pd.DataFrame:
    """Returns the facts, with the row of `benchmarks.csv` that holds for each."""
    found = pd.read_csv(HERE / "facts.csv", dtype={"first_round": str, "last_round": str})
    units = pd.read_csv(HERE / "benchmarks.csv", dtype=str)
    ends = units["rounds"].str.split("-", expand=True).astype(float)
    units = units.assign(unit_from=ends[0], unit_to=ends[1])
    both = found.merge(units, on="benchmark")
    last = both["last_round"].astype(float)
    both = both[(both["unit_from"] <= last) & (last <= both["unit_to"])]
    assert len(both) == len(found), "each fact has one unit"
    return both.reset_index(drop=True)


def examples_of(row: pd.Series) -> tuple[np.ndarray, float]:
    """Returns the examples of each run of a fact, and those between evaluations."""
    size, unit = row["batch_size"], row["examples_per_unit"]
    if unit == "batch":
        each = size
    elif unit == "padded 168":
        each = math.ceil(168 / size) * size
    else:
        each = float(unit)
    counted = np.array(row["runs"].split(), float) - float(row["offset"])
    return counted * each, row["evaluation_interval"] * each


def same_lists(found: pd.DataFrame) -> pd.DataFrame:
    """Returns lists of runs that stand under two names, or twice with another point.

    Lists in which all runs are equal say nothing, and are left out.
    """
    rows = []
    told = found[found["runs"].map(lambda text: len(set(text.split())) > 2)]
    for _, same in told.groupby(["runs"], sort=False):
        names = same["benchmark"].unique()
        if len(same) > 1:
            rounds = same["first_round"] + " to " + same["last_round"]
            sizes = "; ".join(map(str, same["batch_size"].unique()))
            kinds = same["hyperparameters"].nunique()
            entries = "; ".join(same["benchmark"] + " " + rounds)
            rows.append((", ".join(names), sizes, entries, len(names), kinds))
    names = ["benchmarks", "batch_sizes", "entries", "names", "points"]
    return pd.DataFrame(rows, columns=names)


def steps() -> pd.DataFrame:
    """Returns every run of every curve: the input of `dps_tf.fit`.

    Of each benchmark there is the curve of the latest of those rounds with the most
    batch sizes, by the name of its label, and those of ROUNDS, as `label round`.
    """
    found = facts()
    found = found[~found["benchmark"].isin(LEFT_OUT)]
    curves = []
    for label, rows in found.groupby("label", sort=False):
        rounds = sorted({*rows["first_round"], *rows["last_round"]}, key=float)
        standing = {r: _standing(rows, float(r)) for r in rounds}
        most = max(map(len, standing.values()))
        latest = [r for r in rounds if len(standing[r]) == most][-1]
        curves.append((label, standing[latest]))
        others = [r for r in ROUNDS.get(label, ()) if r != latest]
        curves += [(f"{label} {r}", standing[r]) for r in others]
    runs = []
    for name, rows in curves:
        for _, row in rows.sort_values("batch_size").iterrows():
            examples, interval = examples_of(row)
            per_step = row["batch_size"]
            runs.append(
                pd.DataFrame(
                    {
                        "curve": name,
                        "unit": "examples",
                        "batch_size": per_step,
                        "run": range(1, len(examples) + 1),
                        "steps_to_result": np.round(examples / per_step, 3),
                        "bracket_low": np.round((examples - interval) / per_step, 3),
                        "noise": "",
                    }
                )
            )
    return pd.concat([*runs, _digitized()], ignore_index=True)


def _standing(rows: pd.DataFrame, at: float) -> pd.DataFrame:
    """Returns the facts that stand in a round, one a batch size."""
    first, last = rows["first_round"].astype(float), rows["last_round"].astype(float)
    return rows[(first <= at) & (at <= last)].drop_duplicates("batch_size", keep="last")


def _digitized() -> pd.DataFrame:
    table = pd.read_csv(SHALLUE)
    return table.assign(unit="examples", run=1, bracket_low="", noise=DIGITIZED)[
        "curve unit batch_size run steps_to_result bracket_low noise".split()
    ]
