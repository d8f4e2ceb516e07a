"""A record names the data set of the gin file."""

from __future__ import annotations

import json

from dps_tf import data
from dps_tf.core import StudySpecification
from dps_tf.workloads.reading import read_configuration


def test_a_record_gives_the_data_set_of_the_gin_file():
    sweep, _ = read_configuration(["smoke/lee2021_causes_fashion_mnist"], [])
    study = sweep.studies[0]
    recorded = StudySpecification.from_json(json.loads(json.dumps(study.to_json())))
    arguments = recorded.workload.dataset_arguments
    assert arguments["shape"] == [28, 28, 1], "JSON knows no tuples"
    loaded = data.load_for(recorded.workload, None)
    assert loaded.input_shape == (28, 28, 1)
    assert data.load_for(study.workload, None) is loaded
