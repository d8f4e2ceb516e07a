"""Writes the runs of an MLflow experiment as the two tables of `import_runs`."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pandas as pd

METRIC, METAPARAMETERS = "val_error", ["batch_size", "learning_rate"]


def write_tables(experiment: str, folder: Path) -> None:
    trials, evaluations = [], []
    runs = mlflow.search_runs(experiment_names=[experiment], output_format="list")
    for trial, run in enumerate(runs):
        values = {name: run.data.params[name] for name in METAPARAMETERS}
        status = "COMPLETE" if run.info.status == "FINISHED" else "INCOMPLETE"
        trials.append({"trial": trial, "status": status, **values})
        for row in mlflow.MlflowClient().get_metric_history(run.info.run_id, METRIC):
            evaluations.append((trial, row.step, row.value))
    table = pd.DataFrame(trials).assign(workload=experiment, optimizer="sgd")
    table.to_csv(folder / "trials.csv", index=False)
    columns = ["trial", "step", "validation/error"]
    table = pd.DataFrame(evaluations, columns=columns)
    table.to_csv(folder / "evaluations.csv", index=False)
