"""An archive in the documented form of Shallue et al. 2019, made up."""

from __future__ import annotations

import json

import pandas as pd

LOG = {"min_value": 1e-4, "max_value": 10.0, "scale": "LOG_SCALE"}
REVERSE = {"min_value": 0.9, "max_value": 0.9999, "scale": "REVERSE_LOG_SCALE"}
STEPS = {"min_value": 300_000, "max_value": 600_000}
CONFIGS = {
    "learning_rate": {"type": "DOUBLE", **LOG},
    "momentum": {"type": "DOUBLE", **REVERSE},
    "learning_rate_decay_steps": {"type": "INTEGER", **STEPS},
    "label_smoothing": {"type": "DISCRETE", "feasible_points": [0, 0.01, 0.1]},
}
PARAMETERS = dict(zip(CONFIGS, (0.1, 0.99, 400_000, 0.01), strict=True))


def write_study(root, dataset, model, optimizer, batch_size, trials, **fields):
    """Writes one study; `trials` is a list of (status, steps, errors)."""
    folder = root / dataset / model / optimizer / str(batch_size)
    for number, (status, steps, errors) in enumerate(trials, start=1):
        place = folder / str(number)
        place.mkdir(parents=True)
        trial = {"trial_id": number, "parameters": PARAMETERS, "status": status}
        trial["steps"] = int(max(steps, default=0))
        (place / "metadata.json").write_text(json.dumps(trial))
        curve = pd.DataFrame({"step": steps, "val/classification_error": errors})
        curve.to_csv(place / "measurements.csv", index=False, na_rep="nan")
    study = {"dataset": dataset, "model": model, "optimizer": optimizer}
    study |= {"batch_size": batch_size, "parameter_configs": CONFIGS}
    study |= {"train_steps": 3000, **fields}
    (folder / "study.json").write_text(json.dumps(study))
    return folder
