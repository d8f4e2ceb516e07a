"""How far the scores of a trial are is told while they are computed."""

from __future__ import annotations

import pytest

from dps_tf import data, models, sparsity
from dps_tf.core import Cell, Pruning, StudySpecification
from dps_tf.store import LocalFiles
from dps_tf.workloads.reading import read_configuration


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("snip", "trial 2 is pruned by snip, 1 of 1 batches"),
        ("iterative_snip", "trial 2 is pruned by iterative_snip, 1 of 7 rounds"),
    ],
)
def test_batches_and_rounds_are_told_until_they_are_cached(method, first, tmp_path):
    sweep, _ = read_configuration(["smoke/lee2021_mnist_reproduction"], [])
    workload = sweep.studies[0].workload
    cell = Cell(workload.name, workload.optimizer, method, 0, 8, 0.9)
    study = StudySpecification(cell, workload, pruning=Pruning("kernels", arguments={}))
    dataset = data.load_for(workload, None)
    network = models.build_for(workload, dataset.input_shape, dataset.classes)
    initial = models.initial_point(network, 5)
    heard: list[str] = []
    folder = str(tmp_path)
    prune = sparsity.Pruner(study, dataset, folder, LocalFiles(), heard.append)
    prune(2, initial)
    assert heard[0] == first
    number = len(heard)
    prune(2, initial)
    assert len(heard) == number
