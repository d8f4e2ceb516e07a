"""Rows of the tables of a study, and the five tables of a study of three trials."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dps_tf.core import Goal, TrialResult
from dps_tf.store import goal_columns

ERROR = "validation/classification_error"
CELL = {
    "workload": "mnist",
    "optimizer": "sgd",
    "sparsity_method": "none",
    "seed": 0,
    "batch_size": 64,
    "sparsity": 0.0,
}


def study(goal: Goal = Goal(ERROR, 0.02), **changes: Any) -> dict[str, Any]:  # noqa: B008
    """Returns a row of the table of studies."""
    return {
        **CELL,
        "precision": "float32",
        **goal_columns(goal),
        "step_budget": 1000,
        "points": 3,
        "count": "all",
        "finishers": 1,
        "search_mode": "race",
        "training_examples": 54_000,
        "evaluation_interval": 100,
        "evaluation_examples": 6000,
        "space": '{"learning_rate":["log",0.0001,1.0]}',
        "closed": True,
        "prunable": "none",
        "draws_exhausted": False,
        "oracle": "quasi_random",
        **changes,
    }


def trial(
    cell: Mapping[str, Any], number: int, ended: TrialResult, **changes: Any
) -> dict[str, Any]:
    """Returns a row of the table of trials."""
    return {
        **cell,
        "trial": number,
        **vars(ended),
        "initial_seed": number,
        "order_seed": number,
        "realised_sparsity": cell["sparsity"],
        "layers": "[]",
        **changes,
    }


def typed(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Returns a table of trials whose steps are whole numbers or missing."""
    names = ("steps_to_result", "bracket_low", "diverged_step")
    return pd.DataFrame(rows).astype(dict.fromkeys(names, "Int64"))


def trials(**changes: Any) -> pd.DataFrame:
    ends = (
        TrialResult("complete", 700, 700, 600),
        TrialResult("censored", 700),
        TrialResult("failed", 700, error='out of "memory",\nreally'),
    )
    rows = []
    for number, ended in enumerate(ends):
        drawn = {
            "initial_seed": 2**63 - 1 - number,
            "learning_rate": 0.1 / (number + 1),
        }
        rows.append(trial(CELL, number, ended, **{**drawn, **changes}))
    return pd.DataFrame(rows)


def curves(**changes: Any) -> pd.DataFrame:
    rows = [
        {
            **CELL,
            "trial": number,
            "step": step,
            "is_bound": step > 600,
            "validation/cross_entropy": float("nan") if number == 2 else 1.0 / step,
            ERROR: 0.1 + number / step,
            "train/loss": 2.5,
            **changes,
        }
        for number in range(3)
        for step in range(100, 800, 100)
    ]
    return pd.DataFrame(rows)


def work(**changes: Any) -> pd.DataFrame:
    rows = [
        {**CELL, "trial": number, "quantity": quantity, "value": 1.5, **changes}
        for number, quantity in ((0, "steps"), (1, "steps"), (None, "work_ratio"))
    ]
    return pd.DataFrame(rows)


def measurements(**changes: Any) -> pd.DataFrame:
    row = {"trial": 0, "step": 100, "quantity": "smoothness", "value": 3.25}
    return pd.DataFrame([{**CELL, **row, "examples": 1000, **changes}])


def closing(**changes: Any) -> dict[str, Any]:
    """Returns what `close_study` takes, each with the changes."""
    return {
        "study": study(**changes),
        "trials": trials(**changes),
        "curves": curves(**changes),
        "work": work(**changes),
    }


def without_format(content: Any) -> bytes:
    """Returns a record as it was written before formats had numbers."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    record = {"content": content, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return f"{json.dumps(record, sort_keys=True, indent=2)}\n".encode()
