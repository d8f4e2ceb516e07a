"""A TPU, whose cores share each batch: trained on if it is there."""

from __future__ import annotations

import pytest
import tensorflow as tf

from dps_tf.core import UserError
from dps_tf.training import strategy as strategies
from dps_tf.tuning.resources import Resources
from tests.training.problems import Problem, one_device


def test_a_tpu_is_one_slot_whose_cores_share_each_batch(monkeypatch):
    resolvers = tf.distribute.cluster_resolver
    monkeypatch.setattr(resolvers, "TPUClusterResolver", lambda tpu: tpu)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda tpu: None)
    cores = strategies.build("mirrored", devices=("CPU:0", "CPU:1"))
    # A class, as others ask whether a strategy is one.
    stand_in = type("TPUStrategy", (), {"__new__": lambda kind, tpu: cores})
    monkeypatch.setattr(tf.distribute, "TPUStrategy", stand_in)
    found = Resources.of_this_machine(strategy="tpu")
    assert found.strategies == (cores,) and found.replicas == 2
    with pytest.raises(UserError, match="batch size 7 cannot be split over 2"):
        Problem(batch_size=7).program(cores)


@pytest.mark.tpu
class TpuTest(tf.test.TestCase):
    """On a real TPU; the tolerance is that of its multiplications."""

    def setUp(self):
        super().setUp()
        if not tf.config.list_physical_devices("TPU"):
            self.skipTest("this machine has no TPU")

    def test_curve_is_that_of_a_cpu(self):
        [strategy] = Resources.of_this_machine(strategy="tpu").strategies
        problem = Problem(optimizer="momentum")
        curves = []
        for program in (problem.program(one_device()), problem.program(strategy)):
            problem.begin(program)
            curves.append(problem.curve(program, 20, 10)[0])
            self.assertEqual(program.traces, 1)
        self.assertAllClose(*curves, rtol=0.05)


if __name__ == "__main__":
    tf.test.main()
