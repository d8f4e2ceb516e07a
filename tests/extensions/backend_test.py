"""A backend of one's own is registered at one place, for every engine."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

import dps_tf
from dps_tf.cli.command_line import import_modules
from dps_tf.core import Job
from dps_tf.store import LocalFiles
from dps_tf.tuning.backends import Backends
from dps_tf.tuning.calibration import calibrate
from dps_tf.tuning.cluster_slots import RemoteSlot
from dps_tf.tuning.options import Options

MODULE = "tests.extensions.formula_backend"
FILE = Path(__file__).parent / "formula_backend.gin"


@pytest.fixture(name="sweep")
def _sweep():
    import_modules([MODULE])
    return dps_tf.sweep(str(FILE))


def test_a_formula_is_raced_and_its_k_star_is_that_of_the_formula(sweep, tmp_path):
    tables = dps_tf.run(sweep, tmp_path)
    rate = tables.trials["rate"].max()
    # 1 / (1 + rate K) <= 0.2 from step 4 / rate on; evaluations are 5 steps apart.
    assert tables.best["steps_to_result"].tolist() == [5 * math.ceil(4 / rate / 5)]


def test_a_slot_of_a_cluster_imports_it(sweep):
    study = sweep.specification.studies[0]
    options = Options("unused", imports=(MODULE,))
    slot = RemoteSlot(dataclasses.asdict(options))
    environment, *_ = slot.open(study.to_json())
    assert environment == {"formula": "1"}
    (report,) = slot.run(study.cell.name, [Job(0, {"rate": 0.5}, None, 10)], None)
    assert report.metrics == {"validation/loss": 1 / 6}


def test_a_plan_measures_it_without_more_methods(sweep):
    backends = Backends(Options("unused"), LocalFiles())
    assert backends.try_out(sweep.specification) == 0
    found = calibrate(backends, sweep.specification.studies, 0.0)
    assert found.slots == 1 and 0 < found.steps[16] < 1e-3
