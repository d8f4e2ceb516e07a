"""What is built of a workload's names: data sets, and pruned initial points."""

from __future__ import annotations

import json
import tempfile

from absl.testing import absltest, parameterized

from dps_tf.core import Cell, Pruning, StudySpecification
from dps_tf.models import initial_point
from dps_tf.store import LocalFiles
from dps_tf.tuning import build
from dps_tf.workloads.reading import read_configuration


def test_a_record_gives_the_data_set_of_the_gin_file():
    sweep, _ = read_configuration(["smoke/lee2021_causes_fashion_mnist"], [])
    study = sweep.studies[0]
    recorded = StudySpecification.from_json(json.loads(json.dumps(study.to_json())))
    arguments = recorded.workload.dataset_arguments
    assert arguments["shape"] == [28, 28, 1], "JSON knows no tuples"
    loaded = build.load_dataset(recorded.workload, None)
    assert loaded.input_shape == (28, 28, 1)
    assert build.load_dataset(study.workload, None) is loaded


class PrunerProgressTest(parameterized.TestCase):
    @parameterized.parameters(
        ("snip", "trial 2 is pruned by snip, 1 of 1 batches"),
        ("iterative_snip", "trial 2 is pruned by iterative_snip, 1 of 7 rounds"),
    )
    def test_batches_and_rounds_are_told_until_they_are_cached(self, method, first):
        sweep, _ = read_configuration(["smoke/lee2021_mnist_reproduction"], [])
        workload = sweep.studies[0].workload
        cell = Cell(workload.name, workload.optimizer, method, 0, 8, 0.9)
        study = StudySpecification(
            cell, workload, pruning=Pruning("kernels", arguments={})
        )
        dataset = build.load_dataset(workload, None)
        initial = initial_point(build.scratch_network(workload, dataset), 5)
        heard: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            prune = build.Pruner(study, dataset, folder, LocalFiles(), heard.append)
            prune(2, initial)
            self.assertEqual(heard[0], first)
            number = len(heard)
            prune(2, initial)
            self.assertLen(heard, number)


if __name__ == "__main__":
    absltest.main()
