"""Data sets are built alike from a gin file and from what a record keeps of it."""

from __future__ import annotations

import json

from dps_tf.core.study import StudySpecification
from dps_tf.tuning import build
from dps_tf.workloads.reading import read_configuration


def test_a_record_gives_the_data_set_of_the_gin_file():
    bindings = ["sweep.batch_sizes = (8,)"]
    study = read_configuration(["smoke/lee2021_causes"], bindings)[0].studies[0]
    recorded = StudySpecification.from_json(json.loads(json.dumps(study.to_json())))
    arguments = recorded.workload.dataset_arguments
    assert arguments["shape"] == [28, 28, 1], "JSON knows no tuples"
    loaded = build.load_dataset(recorded.workload, None)
    assert loaded.input_shape == (28, 28, 1)
    assert build.load_dataset(study.workload, None) is loaded
