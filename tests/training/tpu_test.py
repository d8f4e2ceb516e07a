"""Cores of a TPU: told apart on TensorFlow's own topology, and trained on if there."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from dps_tf.core import UserError
from dps_tf.training import strategy as strategies
from dps_tf.tuning.resources import Resources
from tests.training.problems import Problem, one_device


def topology(tasks: int, x: int, y: int, cores: int) -> tf.tpu.experimental.Topology:
    """A made-up TPU: the chips of a host are a row of the mesh."""
    coordinates = np.array(
        [
            [[i, row, 0, core] for i in range(x) for core in range(cores)]
            for row in range(y)
        ],
        np.int32,
    ).reshape(tasks, -1, 4)
    return tf.tpu.experimental.Topology(
        mesh_shape=np.array([x, y, 1, cores], np.int32), device_coordinates=coordinates
    )


@pytest.fixture(name="assignments")
def _assignments(monkeypatch):
    """A TPU v2-8 whose cores are virtual CPUs of this machine, in turn."""
    made: list[tf.tpu.experimental.DeviceAssignment | None] = []

    def strategy(kind, resolver, experimental_device_assignment=None):
        del kind, resolver
        made.append(experimental_device_assignment)
        if experimental_device_assignment is None:
            return strategies.build("mirrored", devices=("CPU:0", "CPU:1"))
        return tf.distribute.OneDeviceStrategy(f"/device:CPU:{(len(made) - 1) % 4}")

    resolvers = tf.distribute.cluster_resolver
    monkeypatch.setattr(resolvers, "TPUClusterResolver", lambda tpu: tpu)
    monkeypatch.setattr(
        tf.tpu.experimental,
        "initialize_tpu_system",
        lambda resolver: topology(1, 2, 2, 2),
    )
    # A class, as others ask whether a strategy is one.
    stand_in = type("TPUStrategy", (), {"__new__": strategy})
    monkeypatch.setattr(tf.distribute, "TPUStrategy", stand_in)
    return made


@pytest.mark.parametrize(
    ("shape", "cores"),
    [((1, 2, 2, 2), 8), ((1, 2, 4, 1), 8), ((4, 2, 4, 1), 8), ((1, 1, 1, 1), 1)],
)
def test_every_core_stands_alone_in_one_assignment(shape, cores):
    found = strategies.single_cores(topology(*shape))
    assert len(found) == cores
    assert all(one.num_replicas == one.num_cores_per_replica == 1 for one in found)
    assert len({tuple(one.coordinates(0, 0)) for one in found}) == cores
    per_task = cores // shape[0]
    assert {one.tpu_device(0, 0, "worker") for one in found} == {
        f"/job:worker/task:{task}/device:TPU:{core}"
        for task in range(shape[0])
        for core in range(per_task)
    }


def test_cores_carry_their_own_trials_or_share_each_batch(assignments):
    found = Resources.of_this_machine(strategy="tpu_cores")
    assert len(found.strategies) == 8 and found.replicas == 1
    assert all(one is not None for one in assignments)
    for slots in (3, 16):
        several = Resources.of_this_machine(slots=slots, strategy="tpu_cores")
        assert len(several.strategies) == slots
    problem = Problem(batch_size=7)
    problem.begin(program := problem.program(found.strategies[0]))
    assert program.advance(problem.order(0, 2)).steps == 2
    assignments.clear()
    whole = Resources.of_this_machine(strategy="tpu")
    assert len(whole.strategies) == 1 and whole.replicas == 2
    assert assignments == [None]
    with pytest.raises(UserError, match="batch size 7 cannot be split over 2"):
        problem.program(whole.strategies[0])


@pytest.mark.tpu
class TpuTest(tf.test.TestCase, parameterized.TestCase):
    """On a real TPU; the tolerance is that of its multiplications."""

    def setUp(self):
        super().setUp()
        if not tf.config.list_physical_devices("TPU"):
            self.skipTest("this machine has no TPU")

    @parameterized.parameters("tpu", "tpu_cores")
    def test_curve_is_that_of_a_cpu(self, name):
        found = Resources.of_this_machine(strategy=name)
        problem = Problem(optimizer="momentum")
        for strategy in {id(s): s for s in found.strategies}.values():
            curves = []
            for program in (problem.program(one_device()), problem.program(strategy)):
                problem.begin(program)
                curves.append(problem.curve(program, 20, 10)[0])
                self.assertEqual(program.traces, 1)
            self.assertAllClose(*curves, rtol=0.05)
