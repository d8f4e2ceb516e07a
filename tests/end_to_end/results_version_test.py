"""Do the numbers still mean what they meant when RESULTS_VERSION was given?

The counts are of the version beside them. If this test fails because numbers have
really changed, existing studies must not be continued: raise RESULTS_VERSION and put
the new counts here. A processor with other instructions may differ in the last bit of a
weight, which a count of wrong examples notices only if a prediction was a draw.
"""

from __future__ import annotations

import pytest

from dps_tf.core import (
    RESULTS_VERSION,
    Cell,
    EvaluationInterval,
    Goal,
    Job,
    Space,
    StudySpecification,
    Workload,
)
from dps_tf.data import Dataset, load_for
from dps_tf.sparsity import Pruner
from dps_tf.store import LocalFiles
from dps_tf.training import TrainingRunner
from dps_tf.tuning.resources import Resources

ERROR = "validation/classification_error"
WORKLOAD = Workload(
    name="digits_mlp",
    dataset="digits",
    network="mlp",
    optimizer="momentum",
    goal=Goal(ERROR, 0.0),
    space=Space.from_dict({"learning_rate": ("log", 1e-2, 1.0)}),
    points=2,
    step_budget=60,
    evaluation_interval=EvaluationInterval(steps=20),
    fixed={"momentum": 0.9, "label_smoothing": 0.1},
    network_arguments={"widths": (16,)},
)
WRONG = {
    (2, 0.0): [[103, 27, 20], [132, 106, 56]],
    (2, 0.5): [[110, 58, 55], [131, 104, 66]],
}
"""By version and sparsity: for each trial, wrong of 297 at steps 20, 40 and 60."""


def wrong_counts(sparsity: float, folder: str) -> list[list[int]]:
    """Returns the wrong examples of each trial at each evaluation."""
    method = "snip" if sparsity else "none"
    cell = Cell("digits_mlp", "momentum", method, 0, 32, sparsity)
    study = StudySpecification(cell, WORKLOAD)
    dataset = load_for(WORKLOAD, None)
    prune = Pruner(study, dataset, folder, LocalFiles()) if sparsity else None
    programs = Resources.of_this_machine(1).programs(study, dataset)
    runner = TrainingRunner(programs, 0, "per_trial", prune)
    return [_curve(runner, study, dataset, trial) for trial in range(2)]


def _curve(
    runner: TrainingRunner, study: StudySpecification, dataset: Dataset, trial: int
) -> list[int]:
    point = WORKLOAD.draw(0, 2)[trial]
    state, counts = None, []
    for until in study.evaluations.steps_up_to(WORKLOAD.step_budget):
        (report,) = runner.run(0, [Job(trial, point, state, until)], lambda: False)
        state = report.state
        assert report.metrics is not None
        counts.append(round(report.metrics[ERROR] * len(dataset.validation)))
    return counts


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_error_counts_are_those_of_the_results_version(sparsity, tmp_path):
    found = wrong_counts(sparsity, str(tmp_path))
    assert found == WRONG[RESULTS_VERSION, sparsity]
