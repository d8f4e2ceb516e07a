"""Small tables of a study for tests."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pandas as pd

CELL = {
    "workload": "mnist",
    "optimizer": "sgd",
    "sparsity_method": "none",
    "seed": 0,
    "batch_size": 64,
    "sparsity": 0.0,
}


def study(**changes: Any) -> dict[str, Any]:
    return {
        **CELL,
        "precision": "float32",
        "goal": "validation/classification_error <= 0.02",
        "goal_metric": "validation/classification_error",
        "goal_threshold": 0.02,
        "goal_direction": "minimize",
        "goal_inclusive": True,
        "goal_in_a_row": 1,
        "goal_mean_of": 1,
        "step_budget": 1000,
        "points": 3,
        "count": "all",
        "finishers": 1,
        "search_mode": "race",
        "training_examples": 54000,
        "evaluation_interval": 100,
        "evaluation_examples": 6000,
        "space": '{"learning_rate":["log",0.0001,1.0]}',
        "closed": True,
        "prunable": "none",
        "draws_exhausted": False,
        "oracle": "quasi_random",
        **changes,
    }


def trials(**changes: Any) -> pd.DataFrame:
    rows = [
        {
            **CELL,
            "trial": trial,
            "outcome": outcome,
            "steps_to_result": reached,
            "bracket_low": None if reached is None else reached - 100,
            "end_step": 700,
            "diverged_step": None,
            "error": error,
            "initial_seed": 2**63 - 1 - trial,
            "order_seed": trial,
            "realised_sparsity": 0.0,
            "layers": "[]",
            "learning_rate": 0.1 / (trial + 1),
            **changes,
        }
        for trial, outcome, reached, error in (
            (0, "complete", 700, None),
            (1, "censored", None, None),
            (2, "failed", None, 'out of "memory",\nreally'),
        )
    ]
    return pd.DataFrame(rows)


def curves(**changes: Any) -> pd.DataFrame:
    rows = [
        {
            **CELL,
            "trial": trial,
            "step": step,
            "is_bound": step > 600,
            "validation/cross_entropy": float("nan") if trial == 2 else 1.0 / step,
            "validation/classification_error": 0.1 + trial / step,
            "train/loss": 2.5,
            **changes,
        }
        for trial in range(3)
        for step in range(100, 800, 100)
    ]
    return pd.DataFrame(rows)


def work(**changes: Any) -> pd.DataFrame:
    rows = [
        {**CELL, "trial": trial, "quantity": quantity, "value": 1.5, **changes}
        for trial, quantity in ((0, "steps"), (1, "steps"), (None, "work_ratio"))
    ]
    return pd.DataFrame(rows)


def without_format(content: Any) -> bytes:
    """Returns a record as it was written before formats had numbers."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    record = {"content": content, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return f"{json.dumps(record, sort_keys=True, indent=2)}\n".encode()


def measurements(**changes: Any) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                **CELL,
                "trial": 0,
                "step": 100,
                "quantity": "smoothness",
                "value": 3.25,
                "examples": 1000,
                **changes,
            }
        ]
    )
