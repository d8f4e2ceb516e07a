"""Do the lines of the site turn runs of MLflow and Weights & Biases into a sweep?"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dps_tf.analysis.interchange.run_tables import read_runs
from dps_tf.analysis.interchange.sweep import write_runs
from dps_tf.analysis.loading import load
from dps_tf.core import Goal

GOAL = Goal("validation/error", 0.2)
CURVES = {0.1: [0.9, 0.6, 0.15], 0.2: [0.8, 0.7]}
"""Learning rate -> error every ten steps; the second run was killed."""


def check_tables(folder: Path) -> None:
    write_runs(read_runs(folder), folder / "sweep", GOAL)
    tables = load(folder / "sweep")
    outcomes = tables.trials.set_index("learning_rate")["outcome"].to_dict()
    assert outcomes == {0.1: "complete", 0.2: "censored"}
    row = tables.results.iloc[0]
    assert (row["steps_to_result"], row["batch_size"]) == (30, 8)


def test_runs_of_weights_and_biases(tmp_path):
    from tests.extensions.wandb_tables import write_tables

    # Stand-ins of what `wandb.Api().runs(...)` gives: the interface needs a server.
    runs = [
        SimpleNamespace(
            config={"batch_size": 8, "learning_rate": rate, "arch": "mlp"},
            state="finished" if len(errors) == 3 else "crashed",
            scan_history=lambda keys, errors=errors: [
                dict(zip(keys, (10 * n, error), strict=True))
                for n, error in enumerate(errors, start=1)
            ],
        )
        for rate, errors in CURVES.items()
    ]
    write_tables(runs, tmp_path)
    check_tables(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_of_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    from tests.extensions.mlflow_tables import write_tables

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("mine")
    for rate, errors in CURVES.items():
        run = mlflow.start_run()
        mlflow.log_params({"batch_size": 8, "learning_rate": rate, "arch": "mlp"})
        for n, error in enumerate(errors, start=1):
            mlflow.log_metric("val_error", error, step=10 * n)
        mlflow.end_run("FINISHED" if len(errors) == 3 else "KILLED")
        assert run.info.run_id
    write_tables("mine", tmp_path)
    check_tables(tmp_path)
