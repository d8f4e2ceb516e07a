"""An archive in the documented form of Shallue et al. 2019, made up."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd


def _range(kind: str, low: float, high: float, scale: str) -> dict[str, Any]:
    return {"type": kind, "min_value": low, "max_value": high, "scale": scale}


CONFIGS = {
    "learning_rate": _range("DOUBLE", 1e-4, 10.0, "LOG_SCALE"),
    "momentum": _range("DOUBLE", 0.9, 0.9999, "REVERSE_LOG_SCALE"),
    "learning_rate_decay_steps": _range("INTEGER", 300_000, 600_000, ""),
    "label_smoothing": {"type": "DISCRETE", "feasible_points": [0, 0.01, 0.1]},
}
PARAMETERS = {
    "learning_rate": 0.1,
    "momentum": 0.99,
    "learning_rate_decay_steps": 400_000,
    "label_smoothing": 0.01,
}


def write_study(root, dataset, model, optimizer, batch_size, trials, **fields):
    """Writes one study; `trials` is a list of (status, steps, errors)."""
    folder = root / dataset / model / optimizer / str(batch_size)
    study = {
        "batch_size": batch_size,
        "dataset": dataset,
        "model": model,
        "optimizer": optimizer,
        "early_stopping": False,
        "parameter_configs": CONFIGS,
        "train_steps": 3000,
        **fields,
    }
    for trial_id, (status, steps, errors) in enumerate(trials, start=1):
        place = folder / str(trial_id)
        place.mkdir(parents=True)
        metadata = {
            "trial_id": trial_id,
            "parameters": PARAMETERS,
            "steps": int(steps[-1]) if len(steps) else 0,
            "status": status,
            "_internal_study_name": "x",
        }
        (place / "metadata.json").write_text(json.dumps(metadata))
        errors = np.asarray(errors, float)
        metrics = {"train/cross_entropy_error": 2 * errors}
        metrics["val/classification_error"] = errors
        curve = pd.DataFrame({"step": np.asarray(steps, int), **metrics})
        curve.to_csv(place / "measurements.csv", index=False, na_rep="nan")
    (folder / "study.json").write_text(json.dumps(study))
    return folder
