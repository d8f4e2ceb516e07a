"""An archive in the documented form of Shallue et al. 2019, made up."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from dps_tf.analysis.interchange.shallue2019 import write_archive
from dps_tf.analysis.loading import Tables, load

CONFIGS = {
    "learning_rate": {
        "type": "DOUBLE",
        "min_value": 1e-4,
        "max_value": 10.0,
        "scale": "LOG_SCALE",
    },
    "momentum": {
        "type": "DOUBLE",
        "min_value": 0.9,
        "max_value": 0.9999,
        "scale": "REVERSE_LOG_SCALE",
    },
    "learning_rate_decay_steps": {
        "type": "INTEGER",
        "min_value": 300_000,
        "max_value": 600_000,
        "scale": "",
    },
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
    folder.mkdir(parents=True)
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
    (folder / "study.json").write_text(json.dumps(study))
    for trial_id, (status, steps, errors) in enumerate(trials, start=1):
        write_trial(folder / str(trial_id), trial_id, status, steps, errors)
    return folder


def write_trial(folder, trial_id, status, steps, errors):
    folder.mkdir()
    metadata = {
        "trial_id": trial_id,
        "parameters": PARAMETERS,
        "steps": int(steps[-1]) if len(steps) else 0,
        "status": status,
        "_internal_study_name": "x",
        "_internal_trial_id": 7,
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    errors = np.asarray(errors, float)
    columns = {
        "train/cross_entropy_error": 2 * errors,
        "val/classification_error": errors,
    }
    curve = pd.DataFrame({"step": np.asarray(steps, int), **columns})
    curve.to_csv(folder / "measurements.csv", index=False, na_rep="nan")


def read_archive(root, goal) -> Tables:
    """Returns the tables of all studies together, which are written beside the root."""
    sweep = str(root.with_name(f"{root.name}_sweep"))
    write_archive(root, sweep, goal)
    return load(sweep)
